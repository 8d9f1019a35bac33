"""Whether a program holds equations that a reverse-mode derivative made."""

from __future__ import annotations

from typing import Any

from shmap_compiler.base.jax_compat import Eqn, Jaxpr, jaxprs_in, open_jaxpr
from shmap_compiler.jaxprs.contents import holders


def transposes(jaxpr: Jaxpr) -> bool:
    """Whether a traced program holds equations that a reverse-mode derivative made.

    JAX itself transposes the operator of each `custom_linear_solve`, whether or not anybody takes a
    derivative.
    """
    stacks: dict[int, Any] = {}

    def collect(program: Any) -> None:
        eqns = open_jaxpr(program).eqns
        stacks.update((id(s), s) for s in [eqn.source_info.name_stack for eqn in eqns])
        for position in holders(program):
            for held in jaxprs_in(_as_the_user_gave_it(eqns[position])):
                collect(held)

    collect(jaxpr)
    return any("transpose(" in str(stack) for stack in stacks.values())  # few are different objects


def _as_the_user_gave_it(eqn: Eqn) -> dict[str, Any]:
    """The parameters of an equation without what JAX made of them by transposition."""
    if eqn.primitive.name != "custom_linear_solve":
        return eqn.params
    programs = eqn.params["jaxprs"]
    return {"matvec": programs.matvec, "solve": programs.solve}
