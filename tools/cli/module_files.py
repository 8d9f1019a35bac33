"""Modules of other producers in files, which some commands take instead of a Python function."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..usage import Mistake, UsageError

if TYPE_CHECKING:
    from shmap_compiler import ImportedModule


def names_module(target: str) -> bool:
    """Whether a command line names a module, rather than a Python function."""
    return target.endswith(".mlir")


def read(target: str, others: Mapping[str, object]) -> str | bytes:
    """The module in a file: its text, or its bytecode.

    Args:
      target: its path.
      others: options that are for Python functions only, as given.

    Raises:
      UsageError: it cannot be read, or one of those options is given.
    """
    for option, given in others.items():
        if given is not None:
            fix = f"omit {option}, or name the function, FILE.py:NAME"
            found = "a module, which is one stage, with types of its own"
            raise UsageError(Mistake(option, found, "a program of Python", fix))
    from shmap_passes.files.parse import BYTECODE

    try:
        contents = Path(target).read_bytes()
        return contents if contents.startswith(BYTECODE) else contents.decode()
    except (OSError, UnicodeDecodeError) as error:
        found = getattr(error, "strerror", None) or "neither text nor bytecode"
        mistake = Mistake(f"target {target!r}", found, "a module", "check the path")
        raise UsageError(mistake) from None


def load(options: argparse.Namespace) -> ImportedModule:
    """The module that a command line names.

    Raises:
      UsageError: it cannot be read, or an option is given that is for Python functions only.
    """
    from shmap_compiler import import_module

    return import_module(
        read(options.target, {"--arg": options.args}),
        axes=axes(options),
        partitioner=options.partitioner,
        who=Path(options.target).name,
    )


def axes(options: argparse.Namespace) -> dict[str, int] | None:
    """The mesh axes of the option --mesh; None if it is not given."""
    from . import mesh_text

    return None if options.mesh is None else dict(mesh_text.parse(options.mesh))
