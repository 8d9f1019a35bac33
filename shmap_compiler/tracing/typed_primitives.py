"""Erases varying types from primitives that hold functions traced with these types.

From JAX 0.12 on some functions (`jax.lax.custom_root`) are primitives that hold the user's
functions, already traced, until the program is lowered or differentiated. If they were traced with
JAX's types of varying values, the types are inside, where they cannot be erased. Such an equation
becomes a call of a `jax.custom_jvp` function: its program is the one that the primitive stands for,
its rule is the rule of the primitive, and the types are erased from both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress

import jax
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.extend import core as jex_core
from jax.sharding import AbstractMesh

from shmap_compiler.base.jax_compat import (
    trace_with_axes,
    varying_types,
    without_high_primitives,
    without_varying_type,
)
from shmap_compiler.base.untyped import AnyValue, Aval, Eqn, Function, Jaxpr
from shmap_compiler.jaxprs.rewriting import in_place_of


def as_custom_jvp(
    eqn: Eqn, erase: Callable[[Jaxpr], Jaxpr], mesh: AbstractMesh, axes: Sequence[str]
) -> Eqn:
    """The equation of a `jax.custom_jvp` function that does what an equation does.

    Args:
      eqn: an equation that `holds_functions`, on types of varying values.
      erase: removes the types from a program.
      mesh, axes: the mesh as the body sees it, and the axes that are manual there.

    Returns:
      The equation, on the variables of `eqn`. The types in its program do not say what varies.
    """
    types = [v.aval for v in eqn.invars]

    def apply(*values):
        return eqn.primitive.bind(*values, **eqn.params)

    def erased(fun: Function, types: Sequence[Aval]) -> Callable[..., list[AnyValue]]:
        with varying_types():
            program = without_high_primitives(trace_with_axes(fun, mesh, axes, types), mesh, axes)
        return jex_core.jaxpr_as_fun(erase(program))

    call = jax.custom_jvp(erased(apply, types))

    def rule(primals, tangents):
        nonzero_tangent = [not isinstance(t, SymbolicZero) for t in tangents]
        inexact: list[bool] = []

        def with_tangents(*blocks):
            values, rest = blocks[: len(nonzero_tangent)], iter(blocks[len(nonzero_tangent) :])

            def of_differentiated(*differentiated):
                rows, given = zip(values, nonzero_tangent, strict=True), iter(differentiated)
                return apply(*[next(given) if nonzero else x for x, nonzero in rows])

            differentiated = compress(values, nonzero_tangent)
            outs, out_tangents = jax.jvp(of_differentiated, [*differentiated], [*rest])
            inexact[:] = [t.dtype != jax.dtypes.float0 for t in out_tangents]
            return [*outs, *compress(out_tangents, inexact)]

        tangent_types = [t.to_tangent_aval() for t in compress(types, nonzero_tangent)]
        nonzero_tangents = compress(tangents, nonzero_tangent)
        results = erased(with_tangents, [*types, *tangent_types])(*primals, *nonzero_tangents)
        outs, found = results[: len(inexact)], iter(results[len(inexact) :])
        return outs, [
            next(found) if is_inexact else np.zeros(x.shape, jax.dtypes.float0)
            for x, is_inexact in zip(outs, inexact, strict=True)
        ]

    call.defjvp(rule, symbolic_zeros=True)
    traced = trace_with_axes(call, mesh, axes, [without_varying_type(t) for t in types])
    return in_place_of(eqn, traced)
