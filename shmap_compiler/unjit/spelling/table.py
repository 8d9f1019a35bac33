"""The table: from the name of an operation to its spelling."""

from __future__ import annotations

from shmap_compiler.unjit.spelling import (
    collectives,
    elementwise,
    indexing,
    products,
    reductions,
    shapes,
)
from shmap_compiler.unjit.spelling.operation import Row

SPELLINGS: dict[str, Row] = {
    **elementwise.ROWS,
    **shapes.ROWS,
    **products.ROWS,
    **collectives.ROWS,
    **reductions.ROWS,
    **indexing.ROWS,
}
