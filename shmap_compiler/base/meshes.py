"""Where a per-device program runs: a mesh, and the axes of it that are manual."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import jax
from jax.sharding import AbstractMesh

from shmap_compiler.base import specs
from shmap_compiler.base.errors import Problem
from shmap_compiler.base.jax_compat import AnyMesh, explicit_axes
from shmap_compiler.base.untyped import Device

Axes = frozenset[str]
"""A set of mesh axes."""


@dataclass(frozen=True)
class ManualRegion:
    """
    Attributes:
      mesh: with devices, or without.
      manual_axes: the axes over which the body is per-device, in mesh order. Those that an
        enclosing shard_map has made manual are not among them.
    """

    mesh: AnyMesh
    manual_axes: tuple[str, ...]

    @property
    def has_types_inside(self) -> bool:
        """Whether types in the body have specs, over Explicit axes that are not manual."""
        return bool(set(explicit_axes(self.mesh)) - set(self.manual_axes))


def attached_devices() -> list[Device]:
    """The devices of this process: those of JAX's default platform, then all others."""
    found = list(jax.devices())
    for platform in ("tpu", "gpu", "cpu"):
        if platform != found[0].platform:
            with contextlib.suppress(RuntimeError):
                found += jax.devices(platform)
    return found


def no_devices(mesh: AbstractMesh) -> Problem:
    """The problem of a mesh without devices, on which programs cannot be compiled or called."""
    return Problem(
        "mesh",
        f"an AbstractMesh, {specs.show_mesh(mesh)}, which has no devices",
        "a jax.sharding.Mesh to compile for",
        "use a mesh of devices, e.g. jax.make_mesh(...)" + more_cpu_devices(mesh.size),
    )


def too_many_devices(mesh: AnyMesh) -> list[Problem]:
    """The problem of a mesh of more devices than XLA can count, if it is one."""
    most = 2**31 - 1
    if mesh.size <= most:
        return []
    return [
        Problem(
            "mesh",
            f"{specs.show_mesh(mesh)} of {mesh.size} devices",
            f"at most {most} devices, which XLA counts in 32 bits",
            "make an axis smaller",
        )
    ]


def more_cpu_devices(count: int) -> str:
    """The end of a fix: how to get `count` devices, if this process has fewer and only CPUs."""
    here = jax.devices()
    if len(here) >= count or here[0].platform != "cpu":
        return ""
    return f"; for {count} virtual CPU devices, {request_cpu_devices(count)}"


def request_cpu_devices(count: int) -> str:
    """What to do about too few virtual CPU devices."""
    return (
        f"set XLA_FLAGS=--xla_force_host_platform_device_count={count} before JAX starts, or call "
        f"jax.config.update('jax_num_cpu_devices', {count}) right after importing it"
    )
