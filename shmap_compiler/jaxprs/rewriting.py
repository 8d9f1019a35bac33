"""Rewrites programs and the programs nested in them: the one walk that all rewrites share.

A rewrite is a subclass of `Rewriter` that overrides `equation`, and `concerned` to choose the
equations that it is asked about.
`copy_equations` copies equations onto new variables, to inline a program or to instantiate one that
was traced as a template.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

from jax.extend import core as jex_core

from shmap_compiler.base.jax_compat import (
    constants_to_inputs,
    jaxprs_in,
    open_jaxpr,
    replace_jaxpr,
    replace_jaxprs_in,
)
from shmap_compiler.base.untyped import Atom, Effect, Eqn, Jaxpr, Parameter
from shmap_compiler.jaxprs.contents import holders, remember

Names = dict[Atom, Atom]
"""The atoms that take the place of variables."""


class Rewriter:
    """Rewrites the equations of a program and of the programs nested in it.

    A program is rewritten once as long as it lives, so that equations that hold one still share it,
    and what JAX derives from it and keeps with it is found again. Functions that share functions
    would take exponential time else. A program in which nothing changes stays the same object. What
    a rewriter makes of a program may depend on its own attributes, but on nothing else.
    """

    def __init__(self) -> None:
        self._changed: weakref.WeakKeyDictionary[Any, Jaxpr | None] = weakref.WeakKeyDictionary()

    def jaxpr(self, jaxpr: Jaxpr) -> Jaxpr:
        """The rewritten program, open or closed as `jaxpr` is."""
        if jaxpr not in self._changed:
            new = self.rewrite(jaxpr)
            self._changed[jaxpr] = None if new is jaxpr else new  # or it would never be freed
        changed = self._changed[jaxpr]
        return jaxpr if changed is None else changed

    def rewrite(self, jaxpr: Jaxpr) -> Jaxpr:
        """Rewrites a program that was not rewritten before."""
        inner = open_jaxpr(jaxpr)
        held = holders(inner)
        names: Names = {}
        eqns: list[Eqn] = []
        still_held: dict[int, Sequence[Jaxpr]] = {}
        done = 0
        for position in sorted(held.keys() | self.concerned(inner.eqns)):
            eqns += all_renamed(inner.eqns[done:position], names)
            (eqn,) = all_renamed([inner.eqns[position]], names)
            for new in self.equation(eqn, names):
                if programs := jaxprs_in(new.params):
                    still_held[len(eqns)] = programs
                eqns.append(new)
            done = position + 1
        eqns += all_renamed(inner.eqns[done:], names)
        effects = self.effects(inner.effects)
        unchanged = len(eqns) == len(inner.eqns) and all(map(operator.is_, eqns, inner.eqns))
        if unchanged and effects == inner.effects:
            return jaxpr
        outvars = [named(v, names) for v in inner.outvars] if names else inner.outvars
        rewritten = replace_jaxpr(jaxpr, eqns=eqns, outvars=outvars, effects=effects)
        remember(open_jaxpr(rewritten), still_held)
        return rewritten

    def concerned(self, eqns: Sequence[Eqn]) -> Iterable[int]:
        """The positions of equations that may change, besides those that hold programs."""
        return ()

    def equation(self, eqn: Eqn, names: Names) -> list[Eqn]:
        """The equations that take the place of `eqn`.

        By default only the programs that it holds are rewritten. A rule may instead set in `names`
        which atoms take the place of results.
        """
        params = replace_jaxprs_in(eqn.params, self.jaxpr)
        if params is eqn.params:
            return [eqn]
        return [eqn.replace(params=params, effects=self.effects(eqn.effects))]

    def effects(self, effects: Effect) -> Effect:
        """The effects of a rewritten program or equation that had these effects."""
        return effects


def named(atom: Atom, names: Mapping[Atom, Atom]) -> Atom:
    """The atom that takes the place of `atom`."""
    return atom if isinstance(atom, jex_core.Literal) else names.get(atom, atom)


def without_constants(closed: Jaxpr) -> Jaxpr:
    """The closed jaxpr with literals in the place of the arrays that it closes over."""
    made, values = constants_to_inputs(closed)
    if not values:
        return closed
    inner = open_jaxpr(made)
    names: Names = {
        v: jex_core.Literal(value, v.aval) for v, value in zip(inner.invars, values, strict=False)
    }
    return replace_jaxpr(
        made,
        invars=inner.invars[len(values) :],
        eqns=all_renamed(inner.eqns, names),
        outvars=[named(v, names) for v in inner.outvars],
    )


def all_renamed(eqns: list[Eqn], names: Mapping[Atom, Atom]) -> list[Eqn]:
    """The equations on the atoms that take the place of their operands."""
    return [renamed(eqn, names) for eqn in eqns] if names else eqns


def renamed(eqn: Eqn, names: Mapping[Atom, Atom]) -> Eqn:
    """The equation on the atoms that take the place of its operands."""
    invars = [named(v, names) for v in eqn.invars]
    return eqn if all(map(operator.is_, invars, eqn.invars)) else eqn.replace(invars=invars)


def in_place_of(eqn: Eqn, traced: Jaxpr) -> Eqn:
    """The only equation of a closed jaxpr, computing the variables of `eqn` from its operands.

    The arrays that the jaxpr closes over become literals.
    """
    inner = open_jaxpr(traced)
    (made,) = inner.eqns
    names: Names = dict(zip(inner.invars, eqn.invars, strict=True))
    for v, value in zip(inner.constvars, traced.consts, strict=True):
        names[v] = jex_core.Literal(value, v.aval)
    return made.replace(
        invars=[named(v, names) for v in made.invars],
        outvars=eqn.outvars,
        source_info=eqn.source_info,
        ctx=eqn.ctx,
    )


def copy_equations(
    eqns: Iterable[Eqn], names: MutableMapping[Atom, Atom], **fields: Parameter
) -> list[Eqn]:
    """Copies of equations with new variables as results.

    Args:
      eqns: the equations, in order.
      names: the atoms that take the place of variables. A result that is in it already gets this
        name; all other results are added to it.
      fields: other fields that the copies get, such as `source_info`.
    """
    copies: list[Eqn] = []
    for eqn in eqns:
        invars = [named(v, names) for v in eqn.invars]
        for var in eqn.outvars:
            if var not in names:
                names[var] = jex_core.Var(var.aval)
        outvars = [names[v] for v in eqn.outvars]
        copies.append(eqn.replace(invars=invars, outvars=outvars, **fields))
    return copies
