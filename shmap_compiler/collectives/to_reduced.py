"""to_reduced: where a value that is equal on all devices becomes reduced.

`jax.lax.pcast(x, axes, to="reduced")` is where the cotangents of `x` are summed over `axes`, rather
than where the value is first combined with a varying one. On devices it is the identity. Before a
linear program is transposed (`transforms.cotangent_types`), its operand is promoted.
"""

from __future__ import annotations

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad

from shmap_compiler.collectives.base import define, same_dimension_batcher

to_reduced_p = Primitive("to_reduced")


def to_reduced(x: jax.Array, *, axes: tuple[str, ...]) -> jax.Array:
    return to_reduced_p.bind(x, axes=axes)


def _type(x, *, axes):
    return x


def _lowering(ctx, x, *, axes):
    return [x]


def _transpose(ct, x, *, axes):
    return [ct]


define(to_reduced_p, _type, _lowering, same_dimension_batcher(to_reduced_p))
ad.deflinear2(to_reduced_p, _transpose)
