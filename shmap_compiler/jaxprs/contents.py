"""Reads traced programs: their primitives, and which of their equations hold programs.

A program is read several times on its way through the compiler: to canonicalize, check, type,
differentiate and lower it. Most of its equations hold no program. Programs are immutable, so each
is walked once, and the result is kept as long as the program lives.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from jax.extend.core import Primitive

from shmap_compiler.base.jax_compat import jaxprs_in, open_jaxpr
from shmap_compiler.base.untyped import Eqn, Jaxpr

T = TypeVar("T")


def once_per_jaxpr(compute: Callable[[Jaxpr], T]) -> Callable[[Jaxpr], T]:
    """Caches a function of a jaxpr on the jaxpr, as long as the jaxpr lives.

    The result must not refer to the jaxpr itself, or neither would ever be freed.
    """
    known: weakref.WeakKeyDictionary[Any, T] = weakref.WeakKeyDictionary()

    @functools.wraps(compute)
    def remembered(jaxpr: Jaxpr) -> T:
        result = known.get(jaxpr)
        if result is None:
            result = known[jaxpr] = compute(jaxpr)
        return result

    return remembered


@dataclass(frozen=True, slots=True)
class _Contents:
    """
    Attributes:
      holders: The programs held by each equation that holds some, by the position of the equation.
      primitives: The primitives of the program and of the programs nested in it.
    """

    holders: Mapping[int, Sequence[Jaxpr]]
    primitives: frozenset[Primitive]


@once_per_jaxpr
def _contents(program: Jaxpr) -> _Contents:
    """Walks an open jaxpr. Programs nested in it that were read before are not walked again."""
    holders: dict[int, Sequence[Jaxpr]] = {}
    primitives: set[Primitive] = set()
    for position, eqn in enumerate(program.eqns):
        primitives.add(eqn.primitive)
        if eqn.params and (held := jaxprs_in(eqn.params)):
            holders[position] = held
            for inner in held:
                primitives |= _contents(open_jaxpr(inner)).primitives
    return _Contents(holders, frozenset(primitives))


def holders(jaxpr: Jaxpr) -> Mapping[int, Sequence[Jaxpr]]:
    """The programs held by each equation that holds some, by the position of the equation."""
    return _contents(open_jaxpr(jaxpr)).holders


def primitives(jaxpr: Jaxpr) -> frozenset[Primitive]:
    """The primitives of `equations`."""
    return _contents(open_jaxpr(jaxpr)).primitives


def equations(jaxpr: Jaxpr) -> Iterator[Eqn]:
    """All equations of a jaxpr and of the programs nested in it, outer ones first."""
    program = open_jaxpr(jaxpr)
    held = _contents(program).holders
    for position, eqn in enumerate(program.eqns):
        yield eqn
        for inner in held.get(position, ()):
            yield from equations(inner)


def names_any(jaxpr: Jaxpr, names: Sequence[str] | frozenset[str]) -> bool:
    """Whether the program contains an equation of a primitive with one of these names."""
    return any(primitive.name in names for primitive in primitives(jaxpr))


def is_all_alive(jaxpr: Jaxpr) -> bool:
    """Whether every input and equation of a program is known to affect its results.

    False for a program that holds others, because these may have dead parts of their own.
    """
    program = open_jaxpr(jaxpr)
    if holders(program):
        return False
    used = set(map(id, program.outvars))
    for eqn in program.eqns:
        used.update(map(id, eqn.invars))
    if not used.issuperset(map(id, program.invars)):
        return False
    # If any equation is dead, so is the last of the dead ones, whose results nothing reads.
    return not any(used.isdisjoint(map(id, eqn.outvars)) for eqn in program.eqns)
