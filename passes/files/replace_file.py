"""Writes a file completely or not at all.

Everything of this project that writes files for users calls `replace_file`, so that a failure never
leaves an empty or partial file, and a command may write to its own input.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path

# `/dev/stdout` may lead to a regular file, of which others have the end open.
_DEVICES = ("/dev/", "/proc/")


def replace_file(path: str | Path, data: str | bytes) -> None:
    """Replaces the contents of `path` by `data` (text as UTF-8): all of it, or nothing on failure.

    The data goes to a temporary file in the same folder, which then takes the name. Permissions of
    an existing file are kept, symbolic links are followed. What cannot be renamed, such as a pipe
    or `/dev/null`, is written directly.

    Raises:
      OSError: the file cannot be written; it is as it was.
    """
    contents = data.encode() if isinstance(data, str) else data
    mode = _mode(path)
    if mode is not None and (not stat.S_ISREG(mode) or str(path).startswith(_DEVICES)):
        _write(path, contents)
        return
    if mode is not None and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    target = os.path.realpath(path)
    if mode is not None and not os.access(os.path.dirname(target), os.W_OK):
        _write(target, contents)  # nothing can be renamed in this folder
    else:
        _rename_over(target, contents, mode)


def _write(path: str | Path, contents: bytes) -> None:
    with open(path, "wb") as file:
        file.write(contents)


def _rename_over(target: str, contents: bytes, mode: int | None) -> None:
    folder, name = os.path.split(target)
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), target)
    temporary = os.path.join(folder, f".{name[:32]}.{secrets.token_hex(8)}")
    # Unlike one of `tempfile`, a new file gets the permissions that `open` gives, by the umask.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    handle = os.open(temporary, flags, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(contents)
        if mode is not None:
            os.chmod(temporary, stat.S_IMODE(mode))
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _mode(path: str | Path) -> int | None:
    """The mode of a file; None if there is none."""
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None
