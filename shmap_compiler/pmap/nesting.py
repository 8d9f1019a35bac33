"""Where a pmapped function runs: on a mesh of its own, or on an axis of an enclosing one.

A pmap inside another one needs a mesh of two axes, but the outer one is called first. So the outer
one traces its function on a mesh of its rows alone; an inner one that finds no axis of its own
there stops this tracing with `MissingAxis`, and the outer one starts again with that axis added.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from jax.sharding import Mesh

from shmap_compiler.base.errors import Problem, SpecError
from shmap_compiler.base.jax_compat import mesh_in_scope, no_mesh
from shmap_compiler.base.untyped import SourceInfo
from shmap_compiler.pmap.results import UNNAMED

_T = TypeVar("_T")

_inside: ContextVar[bool] = ContextVar("inside_pmap", default=False)


class MissingAxis(BaseException):
    """An inner pmap needs an axis that the mesh of the outermost one does not have.

    No `Exception`, so that handlers in the user's functions let it pass.
    """

    def __init__(self, name: str, size: int):
        self.axis = (name, size)


def is_inside_manual() -> bool:
    """Whether this call is part of the per-device function of another map."""
    scope = mesh_in_scope()
    return scope is not None and bool(scope.manual_axes)


def with_inner_axes(
    name: str, size: int, mesh_of: Callable[[list[tuple[str, int]]], Mesh], use: Callable[..., _T]
) -> _T:
    """`use(mesh)` on a mesh with an axis for the rows, and one for each inner pmap.

    Args:
      mesh_of: makes the mesh of axes and their sizes.
    """
    axes = [(name, size)]
    while True:
        mesh = mesh_of(axes)
        token = _inside.set(True)
        try:
            with _without_mesh():
                return use(mesh)
        except MissingAxis as missing:
            axes.append(missing.axis)
        finally:
            _inside.reset(token)


def inner_axis(who: str, name: str | None, size: int, has_devices: bool) -> str:
    """The axis of the enclosing mesh for the `size` rows of an inner pmap.

    Raises:
      SpecError: it cannot have one.
      MissingAxis: the outermost pmap must add it.
    """
    scope: Any = mesh_in_scope()
    if name is None:
        name = f"{UNNAMED}_{len(scope.manual_axes)}_{size}"
    problem = None
    if has_devices:
        problem = _own_devices()
    elif name in scope.manual_axes:
        problem = _name_taken(name)
    elif name in scope.axis_names and scope.shape[name] != size:
        problem = _other_size(name, scope.shape[name], size)
    elif name not in scope.axis_names and not _inside.get():
        problem = _inside_shard_map(name, size, scope)
    if problem is not None:
        raise SpecError(who, [problem])
    if name not in scope.axis_names:
        raise MissingAxis(name, size)
    return name


@contextlib.contextmanager
def _without_mesh() -> Iterator[None]:
    """Without the mesh of `jax.set_mesh`: a pmap has its own."""
    with contextlib.nullcontext() if mesh_in_scope() is None else no_mesh():
        yield


# ------------------------------------------------------------------------------------- mistakes


def _own_devices() -> Problem:
    return Problem(
        "devices of an inner pmap",
        "a list of devices",
        "none: the outermost pmap chooses the devices of all",
        "pass devices to the outermost pmap",
    )


def _name_taken(name: str) -> Problem:
    return Problem(
        "axis_name of an inner pmap",
        f"{name!r}, as of an enclosing one",
        "a name for the rows of each pmap",
        "choose another axis_name",
    )


def _other_size(name: str, size: int, other: int) -> Problem:
    return Problem(
        f"axis_name={name!r} of an inner pmap",
        f"{other} rows, where another pmap or the mesh has {size} by this name",
        "the same number wherever the name is used",
        "choose another axis_name",
    )


def _inside_shard_map(name: str, size: int, scope: SourceInfo) -> Problem:
    free = [a for a in scope.axis_names if a not in scope.manual_axes]
    return Problem(
        "pmap inside a shard_map",
        f"a number of rows, {size}, for which the mesh has no axis"
        + ("" if name.startswith(UNNAMED) else f" {name!r}"),
        "an axis of this mesh that is not manual: "
        + (", ".join(f"{a!r} of size {scope.shape[a]}" for a in free) or "there is none"),
        "use jax.vmap, or leave an axis of the mesh to pmap by axis_names of shard_map",
    )
