"""A program without its Python source: its module as a StableHLO artifact, and its signature."""

from __future__ import annotations

from dataclasses import dataclass

from shmap_compiler.records.signature import Signature


@dataclass(frozen=True, repr=False)
class PortableProgram:
    """A lowered program that compiles for any mesh of its axes on its platform.

    Attributes:
      signature: of the program; its mesh is the one it was lowered for.
      module: a StableHLO artifact, or MLIR bytecode if only this version reads it, whose `@main`
        maps the full inputs to the full outputs.
      kept: the positions of the inputs that `@main` takes: those that it uses.
      partitioner: the form of the module: "gspmd" or "shardy".
      platform: what it was lowered for: "cpu", "tpu" or "cuda".
    """

    signature: Signature
    module: bytes
    kept: tuple[int, ...]
    partitioner: str
    platform: str
