"""What is known about JAX's primitives that hold programs, by their names.

Every rule that follows values into a held program, or rewrites one, takes the names from here, so
that a primitive is known to all of them or to none. A primitive in no table is treated as one that
may run its programs any number of times, on any of its operands.
"""

from __future__ import annotations

from shmap_compiler.base.jax_compat import is_jaxpr, jaxprs_in
from shmap_compiler.base.untyped import Eqn

JITS = frozenset({"jit", "pjit"})
"""Names of `jax.jit`, on all versions of JAX."""

REGIONS = frozenset({"checkpoint", "remat2"})
"""Names of `jax.checkpoint`: calls whose policies decide what a derivative saves."""

CUSTOM_JVP, CUSTOM_VJP, CUSTOM_VMAP = "custom_jvp_call", "custom_vjp_call", "custom_vmap_call"
CUSTOM_RULES = frozenset({CUSTOM_JVP, CUSTOM_VJP, CUSTOM_VMAP})
"""Calls of functions that have a rule of the user's."""

CALLS = frozenset(
    {
        *JITS,
        *REGIONS,
        *CUSTOM_RULES,
        "call",
        "closed_call",
        "composite",
        "compute_on",
        "core_call",
        "eval_jaxpr",
        "fused_call",
        "jaxpr_call",
        "program_order",
        "xla_metadata_call",
    }
)
"""Primitives that run one program once: its inputs are the operands, its results are theirs."""

RULE_FOLLOWING = REGIONS | JITS | {"scan", "closed_call", "core_call", "eval_jaxpr"}
"""Primitives whose rules for partial evaluation and transposition are made from those of the
equations that they hold. Others evaluate their programs instead."""

CUSTOM_LIN = "custom_lin"
"""What a forward derivative leaves where a backward rule of the user's will be called."""

LINEAR_CALL = "linear_call"
"""A call of a linear function, with a transpose of the user's."""

ALWAYS_RUN = frozenset(
    {
        CUSTOM_LIN,
        "reduce",
        "reduce_precision",
        "reduce_window",
        "run_state",
        "scatter",
        "scatter_add",
        "scatter-add",
        "scatter_mul",
        "scatter_min",
        "scatter_max",
        "select_and_scatter",
    }
)
"""Other primitives that run their programs equally often on all devices, whatever the operands."""

KERNELS = frozenset({"core_map", "mpmd_map", "pallas_call"})
"""Primitives whose programs are written for another compiler, which knows JAX's collectives."""


def called_program(eqn: Eqn) -> str | None:
    """The parameter of a call that holds its program; None if the equation is not a call."""
    if eqn.primitive.name not in CALLS:
        return None
    held = [name for name, value in eqn.params.items() if is_jaxpr(value)]
    # Its name differs between versions of JAX.
    return held[0] if len(held) == 1 == len(jaxprs_in(eqn.params)) else None
