"""Rewrites programs with mutable references into programs on values.

A reference becomes the value that it holds: a read gives the value or a part of it, a write gives a
new value. A program that takes a reference takes its value, and returns the last value if it
writes to the reference. So written references become carries of loops, and results of branches and
calls. Replication, deadlocks and derivatives then follow from the rules for values.
"""

from __future__ import annotations

import jax
from jax.extend import core as jex_core
from jax.sharding import AbstractMesh

from shmap_compiler.base.errors import BodyError
from shmap_compiler.base.jax_compat import is_ref, is_ref_effect, replace_jaxprs_in
from shmap_compiler.base.untyped import Eqn, Jaxpr
from shmap_compiler.jaxprs.held_programs import called_program
from shmap_compiler.tracing import ref_control_flow, ref_operations
from shmap_compiler.tracing.ref_program import ValueProgram, unknown_use, without_ref_effects

_SEES_VALUES = {"debug_callback", "debug_print"}
"""Primitives that treat a reference as the value that it holds."""


def discharge(closed: Jaxpr, mesh: AbstractMesh, who: str) -> tuple[Jaxpr, list[int]]:
    """(the program on values, the inputs that are references to which it writes).

    The last values of these references are additional results, in this order.

    Args:
      closed: closed jaxpr without constants, some of whose inputs may be references.
      mesh: as the program sees it.

    Raises:
      BodyError: the program uses a reference in a way for which there is no rule.
    """
    if not any(map(is_ref_effect, closed.effects)) and not any(map(is_ref, closed.in_avals)):
        return closed, []
    with jax.sharding.use_abstract_mesh(mesh):
        program = _Discharged(who, closed)
        return program.closed(program.written), program.written


class _Discharged(ValueProgram):
    def equation(self, eqn: Eqn) -> None:
        name = eqn.primitive.name
        if name in ref_operations.RULES:
            ref_operations.RULES[name](self, eqn)
            return
        handed = any(not isinstance(v, jex_core.Literal) and v in self.refs for v in eqn.invars)
        if not handed and not any(map(is_ref_effect, eqn.effects)):
            self.put(eqn)
        elif name in ref_control_flow.LOOPS_AND_BRANCHES:
            ref_control_flow.LOOPS_AND_BRANCHES[name](self, eqn)
        elif not handed:
            # Its programs may make references of their own.
            params = replace_jaxprs_in(eqn.params, lambda held: self.nested(held).closed(()))
            self.put(eqn, params=params, effects=without_ref_effects(eqn))
        elif called_program(eqn) is not None:
            ref_control_flow.call(self, eqn)
        elif name in _SEES_VALUES:
            self.put(eqn, effects=without_ref_effects(eqn))
        else:
            raise BodyError(self.who, [unknown_use(eqn)])
