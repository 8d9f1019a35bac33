"""Files that commands write: checked before the work starts, then written whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from ..usage import Mistake, UsageError


def require_writable(option: str, path: str | None) -> None:
    """Raises UsageError if nothing can be written to `path`: before the work, which may be long."""
    if path is None:
        return
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path) or not os.path.basename(path):
        raise _mistake(option, path, os.strerror(errno.EISDIR))
    if not os.path.isdir(folder):
        raise _mistake(option, path, os.strerror(errno.ENOENT))
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise _mistake(option, path, os.strerror(errno.EACCES))


def write(option: str, path: str, data: str | bytes) -> None:
    """Replaces the file `path` by `data`. Raises UsageError if it cannot; the file is as it was."""
    from shmap_passes import replace_file  # which starts jaxlib

    save(option, path, lambda: replace_file(path, data))


def save(option: str, path: str, run: Callable[[], object]) -> None:
    """Calls `run`, which writes `path`, and turns an error of the system into a UsageError."""
    try:
        run()
    except OSError as error:
        raise _mistake(option, path, error.strerror or str(error)) from None


def _mistake(option: str, path: str, found: str) -> UsageError:
    return UsageError(Mistake(f"{option} {path}", found, "a file to write", "check the path"))
