"""The program of a pmapped function: what `jax.jit` makes of it, and the meshes that it runs on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

import jax
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding

from shmap_compiler.base.descriptions import describe, update_wrapper
from shmap_compiler.base.errors import Problem, SpecError, errors_of
from shmap_compiler.base.jax_compat import is_tracing
from shmap_compiler.base.untyped import AnyValue, Device, Function, Leaf, PyTree
from shmap_compiler.base.values import type_of
from shmap_compiler.pmap import nesting
from shmap_compiler.pmap.arguments import Rows, read_arguments, split_static
from shmap_compiler.pmap.devices import available_devices, mesh_of_rows
from shmap_compiler.pmap.mapped_rows import RowCall
from shmap_compiler.pmap.results import UNNAMED, axis_spec, map_results

_T = TypeVar("_T")
_Call = tuple[tuple[PyTree, ...], dict[str, PyTree]]


class Program:
    """A pmapped function as one function of `jax.jit`, which takes the user's own arguments.

    How many rows there are, and so on which devices it runs, is found when it is traced. A call
    that has been traced is a call of `jitted` and nothing else.

    Attributes:
      jitted: the function of all rows, of this and other processes.
      meshes: the mesh of the last program for arguments of each kind (`kind`).
      has_empty: whether a call that has been traced has results without elements.
    """

    def __init__(
        self,
        fun: Function,
        *,
        axis_name: str | None,
        in_axes: PyTree,
        out_axes: PyTree,
        static_broadcasted_argnums: tuple[int, ...],
        devices: tuple[Device, ...] | None,
        backend: str | None,
        axis_size: int | None,
        donate_argnums: tuple[int, ...],
        check_hangs: bool,
        on_traced: Callable[[], None],
    ):
        """The arguments are those of `pmap`; `on_traced` is called when a call has been traced."""
        self.fun, self.in_axes, self.out_axes = fun, in_axes, out_axes
        self.axis_size, self.check_hangs = axis_size, check_hangs
        self.meshes: dict[Hashable, Mesh] = {}
        self.has_empty = False
        self._axis_name, self._static = axis_name, static_broadcasted_argnums
        self._devices, self._backend = devices, backend

        def entry(*args, **kwargs):
            result = self.on_rows(RowCall.result, args, kwargs)
            self.has_empty |= not all(x.size for x in jax.tree.leaves(result))
            on_traced()
            return result

        update_wrapper(entry, fun)
        # By name, arguments would be static or donated if they are passed by keyword, too.
        try:
            self.jitted: Any = jax.jit(
                entry,
                static_argnums=static_broadcasted_argnums,
                static_argnames=(),
                donate_argnums=donate_argnums,
                donate_argnames=(),
            )
        except ValueError as error:
            positions = _no_such_arguments(static_broadcasted_argnums, donate_argnums, error)
            raise SpecError(describe(fun), [positions]) from error

    @functools.cached_property
    def devices(self) -> tuple[Device, ...]:
        """The devices that may take rows."""
        return available_devices(self._devices, self._backend)

    @functools.cached_property
    def process_count(self) -> int:
        """The number of processes that have some of the devices."""
        return len({d.process_index for d in self.devices})

    def on_rows(
        self, use: Callable[[RowCall], _T], args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
    ) -> _T:
        """`use` of this call on an axis of a mesh that has a device for each row."""
        with errors_of("pmap"):
            rows = self.rows(args, kwargs)

            def on(mesh: Mesh | None, axis: str) -> _T:
                call = RowCall(
                    fun=self.fun,
                    mesh=mesh,
                    axis=axis,
                    rows=rows,
                    static=self.static(args),
                    out_axes=self.out_axes,
                    check_hangs=self.check_hangs,
                    args=args,
                    kwargs=kwargs,
                )
                return use(call)

            if nesting.is_inside_manual():
                who, has_devices = describe(self.fun), self._devices is not None
                axis = nesting.inner_axis(who, self._axis_name, rows.count, has_devices)
                return on(None, axis)
            axis = self._axis_name or UNNAMED

            def on_devices(mesh: Mesh) -> _T:
                result = on(mesh, axis)
                self.meshes[self.kind(args, kwargs)] = mesh
                return result

            return nesting.with_inner_axes(
                axis, rows.count, lambda axes: self.mesh(rows, axes), on_devices
            )

    def mesh(self, rows: Rows, axes: Sequence[tuple[str, int]] = ()) -> Mesh:
        """The mesh for these rows, with axes for itself and for inner pmaps."""
        axes = axes or [(self._axis_name or UNNAMED, rows.count)]
        is_given = self._devices is not None
        with errors_of("pmap"):
            return mesh_of_rows(describe(self.fun), rows, axes, self.devices, is_given)

    def rows(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree], processes: int = 1) -> Rows:
        """Raises SpecError for all that is wrong with the arguments.

        Args:
          processes: the number of processes that pass equally many rows.
        """
        size = None if self.axis_size is None else self.axis_size // processes
        with errors_of("pmap"):
            static = self.static(args)
            return read_arguments(describe(self.fun), self.in_axes, size, static, args, kwargs)

    def static(self, args: tuple[PyTree, ...]) -> tuple[int, ...]:
        """The positions of the static arguments, counted from the first."""
        return tuple(k % len(args) if -len(args) <= k < 0 else k for k in self._static)

    def kind(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> Hashable:
        """What the program of a call depends on: types and structure, and the static values."""
        static = self.static(args)
        leaves, tree = jax.tree.flatten((split_static(args, static), kwargs))
        types = tuple((t.shape, t.dtype) for t in map(type_of, leaves))
        return tree, types, tuple(args[k] for k in static)

    def leaves(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> list[PyTree]:
        """Of the arguments that are not static."""
        return jax.tree.leaves((split_static(args, self.static(args)), kwargs))

    def with_leaves(
        self, leaves: Iterable[Leaf], args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
    ) -> _Call:
        """The arguments with other leaves, the static ones unchanged."""
        static = self.static(args)
        tree = jax.tree.structure((split_static(args, static), kwargs))
        dynamic, kwargs = tree.unflatten(leaves)
        rest = iter(dynamic)
        return tuple(x if k in static else next(rest) for k, x in enumerate(args)), kwargs

    def moved(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> _Call | None:
        """The arguments on the devices of the mesh; None if they are there, or not anywhere.

        `jax.jit` takes no arrays from other devices than those of its program.

        Raises:
          SpecError: one of the arguments is what `jax.jit` does not take at all.
        """
        rows, leaves = self.rows(args, kwargs, self.process_count), self.leaves(args, kwargs)
        mesh = self._own_mesh(args, kwargs)
        if mesh is None:
            return None
        name = mesh.axis_names[0]
        targets = [NamedSharding(mesh, axis_spec(axis, name)) for axis in rows.axes]
        if not any(map(_is_elsewhere, leaves, targets)):
            return None
        put = [
            jax.device_put(x, s) if isinstance(x, jax.Array) else x
            for x, s in zip(leaves, targets, strict=True)
        ]
        return self.with_leaves(put, args, kwargs)

    def with_split_empty(
        self, results: PyTree, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
    ) -> PyTree:
        """The results of a call; those without elements, which XLA replicates, have their rows."""
        mesh = self._own_mesh(args, kwargs)
        if mesh is None:
            return results
        name = mesh.axis_names[0]

        def split(x: AnyValue, axis: int | None) -> AnyValue:
            if x.size or isinstance(x, Tracer) or not isinstance(x, jax.Array):
                return x
            return jax.device_put(x, NamedSharding(mesh, axis_spec(axis, name)))

        return map_results(split, self.out_axes, results)

    def _own_mesh(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> Mesh | None:
        """The mesh of such a call; None for one that other processes or programs take part in."""
        mesh = self.meshes.get(self.kind(args, kwargs))
        return None if self.process_count > 1 or is_tracing() else mesh


def _is_elsewhere(x: object, target: NamedSharding) -> bool:
    """Whether an array has been put on other devices, or on these in another order."""
    return (
        isinstance(x, jax.Array) and x.committed and not x.sharding.is_equivalent_to(target, x.ndim)
    )


# ------------------------------------------------------------------------------------- mistakes


def _no_such_arguments(static: Sequence[int], donated: Sequence[int], error: Exception) -> Problem:
    listed = [("static_broadcasted_argnums", static), ("donate_argnums", donated)]
    return Problem(
        " and ".join(name for name, positions in listed if positions),
        str(error).removeprefix("Jitted function has "),
        "positions of arguments that the function takes",
        "count positions from 0, the first argument",
    )
