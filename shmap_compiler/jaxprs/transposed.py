"""Whether a program contains transposed equations: of a derivative, or of a solver's operator."""

from __future__ import annotations

from collections.abc import Collection
from itertools import compress
from typing import Any

from jax.extend.core import Literal

from shmap_compiler.base.jax_compat import jaxprs_in, open_jaxpr
from shmap_compiler.base.jax_compat.name_stacks import transforms
from shmap_compiler.base.untyped import Atom, Jaxpr, Parameter
from shmap_compiler.jaxprs.contents import equations, holders, names_any
from shmap_compiler.jaxprs.held_programs import JITS


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
            eqn = eqns[position]
            for held in jaxprs_in(as_the_user_gave_it(eqn.primitive.name, eqn.params)):
                collect(held)

    collect(jaxpr)
    return any(transforms(stack, "transpose") for stack in stacks.values())  # few are different


def uses_transposed(jaxpr: Jaxpr) -> bool:
    """Whether a transposed program contains a derivative and computes with what this gives.

    Otherwise it only returns it, or linear functions of it that need no other values.
    """
    uses, _ = _transposed_results(open_jaxpr(jaxpr), frozenset(), 1)
    return uses


def _transposed_results(
    program: Jaxpr, made: Collection[Atom], around: int
) -> tuple[bool, list[bool]]:
    """(whether a program computes with what derivatives give, which of its results these give).

    Args:
      made: the inputs that derivatives give.
      around: how many transpositions are around all of its operations.
    """
    given = set(made)
    held = holders(program)
    for position, eqn in enumerate(program.eqns):
        operands = [v for v in eqn.invars if not isinstance(v, Literal)]
        taken = [v for v in operands if v in given]
        if transforms(eqn.source_info.name_stack, "transpose") > around:
            given.update(eqn.outvars)
        elif eqn.primitive.name in JITS:
            (inner,) = map(open_jaxpr, held[position])
            inputs = [a for a, v in zip(inner.invars, eqn.invars, strict=True) if v in taken]
            # Names in it do not include those around it.
            uses, results = _transposed_results(inner, inputs, 0)
            if uses:
                return True, []
            given.update(compress(eqn.outvars, results))
        elif any(map(transposes, held.get(position, ()))):
            return True, []
        elif taken:
            if eqn.primitive.name not in _LINEAR or len(taken) < len(operands):
                return True, []
            given.update(eqn.outvars)
    return False, [not isinstance(v, Literal) and v in given for v in program.outvars]


_LINEAR = frozenset(
    {"add", "add_any", "convert_element_type", "copy", "neg", "pvary", "reshape", "sub"}
    | {"squeeze", "transpose", "broadcast_in_dim", "reduce_sum"}
)
"""Operations that commute with sums, if all their operands are summed."""


def copies_tangents(jaxpr: Jaxpr) -> bool:
    """Whether a program contains copies that `identity_transposes` left in a derivative."""
    return names_any(jaxpr, ["copy"]) and any(
        eqn.primitive.name == "copy" and transforms(eqn.source_info.name_stack, "jvp") > 0
        for eqn in equations(jaxpr)
    )


def as_the_user_gave_it(primitive: str, params: dict[str, Parameter]) -> dict[str, Parameter]:
    """The parameters of an equation without what JAX made of them by transposition."""
    if primitive != _SOLVER:
        return params
    programs: Any = params["jaxprs"]
    return {"matvec": programs.matvec, "solve": programs.solve}


def transposes_operator_with(jaxpr: Jaxpr, primitives: frozenset[str]) -> bool:
    """Whether JAX transposed the operator of a solver, and the result contains such primitives."""
    return names_any(jaxpr, [_SOLVER]) and any(
        is_solver_with(e.primitive.name, e.params, primitives) for e in equations(jaxpr)
    )


def is_solver_with(
    primitive: str, params: dict[str, Parameter], primitives: frozenset[str]
) -> bool:
    """Whether an equation is a solver whose transposed operator contains such primitives.

    The operator of a symmetric solver is its own transpose.
    """
    if primitive != _SOLVER:
        return False
    programs: Any = params["jaxprs"]
    transposed = programs.vecmat is not None and programs.vecmat is not programs.matvec
    return transposed and names_any(programs.vecmat, primitives)


_SOLVER = "custom_linear_solve"
