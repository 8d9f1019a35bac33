"""Files that commands write: checked before the work starts, then written whole or not at all.

The path `-` is standard output, as is usual for text. What a command prints besides is then printed
to standard error.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Mapping

from ..usage import Mistake, UsageError

STDOUT = "-"


def require_writable(option: str, path: str | None, *, is_text: bool = True) -> None:
    """Raises UsageError if nothing can be written to `path`: before the work, which may be long."""
    if path == STDOUT and not is_text:
        raise _mistake(option, path, "standard output, for what is not text", "name a file")
    if path in (None, STDOUT):
        return
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path) or not os.path.basename(path):
        raise _mistake(option, path, os.strerror(errno.EISDIR))
    if not os.path.isdir(folder):
        raise _mistake(option, path, os.strerror(errno.ENOENT))
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise _mistake(option, path, os.strerror(errno.EACCES))


def require_one_text(paths: Mapping[str, str | None]) -> None:
    """Raises UsageError if several options, by name, write to standard output."""
    *others, last = [option for option, path in paths.items() if path == STDOUT] or [""]
    if others:
        found = f"standard output, to which {' and '.join(others)} writes"
        raise _mistake(last, STDOUT, found, "name a file")


def printing_beside(*paths: str | None) -> contextlib.AbstractContextManager[object]:
    """Prints to standard error what is printed inside, if one of the paths is standard output."""
    if STDOUT in paths:
        return contextlib.redirect_stdout(sys.stderr)
    return contextlib.nullcontext()


def write(option: str, path: str, text: str) -> None:
    """Replaces the file `path` by `text`. Raises UsageError if it cannot; the file is as it was."""
    from shmap_passes import replace_file  # which starts jaxlib

    if path == STDOUT:
        print(text, end="")
    else:
        save(option, path, lambda: replace_file(path, text))


def save(option: str, path: str, run: Callable[[], object]) -> None:
    """Calls `run`, which writes `path`, and turns an error of the system into a UsageError."""
    try:
        run()
    except OSError as error:
        raise _mistake(option, path, error.strerror or str(error)) from None


def _mistake(option: str, path: str, found: str, fix: str = "check the path") -> UsageError:
    return UsageError(Mistake(f"{option} {path}", found, "a file to write", fix))
