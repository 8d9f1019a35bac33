"""Primitives that exist only while a placed program is vmapped: their batching rules are all.

`contract` is a dot_general that also contracts over the names of vmapped axes. Its rule makes such
a name a contracting dimension, so that a `psum` of products is one product, as one writes it by
hand, and the array of all products is never made. `leave` moves a vmapped dimension to its place
in the result.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching

from shmap_compiler.base.untyped import AnyValue, Parameter

contract_p = Primitive("named_contraction")
leave_p = Primitive("leave_named_axis")


def leave(x: AnyValue, name: str, dimension: int | None) -> AnyValue:
    """Takes a result out of the vmap over `name`.

    Args:
      dimension: where the vmapped dimension is put. If None, the result is equal along the axis,
        and one of its elements is taken.
    """
    return leave_p.bind(x, name=name, dimension=dimension)


def _leave_type(x, *, name, dimension):
    return x


def _leave(axis, args, dims, *, name, dimension):
    (x,), (d,) = args, dims
    assert axis.name == name, (axis.name, name)  # a vmap leaves before the one around it sees it
    if dimension is None:
        return (x if d is None else lax.index_in_dim(x, 0, d, keepdims=False)), None
    if d is None:
        shape = [*jnp.shape(x)]  # of what may be a Python number
        shape.insert(dimension, axis.size)
        return jnp.broadcast_to(jnp.expand_dims(x, dimension), shape), None
    return jnp.moveaxis(x, d, dimension), None


def _contract_type(x, y, *, axes, dot):
    result = jax.eval_shape(
        lambda x, y: lax.dot_general_p.bind(x, y, **dict(dot)),
        jax.ShapeDtypeStruct(x.shape, x.dtype),
        jax.ShapeDtypeStruct(y.shape, y.dtype),
    )
    return x.update(shape=result.shape, dtype=result.dtype, weak_type=False)


def _contract(
    x: AnyValue, y: AnyValue, axes: Sequence[str], dimensions: Parameter, dot: Parameter
) -> AnyValue:
    """The contraction over `axes`, with other dimension numbers than those of `dot`."""
    dot = {**dict(dot), "dimension_numbers": dimensions}
    if not axes:
        return lax.dot_general_p.bind(x, y, **dot)
    return contract_p.bind(x, y, axes=tuple(axes), dot=tuple(dot.items()))


def _batch(axis, args, dims, *, axes, dot):
    (x, y), (dx, dy) = args, dims
    dimensions = dict(dot)["dimension_numbers"]
    (cx, cy), (bx, by) = dimensions
    rest = tuple(name for name in axes if name != axis.name)
    if axis.name in axes:
        if dx is None and dy is None:
            return _contract(x, y, rest, dimensions, dot) * axis.size, None
        if dx is None or dy is None:
            varying = x if dx is not None else y
            wider = dict(dot)["preferred_element_type"] not in (None, varying.dtype)
            if wider or jnp.issubdtype(varying.dtype, jnp.inexact):
                # A sum of the factor could overflow where the sum of the products does not.
                result, at = _along_one(x, y, dx, dy, rest, dot)
                return jnp.sum(result, at, dtype=result.dtype), None
            x = x if dx is None else jnp.sum(x, dx, dtype=x.dtype)
            y = y if dy is None else jnp.sum(y, dy, dtype=y.dtype)
            return _contract(x, y, rest, dimensions, dot), None
        contracting = (*_past(cx, dx), dx), (*_past(cy, dy), dy)
        return _contract(x, y, rest, (contracting, (_past(bx, dx), _past(by, dy))), dot), None
    if dx is not None and dy is not None:
        batch = (dx, *_past(bx, dx)), (dy, *_past(by, dy))
        return _contract(x, y, rest, ((_past(cx, dx), _past(cy, dy)), batch), dot), 0
    return _along_one(x, y, dx, dy, rest, dot)


def _along_one(
    x: AnyValue, y: AnyValue, dx: int | None, dy: int | None, axes: Sequence[str], dot: Parameter
) -> tuple[AnyValue, int | None]:
    """(contraction, its vmapped dimension) of factors of which at most one has such a dimension."""
    (cx, cy), (bx, by) = dict(dot)["dimension_numbers"]
    at = None
    if dx is not None:
        cx, bx = _past(cx, dx), _past(bx, dx)
        at = len(bx) + _free(x.ndim, cx, bx).index(dx)
    elif dy is not None:
        cy, by = _past(cy, dy), _past(by, dy)
        at = len(bx) + len(_free(jnp.ndim(x), cx, bx)) + _free(y.ndim, cy, by).index(dy)
    return _contract(x, y, axes, ((cx, cy), (bx, by)), dot), at


def _past(dimensions: Sequence[int], vmapped: int) -> tuple[int, ...]:
    """Dimensions of an element, counted in the array of all."""
    return tuple(d + (d >= vmapped) for d in dimensions)


def _free(rank: int, contracting: Sequence[int], batch: Sequence[int]) -> list[int]:
    return [d for d in range(rank) if d not in contracting and d not in batch]


contract_p.def_abstract_eval(_contract_type)
batching.fancy_primitive_batchers[contract_p] = _batch
leave_p.def_abstract_eval(_leave_type)
batching.fancy_primitive_batchers[leave_p] = _leave
