"""Turns primitives with a rule for reverse mode into calls of `jax.custom_vjp` functions.

A `jax.experimental.hijax.HiPrim` may have such a rule, and JAX 0.12 makes one of a `custom_vjp`
function that is defined with `generic_batching`. The types of cotangents, which give a rule that
communicates its meaning (`transforms.backward_rules`), are recorded in calls of `custom_vjp`
functions only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import jax
from jax.core import Tracer
from jax.custom_derivatives import SymbolicZero
from jax.extend import core as jex_core
from jax.interpreters import ad

from shmap_compiler.base.jax_compat import (
    has_backward_rule,
    open_jaxpr,
    run_backward_rule,
    run_expanded,
    run_forward_rule,
)
from shmap_compiler.base.untyped import AnyValue, Atom, Aval, Eqn, Function, Jaxpr
from shmap_compiler.jaxprs.rewriting import Names, Rewriter, in_place_of, named

Trace = Callable[[Function, Sequence[Aval]], Jaxpr]


def with_custom_vjp(jaxpr: Jaxpr, trace: Trace) -> Jaxpr:
    """The program with a call of a `jax.custom_vjp` function for every such primitive.

    Arrays that the program closes over become literals in these calls, because JAX rejects
    derivatives with respect to them.

    Args:
      jaxpr: closed.
      trace: traces a function on inputs of these types, with the axes in scope that it may name.
    """
    variables = zip(open_jaxpr(jaxpr).constvars, jaxpr.consts, strict=True)
    constants = {v: x for v, x in variables if not isinstance(x, Tracer)}
    return _Converter(trace, constants).jaxpr(jaxpr)


class _Converter(Rewriter):
    def __init__(self, trace: Trace, constants: Mapping[Atom, AnyValue]):
        super().__init__()
        self.trace = trace
        self.literals: Names = {v: jex_core.Literal(x, v.aval) for v, x in constants.items()}

    def concerned(self, eqns: Sequence[Eqn]) -> list[int]:
        return [position for position, eqn in enumerate(eqns) if has_backward_rule(eqn)]

    def equation(self, eqn: Eqn, names: Names) -> list[Eqn]:
        if has_backward_rule(eqn):
            call = as_custom_vjp(eqn, self.trace)
            eqn = call.replace(invars=[named(v, self.literals) for v in call.invars])
        return super().equation(eqn, names)


def as_custom_vjp(eqn: Eqn, trace: Trace) -> Eqn:
    """The equation of a `jax.custom_vjp` function that does what an equation does.

    Args:
      eqn: an equation that `has_backward_rule`.
      trace: as for `with_custom_vjp`.
    """
    call = jax.custom_vjp(lambda *operands: run_expanded(eqn, operands))

    def forward(*operands):
        return run_forward_rule(eqn, [x.value for x in operands], [x.perturbed for x in operands])

    def backward(residuals, cotangents):
        found = run_backward_rule(eqn, residuals, list(map(_internal_zero, cotangents)))
        return tuple(None if isinstance(x, ad.Zero) else x for x in found)

    call.defvjp(forward, backward, symbolic_zeros=True)
    return in_place_of(eqn, trace(call, [v.aval for v in eqn.invars]))


def _internal_zero(cotangent: AnyValue) -> AnyValue:
    return ad.Zero(cotangent.aval) if isinstance(cotangent, SymbolicZero) else cotangent
