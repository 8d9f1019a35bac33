"""Reads modules: as text, as bytecode, and as the portable artifacts of StableHLO."""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

BYTECODE = b"ML\xefR"
_PRODUCER = b"StableHLO_v"
"""What portable artifacts, such as those of `jax.export`, have near their beginning."""


class UnreadableArtifact(ValueError):
    """An artifact of a later version of StableHLO, or one that is damaged."""


def parse(source: str | bytes, context: ir.Context) -> ir.Module:
    """The module. An artifact is brought to the operations of this version of StableHLO.

    Raises:
      ir.MLIRError: it is not a module.
      UnreadableArtifact: it is an artifact that this version cannot read.
    """
    if isinstance(source, bytes) and source.startswith(BYTECODE) and _PRODUCER in source[:64]:
        artifact: Any = source
        try:
            with context:
                return stablehlo.deserialize_portable_artifact(context, artifact)
        except ValueError as error:
            raise UnreadableArtifact(f"a portable artifact that cannot be read: {error}") from None
    return ir.Module.parse(source, context)
