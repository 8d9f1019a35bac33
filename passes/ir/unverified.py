"""Reads attributes that no dialect verifies, and that may be of any kind."""

from __future__ import annotations

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from .memoize import memoized


def strings(attribute: ir.Attribute) -> tuple[str, ...] | None:
    """The texts of a list of strings; None if the attribute is not one."""
    try:
        return tuple(ir.StringAttr(text).value for text in ir.ArrayAttr(attribute))
    except ValueError:  # a cast that fails
        return None


def positions(attribute: ir.Attribute) -> tuple[int, ...] | None:
    """The numbers of `array<i64: ...>`; None if the attribute is not one."""
    try:
        return tuple(ir.DenseI64ArrayAttr(attribute))
    except ValueError:
        return None


@memoized
def manual_axes(attribute: ir.Attribute) -> tuple[str, ...] | None:
    """The axes of `#sdy<manual_axes{...}>`; None if the attribute is not one."""
    try:
        axes = sdy.ManualAxesAttr(attribute)
    except ValueError:
        return None
    return tuple(axes[index] for index in range(len(axes)))
