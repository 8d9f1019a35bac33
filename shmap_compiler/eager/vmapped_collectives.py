"""The collectives on stacked blocks: arithmetic along the leading dimension of one array.

The vmapped layout runs a program under `jax.vmap`, over one axis that stands for all devices. Row k
of a stacked array is the block of the device at position k of the mesh. A collective meets that
axis as a `DeviceAxis`, which carries what its rule must know of the mesh.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching
from jax.sharding import AbstractMesh

from shmap_compiler import collectives as coll
from shmap_compiler.collectives.base import Groups, device_ids


@dataclass(frozen=True)
class DeviceAxis:
    """Name of the vmapped axis along which the blocks of all devices of `mesh` are stacked."""

    mesh: AbstractMesh


@dataclass(frozen=True)
class _Members:
    """Who talks to whom.

    Attributes:
      ids: for each group the positions of its devices, in its order.
      group: int[devices]: the group of each device.
      place: int[devices]: its place in its group.
    """

    ids: list[np.ndarray]
    group: np.ndarray
    place: np.ndarray

    def gathered(self, x: Any) -> Any:
        """`[devices, ...] -> [groups, place, ...]`, for groups of one size."""
        return x[np.stack(self.ids)]


def _members(axis: DeviceAxis, axes: tuple[str, ...], groups: Groups) -> _Members:
    rows = device_ids(axis.mesh, axes)
    whole = (tuple(range(rows.shape[1])),)
    ids = [row[list(group)] for group in groups or whole for row in rows]
    group, place = np.empty(rows.size, np.int32), np.empty(rows.size, np.int32)
    for k, members in enumerate(ids):
        group[members], place[members] = k, np.arange(len(members))
    return _Members(ids, group, place)


# Each rule takes and gives stacked blocks.


@dataclass(frozen=True)
class _Fold:
    """A reduction in the order, and with the intermediate type, of XLA's collectives on CPUs.

    It starts from the identity and goes through a group in its order. So rounding, the sign of
    zeros and what becomes of NaN (pmax and pmin skip it) are those of the compiled program.
    """

    combine: Callable[[Any, Any], Any]
    identity: Callable[[Any], Any]
    from_zero: bool = False

    def __call__(self, members: Any) -> Any:
        """`[groups, place, ...] -> [groups, ...]`"""
        dtype = _accumulator(members.dtype)
        parts = jnp.moveaxis(members, 1, 0).astype(dtype)
        start = jnp.full(parts.shape[1:], self.identity(dtype), dtype)
        fold = lambda total, part: (self.combine(total, part), None)  # noqa: E731
        total, _ = lax.scan(fold, start, parts, unroll=8)
        if self.from_zero:
            total = _with_positive_zeros(total)
        return total.astype(members.dtype)


def _with_positive_zeros(total: Any) -> Any:
    """Undoes that XLA takes 0 + x for x, where x is -0."""
    if jnp.issubdtype(total.dtype, jnp.complexfloating):
        return lax.complex(*map(_with_positive_zeros, (total.real, total.imag)))
    return jnp.where(total == 0, jnp.zeros_like(total), total)


def _accumulator(dtype: Any) -> Any:
    """The type in which XLA reduces values of type `dtype` on CPUs."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return dtype
    if jnp.finfo(dtype).bits <= 8:
        return jnp.float16
    return jnp.float32 if dtype == jnp.bfloat16 else dtype


def _lowest(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return -jnp.inf
    return False if jnp.issubdtype(dtype, jnp.bool_) else jnp.iinfo(dtype).min


def _highest(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.inf
    return True if jnp.issubdtype(dtype, jnp.bool_) else jnp.iinfo(dtype).max


_SUM = _Fold(lax.add, lambda dtype: 0, from_zero=True)
_MAX = _Fold(lambda total, part: jnp.where(total < part, part, total), _lowest)
_MIN = _Fold(lambda total, part: jnp.where(part < total, part, total), _highest)


def _reduction(fold: _Fold):
    def rule(axis, x, *, axes, groups, size):
        m = _members(axis, axes, groups)
        sizes = {len(ids) for ids in m.ids}
        if sizes == {1}:
            return x  # XLA removes it
        if len(sizes) == 1:
            totals = fold(m.gathered(x))
        else:
            totals = jnp.concatenate([fold(x[ids][None]) for ids in m.ids])
        return totals[m.group]

    return rule


def _all_gather(axis, x, *, axes, dimension, groups, size):
    m = _members(axis, axes, groups)
    return _join(jnp.moveaxis(m.gathered(x), 1, dimension + 1), dimension + 1)[m.group]


def _psum_scatter(axis, x, *, axes, dimension, groups, size):
    m = _members(axis, axes, groups)
    if size == 1:
        return x
    total = _SUM(m.gathered(x))
    parts = jnp.moveaxis(_split(total, dimension + 1, size), dimension + 1, 1)
    return parts[m.group, m.place]


def _all_to_all(axis, x, *, axes, split, concat, groups, size):
    m = _members(axis, axes, groups)
    parts = _split(m.gathered(x), split + 2, size)  # [group, source, ..., target, ...]
    parts = jnp.moveaxis(parts, split + 2, 1)  # [group, target, source, ...]
    return _join(jnp.moveaxis(parts, 2, concat + 2), concat + 2)[m.group, m.place]


def _ppermute(axis, x, *, axes, perm):
    rows = device_ids(axis.mesh, axes)
    source = np.full(rows.size, -1)
    for start, end in perm:
        source[rows[:, end]] = rows[:, start]
    received = x[np.maximum(source, 0)]
    if np.all(source >= 0):
        return received
    is_target = (source >= 0).reshape(-1, *(1,) * (x.ndim - 1))
    return jnp.where(is_target, received, jnp.zeros_like(received))


def _pbroadcast(axis, x, *, axes, source, size):
    m = _members(axis, axes, None)
    return x[np.stack(m.ids)[m.group, source]]


def _axis_index(axis, *, axes):
    return jnp.asarray(_members(axis, axes, None).place)


def _split(x: Any, dimension: int, parts: int) -> Any:
    """`[..., parts * n, ...] -> [..., parts, n, ...]`."""
    shape = x.shape
    return x.reshape(*shape[:dimension], parts, shape[dimension] // parts, *shape[dimension + 1 :])


def _join(x: Any, dimension: int) -> Any:
    """`[..., parts, n, ...] -> [..., parts * n, ...]`."""
    shape = x.shape
    return x.reshape(
        *shape[:dimension], shape[dimension] * shape[dimension + 1], *shape[dimension + 2 :]
    )


RULES: dict[Primitive, Callable[..., Any]] = {
    coll.psum_p: _reduction(_SUM),
    coll.pmax_p: _reduction(_MAX),
    coll.pmin_p: _reduction(_MIN),
    coll.all_gather_p: _all_gather,
    coll.psum_scatter_p: _psum_scatter,
    coll.all_to_all_p: _all_to_all,
    coll.ppermute_p: _ppermute,
    coll.pbroadcast_p: _pbroadcast,
    coll.axis_index_p: _axis_index,
}


def _batch(primitive, rule, ordinary, axis_data, args, dims, **params):
    """The rule along a DeviceAxis; along any other axis, what the primitive did before."""
    if isinstance(axis_data.name, DeviceAxis):
        stacked = [
            jnp.broadcast_to(x, (axis_data.size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
            for x, d in zip(args, dims, strict=True)
        ]
        return rule(axis_data.name, *stacked, **params), 0
    if all(d is None for d in dims):
        return primitive.bind(*args, **params), None
    return ordinary(axis_data, args, dims, **params)


for _primitive, _rule in RULES.items():
    batching.fancy_primitive_batchers[_primitive] = functools.partial(
        _batch, _primitive, _rule, batching.fancy_primitive_batchers.get(_primitive)
    )
