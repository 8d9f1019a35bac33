"""Reads and writes the part of a value that an index of a mutable reference names.

A view is a list of steps, each of which takes a part of a value or changes its form. A write
applies the steps and then undoes them in reverse order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from shmap_compiler.base.untyped import Unchecked


@dataclass(frozen=True)
class Window:
    """A block of consecutive elements; dimensions that an index names are left out of it."""

    starts: tuple[ArrayLike, ...]
    sizes: tuple[int, ...]
    left_out: tuple[int, ...]

    def take(self, x: jax.Array) -> jax.Array:
        if self.sizes == x.shape and not self.left_out and _all_zero(self.starts):
            return x
        return lax.squeeze(lax.dynamic_slice(x, self._starts(), self.sizes), self.left_out)

    def put(self, x: jax.Array, part: jax.Array) -> jax.Array:
        if self.sizes == x.shape and not self.left_out and _all_zero(self.starts):
            return part
        return lax.dynamic_update_slice(x, lax.expand_dims(part, self.left_out), self._starts())

    def _starts(self) -> list[jax.Array]:
        return [lax.convert_element_type(s, np.dtype(np.int32)) for s in self.starts]


@dataclass(frozen=True)
class Elements:
    """The elements that NumPy selects, by static slices and arrays of indices."""

    index: tuple[Unchecked, ...]

    def take(self, x: jax.Array) -> jax.Array:
        return jnp.asarray(x)[self.index]

    def put(self, x: jax.Array, part: jax.Array) -> jax.Array:
        return jnp.asarray(x).at[self.index].set(part)

    def add(self, x: jax.Array, part: jax.Array) -> jax.Array:
        """Adds to the elements; those that occur several times get the sum."""
        return jnp.asarray(x).at[self.index].add(part)


@dataclass(frozen=True)
class Reshape:
    shape: tuple[int, ...]

    def take(self, x: jax.Array) -> jax.Array:
        return lax.reshape(x, self.shape)

    def put(self, x: jax.Array, part: jax.Array) -> jax.Array:
        return lax.reshape(part, x.shape)


@dataclass(frozen=True)
class Transpose:
    permutation: tuple[int, ...]

    def take(self, x: jax.Array) -> jax.Array:
        return lax.transpose(x, self.permutation)

    def put(self, x: jax.Array, part: jax.Array) -> jax.Array:
        return lax.transpose(part, tuple(int(p) for p in np.argsort(self.permutation)))


Step = Window | Elements | Reshape | Transpose


def indexed(shape: Sequence[int], entries: Sequence[Unchecked]) -> list[Step]:
    """The steps of an index with one entry for each dimension.

    Args:
      entries: (start, size, stride) of a slice, or an array of indices; all arrays of one shape.
    """
    slices = {d: e for d, e in enumerate(entries) if isinstance(e, tuple)}
    arrays = {d: e for d, e in enumerate(entries) if d not in slices}
    unit = all(stride == 1 for _, _, stride in slices.values())
    if unit and all(np.ndim(a) == 0 for a in arrays.values()):
        return [
            Window(
                tuple(slices[d][0] if d in slices else arrays[d] for d in range(len(shape))),
                tuple(slices[d][1] if d in slices else 1 for d in range(len(shape))),
                tuple(arrays),
            )
        ]
    moving = {d for d, (start, _, _) in slices.items() if not isinstance(start, int)}
    index: list[Any] = list(entries)
    for d, (start, size, stride) in slices.items():
        first = 0 if d in moving else start
        index[d] = slice(first, first + _extent(size, stride), stride)
    elements = Elements(tuple(index))
    if not moving:
        return [elements]
    starts = tuple(slices[d][0] if d in moving else 0 for d in range(len(shape)))
    sizes = tuple(_extent(*slices[d][1:]) if d in moving else shape[d] for d in range(len(shape)))
    return [Window(starts, sizes, ()), elements]


def _extent(size: int, stride: int) -> int:
    """From the first of `size` elements to the last, both included."""
    return (size - 1) * stride + 1 if size else 0


def read(x: jax.Array, steps: Sequence[Step]) -> jax.Array:
    """The part of `x` that the steps lead to."""
    for step in steps:
        x = step.take(x)
    return x


def written(x: jax.Array, steps: Sequence[Step], part: jax.Array) -> jax.Array:
    """`x` with `part` where the steps lead to."""
    if not steps:
        return part
    first, *rest = steps
    return first.put(x, written(first.take(x), rest, part))


def added(x: jax.Array, steps: Sequence[Step], part: jax.Array) -> jax.Array:
    """`x` with `part` added where the steps lead to."""
    if not steps:
        return x + part
    first, *rest = steps
    if not rest and isinstance(first, Elements):
        return first.add(x, part)
    return first.put(x, added(first.take(x), rest, part))


def _all_zero(starts: Sequence[ArrayLike]) -> bool:
    return all(isinstance(s, int) and s == 0 for s in starts)
