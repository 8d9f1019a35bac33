"""Names for types that jaxlib's stubs leave without arguments."""

from __future__ import annotations

from typing import Any, TypeAlias

from jaxlib.mlir import ir

Value: TypeAlias = "ir.Value[Any]"
"""An SSA value. Its argument is the class of its type, which MLIR's bindings do not track."""

BlockArgument: TypeAlias = "ir.BlockArgument[Any]"
"""An argument of a block: of a function, or of the region of an operation."""
