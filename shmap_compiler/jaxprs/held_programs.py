"""What is known of JAX's primitives that hold programs, by their names.

Every rule that follows values into a held program starts here, so that a primitive is known to all
of them or to none. What is in no table is treated as if it might run its programs any number of
times, on any of its operands.
"""

from __future__ import annotations

from shmap_compiler.base.jax_compat import Eqn, is_jaxpr, jaxprs_in

CALLS = frozenset(
    {
        "call",
        "checkpoint",
        "closed_call",
        "composite",
        "compute_on",
        "core_call",
        "custom_jvp_call",
        "custom_vjp_call",
        "custom_vmap_call",
        "eval_jaxpr",
        "fused_call",
        "jaxpr_call",
        "jit",
        "pjit",
        "program_order",
        "remat2",
        "xla_metadata_call",
    }
)
"""Primitives that run one program once: its inputs are the operands, its results are theirs."""

ALWAYS_RUN = frozenset(
    {
        "custom_lin",
        "linear_call",
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
