"""What a traced program contains, read once: its primitives, and which equations hold programs.

A program is read several times on its way: to normalise, check, type, differentiate and lower it.
Nearly all of its equations hold no program. Programs are immutable, so what one reading finds of an
object is kept as long as the object lives.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shmap_compiler.base.jax_compat import Jaxpr, jaxprs_in, open_jaxpr

_holders: weakref.WeakKeyDictionary[Any, Mapping[int, Sequence[Any]]] = weakref.WeakKeyDictionary()
_primitives: weakref.WeakKeyDictionary[Any, frozenset[Any]] = weakref.WeakKeyDictionary()


def holders(jaxpr: Jaxpr) -> Mapping[int, Sequence[Any]]:
    """By their positions, the equations of a jaxpr that hold programs, and these programs."""
    program = open_jaxpr(jaxpr)
    found = _holders.get(program)
    if found is None:
        held = ((k, jaxprs_in(eqn.params)) for k, eqn in enumerate(program.eqns) if eqn.params)
        found = _holders[program] = {k: programs for k, programs in held if programs}
    return found


def equations(jaxpr: Jaxpr) -> Iterator[Any]:
    """All equations of a jaxpr and of the programs nested in it, outer ones first."""
    held = holders(jaxpr)
    for position, eqn in enumerate(open_jaxpr(jaxpr).eqns):
        yield eqn
        for inner in held.get(position, ()):
            yield from equations(inner)


def primitives(jaxpr: Jaxpr) -> frozenset[Any]:
    """The primitives of `equations`."""
    program = open_jaxpr(jaxpr)
    found = _primitives.get(program)
    if found is None:
        held = holders(program).values()
        inner = (primitives(each) for programs in held for each in programs)
        found = frozenset(eqn.primitive for eqn in program.eqns).union(*inner)
        _primitives[program] = found
    return found


def names_any(jaxpr: Jaxpr, names: Sequence[str] | frozenset[str]) -> bool:
    """Whether the program holds an equation of a primitive with one of these names."""
    return any(primitive.name in names for primitive in primitives(jaxpr))


def is_all_alive(jaxpr: Jaxpr) -> bool:
    """Whether every input and equation of a program matters to its results.

    Programs that it holds may have dead parts of their own: with them, nothing is said.
    """
    program = open_jaxpr(jaxpr)
    if holders(program):
        return False
    used = set(map(id, program.outvars))
    for eqn in program.eqns:
        used.update(map(id, eqn.invars))
    if not used.issuperset(map(id, program.invars)):
        return False
    # A dead equation feeds dead ones only, and of those the last one feeds none.
    return not any(used.isdisjoint(map(id, eqn.outvars)) for eqn in program.eqns)
