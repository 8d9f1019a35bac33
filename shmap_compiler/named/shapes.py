"""Shapes with named dimensions."""

from __future__ import annotations


class NamedShape:
    """The shape of an array with named axes: dimensions, and the sizes of named axes.

    Args:
      *dimensions: The sizes of dimensions.
      **named: The sizes of named axes.

    Examples:
      >>> named.NamedShape(3, batch=4)
      NamedShape(3, batch=4)
    """

    def __init__(self, *dimensions: int, **named: int):
        self.dimensions = dimensions
        self.named = named

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NamedShape):
            return NotImplemented
        return (self.dimensions, self.named) == (other.dimensions, other.named)

    def __hash__(self) -> int:
        return hash((self.dimensions, frozenset(self.named.items())))

    def __repr__(self) -> str:
        named = [f"{name}={size}" for name, size in self.named.items()]
        return f"NamedShape({', '.join([*map(str, self.dimensions), *named])})"
