"""typed: the axes along which a value varies by JAX's types, where these are known.

`jax.lax.pcast` and `all_gather(..., to="invarying")` give types that no inference finds. These
types decide with which cotangents the backward rule of a `custom_vjp` function is called, so the
results of such a function carry them (`varying_types`). Otherwise this is the identity.
"""

from __future__ import annotations

from collections.abc import Iterable

from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

typed_p = Primitive("shmap_typed")


def type_parameters(axes: Iterable[str], tracked: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The parameters of `typed_p`.

    Args:
      axes: of `tracked`, those along which the value varies.
      tracked: the axes that its type tells about; along others it varies as inference finds.
    """
    return {"along": tuple(sorted(axes)), "tracked": tuple(sorted(tracked))}


def _batcher(axis_data, args, dims, *, along, tracked):
    """Devices along mesh axes that split the vmapped axis compute different examples."""
    (x,), (d,) = args, dims
    split = getattr(axis_data.name, "mesh_axes", ())
    return typed_p.bind(x, **type_parameters({*along, *split}, {*tracked, *split})), d


typed_p.def_abstract_eval(lambda x, **_: x)
typed_p.def_impl(lambda x, **_: x)
mlir.register_lowering(typed_p, lambda ctx, x, **_: [x])
ad.deflinear2(typed_p, lambda ct, x, **_: [ct])
batching.fancy_primitive_batchers[typed_p] = _batcher
