"""Which operations store no array of their own, as they are computed where it is read."""

from __future__ import annotations

from ...ir.elementwise import ELEMENTWISE

FEW_BYTES = 8 * 2**20
"""So many more bytes than the plain program needs are not counted."""

_MOVES = {
    f"stablehlo.{name}"
    for name in ("broadcast_in_dim", "constant", "iota", "reshape", "slice", "transpose")
}


def is_fused(name: str) -> bool:
    """Whether operations with a name are computed element by element, or only move numbers."""
    return name in ELEMENTWISE or name in _MOVES
