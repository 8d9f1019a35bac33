"""Runs a command in a process of its own, because XLA ends its process on some programs.

The process is a fork, made before JAX is imported, so it starts at once and has the same terminal,
folder and environment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import NoReturn


class Died(Exception):
    """A process ended by a signal; `name` is that of the signal, such as SIGABRT."""

    def __init__(self, number: int):
        self.name = signal.Signals(number).name
        super().__init__(self.name)


def run(execute: Callable[[], int]) -> int:
    """The status that `execute()` returns in a process of its own, or in this one without forks.

    Raises:
      Died: a signal ended the process.
    """
    if not hasattr(os, "fork"):
        return execute()
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of forks, though it has not started yet
        child = os.fork()
    if child == 0:
        _run_and_exit(execute)
    status = _wait(child)
    if os.WIFSIGNALED(status):
        raise Died(os.WTERMSIG(status))
    return os.waitstatus_to_exitcode(status)


def _run_and_exit(execute: Callable[[], int]) -> NoReturn:
    status = 1
    try:
        status = execute()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)  # what exits when the interpreter does belongs to the other process


def _wait(child: int) -> int:
    while True:
        try:
            return os.waitpid(child, 0)[1]
        except KeyboardInterrupt:  # from the terminal, which interrupts both
            continue
