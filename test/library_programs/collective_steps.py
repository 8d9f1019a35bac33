"""Collectives, each followed by what brings its result back to the shape of a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import lax

from library_programs.program import SIZE, Axes, Operation, union


def names(axis) -> tuple[str, ...]:
    return (axis,) if isinstance(axis, str) else axis


def same_for_all(mesh: Mapping[str, int], *sets: Axes, axis, **params: Any) -> Axes:
    return union(mesh, *sets) - set(names(axis))


def own_for_each(mesh: Mapping[str, int], *sets: Axes, axis, **params: Any) -> Axes:
    return union(mesh, *sets) | set(names(axis))


def one_axis(scope) -> dict[str, Any]:
    return {"axis": scope.axis()}


def some_axes(scope) -> dict[str, Any]:
    return {"axis": scope.axes()}


def permutation(scope) -> dict[str, Any]:
    axis = scope.axis()
    n = scope.mesh[axis]
    sources, targets = scope.shuffled(range(n)), scope.shuffled(range(n))
    pairs = tuple(zip(sources, targets, strict=True))[: scope.choose(range(1, n + 1))]
    return {"axis": axis, "pairs": pairs}


def size(axis) -> int:
    return lax.axis_size(axis)


def gathered(how, x, axis, tiled):
    if tiled:
        return jnp.tanh(lax.all_gather(x, axis, tiled=True).reshape(-1, SIZE)).sum(0) / 2
    return lax.all_gather(x, axis).var(0) + x * 0


def gathered_matrix(how, a, axis):
    return a @ lax.all_gather(a, axis, axis=1, tiled=True).reshape(SIZE, -1, SIZE).mean(1) / 2


def scattered(how, x, axis):
    whole = jnp.concatenate([x * (k + 1) for k in range(size(axis))])
    return lax.psum_scatter(whole, axis, tiled=True) / (2 * size(axis))


def scattered_rows(how, a, axis):
    part = lax.psum_scatter(a, axis, scatter_dimension=0, tiled=True) / 2
    return jnp.tile(part, (size(axis), 1))


def exchanged(how, a, axis, split, concat):
    if how.shard_map is None:  # `jax.vmap` gives a wrong shape where `a` is the same for all
        a = a + 0 * lax.axis_index(axis)
    return lax.all_to_all(a, axis, split, concat, tiled=True).reshape(SIZE, SIZE)


def permuted(how, x, axis, pairs):
    n = size(axis)
    if how.shard_map is not None or len(pairs) == n:
        return lax.ppermute(x, axis, pairs)
    # `jax.vmap` takes permutations of all indices only.
    sources = {target: source for source, target in pairs}
    whole = lax.all_gather(x, axis)
    received = jnp.stack([whole[sources[k]] if k in sources else 0 * x for k in range(n)])
    return received[lax.axis_index(axis)]


def position(how, x, axis):
    return x + jnp.sin(lax.axis_index(axis) + x)


COLLECTIVE: dict[str, Operation] = {
    "psum": Operation(
        "v", "v", lambda how, x, axis: lax.psum(x, axis) / 2, same_for_all, some_axes
    ),
    "psum_scalar": Operation(
        "s", "s", lambda how, x, axis: jnp.tanh(lax.psum(x, axis)), same_for_all, some_axes
    ),
    "psum_pair": Operation(
        "vm",
        "m",
        lambda how, x, a, axis: (
            jnp.outer(*([lax.psum((x, a), axis)[0] / 2] * 2)) + lax.psum((x, a), axis)[1] / 4
        ),
        same_for_all,
        some_axes,
    ),
    "pmean": Operation("m", "m", lambda how, a, axis: lax.pmean(a, axis), same_for_all, some_axes),
    "gathered": Operation(
        "v",
        "v",
        gathered,
        union,  # `x` itself is part of the result; see `varying_gathered`
        lambda scope: {"axis": scope.axis(), "tiled": False},
    ),
    "gathered_tiled": Operation(
        "v", "v", gathered, same_for_all, lambda scope: {"axis": scope.axis(), "tiled": True}
    ),
    "gathered_matrix": Operation("m", "m", gathered_matrix, union, one_axis),
    "scattered": Operation("v", "v", scattered, own_for_each, one_axis),
    "scattered_rows": Operation("m", "m", scattered_rows, own_for_each, one_axis),
    "exchanged": Operation(
        "m",
        "m",
        exchanged,
        own_for_each,
        lambda scope: {
            "axis": scope.axis(),
            "split": scope.choose([0, 1]),
            "concat": scope.choose([0, 1]),
        },
    ),
    "permuted": Operation(
        "v",
        "v",
        lambda how, x, axis, pairs: permuted(how, x, axis, pairs) + x,
        own_for_each,
        permutation,
    ),
    "permuted_matrix": Operation(
        "m",
        "m",
        permuted,
        own_for_each,
        permutation,
    ),
    "position": Operation("v", "v", position, own_for_each, some_axes),
    "norm_over": Operation(
        "v",
        "v",
        lambda how, x, axis: x / jnp.sqrt(lax.psum(jnp.sum(x * x), axis) + 0.1),
        union,
        some_axes,
    ),
    "softmax_over": Operation(
        "v",
        "v",
        lambda how, x, axis: jnp.exp(x) / lax.psum(jnp.sum(jnp.exp(x)), axis),
        union,
        some_axes,
    ),
    "largest": Operation(
        "v",
        "v",
        lambda how, x, axis: (
            lax.pmax(lax.stop_gradient(x), axis) - lax.pmin(lax.stop_gradient(x), axis)
        ),
        same_for_all,
        some_axes,
    ),
}
