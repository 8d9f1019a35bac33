"""Whether a program contains transposed equations: of a derivative, or of a solver's operator."""

from __future__ import annotations

from typing import Any

from shmap_compiler.base.jax_compat import jaxprs_in, open_jaxpr
from shmap_compiler.base.jax_compat.name_stacks import transforms
from shmap_compiler.base.untyped import Eqn, Jaxpr, Parameter
from shmap_compiler.jaxprs.contents import equations, holders, names_any


def transposes(jaxpr: Jaxpr) -> bool:
    """Whether a traced program contains equations that a reverse-mode derivative made.

    The operator of each `custom_linear_solve` does not count: JAX transposes it even if no
    derivative is taken.
    """
    stacks: dict[int, Any] = {}
    seen: set[int] = set()

    def collect(program: Jaxpr) -> None:
        program = open_jaxpr(program)
        if id(program) in seen:  # Several equations hold it.
            return
        seen.add(id(program))
        eqns = program.eqns
        last = None
        for eqn in eqns:
            stack = eqn.source_info.name_stack
            if stack is not last:
                stacks[id(stack)] = last = stack
        for position in holders(program):
            for held in jaxprs_in(_as_the_user_gave_it(eqns[position])):
                collect(held)

    collect(jaxpr)
    return any(transforms(stack, "transpose") for stack in stacks.values())  # few are different


def copies_tangents(jaxpr: Jaxpr) -> bool:
    """Whether a program contains copies that `identity_transposes` left in a derivative."""
    return names_any(jaxpr, ["copy"]) and any(
        eqn.primitive.name == "copy" and transforms(eqn.source_info.name_stack, "jvp") > 0
        for eqn in equations(jaxpr)
    )


def _as_the_user_gave_it(eqn: Eqn) -> dict[str, Parameter]:
    """The parameters of an equation without what JAX made of them by transposition."""
    if eqn.primitive.name != _SOLVER:
        return eqn.params
    programs = eqn.params["jaxprs"]
    return {"matvec": programs.matvec, "solve": programs.solve}


def transposes_operator_with(jaxpr: Jaxpr, primitives: frozenset[str]) -> bool:
    """Whether JAX transposed the operator of a solver, and the result contains such primitives.

    The operator of a symmetric solver is its own transpose.
    """
    if not names_any(jaxpr, [_SOLVER]):
        return False
    solvers = (e.params["jaxprs"] for e in equations(jaxpr) if e.primitive.name == _SOLVER)
    return any(
        each.vecmat is not None
        and each.vecmat is not each.matvec
        and names_any(each.vecmat, primitives)
        for each in solvers
    )


_SOLVER = "custom_linear_solve"
