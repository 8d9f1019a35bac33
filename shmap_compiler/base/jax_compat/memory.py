"""Checkpoint policies, and the memory in which a value is kept."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from shmap_compiler.base.untyped import AnyValue, Aval, Leaf, Setting

_DEVICE, _HOST = jax.memory.Space.Device, jax.memory.Space.Host
HOST_KIND = "pinned_host"
"""The memory kind of a sharding that places arrays in the memory of the host."""


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


def memory_space(type_: Aval) -> Setting:
    """The memory space of an array type, or of a `jax.ShapeDtypeStruct`, which its sharding names.

    Of anything else, the memory of the device.
    """
    if isinstance(type_, jax.ShapeDtypeStruct):
        return space_of(getattr(type_.sharding, "memory_kind", None))
    return getattr(type_, "memory_space", _DEVICE)


def is_on_host(value: Leaf | Aval) -> bool:
    """Whether an array, or one of this type, is in the memory of the host."""
    type_ = jax.typeof(value) if isinstance(value, jax.Array) else value
    return memory_space(type_) != _DEVICE


def memory_kinds(types: Sequence[Aval]) -> tuple[str | None, ...]:
    """The memory kind of each array type, None for that of the device."""
    return tuple(HOST_KIND if is_on_host(t) else None for t in types)


def space_of(kind: str | None) -> Setting:
    """The memory space that JAX gives arrays of a memory kind."""
    return _HOST if kind == HOST_KIND else _DEVICE


_MEMORY_SPACES = {
    "device": _DEVICE,
    HOST_KIND: _HOST,
    "unpinned_host": _HOST,
}
