"""Collectives along an axis of which each device holds several positions.

`vmap` may put one part of a named axis on mesh axes and keep the rest, the slots, on each device.
Each function takes one operand with its slots stacked as dimension 0, `[slots, ...]`, and works on
what `jax.lax` calls: what can be combined on the device is combined there, and what is left goes
through one `jax.lax` collective over the axes outside. Positions are row-major: those along
`SplitAxis.before` are major, those along `SplitAxis.after` minor.

Dimensions are those of the operand of one slot, counted from 0. Splitting and concatenating
collectives are tiled.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shmap_compiler.base.untyped import AnyValue, AxisName, Function, Parameter
from shmap_compiler.collectives.nans import propagating


@dataclass(frozen=True)
class SplitAxis:
    """A sequence of axes, one of which is (in part) stacked on each device.

    Attributes:
      before: names of the axes that are major to the slots: of the mesh, or of other vmaps.
      slots: the number of positions on each device.
      after: names of the axes that are minor to the slots.
    """

    before: tuple[AxisName, ...]
    slots: int
    after: tuple[AxisName, ...] = ()

    @property
    def outside(self) -> tuple[AxisName, ...]:
        return (*self.before, *self.after)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The number of positions along `before`, of slots, and of positions along `after`."""
        return _size(self.before), self.slots, _size(self.after)

    def place(self, position: int) -> tuple[int, int]:
        """(index along `outside`, slot) of a position along the whole axis."""
        major, slot, minor = np.unravel_index(position, self.shape)
        return int(major * self.shape[2] + minor), int(slot)


def _size(names: Sequence[AxisName]) -> int:
    return math.prod(lax.axis_size(name) for name in names)


# ------------------------------------------------- results that all slots share: `[...]`, no slots


def psum(x: jax.Array, axis: SplitAxis) -> jax.Array:
    total = jnp.sum(x, 0, dtype=x.dtype)
    return lax.psum(total, axis.outside) if axis.outside else total


def pmax(x: jax.Array, axis: SplitAxis) -> jax.Array:
    largest = jnp.max(x, 0)
    return propagating(lax.pmax, largest, axis.outside) if axis.outside else largest


def pmin(x: jax.Array, axis: SplitAxis) -> jax.Array:
    smallest = jnp.min(x, 0)
    return propagating(lax.pmin, smallest, axis.outside) if axis.outside else smallest


def all_gather(x: jax.Array, axis: SplitAxis, dimension: int) -> jax.Array:
    if axis.after:
        x = lax.all_gather(x, axis.after, axis=dimension + 1, tiled=True)
    x = _merge(jnp.moveaxis(x, 0, dimension), dimension, 2)
    return lax.all_gather(x, axis.before, axis=dimension, tiled=True) if axis.before else x


def pbroadcast(x: jax.Array, axis: SplitAxis, source: int) -> jax.Array:
    index, slot = axis.place(source)
    return lax.pbroadcast(x[slot], axis.outside, index) if axis.outside else x[slot]


def pbroadcast_dynamic(x: jax.Array, axis: SplitAxis, source: AnyValue) -> jax.Array:
    """Like `pbroadcast`, from a position that is computed."""
    _, slots, minor = axis.shape
    mine = lax.dynamic_index_in_dim(x, source // minor % slots, 0, keepdims=False)
    index = source // (slots * minor) * minor + source % minor
    return lax.pbroadcast(mine, axis.outside, index) if axis.outside else mine


# -------------------------------------------------------- results of each slot: `[slots, ...]`


def psum_scatter(x: jax.Array, axis: SplitAxis, dimension: int) -> jax.Array:
    total = _unmerge(jnp.sum(x, 0, dtype=x.dtype), dimension, axis.shape)
    if axis.before:
        total = lax.psum_scatter(total, axis.before, scatter_dimension=dimension, tiled=True)
    if axis.after:
        total = lax.psum_scatter(total, axis.after, scatter_dimension=dimension + 2, tiled=True)
    own = jnp.moveaxis(_merge(total, dimension, 2), dimension, 0)  # [slots, ..., 1, part, ...]
    return _merge(own, dimension + 1, 2)


def all_to_all(x: jax.Array, axis: SplitAxis, split: int, concat: int) -> jax.Array:
    x = _unmerge(x, split + 1, axis.shape)  # [from slot, ..., before, to slot, after, part, ...]
    if axis.before:
        x = lax.all_to_all(x, axis.before, split + 1, split + 1, tiled=True)
    if axis.after:
        x = lax.all_to_all(x, axis.after, split + 3, split + 3, tiled=True)
    # Received: [to slot, ..., from (before, slot, after), ...]
    source = (split + 1, 0, split + 3)
    x = jnp.moveaxis(x, (split + 2, *source), (0, concat + 1, concat + 2, concat + 3))
    return _merge(x, concat + 1, 4)


def ppermute(x: jax.Array, axis: SplitAxis, perm: Sequence[tuple[int, int]]) -> jax.Array:
    """Sends what leaves a device, and no more: one ppermute per pair of slots that needs one."""
    rounds: dict[int, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for source, target in perm:
        (source_index, source_slot), (index, slot) = axis.place(source), axis.place(target)
        rounds[slot][source_slot].append((source_index, index))
    return jnp.stack([_received(x, axis, rounds[slot]) for slot in range(axis.slots)])


def _received(x: jax.Array, axis: SplitAxis, rounds: dict[int, list[tuple[int, int]]]) -> jax.Array:
    """What one slot receives: `rounds` holds, for each slot that sends, pairs of devices."""
    result = jnp.zeros_like(x[0])
    for slot, pairs in sorted(rounds.items()):
        sent, targets = x[slot], [target for _, target in pairs]
        moves = [(source, target) for source, target in pairs if source != target]
        stays = [target for source, target in pairs if source == target]
        piece = lax.ppermute(sent, axis.outside, moves) if moves else sent
        if moves and stays:
            piece = jnp.where(_among(stays, axis), sent, piece)
        result = jnp.where(_among(targets, axis), piece, result)
    return result


def _among(devices: Sequence[int], axis: SplitAxis) -> jax.Array | bool:
    """Whether this device is one of `devices`, by their indices along the axes outside."""
    table = np.zeros(_size(axis.outside), bool)
    table[list(devices)] = True
    return True if table.all() else jnp.asarray(table)[lax.axis_index(axis.outside)]


def axis_index(axis: SplitAxis) -> jax.Array:
    """int32[slots]."""
    _, slots, minor = axis.shape
    index = jnp.arange(slots, dtype=np.int32) * minor
    if axis.before:
        index = index + lax.axis_index(axis.before) * (slots * minor)
    return index + lax.axis_index(axis.after) if axis.after else index


def ragged_all_to_all(
    operands: Sequence[AnyValue], axis: SplitAxis, **params: Parameter
) -> AnyValue:
    """Only for one slot: offsets count in the rows of one position."""
    (result,) = [lax.ragged_all_to_all(*[x[0] for x in operands], axis_name=axis.outside, **params)]
    return result[None]


# ----------------------------------------------------------------------------------------- groups


def grouped(
    collective: Function, x: jax.Array, whole: SplitAxis, groups: Parameter, **params: Parameter
) -> tuple[AxisName, ...]:
    """A collective within groups along an axis with one slot, all of it across devices."""
    result = collective(x[0], whole.outside, axis_index_groups=[list(g) for g in groups], **params)
    return result[None], 0


# ------------------------------------------------------------------------------------- dimensions


def _merge(x: jax.Array, dimension: int, count: int) -> jax.Array:
    """Makes one dimension of `count` of them."""
    shape = x.shape
    merged = math.prod(shape[dimension : dimension + count])
    return x.reshape(*shape[:dimension], merged, *shape[dimension + count :])


def _unmerge(x: jax.Array, dimension: int, sizes: Sequence[int]) -> jax.Array:
    """Makes a dimension into dimensions of these sizes and one for the rest."""
    shape = x.shape
    rest = shape[dimension] // math.prod(sizes)
    return x.reshape(*shape[:dimension], *sizes, rest, *shape[dimension + 1 :])
