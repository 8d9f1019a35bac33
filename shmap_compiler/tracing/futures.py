"""Puts values in the place of futures, which collectives that a body starts return until they end.

XLA's scheduler decides when a collective starts and ends, also if the program says so. What else
XLA does to the two forms differs: docs/overlap.md, "Collectives that a program starts".
"""

from __future__ import annotations

from shmap_compiler.base.jax_compat import (
    is_future,
    open_jaxpr,
    replace_jaxpr,
    replace_jaxprs_in,
    settled,
)
from shmap_compiler.base.untyped import Atom, Aval, Eqn, Jaxpr, Parameter
from shmap_compiler.jaxprs.contents import names_any
from shmap_compiler.jaxprs.rewriting import Names, Rewriter, named
from shmap_compiler.tracing.canonicalize_collectives import STARTS


def without_futures(jaxpr: Jaxpr) -> Jaxpr:
    """The closed `jaxpr` on values; what starts a collective is yet to become the collective."""
    return OnOtherTypes().jaxpr(jaxpr) if names_any(jaxpr, STARTS) else jaxpr


class OnOtherTypes(Rewriter):
    """Gives variables of other types to programs, and so rewrites every equation."""

    def rewrite(self, jaxpr: Jaxpr) -> Jaxpr:
        inner = open_jaxpr(jaxpr)
        names: Names = {}
        constvars = [self.variable(v, names) for v in inner.constvars]
        invars = [self.variable(v, names) for v in inner.invars]
        eqns = [new for eqn in inner.eqns for new in self.equation(eqn, names)]
        outvars = [named(v, names) for v in inner.outvars]
        return replace_jaxpr(jaxpr, constvars=constvars, invars=invars, eqns=eqns, outvars=outvars)

    def variable(self, var: Atom, names: Names) -> Atom:
        """The variable of another type, if its type changes."""
        aval = self.type_for(var.aval)
        if aval is not var.aval:
            names[var] = type(var)(aval)
        return named(var, names)

    def type_for(self, aval: Aval) -> Aval:
        """The type that takes the place of `aval`; the same object if none does."""
        return settled(aval)

    def equation(self, eqn: Eqn, names: Names) -> list[Eqn]:
        invars = [named(v, names) for v in eqn.invars]
        if self.changes_type_only(eqn):
            names.update(zip(eqn.outvars, invars, strict=True))
            return []
        fields = self.fields(eqn)
        outvars = [self.variable(v, names) for v in eqn.outvars]
        return [eqn.replace(invars=invars, outvars=outvars, **fields)]

    def changes_type_only(self, eqn: Eqn) -> bool:
        """Whether an equation returns its operand, which is the same value on other types."""
        return eqn.primitive.name.endswith(_ENDS) and any(is_future(v.aval) for v in eqn.invars)

    def fields(self, eqn: Eqn) -> dict[str, Parameter]:
        """The other fields of an equation that change."""
        return {"params": replace_jaxprs_in(eqn.params, self.jaxpr)}


_ENDS = "_done"
"""How the names of primitives end that take a future and return its value."""
