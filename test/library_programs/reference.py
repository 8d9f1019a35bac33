"""The meaning of a program: one nested `jax.vmap` per mesh axis, and reshapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from library_programs.program import names_of


def reference(
    function: Callable[..., Any],
    axes: Mapping[str, int],
    in_specs: Sequence[PartitionSpec],
    out_specs: Sequence[PartitionSpec] | PartitionSpec,
) -> Callable[..., Any]:
    """What `shard_map(function, axis_names=axes, ...)` should compute, without shard_map."""

    def run(*arrays):
        blocks = [split(x, spec, axes) for x, spec in zip(arrays, in_specs, strict=True)]
        mapped = function
        for axis in reversed(axes):
            in_axes = [0 if axis in mentioned(spec) else None for spec in in_specs]
            mapped = jax.vmap(mapped, in_axes=in_axes, axis_name=axis, axis_size=axes[axis])
        results = mapped(*blocks)
        if isinstance(out_specs, PartitionSpec):
            return join(results, out_specs, axes)
        return tuple(join(x, spec, axes) for x, spec in zip(results, out_specs, strict=True))

    return run


def mentioned(spec: PartitionSpec) -> list[str]:
    return [axis for entry in spec for axis in names_of(entry)]


def split(x: Any, spec: PartitionSpec, axes: Mapping[str, int]) -> Any:
    """Blocks of `x`, one leading dimension for each axis that the spec mentions, in mesh order."""
    shape, at = [], {}
    for dim, size in enumerate(x.shape):
        names = names_of(spec[dim]) if dim < len(spec) else ()
        for axis in names:
            at[axis] = len(shape)
            shape.append(axes[axis])
        shape.append(size // prod(axes[a] for a in names))
    x = jnp.reshape(x, shape)
    order = [a for a in axes if a in at]
    return jnp.moveaxis(x, [at[a] for a in order], range(len(order)))


def join(x: Any, spec: PartitionSpec, axes: Mapping[str, int]) -> Any:
    """The full array from blocks with one leading dimension per axis; the first where not split."""
    kept = [a for a in axes if a in mentioned(spec)]
    x = x[tuple(slice(None) if a in kept else 0 for a in axes)]
    rank = x.ndim - len(kept)
    order, shape = [], []
    for dim in range(rank):
        names = names_of(spec[dim]) if dim < len(spec) else ()
        order += [kept.index(a) for a in names] + [len(kept) + dim]
        shape.append(prod(axes[a] for a in names) * x.shape[len(kept) + dim])
    return jnp.reshape(jnp.transpose(x, order), shape)
