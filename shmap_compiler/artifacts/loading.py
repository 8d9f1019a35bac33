"""load: what a saved program becomes when it is read."""

from __future__ import annotations

from pathlib import Path

from shmap_compiler.artifacts import executables, portables
from shmap_compiler.artifacts.container import unpack
from shmap_compiler.executable import Executable
from shmap_compiler.portable import Portable


def load(path: str | Path) -> Portable | Executable:
    """The program in a file that `save` wrote.

    A compiled program is brought onto its devices and can be called. A lowered one is a `Portable`:
    `.compile(target)` makes it an executable. Neither needs the source of the program.

    A compiled program is stored as a pickle, which may run any code: load files only from those you
    trust.

    Raises:
      ArtifactError: the file is none of ours, or made by other versions or for other devices.
    """
    container = unpack(path)
    if container.kind == portables.KIND:
        return portables.read_portable(container)
    return executables.read_executable(container)
