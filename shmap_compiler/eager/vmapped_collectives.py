"""The collectives on stacked blocks: the batching rules of their records, registered with JAX.

The vmapped layout runs a program under `jax.vmap`, over one axis that stands for all devices. Row k
of a stacked array is the block of the device at position k of the mesh. The rule of a collective
gets that axis as a `DeviceAxis`, which carries what it must know about the mesh.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import batching

from shmap_compiler.collectives import RECORDS
from shmap_compiler.collectives.rows import DeviceAxis

RULES: dict[Primitive, Callable[..., Any]] = {
    record.primitive: record.on_rows for record in RECORDS if record.on_rows is not None
}


def _batch(primitive, rule, ordinary, axis_data, args, dims, **params):
    """The rule along a DeviceAxis; along any other axis, the previous rule of the primitive."""
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
