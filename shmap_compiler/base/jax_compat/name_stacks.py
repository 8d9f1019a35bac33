"""Names of operations in transformed programs.

JAX names operations after the transformations around them: `jvp(block)/tanh`. The equation of a
shard_mapped program has such a name already, which XLA puts before the names of the operations in
the program. So names within the program do not change: `jvp(block)/shard_map/tanh`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, Literal

from jax.extend import source_info_util

from shmap_compiler.base.jax_compat.programs import open_jaxpr, replace_jaxpr
from shmap_compiler.base.untyped import Eqn, Function, Jaxpr, SourceInfo


def in_scopes_of_its_own(fun: Function) -> Function:
    """`fun`, whose operations are not named after a transformation around it."""

    @functools.wraps(fun)
    def scoped(*args):
        with source_info_util.reset_name_stack():
            return fun(*args)

    return scoped


def without_transpose(closed: Jaxpr) -> Jaxpr:
    """A traced program whose operations are not named after a transposition around them.

    `jax.linear_transpose` puts that name before all others.
    """
    return _renamed(closed, lambda stack: stack[1:] if stack[:1] == _TRANSPOSE else stack)


def outside_of_transpose(stack: SourceInfo) -> SourceInfo:
    """A name stack without transpositions."""
    entry = _transform("transpose")
    if entry not in stack.stack:
        return stack
    return source_info_util.NameStack(tuple(e for e in stack.stack if e != entry))


def within_scope(closed: Jaxpr, scope: SourceInfo) -> Jaxpr:
    """The program, with the names of its operations within those of a name stack."""
    return _renamed(closed, lambda stack: scope + stack)


def transforms(stack: SourceInfo, name: Literal["jvp", "transpose"]) -> int:
    """How many transformations of a name are around an operation; a user's scopes do not count."""
    return stack.stack.count(_transform(name))


@functools.cache
def _transform(name: str) -> SourceInfo:
    (entry,) = source_info_util.NameStack().transform(name).stack
    return entry


_TRANSPOSE = source_info_util.NameStack().transform("transpose")


def _renamed(closed: Jaxpr, rename: Callable[[SourceInfo], SourceInfo]) -> Jaxpr:
    """The program, or the same object if no name changes. Nested programs keep their names."""
    known: dict[int, tuple[Any, Any]] = {}  # few stacks are distinct objects

    def renamed(eqn: Eqn) -> Eqn:
        info = eqn.source_info
        old = info.name_stack
        if id(old) not in known:
            known[id(old)] = (
                old,
                rename(old),
            )  # keeps the old one alive, so that its id is not reused
        new = known[id(old)][1]
        return eqn if new is old else eqn.replace(source_info=info.replace(name_stack=new))

    old = open_jaxpr(closed).eqns
    new = [renamed(eqn) for eqn in old]
    return closed if all(map(operator.is_, new, old)) else replace_jaxpr(closed, eqns=new)
