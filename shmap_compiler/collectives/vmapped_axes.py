"""Batching of collectives over the named axis of a vmap, inside shard_mapped programs.

JAX's own batching rules apply a collective to the positions of the vmapped axis on one device. That
is not enough if the vmapped dimension is itself split over mesh axes (`spmd_axis_name`), and most
of them do not accept a collective that also names other axes. Inside a body such collectives are
decomposed by `split_axes`; every other use of a primitive keeps JAX's rule.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend import source_info_util
from jax.interpreters import batching

from shmap_compiler.base.errors import BodyError, Problem
from shmap_compiler.base.source_lines import shown_source
from shmap_compiler.collectives import COLLECTIVES, pbroadcast_transpose, split_axes
from shmap_compiler.collectives.collective_errors import Use, refusals
from shmap_compiler.collectives.split_axes import SplitAxis


class SplitName:
    """The name of a vmapped axis of which only the minor part is vmapped on each device.

    It is equal to the `name` that collectives use. The major part lies on `mesh_axes`.
    """

    def __init__(self, name: Hashable, mesh_axes: tuple[str, ...]):
        if isinstance(name, SplitName):  # a shard_map nested in one that splits the axis
            name, mesh_axes = name.name, (*name.mesh_axes, *mesh_axes)
        self.name = name
        self.mesh_axes = mesh_axes

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SplitName):
            return (self.name, self.mesh_axes) == (other.name, other.mesh_axes)
        return self.name == other

    def __repr__(self) -> str:
        return repr(self.name)


_NARROW_IN_JAX = {"ppermute", "pbroadcast"}
"""JAX batches these for permutations that leave nobody out, and for NumPy operands, only."""

_body: ContextVar[str | None] = ContextVar("body", default=None)


@contextlib.contextmanager
def body(who: str) -> Iterator[None]:
    """The rules below apply in this context, which traces the function that `who` describes."""
    token = _body.set(who)
    try:
        yield
    finally:
        _body.reset(token)


def _batch(primitive, rule, ordinary, axis_data, args, dims, **params):
    who = _body.get()
    key = "axes" if "axes" in params else "axis_name"
    names = params[key] if isinstance(params[key], (tuple, list)) else (params[key],)
    named = tuple(n for n in names if not isinstance(n, int))
    mesh_axes = axis_data.name.mesh_axes if isinstance(axis_data.name, SplitName) else ()
    alone = len(named) == 1 and not mesh_axes and primitive.name not in _NARROW_IN_JAX
    if who is None or axis_data.name not in named or alone:
        return ordinary(axis_data, args, dims, **params)
    place = named.index(axis_data.name)
    axis = SplitAxis((*named[:place], *mesh_axes), axis_data.size, named[place + 1 :])
    arguments = {k: v for k, v in params.items() if k != key}
    use = _use(primitive.name, named, axis_data, mesh_axes, arguments)
    problems = refusals(use, [x.dtype for x in args]) or _unsupported(use, axis, dims)
    if problems:
        raise BodyError(who, problems)
    stacked = [
        jnp.broadcast_to(x, (axis_data.size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(args, dims, strict=True)
    ]
    return rule(axis, *stacked, **params)


def _use(name, named, axis_data, mesh_axes, arguments) -> Use:
    sizes = {n: lax.axis_size(n) for n in named if n != axis_data.name}
    split = math.prod(lax.axis_size(a) for a in mesh_axes)
    return Use(
        name=name,
        axes=named,
        place=shown_source(source_info_util.current()),
        sizes={**sizes, axis_data.name: axis_data.size * split},
        arguments=arguments,
    )


def _unsupported(use: Use, axis: SplitAxis, dims: Sequence[Any]) -> list[Problem]:
    split = f"an axis with {axis.slots} positions on each device, by vmap"
    if axis.slots > 1 and use.groups is not None:
        return [
            Problem(
                use.where,
                f"axis_index_groups={use.groups} along {split}",
                "groups of whole devices, or a collective over the whole axis",
                "use two axes instead of groups, or place one position on each device",
            )
        ]
    if axis.slots > 1 and use.name == "ragged_all_to_all":
        return [
            Problem(
                use.where,
                split,
                "an axis with one position on each device: slices go from device to device",
                "place one position on each device, or use all_to_all on padded slices",
            )
        ]
    if use.name == "pbroadcast_dynamic" and dims[1] is not None:
        return [
            Problem(
                use.where,
                "a source that differs along the vmapped axis",
                "one source for the whole axis",
                "compute the source from values that are not vmapped",
            )
        ]
    return []


# ------------------------------------------ from the parameters of JAX's primitives to split_axes

# Each rule takes stacked operands and returns the result and its vmapped dimension.


def _reduction(reduce: Callable[..., Any], positional: Callable[..., Any]):
    def rule(axis, x, *, axes, axis_index_groups=None):
        dims = tuple(a + 1 for a in axes if isinstance(a, int))
        x = positional(x, dims) if dims else x
        if axis_index_groups is not None:
            return _grouped(lax_reduction, x, axis, axis_index_groups)
        return reduce(x, axis), None

    lax_reduction = getattr(lax, reduce.__name__)
    return rule


def _grouped(collective: Callable[..., Any], x: Any, whole: SplitAxis, groups: Any, **params: Any):
    """A collective within groups along an axis with one slot, which lies wholly outside."""
    result = collective(x[0], whole.outside, axis_index_groups=[list(g) for g in groups], **params)
    return result[None], 0


def _all_gather(
    axis, x, *, all_gather_dimension, axis_name, axis_size, tiled, axis_index_groups=None
):
    dimension = all_gather_dimension
    x = x if tiled else jnp.expand_dims(x, dimension + 1)
    if axis_index_groups is not None:
        return _grouped(lax.all_gather, x, axis, axis_index_groups, axis=dimension, tiled=True)
    return split_axes.all_gather(x, axis, dimension), None


def _reduce_scatter(axis, x, *, scatter_dimension, axis_name, axis_index_groups, axis_size, tiled):
    dimension = scatter_dimension % (x.ndim - 1)
    if axis_index_groups is None:
        x = split_axes.psum_scatter(x, axis, dimension)
    else:
        arguments = {"scatter_dimension": dimension, "tiled": True}
        x, _ = _grouped(lax.psum_scatter, x, axis, axis_index_groups, **arguments)
    return x if tiled else jnp.squeeze(x, dimension + 1), 0


def _all_to_all(axis, x, *, split_axis, concat_axis, axis_name, axis_index_groups, tiled):
    # Untiled, JAX inserts and removes the dimension of the group around its primitive.
    split, concat = split_axis % (x.ndim - 1), concat_axis % (x.ndim - 1)
    if axis_index_groups is not None:
        arguments = {"split_axis": split, "concat_axis": concat, "tiled": True}
        return _grouped(lax.all_to_all, x, axis, axis_index_groups, **arguments)
    return split_axes.all_to_all(x, axis, split, concat), 0


def _ragged_all_to_all(axis, *operands, axis_name, axis_index_groups):
    groups = axis_index_groups and [list(g) for g in axis_index_groups]
    return split_axes.ragged_all_to_all(operands, axis, axis_index_groups=groups), 0


def _ppermute(axis, x, *, axis_name, perm):
    return split_axes.ppermute(x, axis, perm), 0


def _pbroadcast(axis, x, *, axis_name, source):
    return split_axes.pbroadcast(x, axis, source), None


def _pbroadcast_dynamic(axis, x, source, *, axis_name):
    return split_axes.pbroadcast_dynamic(x, axis, source[0]), None


def _axis_index(axis, *, axis_name):
    return split_axes.axis_index(axis), 0


_sum = _reduction(split_axes.psum, lambda x, dims: jnp.sum(x, dims, dtype=x.dtype))

_RULES: dict[str, Callable[..., Any]] = {
    "psum": _sum,
    "psum_invariant": _sum,
    "pmax": _reduction(split_axes.pmax, jnp.max),
    "pmin": _reduction(split_axes.pmin, jnp.min),
    "all_gather": _all_gather,
    "all_gather_invariant": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "ragged_all_to_all": _ragged_all_to_all,
    "ppermute": _ppermute,
    "pbroadcast": _pbroadcast,
    "pbroadcast_dynamic": _pbroadcast_dynamic,
    "axis_index": _axis_index,
}


def _register() -> None:
    """In the table of JAX's rules, as vmap finds no others; our family has rules of its own."""
    for primitive, ordinary in list(batching.fancy_primitive_batchers.items()):
        if primitive.name in _RULES and primitive not in COLLECTIVES:
            rule = _RULES[primitive.name]
            batching.fancy_primitive_batchers[primitive] = functools.partial(
                _batch, primitive, rule, ordinary
            )
            if primitive.name in pbroadcast_transpose.NAMES:
                pbroadcast_transpose.register(primitive, lambda: _body.get() is not None)


_register()
