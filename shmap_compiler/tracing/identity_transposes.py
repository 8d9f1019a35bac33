"""Derivatives that are the identity: of addition, and of subtraction by its first operand.

A body that differentiates shows it in its equations (`jaxprs/transposed.py`), unless all that is
transposed is the identity, as in the gradient of a bias. While it matters, these leave a copy.
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
    jvp_of_jax, transpose_of_jax = derivatives[primitive], transposes[primitive]

    def jvp(primals, tangents, **params):
        result, tangent = jvp_of_jax(primals, tangents, **params)
        return result, _copied(tangent)

    def transpose(cotangent, *operands, **params):
        return transpose_of_jax(_copied(cotangent), *operands, **params)

    derivatives[primitive], transposes[primitive] = jvp, transpose


_register(lax.add_p)
_register(lax.sub_p)
