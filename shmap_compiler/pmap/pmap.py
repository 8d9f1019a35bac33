"""The public surface: `pmap` maps a function over the rows of its arguments, one per device."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import Generic, ParamSpec, TypeVar

import jax
from shmap_passes import GroupNaming, Partitioner

from shmap_compiler.base.descriptions import describe, update_wrapper
from shmap_compiler.base.errors import ShmapError, errors_of, spec_error
from shmap_compiler.base.front_ends import FrontEndFunction
from shmap_compiler.base.untyped import Device, Function, PyTree, Setting, Wrapped
from shmap_compiler.frontend import trace_cache
from shmap_compiler.graph.graph import Graph
from shmap_compiler.lowering.overlap import overlap_setting
from shmap_compiler.pmap import processes
from shmap_compiler.pmap.mapped_rows import RowCall
from shmap_compiler.pmap.option_errors import option_problems
from shmap_compiler.pmap.program import Program
from shmap_compiler.records.traced_call import TracedCall
from shmap_compiler.stages import lowered
from shmap_compiler.stages.lowered import Lowered

_P = ParamSpec("_P")
_R = TypeVar("_R")


def pmap(
    fun: Callable[_P, _R],
    axis_name: str | None = None,
    *,
    in_axes: PyTree = 0,
    out_axes: PyTree = 0,
    static_broadcasted_argnums: int | Iterable[int] = (),
    devices: Sequence[Device] | None = None,
    backend: str | None = None,
    axis_size: int | None = None,
    donate_argnums: int | Iterable[int] = (),
    check_hangs: bool = True,
) -> Pmapped[_P, _R]:
    """Maps a function over the rows of its arguments: one row on each device, compiled.

    The interface is that of `jax.pmap`. The first `n` devices take the `n` rows of an array, in
    order. On several processes each passes the rows of its own devices and gets back their results,
    while collectives communicate among the devices of all processes.

    Args:
      fun: The function of one row, of arrays and pytrees of arrays.
      axis_name: A name for collectives in `fun`, e.g. `jax.lax.psum(x, axis_name)`.
      in_axes: For each positional argument, the dimension that has the rows, or None if all devices
        get the whole: a prefix of the tuple of arguments. Arguments passed by keyword are mapped
        over dimension 0. Where there are static arguments, their entries and surplus ones are
        ignored; at the end, static arguments need none.
      out_axes: For each result, the dimension that gets the rows, or None if it is the same for all
        rows: a prefix of the result.
      static_broadcasted_argnums: The positions of arguments that `fun` gets unchanged. They must
        be hashable; `fun` is compiled for each of their values.
      devices: The devices that take the rows, those of other processes included. Defaults to all.
      backend: The platform whose devices are used, e.g. "cpu".
      axis_size: The number of rows, on all processes together. Needed if no argument is mapped.
      donate_argnums: The positions of arguments whose memory results may reuse.
      check_hangs: Whether to reject collectives that could deadlock because some devices do not
        reach them. Rows of an argument count as equal here, as those of stacked state are: devices
        differ by `axis_index`, for example.

    Returns:
      A `Pmapped`, a function that may be called in `jax.jit`, under other transformations, and in
      other functions that are pmapped.

    Raises:
      SpecError: The arguments, results, axes and devices do not fit together. Raised by calls, as
        are `BodyError`, `HangError` and `ReplicationError` for mistakes in `fun`.

    Examples:
      >>> def normalize(row):  # f32[2] on each of eight devices
      ...     return row / lax.psum(jnp.sum(row), "i")
      >>> rows = x.reshape(8, 2)
      >>> f = pmap(normalize, axis_name="i")
      >>> f(rows).shape, jnp.allclose(f(rows), rows / rows.sum()).item()
      ((8, 2), True)
    """
    options = {
        "axis_name": axis_name,
        "in_axes": in_axes,
        "out_axes": out_axes,
        "static_broadcasted_argnums": _positions(static_broadcasted_argnums),
        "devices": None if devices is None else tuple(devices),
        "backend": backend,
        "axis_size": int(axis_size) if isinstance(axis_size, Integral) else axis_size,
        "donate_argnums": _positions(donate_argnums),
        "check_hangs": check_hangs,
    }
    return trace_cache.find(Pmapped, fun, options) or Pmapped(fun, **options)


@dataclass(eq=False, repr=False)
class Pmapped(FrontEndFunction, Generic[_P, _R]):
    """A function mapped over the rows of its arguments: a callable with the stages of `jax.jit`.

    Made by `pmap`.

    Attributes:
      fun: The function of one row.
      axis_name: As given to `pmap`.
      in_axes: As given to `pmap`.
      out_axes: As given to `pmap`.
      static_broadcasted_argnums: As given to `pmap`, as a tuple.
      devices: As given to `pmap`, as a tuple.
      backend: As given to `pmap`.
      axis_size: As given to `pmap`.
      donate_argnums: As given to `pmap`, as a tuple.
      check_hangs: As given to `pmap`.

    Examples:
      >>> f = pmap(jnp.sin, axis_name="i")
      >>> f.axis_name, f(jnp.ones((4, 3))).shape
      ('i', (4, 3))
    """

    fun: Callable[_P, _R]
    axis_name: str | None
    in_axes: PyTree
    out_axes: PyTree
    static_broadcasted_argnums: tuple[int, ...]
    devices: tuple[Device, ...] | None
    backend: str | None
    axis_size: int | None
    donate_argnums: tuple[int, ...]
    check_hangs: bool
    _program: Program = field(init=False)

    def __post_init__(self) -> None:
        with errors_of("pmap"):
            problems = option_problems(self.fun, self.options)
            if problems:
                who = describe(self.fun) if callable(self.fun) else repr(self.fun)
                raise spec_error(who, problems)
            update_wrapper(self, self.fun, updated=())
            self._program = Program(self.fun, **self.options, on_traced=self._keep)

    @property
    def options(self) -> dict[str, Setting]:
        """The arguments of `pmap` besides the function, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init and f.name != "fun"}

    def _keep(self) -> None:
        # `jax.pmap` traces a function once, even one that changes what it reads.
        trace_cache.keep(self, trace_cache.key(self.fun, self.options))

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        program = self._program
        try:
            results = self._run(*args, **kwargs)
        except ShmapError:
            raise
        except (TypeError, ValueError):
            moved = program.moved(args, kwargs)
            if moved is None:
                raise
        else:
            return program.with_split_empty(results, args, kwargs) if program.has_empty else results
        moved_args, moved_kwargs = moved
        return self(*moved_args, **moved_kwargs)

    @functools.cached_property
    def _run(self) -> Function:
        """What a call does. On one process it is one call of what `jax.jit` made."""
        program = self._program
        one = program.process_count == 1
        return program.jitted if one else functools.partial(processes.call, program)

    def trace(self, *args: PyTree, **kwargs: PyTree) -> Graph:
        """Traces the function.

        Args:
          *args: Arrays, or `jax.ShapeDtypeStruct`s: the rows of this process.
          **kwargs: The same, mapped over dimension 0.

        Returns:
          The `Graph` of the program of one device.

        Raises:
          ShmapError: One of its subclasses, if the call or the function has a mistake.

        Examples:
          >>> f = pmap(jnp.sin)
          >>> [str(t) for t in f.trace(x.reshape(8, 2)).body_in_types]
          ['float32[1,2]']
        """
        return self._traced(args, kwargs).graph

    def lower_rows(
        self, *args: PyTree, partitioner: Partitioner | None = None, groups: GroupNaming = "axes"
    ) -> Lowered:
        """Traces and lowers the program of one device, with the stages of a `shard_map`.

        Results of the program have their rows in dimension 0 even where `out_axes` is negative.
        Static arguments are not among its arguments.

        Args:
          *args: Arrays, or `jax.ShapeDtypeStruct`s: the rows of this process.
          partitioner: As for `shard_map`.
          groups: As for `shard_map`.

        Returns:
          A `Lowered`, which can be simulated, explained, and compiled for other devices.

        Raises:
          ShmapError: One of its subclasses, if the call or the function has a mistake.

        Examples:
          >>> lowered = pmap(jnp.sin).lower_rows(x.reshape(8, 2))
          >>> "tensor<1x2xf32>" in lowered.as_text("body")
          True
        """
        call = self._traced(args, {})
        partitioner = call.default_partitioner if partitioner is None else partitioner
        return lowered.lower(call, partitioner, groups, overlap_setting())

    def _traced(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> TracedCall:
        args, kwargs = self._of_all(args, kwargs)
        return self._program.on_rows(RowCall.trace, args, kwargs)

    def lower(self, *args: PyTree, **kwargs: PyTree) -> jax.stages.Lowered:
        """Traces and lowers the function, as the `lower` of a `jax.jit` function does.

        On several processes the program is lowered for the rows of all of them.

        Args:
          *args: Arrays, or `jax.ShapeDtypeStruct`s: the rows of this process.
          **kwargs: The same, mapped over dimension 0.

        Returns:
          A `jax.stages.Lowered`.

        Raises:
          ShmapError: One of its subclasses, if the call or the function has a mistake.

        Examples:
          >>> f = pmap(jnp.sin)
          >>> rows = x.reshape(8, 2)
          >>> "stablehlo.sine" in f.lower(rows).as_text(), f.lower(rows).compile()(rows).shape
          (True, (8, 2))
        """
        return self._staged(self._program.jitted.lower, args, kwargs)

    def eval_shape(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Computes the types of the results without compiling or running anything.

        Args:
          *args: Arrays, or `jax.ShapeDtypeStruct`s: the rows of this process.
          **kwargs: The same, mapped over dimension 0.

        Returns:
          A pytree of `jax.ShapeDtypeStruct`, the rows of this process.

        Raises:
          ShmapError: One of its subclasses, if the call or the function has a mistake.

        Examples:
          >>> pmap(jnp.sin).eval_shape(x.reshape(8, 2)).shape
          (8, 2)
        """
        found = self._staged(self._program.jitted.eval_shape, args, kwargs)
        if self._program.process_count == 1:
            return found
        return processes.types_of_own_rows(self._program, found)

    def _staged(self, stage: Function, args: PyTree, kwargs: PyTree) -> PyTree:
        program = self._program
        args, kwargs = self._of_all(args, kwargs)
        try:
            return stage(*args, **kwargs)
        except ShmapError:
            raise
        except (TypeError, ValueError):
            program.rows(args, kwargs)  # explains what jit does not take
            moved = program.moved(args, kwargs) if program.process_count == 1 else None
            if moved is None:
                raise
        moved_args, moved_kwargs = moved
        return stage(*moved_args, **moved_kwargs)

    def _of_all(
        self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
    ) -> tuple[tuple[PyTree, ...], dict[str, PyTree]]:
        if self._program.process_count == 1:
            return args, kwargs
        return processes.types_of_all_rows(self._program, args, kwargs)

    def __get__(self, instance: object, owner: object = None) -> Wrapped:
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> str:
        """Copied and pickled like a function: as itself, and by its name."""
        return getattr(self, "__qualname__", repr(self))

    def __repr__(self) -> str:
        return f"<pmap of {describe(self.fun)}>"


def _positions(argnums: PyTree) -> PyTree:
    """Positions as a tuple; what is none stays as it is, to be refused."""
    if isinstance(argnums, Integral):
        return (int(argnums),)
    if isinstance(argnums, Iterable):
        return tuple(int(k) if isinstance(k, Integral) else k for k in argnums)
    return argnums
