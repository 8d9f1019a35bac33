"""Which operations store no array of their own, as they are computed where it is read."""

from __future__ import annotations

from jaxlib.mlir import ir

from ..ir.elementwise import ELEMENTWISE

FEW_BYTES = 8 * 2**20
"""So many more bytes than the plain program needs are not counted."""

_MOVES = {
    f"stablehlo.{name}"
    for name in ("broadcast_in_dim", "constant", "iota", "reshape", "slice", "transpose")
}


def is_fused(op: ir.Operation) -> bool:
    """Whether an operation is computed element by element, or only moves numbers."""
    return op.name in ELEMENTWISE or op.name in _MOVES
