"""What the rules of collectives on stacked blocks share.

Eager mode may keep the blocks of all devices on one device: row k of a stacked array is the block
of the device at position k of the mesh. There a collective is arithmetic along the leading
dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh

from shmap_compiler.base.untyped import AnyValue, DType, Function
from shmap_compiler.collectives.base import DeviceGroups, device_ids


@dataclass(frozen=True)
class DeviceAxis:
    """Name of the vmapped axis along which the blocks of all devices of `mesh` are stacked."""

    mesh: AbstractMesh


@dataclass(frozen=True)
class Members:
    """The groups of devices that communicate.

    Attributes:
      ids: for each group the positions of its devices, in its order.
      group: int[devices]: the group of each device.
      place: int[devices]: the position of each device in its group.
    """

    ids: list[np.ndarray]
    group: np.ndarray
    place: np.ndarray

    def gathered(self, x: jax.Array) -> jax.Array:
        """`[devices, ...] -> [groups, place, ...]`, for groups of one size."""
        return x[np.stack(self.ids)]


def members(axis: DeviceAxis, axes: tuple[str, ...], groups: DeviceGroups) -> Members:
    rows = device_ids(axis.mesh, axes)
    whole = (tuple(range(rows.shape[1])),)
    ids = [row[list(group)] for group in groups or whole for row in rows]
    group, place = np.empty(rows.size, np.int32), np.empty(rows.size, np.int32)
    for k, positions in enumerate(ids):
        group[positions], place[positions] = k, np.arange(len(positions))
    return Members(ids, group, place)


def split(x: jax.Array, dimension: int, parts: int) -> jax.Array:
    """`[..., parts * n, ...] -> [..., parts, n, ...]`."""
    shape = x.shape
    return x.reshape(*shape[:dimension], parts, shape[dimension] // parts, *shape[dimension + 1 :])


def join(x: jax.Array, dimension: int) -> jax.Array:
    """`[..., parts, n, ...] -> [..., parts * n, ...]`."""
    shape = x.shape
    return x.reshape(
        *shape[:dimension], shape[dimension] * shape[dimension + 1], *shape[dimension + 2 :]
    )


# ------------------------------------------------------------------------------------ reductions


@dataclass(frozen=True)
class Fold:
    """A reduction in the order, and with the intermediate type, of XLA's collectives on CPUs.

    It starts from the identity and goes through a group in its order. So rounding, the sign of
    zeros and what becomes of NaN (pmax and pmin skip it) are those of the compiled program.
    """

    combine: Callable[[AnyValue, AnyValue], AnyValue]
    identity: Callable[[AnyValue], AnyValue]
    from_zero: bool = False

    def __call__(self, members: AnyValue) -> AnyValue:
        """`[groups, place, ...] -> [groups, ...]`"""
        dtype = _accumulator(members.dtype)
        parts = jnp.moveaxis(members, 1, 0).astype(dtype)
        start = jnp.full(parts.shape[1:], self.identity(dtype), dtype)
        fold = lambda total, part: (self.combine(total, part), None)  # noqa: E731
        total, _ = lax.scan(fold, start, parts, unroll=8)
        if self.from_zero:
            total = _with_positive_zeros(total)
        return total.astype(members.dtype)


def _with_positive_zeros(total: AnyValue) -> AnyValue:
    """Undoes XLA's simplification of 0 + x to x, which differ where x is -0."""
    if jnp.issubdtype(total.dtype, jnp.complexfloating):
        return lax.complex(*map(_with_positive_zeros, (total.real, total.imag)))
    return jnp.where(total == 0, jnp.zeros_like(total), total)


def _accumulator(dtype: DType) -> AnyValue:
    """The type in which XLA reduces values of type `dtype` on CPUs."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return dtype
    if jnp.finfo(dtype).bits <= 8:
        return jnp.float16
    return jnp.float32 if dtype == jnp.bfloat16 else dtype


def _lowest(dtype: DType) -> AnyValue:
    if jnp.issubdtype(dtype, jnp.floating):
        return -jnp.inf
    return False if jnp.issubdtype(dtype, jnp.bool_) else jnp.iinfo(dtype).min


def _highest(dtype: DType) -> AnyValue:
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.inf
    return True if jnp.issubdtype(dtype, jnp.bool_) else jnp.iinfo(dtype).max


SUM = Fold(lax.add, lambda dtype: 0, from_zero=True)
MAX = Fold(lambda total, part: jnp.where(total < part, part, total), _lowest)
MIN = Fold(lambda total, part: jnp.where(part < total, part, total), _highest)


def reduction(fold: Fold) -> Function:
    """The rule of a collective that reduces over its groups."""

    def rule(axis, x, *, axes, groups, size):
        m = members(axis, axes, groups)
        sizes = {len(ids) for ids in m.ids}
        if sizes == {1}:
            return x  # XLA removes it
        if len(sizes) == 1:
            totals = fold(m.gathered(x))
        else:
            totals = jnp.concatenate([fold(x[ids][None]) for ids in m.ids])
        return totals[m.group]

    return rule
