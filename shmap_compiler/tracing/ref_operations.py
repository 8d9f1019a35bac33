"""What takes the place of operations on mutable references: making, reading and writing them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import lax
from jax.extend import core as jex_core

from shmap_compiler.base import ref_views
from shmap_compiler.base.errors import BodyError
from shmap_compiler.base.jax_compat import ref_view, value_type
from shmap_compiler.base.untyped import Eqn, Leaf
from shmap_compiler.tracing.ref_program import ValueProgram, unknown_use


def _new_ref(program: ValueProgram, eqn: Eqn) -> None:
    _refuse_memory_space(program, eqn)
    program.inline(eqn, lambda x: [x], [program.read(v) for v in eqn.invars], [], eqn.outvars)


def _empty_ref(program: ValueProgram, eqn: Eqn) -> None:
    _refuse_memory_space(program, eqn)
    t = value_type(eqn.outvars[0].aval)
    program.inline(eqn, lambda: [jnp.zeros(t.shape, t.dtype)], [], [], eqn.outvars)


def _free_ref(program: ValueProgram, eqn: Eqn) -> None:
    """Nothing refers to the value afterwards."""


def _freeze(program: ValueProgram, eqn: Eqn) -> None:
    (ref,), (out,) = eqn.invars, eqn.outvars
    program.atoms[out] = program.refs[ref]


def _get(program: ValueProgram, eqn: Eqn) -> None:
    program.put_program(
        eqn, lambda x, *leaves: [ref_views.read(x, _steps(program, eqn, leaves))], []
    )


def _swap(program: ValueProgram, eqn: Eqn) -> None:
    def swapped(x, value, *leaves):
        steps = _steps(program, eqn, leaves)
        return [ref_views.read(x, steps), ref_views.written(x, steps, value)]

    program.put_program(eqn, swapped, eqn.invars[:1])


def _addupdate(program: ValueProgram, eqn: Eqn) -> None:
    def added(x, value, *leaves):
        return [ref_views.added(x, _steps(program, eqn, leaves), value)]

    program.put_program(eqn, added, eqn.invars[:1])


def _steps(program: ValueProgram, eqn: Eqn, leaves: Sequence[Leaf]) -> list[ref_views.Step]:
    steps = ref_view(eqn.params["tree"], leaves)
    if steps is None:
        raise BodyError(program.who, [unknown_use(eqn)])
    return steps


def _optimization_barrier(program: ValueProgram, eqn: Eqn) -> None:
    """The results are the operands that are not references. References pass the barrier, too."""
    operands = list(eqn.invars)
    refs = [v for v in operands if not isinstance(v, jex_core.Literal) and v in program.refs]
    if not refs:
        program.put(eqn)
        return
    others = [k for k, v in enumerate(operands) if v not in refs]

    def barrier(*values):
        results = lax.optimization_barrier(list(values))
        passed = [results[k] for k, v in enumerate(operands) if v in refs]
        return [*(results[k] for k in others), *passed]

    program.put_program(eqn, barrier, refs)


def _refuse_memory_space(program: ValueProgram, eqn: Eqn) -> None:
    if eqn.params.get("memory_space") is not None:
        raise BodyError(program.who, [unknown_use(eqn)])


RULES: dict[str, Callable[[ValueProgram, Eqn], None]] = {
    "new_ref": _new_ref,
    "empty_ref": _empty_ref,
    "free_ref": _free_ref,
    "freeze": _freeze,
    "get": _get,
    "swap": _swap,
    "addupdate": _addupdate,
    "optimization_barrier": _optimization_barrier,
}
"""By the names of their primitives."""
