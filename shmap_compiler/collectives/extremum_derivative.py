"""The derivative of pmax and pmin, which JAX does not define.

It is that of a maximum over a dimension, as `jnp.max` has it: the tangent of the result is that of
the largest block, and the mean of their tangents where several blocks are equally large. The
transpose sends the cotangent to these blocks, in equal parts.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad

from shmap_compiler.base.untyped import Function
from shmap_compiler.base.values import as_weak


def define_derivative(
    primitive: Primitive, psum: Function, applies: Callable[[], bool] = lambda: True
) -> None:
    """
    Args:
      primitive: an extremum of one operand over `axes`, dimensions of the operand among them.
      psum: the sum over the same groups: of an operand and the parameters of `primitive`.
      applies: whether the derivative exists where it is asked for; elsewhere there is none, as in
        JAX.
    """

    def rule(primals, tangents, *, axes, **params):
        (x,), (tangent,) = primals, tangents
        if not applies():
            raise NotImplementedError(f"Differentiation rule for '{primitive}' not implemented")
        result = primitive.bind(x, axes=axes, **params)
        if type(tangent) is ad.Zero:
            return result, ad.Zero(jax.typeof(result).to_tangent_aval())
        dimensions = tuple(a for a in axes if isinstance(a, int))
        chosen = (x == jnp.expand_dims(result, dimensions)).astype(tangent.dtype)
        chosen = as_weak(chosen, jax.typeof(tangent).weak_type)
        count = jnp.expand_dims(psum(chosen, axes=axes, **params), dimensions)
        return result, psum(tangent * (chosen / count), axes=axes, **params)

    ad.primitive_jvps[primitive] = rule


def define_in_bodies(primitive: Primitive, in_body: Callable[[], bool]) -> None:
    """Gives JAX's own primitive the derivative in bodies, which may take derivatives themselves.

    Args:
      in_body: whether the body of a shard_mapped function is being traced.
    """

    def psum(x, *, axes, axis_index_groups):
        return lax.psum(x, axes, axis_index_groups=axis_index_groups)

    define_derivative(primitive, psum, in_body)
