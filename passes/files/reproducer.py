"""Reproducers: a module in a file, with the shmap-opt command that runs the same passes on it."""

from __future__ import annotations

import inspect
import shlex
import tempfile
from collections.abc import Iterable, Iterator

from jaxlib.mlir import ir

from ..base import Pass
from ..ir.printing import TextFormat


def write_reproducer(module: ir.Module, passes: Iterable[Pass | str]) -> str:
    """Writes a module to a temporary file.

    Args:
      module: before the passes.
      passes: what is to be run on it.

    Returns:
      The command that runs the passes on the file, which also is the file's first line.
    """
    passes = tuple(passes)
    with tempfile.NamedTemporaryFile(
        "w", prefix="shmap-reproducer-", suffix=".mlir", delete=False, encoding="utf-8"
    ) as file:
        pipeline = f"builtin.module({','.join(map(str, passes))})"
        files = (word for path in _files_of(passes) for word in ("--load-pass", path))
        command = shlex.join(["shmap-opt", file.name, *files, f"--pass-pipeline={pipeline}"])
        file.write(f"// {command}\n{TextFormat(debug_info=True).text(module.operation)}")
    return command


def _files_of(passes: Iterable[Pass | str]) -> Iterator[str]:
    """The files that define passes which shmap-opt does not know by itself."""
    ours = __name__.partition(".")[0]
    for path in dict.fromkeys(
        inspect.getsourcefile(type(pass_))
        for pass_ in passes
        if isinstance(pass_, Pass) and type(pass_).__module__.partition(".")[0] != ours
    ):
        if path is not None:
            yield path
