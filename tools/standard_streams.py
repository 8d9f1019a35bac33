"""Standard input and output of a command: closed, full, or read by a command that has ended."""

from __future__ import annotations

import errno
import os
import sys

INTERRUPTED = 130
"""The exit status of a command that the user has ended, as shells give it."""


def open_standard_streams() -> None:
    """Opens those that were closed before the command started, so that it can be written to them.

    What is written then is lost, and nothing is read.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 it stays open


def drop_output() -> None:
    """Drops what is still to be written, of which Python would complain when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_of_output(error: OSError) -> bool:
    """Whether standard output takes no more, rather than a file that is named."""
    return error.errno in (errno.ENOSPC, errno.EIO, errno.EBADF) and error.filename is None
