"""Operations that devices do together: those of `jax.lax`, simulated by `oracle.collective`."""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import jax.numpy as jnp
import oracle
from jax import lax

from programs.body import Axes, Draw, Rule, Stuck, union


def collective(name: str, varying: Callable[..., Axes], draw: Draw) -> Rule:
    return Rule(getattr(lax, name), partial(oracle.collective, name), varying, draw)


def axis_names(axis_name: str | tuple[str, ...]) -> tuple[str, ...]:
    return (axis_name,) if isinstance(axis_name, str) else axis_name


def same_for_all(mesh, *sets, axis_name, axis_index_groups=None, **params) -> Axes:
    """All devices of the axes receive the same, unless groups keep them apart."""
    if axis_index_groups is not None:
        return own_for_each(mesh, *sets, axis_name=axis_name)
    return union(mesh, *sets) - set(axis_names(axis_name))


def own_for_each(mesh, *sets, axis_name, **params) -> Axes:
    return union(mesh, *sets) | set(axis_names(axis_name))


def draw_axes(scope) -> tuple[dict[str, Any], int]:
    """Draws one or several axes in any order; the number is that of the devices along them."""
    axes = scope.shuffled(scope.mesh)[: scope.choose(range(1, len(scope.mesh) + 1))]
    spelling = scope.choose([axes[0], axes]) if len(axes) == 1 else axes
    return {"axis_name": spelling}, prod(scope.mesh[axis] for axis in axes)


def draw_teams(scope, equal: bool = True) -> tuple[dict[str, Any], int]:
    """Like `draw_axes`, sometimes with groups; the number is that of the devices in one group."""
    params, size = draw_axes(scope)
    if not scope.choose([False, False, True]):
        return params, size
    order = scope.shuffled(range(size))
    if equal:
        length = scope.choose([n for n in range(1, size + 1) if size % n == 0])
        groups = tuple(order[start : start + length] for start in range(0, size, length))
    else:
        length = scope.choose(range(1, size + 1))
        groups = tuple(group for group in (order[:length], order[length:]) if group)
    return {**params, "axis_index_groups": groups}, length


def draw_all_reduce(scope):
    return [scope.operand()], draw_teams(scope, equal=False)[0]


def draw_pmean(scope):
    # jax.lax divides by the size of the first group, which is no mean where others differ.
    params, size = draw_teams(scope)
    if size.bit_count() > 1:  # XLA may multiply by the reciprocal, which is rounded
        raise Stuck
    return [scope.operand()], params


def draw_all_gather(scope):
    tiled = scope.choose([True, False])
    if tiled:  # StableHLO has no all_gather along a dimension of size zero
        x, axis = scope.operand_and_dim(lambda v, dim: v.shape[dim] > 0)
    else:
        x = scope.operand()
        axis = scope.choose(range(len(scope[x].shape) + 1))
    return [x], {**draw_teams(scope)[0], "axis": axis, "tiled": tiled}


def draw_shared_dim(scope) -> tuple[int, int, dict[str, Any]]:
    """Draws an operand with a dimension that the devices of a collective can share."""
    params, size = draw_teams(scope)
    tiled = scope.choose([True, False])
    fits = (lambda n: n > 0 and n % size == 0) if tiled else (lambda n: n == size)
    x, dim = scope.operand_and_dim(lambda v, dim: fits(v.shape[dim]))
    return x, dim, {**params, "tiled": tiled}


def draw_psum_scatter(scope):
    x, dim, params = draw_shared_dim(scope)
    if scope[x].kind == "b":  # jax.lax does not count booleans here
        raise Stuck
    return [x], {**params, "scatter_dimension": dim}


def draw_all_to_all(scope):
    x, dim, params = draw_shared_dim(scope)
    concat = scope.choose(range(len(scope[x].shape)))
    return [x], {**params, "split_axis": dim, "concat_axis": concat}


def draw_ppermute(scope):
    params, size = draw_axes(scope)
    sources, targets = scope.shuffled(range(size)), scope.shuffled(range(size))
    perm = tuple(zip(sources, targets, strict=True))[: scope.choose(range(size, 0, -1))]
    return [scope.operand()], {**params, "perm": perm}


def draw_pshuffle(scope):
    params, size = draw_axes(scope)
    return [scope.operand()], {**params, "perm": scope.shuffled(range(size))}


def draw_pbroadcast(scope):
    params, size = draw_axes(scope)
    return [scope.operand()], {**params, "source": scope.choose(range(size))}


def draw_position(scope):
    return (), draw_axes(scope)[0]


COLLECTIVE: dict[str, Rule] = {
    "psum": collective("psum", same_for_all, draw_all_reduce),
    "pmean": collective("pmean", same_for_all, draw_pmean),
    "pmax": collective("pmax", same_for_all, draw_all_reduce),
    "pmin": collective("pmin", same_for_all, draw_all_reduce),
    "all_gather": collective("all_gather", same_for_all, draw_all_gather),
    "psum_scatter": collective("psum_scatter", own_for_each, draw_psum_scatter),
    "all_to_all": collective("all_to_all", own_for_each, draw_all_to_all),
    "ppermute": collective("ppermute", own_for_each, draw_ppermute),
    "pshuffle": collective("pshuffle", own_for_each, draw_pshuffle),
    "pbroadcast": collective("pbroadcast", same_for_all, draw_pbroadcast),
    "axis_index": collective("axis_index", own_for_each, draw_position),
    # A Python integer in jax.lax, and so no value of a program until it is made an array.
    "axis_size": Rule(
        lambda axis_name: jnp.int32(lax.axis_size(axis_name)),
        partial(oracle.collective, "axis_size"),
        same_for_all,
        draw_position,
    ),
}
COMMUNICATES = COLLECTIVE.keys() - {"axis_index", "axis_size"}
