"""save: writes a file completely or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from shmap_passes import replace_file

from shmap_compiler.base.descriptions import show_value
from shmap_compiler.base.errors import ArtifactError, Problem


def write_file(path: str | Path, who: str, data: bytes) -> None:
    """Replaces the contents of `path`.

    Args:
      who: the user's function, for the error.

    Raises:
      ArtifactError: `path` is not a path.
      OSError: the file cannot be written. An existing file is unchanged.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        problem = Problem(
            "path",
            show_value(path),
            "the path of a file, a string or a pathlib.Path",
            "write e.g. save('program.bin')",
        )
        raise ArtifactError(who, [problem])
    replace_file(path, data)
