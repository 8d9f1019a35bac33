"""Tells rules for `jax.vmap` that are JAX's from those of users and other packages.

A rule of JAX's computes for each element of the batch what the primitive computes. Any other may
do what its author wants of a `jax.vmap`: combine the elements of the batch, or raise an error. An
eager call must not run it, as the user's program contains no `jax.vmap`.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator

from jax.extend.core import Primitive
from jax.interpreters import batching

from shmap_compiler.base.untyped import AnyValue

_KNOWN = {"jax", "jaxlib", "shmap_compiler"}


def has_foreign_rule(primitive: Primitive) -> bool:
    """Whether another package than JAX and this one says what `jax.vmap` of a primitive means.

    False for a primitive without a rule, and for one whose rule a function of JAX's made, such as
    `jax.interpreters.batching.defvectorized`.
    """
    if not _is_known(type(primitive).__module__):  # it may override `bind`
        return True
    rule = batching.fancy_primitive_batchers.get(primitive)
    return rule is not None and not all(map(_is_known, _modules(rule, set())))


def _is_known(module: str) -> bool:
    return module.partition(".")[0] in _KNOWN


def _modules(rule: AnyValue, seen: set[int]) -> Iterator[str]:
    """The modules that define a rule and what it calls: what it wraps, binds or closes over.

    `jax.interpreters.batching.primitive_batchers` wraps each rule in a function of JAX's.
    """
    if id(rule) in seen:
        return
    seen.add(id(rule))
    if isinstance(rule, functools.partial):
        parts = [rule.func, *rule.args, *rule.keywords.values()]
    elif isinstance(rule, types.MethodType):
        parts = [rule.__func__]
    else:
        parts = [rule.__wrapped__] if hasattr(rule, "__wrapped__") else []
        if isinstance(rule, types.FunctionType):
            # Unlike `__module__`, this is not copied by `functools.wraps`.
            yield str(rule.__globals__.get("__name__"))
            parts += _closed_over(rule)
        elif not parts:
            yield rule.__module__ if isinstance(rule, type) else type(rule).__module__
    for part in filter(callable, parts):
        yield from _modules(part, seen)


def _closed_over(function: types.FunctionType) -> Iterator[AnyValue]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
