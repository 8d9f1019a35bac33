"""Numbers that know their derivative, for the oracle's side of `grad` and `jvp`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from oracle import Blocks


@dataclass(frozen=True)
class Dual:
    """A value, and how it changes as the arguments move in some direction.

    Both are of one kind: arrays, lists of blocks, or dual again, which makes second derivatives.
    Only floats are dual. Integers and booleans have no derivative, and stay what they are.
    """

    primal: Any
    tangent: Any


def each(function: Callable[..., Any], *values: Any) -> Any:
    """`function`, which must be linear, applied to the parts that dual values are made of."""
    if not isinstance(values[0], Dual):
        return function(*values)
    return Dual(
        each(function, *(value.primal for value in values)),
        each(function, *(value.tangent for value in values)),
    )


def innermost(value: Any) -> Any:
    """The value without any derivative."""
    return innermost(value.primal) if isinstance(value, Dual) else value


def order(value: Any) -> int:
    """Of the derivative that the value holds; 0 if it holds none."""
    return 1 + order(value.primal) if isinstance(value, Dual) else 0


def zeros(blocks: Blocks) -> Blocks:
    return [np.zeros_like(block) for block in blocks]


def plus(left: Blocks, right: Blocks) -> Blocks:
    return [x + y for x, y in zip(left, right, strict=True)]


def times(factors: Blocks, blocks: Blocks) -> Blocks:
    return [factor * block for factor, block in zip(factors, blocks, strict=True)]
