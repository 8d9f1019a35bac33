"""load: reads saved programs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, overload

from shmap_compiler.artifacts import executables, portables
from shmap_compiler.artifacts.checks import Malformed
from shmap_compiler.artifacts.container import reading, unpack
from shmap_compiler.base.descriptions import show_value
from shmap_compiler.base.errors import ArtifactError, Problem
from shmap_compiler.base.untyped import Json
from shmap_compiler.stages.executable import Executable
from shmap_compiler.stages.portable import Portable

_PARTS = {
    portables.KIND: portables.parts_of_portable,
    executables.KIND: executables.parts_of_executable,
}


@overload
def load(path: str | Path, *, kind: None = None) -> Portable | Executable: ...


@overload
def load(path: str | Path, *, kind: Literal["portable"]) -> Portable: ...


@overload
def load(path: str | Path, *, kind: Literal["executable"]) -> Executable: ...


def load(path: str | Path, *, kind: str | None = None) -> Portable | Executable:
    """Loads a program that was saved with `save`.

    Neither kind of file needs the source of the program.

    A compiled program is stored as a pickle, which can run any code: load such files only from
    sources you trust. With `kind="portable"` nothing is unpickled, and files of another kind are
    rejected. The readers of MLIR and XLA, which are written in C++, can still end the process on a
    forged module.

    Args:
      path: The file.
      kind: "portable" for a lowered program, "executable" for a compiled one, None for either.

    Returns:
      A `Portable`, to be compiled for a target, or an `Executable`, which is loaded onto its
      devices and can be called.

    Raises:
      ArtifactError: The file was not written by this package, is damaged, is of another kind, or
        was made by other versions or for other devices.

    Examples:
      >>> import tempfile
      >>> f = shard_map(jnp.sin, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     f.lower(x).save(f"{folder}/sin.bin")
      ...     program = load(f"{folder}/sin.bin", kind="portable")
      >>> program.compile("cpu:8")(x).shape
      (16,)
    """
    if kind is not None and kind not in _PARTS:
        problem = Problem(
            f"kind={kind!r}",
            show_value(kind),
            f"one of {', '.join(map(repr, _PARTS))}, or None for either",
            "write kind='portable' for a file that Lowered.save wrote",
        )
        raise ArtifactError(None, [problem])

    def parts_of(header: Json) -> dict[str, int | None]:
        found = header["kind"]
        if found not in _PARTS or kind not in (None, found):
            needed = "one of " + ", ".join(map(repr, _PARTS)) if kind is None else repr(kind)
            raise Malformed(f"a file of kind {found!r:.60}", f"a file of kind {needed}")
        return _PARTS[found](header)

    container = unpack(path, parts_of)
    with reading(path, container.where):
        if container.kind == portables.KIND:
            return Portable.of(portables.read_portable(container))
        return Executable.of(executables.read_executable(container))
