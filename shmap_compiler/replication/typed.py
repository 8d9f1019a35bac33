"""typed: the axes along which a value varies by JAX's types, where these are known.

`jax.lax.pcast` and `all_gather(..., to="invarying")` give types that no inference finds. These
types decide with which cotangents the backward rule of a `custom_vjp` function is called, so the
results of such a function carry them (`varying_types`). Otherwise this is the identity.
"""

from __future__ import annotations

from collections.abc import Iterable

from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from shmap_compiler.base.untyped import AnyValue

typed_p = Primitive("shmap_typed")


def typed(x: AnyValue, axes: Iterable[str]) -> AnyValue:
    """`x`, of a type that varies along `axes`."""
    return typed_p.bind(x, along=tuple(sorted(axes)))


def _batcher(axis_data, args, dims, *, along):
    """Devices along mesh axes that split the vmapped axis compute different examples."""
    (x,), (d,) = args, dims
    return typed(x, {*along, *getattr(axis_data.name, "mesh_axes", ())}), d


typed_p.def_abstract_eval(lambda x, *, along: x)
typed_p.def_impl(lambda x, *, along: x)
mlir.register_lowering(typed_p, lambda ctx, x, *, along: [x])
ad.deflinear2(typed_p, lambda ct, x, *, along: [ct])
batching.fancy_primitive_batchers[typed_p] = _batcher
