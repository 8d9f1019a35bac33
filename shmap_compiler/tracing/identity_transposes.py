"""Derivatives that are the identity, of operations that combine an operand with others.

A body that differentiates shows it in its equations (`jaxprs/transposed.py`), unless all that is
transposed is the identity, as in the gradient of a bias: of addition, of subtraction, remainders
and additions at indices by their first operand. While it matters, these leave a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager

import jax
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad

from shmap_compiler.base.untyped import AnyValue

# A context of JAX's: the program of a jitted function is kept for each of its values.
_leave_copies = jax.make_user_context(default_value=False)


@contextmanager
def shown() -> Iterator[None]:
    """In this context, the derivatives below leave an equation, which is transposed to one."""
    with _leave_copies(True):
        yield


def _copied(tangent: AnyValue) -> AnyValue:
    if not _leave_copies.value or type(tangent) is ad.Zero:
        return tangent
    return lax.copy_p.bind(tangent)


def _register(primitive: Primitive) -> None:
    derivatives: MutableMapping[Primitive, Callable[..., AnyValue]] = ad.primitive_jvps
    transposes: MutableMapping[Primitive, Callable[..., AnyValue]] = ad.primitive_transposes
    jvp_of_jax = derivatives[primitive]

    def jvp(primals, tangents, **params):
        result, tangent = jvp_of_jax(primals, tangents, **params)
        return result, _copied(tangent)

    derivatives[primitive] = jvp
    if primitive not in transposes:  # such as a remainder, which is not linear
        return
    transpose_of_jax = transposes[primitive]

    def transpose(cotangent, *operands, **params):
        return transpose_of_jax(_copied(cotangent), *operands, **params)

    transposes[primitive] = transpose


for _primitive in (
    lax.add_p,
    lax.sub_p,
    lax.rem_p,
    lax.scatter_add_p,
    lax.scatter_sub_p,
    ad.add_jaxvals_p,
):
    _register(_primitive)
