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

from jax.extend.core import Literal, Primitive

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
      names: Those of the primitives.
    """

    holders: Mapping[int, Sequence[Jaxpr]]
    primitives: frozenset[Primitive]
    names: frozenset[str]


_known: weakref.WeakKeyDictionary[Any, _Contents] = weakref.WeakKeyDictionary()


def _contents(program: Jaxpr) -> _Contents:
    """Reads an open jaxpr. Programs that were read before are not walked again."""
    contents = _known.get(program)
    if contents is None:
        held = {
            position: found
            for position, eqn in enumerate(program.eqns)
            if eqn.params and (found := jaxprs_in(eqn.params))
        }
        return remember(program, held)
    return contents


def remember(program: Jaxpr, holders: Mapping[int, Sequence[Jaxpr]]) -> _Contents:
    """Keeps the contents of an open jaxpr whose `holders` are known, so that it is not walked."""
    primitives = {eqn.primitive for eqn in program.eqns}
    for held in holders.values():
        primitives.update(*(_contents(open_jaxpr(inner)).primitives for inner in held))
    names = frozenset(primitive.name for primitive in primitives)
    contents = _known[program] = _Contents(holders, frozenset(primitives), names)
    return contents


def holders(jaxpr: Jaxpr) -> Mapping[int, Sequence[Jaxpr]]:
    """The programs held by each equation that holds some, by the position of the equation."""
    return _contents(open_jaxpr(jaxpr)).holders


def primitives(jaxpr: Jaxpr) -> frozenset[Primitive]:
    """The primitives of `equations`."""
    return _contents(open_jaxpr(jaxpr)).primitives


def equations(jaxpr: Jaxpr) -> Iterator[Eqn]:
    """All equations of a jaxpr and of the programs nested in it, outer ones first.

    A program that several equations hold is visited once: functions that share functions hold
    exponentially many occurrences of them.
    """
    visited: set[int] = set()

    def visit(program: Jaxpr) -> Iterator[Eqn]:
        visited.add(id(program))
        held = _contents(program).holders
        for position, eqn in enumerate(program.eqns):
            yield eqn
            for inner in map(open_jaxpr, held.get(position, ())):
                if id(inner) not in visited:
                    yield from visit(inner)

    return visit(open_jaxpr(jaxpr))


def names_any(jaxpr: Jaxpr, names: Sequence[str] | frozenset[str]) -> bool:
    """Whether the program contains an equation of a primitive with one of these names."""
    return not _contents(open_jaxpr(jaxpr)).names.isdisjoint(names)


def is_all_alive(jaxpr: Jaxpr) -> bool:
    """Whether every input and equation of a program is known to affect its results.

    False for a program that holds others, because these may have dead parts of their own.
    """
    program = open_jaxpr(jaxpr)
    if holders(program):
        return False
    used = {v for eqn in program.eqns for v in eqn.invars if not isinstance(v, Literal)}
    used.update(v for v in program.outvars if not isinstance(v, Literal))
    if not used.issuperset(program.invars):
        return False
    # If any equation is dead, so is the last of the dead ones, whose results nothing reads.
    return not any(used.isdisjoint(eqn.outvars) for eqn in program.eqns)
