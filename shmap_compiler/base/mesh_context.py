"""Where a call runs: its mesh, and which axes of it the call makes manual.

The mesh is the one given to `shard_map`, else the one in scope (`jax.set_mesh`), else the mesh of
the arguments. An AbstractMesh gets its devices from the scope or from the arguments; a
call that is traced inside `jit` needs none.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import jax
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from shmap_compiler.base import specs
from shmap_compiler.base.descriptions import show_type_of
from shmap_compiler.base.errors import Problem, TypeProblem, spec_error
from shmap_compiler.base.jax_compat import (
    AnyMesh,
    abstract_mesh,
    concrete_mesh_in_scope,
    enclosing_manual_axes,
    is_readable_name,
    mesh_in_scope,
    shardy_is_on,
    with_axis_types_of,
    without_manual_axes,
)
from shmap_compiler.base.meshes import ManualRegion, more_cpu_devices, too_many_devices
from shmap_compiler.base.untyped import AnyValue, Leaf, Unchecked


def region_of(
    who: str, mesh: Unchecked, axis_names: frozenset[str], leaves: Sequence[Leaf]
) -> ManualRegion:
    """The region of a call.

    Args:
      who: the user's function, for error messages.
      mesh, axis_names: as given to `shard_map`; an empty set means all remaining axes.
      leaves: the flat arguments.

    Raises:
      SpecError: there is no mesh, or it does not fit the scope, the arguments or `axis_names`.
    """
    problems: list[Problem] = []
    found = _find(mesh, leaves, problems)
    if found is not None:
        problems += _problems(found, axis_names)
    if problems or found is None:
        raise spec_error(who, problems)
    outer = enclosing_manual_axes(found)
    names = axis_names or frozenset(found.axis_names)
    return ManualRegion(found, tuple(a for a in found.axis_names if a in names and a not in outer))


def has_devices(mesh: AnyMesh, arrays: Sequence[AnyValue]) -> bool:
    """Whether a program on `mesh` can be run on these arrays."""
    if isinstance(mesh, Mesh) or concrete_mesh_in_scope() is not None:
        return True
    return any(isinstance(m, Mesh) for m in _meshes_of(arrays))


def _find(given: object, leaves: Sequence[Leaf], problems: list[Problem]) -> AnyMesh | None:
    scope = mesh_in_scope()
    mesh = scope if given is None else given
    if mesh is None:
        mesh = next(_meshes_of(leaves), None)
    if not isinstance(mesh, (Mesh, AbstractMesh)):
        problems.append(_no_mesh(given))
        return None
    if scope is not None and tuple(scope.shape.items()) != tuple(mesh.shape.items()):
        problems.append(_other_mesh_in_scope(mesh, scope))
    elif isinstance(mesh, Mesh) and (placed := concrete_mesh_in_scope()) is not None:
        problems += _other_devices_in_scope(mesh, placed)
    if isinstance(mesh, Mesh):
        return mesh
    mesh = without_manual_axes(mesh)
    return (
        mesh if scope is not None and scope.manual_axes else _with_devices(mesh, leaves, problems)
    )


def _with_devices(mesh: AbstractMesh, leaves: Sequence[Leaf], problems: list[Problem]) -> AnyMesh:
    """The mesh on the devices in scope or those of the arguments, if there are any."""
    concrete = concrete_mesh_in_scope()
    if concrete is None:
        others = [m for m in _meshes_of(leaves) if isinstance(m, Mesh)]
        problems += [_other_mesh_of_argument(mesh, m) for m in others if m.shape != mesh.shape][:1]
        concrete = others[0] if others and not problems else None
    return mesh if concrete is None else with_axis_types_of(mesh, concrete)


def _meshes_of(leaves: Iterable[Leaf]) -> Iterator[AnyMesh]:
    """The meshes on which arguments are placed."""
    for leaf in leaves:
        sharding = _sharding(leaf)
        if isinstance(sharding, NamedSharding) and not sharding.mesh.empty:
            yield sharding.mesh


def _sharding(leaf: Leaf) -> Unchecked:
    if isinstance(leaf, Tracer):
        return getattr(leaf.aval, "sharding", None)
    return leaf.sharding if isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)) else None


# ------------------------------------------------------------------------------------- mistakes


def _no_mesh(given: object) -> Problem:
    if given is None:
        return Problem(
            "mesh",
            "none: not given, none in scope, and no argument is placed on one",
            "a jax.sharding.Mesh or AbstractMesh",
            "pass mesh=..., or call inside `with jax.set_mesh(mesh):`",
        )
    return TypeProblem(
        "mesh",
        show_type_of(given),
        "a jax.sharding.Mesh or AbstractMesh",
        "make one with jax.make_mesh((4, 2), ('i', 'j'))",
    )


def _other_mesh_in_scope(mesh: AnyMesh, scope: AbstractMesh) -> Problem:
    return Problem(
        "mesh",
        specs.show_mesh(mesh),
        f"the mesh in scope here, {specs.show_mesh(scope)}",
        "omit mesh to use the one in scope, or call outside of its scope",
    )


def _other_devices_in_scope(mesh: Mesh, scope: Mesh) -> Iterator[Problem]:
    if mesh is not scope and mesh.devices.tolist() != scope.devices.tolist():
        devices = [", ".join(map(str, m.devices.flat)) for m in (mesh, scope)]
        yield Problem(
            "mesh",
            f"{specs.show_mesh(mesh)} on {devices[0]}",
            f"the mesh in scope here, on {devices[1]}",
            "omit mesh to use the one in scope, or call outside of its scope",
        )


def _other_mesh_of_argument(mesh: AnyMesh, other: Mesh) -> Problem:
    return Problem(
        "mesh",
        f"{specs.show_mesh(mesh)} without devices, and an argument on {specs.show_mesh(other)}",
        "arguments on the devices of one such mesh",
        "place the arguments with jax.device_put(x, NamedSharding(mesh, spec)) on such a mesh",
    )


def _problems(mesh: AnyMesh, axis_names: frozenset[str]) -> Iterator[Problem]:
    if abstract_mesh(mesh).empty:
        yield Problem(
            "mesh",
            "a mesh without axes",
            "a mesh of at least one axis",
            "make one with jax.make_mesh((4, 2), ('i', 'j'))",
        )
        return
    yield from too_many_devices(mesh)
    if "" in mesh.axis_names:
        yield Problem(
            "mesh",
            f"{specs.show_mesh(mesh)}, with an axis whose name is empty",
            "a name for each axis: PartitionSpec('') is PartitionSpec(None)",
            "name the axis, e.g. 'i'",
        )
    for name in _unreadable(mesh.axis_names) if shardy_is_on() else ():
        yield Problem(
            "mesh",
            f"axis {name!a}",
            "a name that XLA can read: printable ASCII characters, no quotes or backslashes",
            "rename the axis, e.g. to 'i'",
        )
    for name in sorted(axis_names - set(mesh.axis_names), key=str):
        yield Problem(
            f"axis_names={set(axis_names)}",
            f"axis {name!r}",
            f"axes of {specs.show_mesh(mesh)}",
            f"use some of {', '.join(map(repr, mesh.axis_names))}",
        )
    devices = list(mesh.devices.flat) if isinstance(mesh, Mesh) else []
    if len(set(devices)) < len(devices):
        repeated = sorted((d for d, count in Counter(devices).items() if count > 1), key=str)
        yield Problem(
            "mesh",
            f"{specs.show_mesh(mesh)} with more than one place for {', '.join(map(str, repeated))}",
            f"{len(devices)} different devices",
            f"make a smaller mesh: it has {len(set(devices))} different devices"
            + more_cpu_devices(len(devices)),
        )


@functools.lru_cache(maxsize=256)
def _unreadable(names: tuple[Unchecked, ...]) -> tuple[str, ...]:
    return tuple(n for n in names if isinstance(n, str) and not is_readable_name(n))
