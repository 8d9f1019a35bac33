"""Whether a program moves values to the memory of the host."""

from __future__ import annotations

from shmap_compiler.base.jax_compat import is_on_host
from shmap_compiler.base.untyped import Jaxpr
from shmap_compiler.jaxprs.contents import equations, names_any

_MOVERS = frozenset({"device_put", "compute_on", "call_exported"})


def moves_to_host(jaxpr: Jaxpr) -> bool:
    """Whether a program does; of a nested shard_map its `witness` says so."""
    return names_any(jaxpr, _MOVERS) and any(
        is_on_host(var.aval)
        for eqn in equations(jaxpr)
        if eqn.primitive.name in _MOVERS
        for var in eqn.outvars
    )
