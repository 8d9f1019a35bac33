"""A backward rule with the types of its function, where JAX's types of varying values are known."""

from __future__ import annotations

from dataclasses import dataclass

from shmap_compiler.base.meshes import Axes
from shmap_compiler.base.untyped import AnyValue, Wrapped


@dataclass(frozen=True)
class TypedRule:
    """A backward rule, and the axes along which operands, results and residuals vary.

    Attributes:
      asks: whether its code seems to query these types.
    """

    rule: Wrapped
    operands: tuple[Axes, ...]
    results: tuple[Axes, ...]
    residuals: tuple[Axes, ...] = ()
    asks: bool = False

    def __call__(self, *args: AnyValue) -> AnyValue:
        return self.rule.call_wrapped(*args)
