"""Checkpoint policies, and the memory in which a value is kept."""

from __future__ import annotations

import jax

from shmap_compiler.base.untyped import AnyValue, Aval, Setting


def policy_saves(decision: Setting) -> bool:
    """Whether a checkpoint policy decided to keep a value where it is."""
    return decision is True or type(decision).__name__ == "SaveableType"


def offload_spaces(decision: Setting) -> tuple[Setting, Setting] | None:
    """The memory spaces (of a value, to keep it in) if a checkpoint policy decided to move it."""
    if type(decision).__name__ != "Offloadable":
        return None
    spaces = [_MEMORY_SPACES.get(kind) for kind in (decision.src, decision.dst)]
    if None in spaces:
        raise ValueError(
            f"a checkpoint policy offloads values from {decision.src!r} to {decision.dst!r}; "
            f"these must be among {', '.join(map(repr, _MEMORY_SPACES))}"
        )
    return spaces[0], spaces[1]


def in_memory_space(x: AnyValue, type_: Aval) -> AnyValue:
    """The array in the memory space of an array type."""
    if jax.typeof(x).memory_space == type_.memory_space:
        return x
    return jax.device_put(x, type_.memory_space)


_MEMORY_SPACES = {
    "device": jax.memory.Space.Device,
    "pinned_host": jax.memory.Space.Host,
    "unpinned_host": jax.memory.Space.Host,
}
