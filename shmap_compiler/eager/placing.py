"""Puts a value that every process has on devices, some of which may belong to other processes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
from jax.typing import ArrayLike

from shmap_compiler.base import specs
from shmap_compiler.base.errors import Problem, SpecError
from shmap_compiler.base.jax_compat import AnyMesh, is_key_type
from shmap_compiler.base.untyped import AnyValue, Aval, Device


def place(value: ArrayLike, sharding: Sharding) -> jax.Array:
    """`value` with this sharding.

    Args:
      value: a global array, or one that is equal in all processes: each puts its parts on its own
        devices, and nothing is sent.
    """
    value = resharded(value, sharding)
    is_global = isinstance(value, jax.Array) and not value.is_fully_addressable
    if is_global or sharding.is_fully_addressable:
        return jax.device_put(value, sharding)
    aval = jax.typeof(value)
    if is_key_type(aval):
        data = place(jax.random.key_data(value), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(value))
    host = np.asarray(value, aval.dtype)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def splitting_empty(
    program: Callable[..., Sequence[jax.Array]],
    types: Sequence[Aval],
    shardings: Sequence[Sharding],
) -> Callable[..., Sequence[jax.Array]]:
    """`program`, compiled by jit, whose results without elements have these shardings.

    jit up to JAX 0.11 forgets how they are split, and gives arrays that cannot be read.
    """
    empty = {
        k: np.zeros(t.shape, t.dtype)
        for k, t in enumerate(types)
        if 0 in t.shape and not is_key_type(t)
    }
    if not empty:
        return program

    def run(*arrays: AnyValue) -> list[jax.Array]:
        return [
            place(empty[k], shardings[k]) if k in empty else result
            for k, result in enumerate(program(*arrays))
        ]

    return run


def resharded(value: ArrayLike, sharding: Sharding) -> ArrayLike:
    """`value` with this sharding, if it is on the same devices; else `value`.

    Each device makes its part of its own copy, as in a compiled call: copies may differ.
    """
    if not isinstance(value, jax.Array) or not value.size:
        return value
    here, there = _devices(value.sharding), _devices(sharding)
    if not here or here != there or value.sharding.is_equivalent_to(sharding, value.ndim):
        return value
    with jax.disable_jit(False):
        return _identity(sharding)(value)


def on_mesh(value: AnyValue, mesh: AnyMesh, spec: PartitionSpec) -> AnyValue:
    """`value` placed by this spec, if it is on another mesh of the same devices; else `value`.

    jit names the shardings that it chooses by the mesh of the first array it is given, and some it
    cannot name.
    """
    here = getattr(value, "sharding", None)
    if not isinstance(here, NamedSharding) or here.mesh == mesh:
        return value
    there = NamedSharding(mesh, spec, memory_kind=here.memory_kind)
    return place(value, there) if _devices(here) == _devices(there) else value


def refuse_elsewhere(
    who: str, mesh: AnyMesh, values: Sequence[AnyValue], path: Callable[[int], str]
) -> None:
    """Raises SpecError for values that are committed to other devices than those of `mesh`.

    They could be moved here, but inside `jit` the same call would fail.

    Args:
      path: names the value at a position.
    """
    if not isinstance(mesh, Mesh):
        return
    here = NamedSharding(mesh, PartitionSpec()).device_set
    problems = [
        _elsewhere(path(position), value, mesh)
        for position, value in enumerate(values)
        if isinstance(value, jax.Array) and not isinstance(value, Tracer)
        if value.committed and value.sharding.device_set != here
    ]
    if problems:
        raise SpecError(who, problems)


_MOST_DEVICES = 8
"""More are not named in a message."""


def _elsewhere(path: str, value: jax.Array, mesh: Mesh) -> Problem:
    devices = sorted(value.sharding.device_set, key=lambda device: device.id)
    return Problem(
        path,
        f"an array that is committed to {_show_devices(devices)}",
        f"an array on {_show_devices(mesh.devices.flat)}, the devices of {specs.show_mesh(mesh)}, "
        "or one that is not committed to devices",
        "move it with jax.device_put(x, NamedSharding(mesh, spec)), or use a mesh of its devices",
    )


def _show_devices(devices: Iterable[Device]) -> str:
    named = list(map(str, devices))
    more = len(named) - _MOST_DEVICES
    return ", ".join(named[:_MOST_DEVICES]) + (f" and {more} more" if more > 0 else "")


def _devices(sharding: Sharding) -> list[Device]:
    """Those of its mesh, in order; none if it has no mesh of devices."""
    mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
    return list(mesh.devices.flat) if isinstance(mesh, Mesh) else []


@functools.lru_cache(maxsize=1024)
def _identity(sharding: Sharding) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda x: x, out_shardings=sharding)
