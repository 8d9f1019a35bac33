"""JAX's meshes: their axes, the mesh in scope, and which axes are manual."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable

import jax
import numpy as np
from jax.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    PartitionSpec,
)

from shmap_compiler.base.untyped import AnyValue

AnyMesh = Mesh | AbstractMesh


def abstract_mesh(mesh: AnyMesh) -> AbstractMesh:
    """The mesh without its devices."""
    return mesh if isinstance(mesh, AbstractMesh) else mesh.abstract_mesh


def axis_types(mesh: AnyMesh) -> dict[str, AxisType]:
    """Axis name -> Auto, Explicit or Manual."""
    return dict(zip(mesh.axis_names, abstract_mesh(mesh).axis_types, strict=True))


def with_manual_axes(mesh: AnyMesh, axes: Iterable[str]) -> AbstractMesh:
    """The abstract mesh on which `axes` are Manual."""
    return _with_manual_axes(mesh, tuple(axes))


@functools.lru_cache(maxsize=256)
def _with_manual_axes(mesh: AnyMesh, axes: tuple[str, ...]) -> AbstractMesh:
    return abstract_mesh(mesh).update_axis_types(dict.fromkeys(axes, AxisType.Manual))


def without_manual_axes(mesh: AbstractMesh) -> AbstractMesh:
    """The mesh with axes that are Manual turned to Auto, as outside of all shard_maps."""
    return mesh.update_axis_types(dict.fromkeys(mesh.manual_axes, AxisType.Auto))


def mesh_in_scope() -> AbstractMesh | None:
    """The mesh set by `jax.set_mesh`, or that of an enclosing shard_map."""
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty else mesh


def concrete_mesh_in_scope() -> Mesh | None:
    """The mesh in scope, with the devices of `jax.set_mesh`, which are unknown inside jit.

    `use_abstract_mesh` gives these devices other axes.
    """
    try:
        mesh = jax.sharding.get_mesh()
    except ValueError:
        return None
    if mesh.empty:
        return None
    scope = jax.sharding.get_abstract_mesh()
    if scope.empty or scope.shape == mesh.shape:
        return mesh
    return Mesh(mesh.devices.reshape(scope.axis_sizes), scope.axis_names)


def is_axis_of_with_mesh(name: str) -> bool:
    """Whether JAX's own `with mesh:`, which nothing reads here, has a mesh with this axis.

    To be called where no other mesh in scope has it.
    """

    def constrained(x: AnyValue) -> AnyValue:
        return jax.lax.with_sharding_constraint(x, PartitionSpec(name))

    try:
        jax.eval_shape(constrained, jax.ShapeDtypeStruct((0,), np.float32))
    except (RuntimeError, TypeError, ValueError):
        return False
    return True


def with_axis_types_of(mesh: AbstractMesh, concrete: Mesh) -> Mesh:
    """`concrete` with the axis types of `mesh`, which has the same axes."""
    if concrete.abstract_mesh.axis_types == mesh.axis_types:
        return concrete
    return Mesh(concrete.devices, concrete.axis_names, axis_types=mesh.axis_types)


def enclosing_manual_axes(mesh: AnyMesh) -> tuple[str, ...]:
    """Axes of `mesh` that an enclosing shard_map has made manual already, in mesh order."""
    current = jax.sharding.get_abstract_mesh()
    if current.empty or current.axis_names != mesh.axis_names:
        return ()
    return tuple(a for a in mesh.axis_names if a in current.manual_axes)


def is_readable_name(axis: str) -> bool:
    """Whether XLA can read an axis of this name in Shardy's form.

    XLA in jaxlib 0.10 parses names from their escaped form, and aborts the process or reports an
    unknown axis at escapes that it does not know. Later versions only misread a last backslash, and
    an apostrophe.
    """
    if jax.__version_info__ < (0, 11):
        return axis.isascii() and axis.isprintable() and not set(axis) & {'"', "\\"}
    if axis.endswith("\\") or "'" in axis:
        return False
    return not any("\ud800" <= c <= "\udfff" for c in axis)


@functools.lru_cache(maxsize=256)
def explicit_axes(mesh: AnyMesh) -> tuple[str, ...]:
    """The Explicit axes: how an array is split over them is part of its type."""
    kinds = zip(mesh.axis_names, abstract_mesh(mesh).axis_types, strict=True)
    return tuple(a for a, kind in kinds if kind == AxisType.Explicit)


def no_mesh() -> contextlib.AbstractContextManager[object]:
    """A context without an abstract mesh in scope, even while a program is being traced."""
    return jax.sharding.use_abstract_mesh(_EMPTY_MESH)


def in_scope_if_abstract(mesh: AnyMesh) -> contextlib.AbstractContextManager[object]:
    """A context for lowering for a mesh without devices.

    Otherwise JAX finds out the number of devices from arguments, of which there may be none.
    """
    is_abstract = isinstance(mesh, AbstractMesh)
    return jax.sharding.use_abstract_mesh(mesh) if is_abstract else contextlib.nullcontext()


def no_devices_in_scope() -> contextlib.AbstractContextManager[object]:
    """A context in which programs may run on any devices, as outside of `jax.set_mesh`."""
    return jax.set_mesh(Mesh(np.empty((), object), ()))


_EMPTY_MESH = AbstractMesh((), ())
