"""What logical axes can be assigned to: the axes of the mesh in scope, and loops."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import Mesh

from shmap_compiler.base.descriptions import show_value
from shmap_compiler.base.errors import Problem, ProgramName, TypeProblem, spec_error
from shmap_compiler.base.jax_compat import AnyMesh, concrete_mesh_in_scope, mesh_in_scope
from shmap_compiler.base.untyped import Unchecked


class SerialLoop:
    """A resource: the chunks of a named axis are computed one after the other.

    Args:
      length: How many chunks there are. It divides what is left of the size of the axis after its
        mesh axes.

    Examples:
      >>> f = xmap(lambda x: x * 2, in_axes=["rows", ...], out_axes=["rows", ...],
      ...          axis_resources={"rows": SerialLoop(4)})
      >>> jnp.allclose(f(x), x * 2).item()
      True
    """

    def __init__(self, length: int):
        if type(length) is not int or length < 1:
            raise spec_error(ProgramName("SerialLoop"), [_wrong_length("length", length)])
        self.length = length

    def __repr__(self) -> str:
        return f"SerialLoop({self.length})"


@dataclass(frozen=True)
class _Scope:
    """The resources in scope: the mesh of `mesh`, and the loops of `serial_loop`."""

    mesh: Mesh | None = None
    loops: tuple[tuple[str, int], ...] = ()


# JAX's caches tell its values apart: what was jitted in one scope is traced again in another one.
_scope: Any = jax.make_user_context(_Scope())


def _in_scope() -> _Scope:
    return cast("_Scope", _scope.value)


@contextlib.contextmanager
def mesh(devices: Unchecked, axis_names: Sequence[str] | None = None) -> Iterator[Mesh]:
    """Makes the axes of a mesh available as resources of `xmap`.

    Args:
      devices: An array of devices, or a `jax.sharding.Mesh`.
      axis_names: A name for each dimension of the array of devices.

    Examples:
      >>> import shmap_compiler
      >>> total = xmap(lambda x: lax.psum(x, "rows"), in_axes=["rows", ...], out_axes=[...],
      ...              axis_resources={"rows": "i"})
      >>> with shmap_compiler.mesh(jax.devices(), ("i",)):
      ...     print(total(x))
      120.0
    """
    made = devices if isinstance(devices, Mesh) else Mesh(np.asarray(devices), axis_names or ())
    with _scope(replace(_in_scope(), mesh=made)):
        yield made


@contextlib.contextmanager
def serial_loop(name: str, length: int) -> Iterator[None]:
    """Makes a loop available as a resource of `xmap`, by its name.

    Axes that name the same loop are cut into chunks together.

    Args:
      name: The name of the resource.
      length: How many chunks there are.

    Examples:
      >>> f = xmap(lambda x: x * 2, in_axes=["rows", ...], out_axes=["rows", ...],
      ...          axis_resources={"rows": "steps"})
      >>> with serial_loop("steps", 4):
      ...     print(f(x).shape)
      (16,)
    """
    problems = []
    if not isinstance(name, str):
        problems.append(TypeProblem("name", show_value(name), "a string", "write e.g. 'steps'"))
    if type(length) is not int or length < 1:
        problems.append(_wrong_length("length", length))
    if problems:
        raise spec_error(ProgramName("serial_loop"), problems)
    others = tuple(pair for pair in _in_scope().loops if pair[0] != name)
    with _scope(replace(_in_scope(), loops=(*others, (name, length)))):
        yield


def find_mesh(given: AnyMesh | None) -> AnyMesh | None:
    """The mesh of a call: the one given, that of `mesh`, or that of `jax.set_mesh`."""
    if given is not None:
        return given
    return _in_scope().mesh or concrete_mesh_in_scope() or mesh_in_scope()


def is_another_mesh(found: AnyMesh | None, around: AnyMesh | None) -> bool:
    """Whether this is not the mesh over which an enclosing function is manual.

    Args:
      around: the mesh of the enclosing xmap, if there is one.
    """
    scope = mesh_in_scope()
    if found is None or scope is None or not scope.manual_axes:
        return False
    return dict(found.shape) != dict(scope.shape) or _have_other_devices(found, around)


def _have_other_devices(one: AnyMesh | None, other: AnyMesh | None) -> bool:
    if not isinstance(one, Mesh) or not isinstance(other, Mesh):
        return False
    return list(one.devices.flat) != list(other.devices.flat)


def loops_in_scope() -> dict[str, int]:
    return dict(_in_scope().loops)


def mesh_changes(found: AnyMesh | None) -> Problem:
    scope = mesh_in_scope()
    shown, outer = (dict(m.shape) if m is not None else "none" for m in (found, scope))
    if shown == outer:
        shown = f"a mesh of other devices, or in another order, {shown}"
    return Problem(
        "the mesh",
        f"{shown}, inside a function on the mesh {outer}",
        "the mesh of the enclosing function: the physical mesh cannot change inside xmap",
        "enter the context of one mesh around the outermost call, and pass no other one",
    )


def _wrong_length(where: str, length: object) -> Problem:
    return TypeProblem(
        where, show_value(length), "a number of chunks: an int, at least 1", "write e.g. 4"
    )
