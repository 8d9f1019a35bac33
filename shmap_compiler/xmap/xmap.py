"""The public surface: `xmap` maps a function over named axes, which resources are assigned to."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Generic, ParamSpec, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh
from shmap_passes import GroupNaming, Partitioner

from shmap_compiler.base.common_mistakes import keyword_arguments, not_a_function
from shmap_compiler.base.descriptions import describe, function_name, update_wrapper
from shmap_compiler.base.errors import Problem, ProgramName, SpecTypeError, spec_error
from shmap_compiler.base.front_ends import FrontEndFunction
from shmap_compiler.base.jax_compat import (
    AnyMesh,
)
from shmap_compiler.base.pickling import PickledByName
from shmap_compiler.base.untyped import AnyValue, PyTree, Setting, Wrapped
from shmap_compiler.frontend import trace_cache
from shmap_compiler.lowering.overlap import OverlapMode
from shmap_compiler.xmap import region
from shmap_compiler.xmap.arguments import (
    NO_RESULTS,
    has_backend,
    read_positions,
    read_resources,
    read_sizes,
    undefined_names,
)
from shmap_compiler.xmap.axes import Mappings
from shmap_compiler.xmap.named_lowered import NamedLowered
from shmap_compiler.xmap.named_program import NamedProgram
from shmap_compiler.xmap.placed import mapped_over, placed
from shmap_compiler.xmap.trace_call import NamedFunction, enclosing_sizes, trace_call

_P = ParamSpec("_P")
_R = TypeVar("_R")


def xmap(
    fun: Callable[_P, _R],
    in_axes: PyTree,
    out_axes: PyTree,
    *,
    axis_sizes: Mapping[str, int] | None = None,
    axis_resources: Mapping[str, AnyValue] | None = None,
    donate_argnums: int | Sequence[int] = (),
    backend: str | None = None,
    mesh: AnyMesh | None = None,
    check_vma: bool = True,
) -> XMapped[_P, _R]:
    """Maps a function over named axes.

    Inside `fun`, named dimensions of the arguments are not among the dimensions of arrays:
    operations treat each position along them alike, as under `jax.vmap`, and values with different
    names broadcast. Collectives and the functions of `shmap_compiler.named` refer to them by name.
    `axis_resources` decides where each axis is computed, and never changes what is computed.

    Args:
      fun: A function of arrays and pytrees of arrays, called by position.
      in_axes: For each argument (a prefix of the tuple of arguments) the names of its dimensions: a
        dict `{dimension: name}`, or a list of names from the first dimension on, with None for
        dimensions without a name. A list that ends in `...` leaves the rank open; others assert it.
      out_axes: The same for the results (a prefix of them): where named dimensions are inserted. A
        result without one of the axes that are named here is repeated along it.
      axis_sizes: The sizes of axes that no argument has.
      axis_resources: For each axis, a mesh axis, a tuple of mesh axes (major axis first), or a loop
        (`SerialLoop`, or the name of a `serial_loop`), which may follow mesh axes. Other axes are
        vectorized.
      donate_argnums: The positions of arguments whose memory calls may reuse.
      backend: Must be None: the mesh determines the devices.
      mesh: The mesh. By default that of `shmap_compiler.mesh` or `jax.set_mesh`, when it is called.
      check_vma: Whether a gradient that `fun` takes is summed over the axes that its operand lacks,
        as JAX's types of varying values say. If not, each position gets its own, and the transpose
        of `psum` is `psum`, as under `jax.vmap` and in JAX's former `xmap`.

    Returns:
      An `XMapped`, a function of full arrays, which is compiled as by `jax.jit`.

    Raises:
      SpecError: Mappings, sizes and resources do not fit together.

    Examples:
      >>> def normalize(row):  # f32[] with the axis "rows"
      ...     return row / lax.psum(row, "rows")
      >>> f = xmap(normalize, in_axes=["rows", ...], out_axes=["rows", ...],
      ...          axis_resources={"rows": "i"}, mesh=mesh)
      >>> jnp.allclose(f(x), x / x.sum()).item()
      True
    """
    options = {
        "in_axes": in_axes,
        "out_axes": out_axes,
        "axis_sizes": axis_sizes,
        "axis_resources": axis_resources,
        "donate_argnums": donate_argnums,
        "mesh": mesh,
        "check_vma": check_vma,
    }
    made = trace_cache.find(XMapped, fun, options) if backend is None else None
    if made is not None:
        return made
    if not callable(fun):
        problem = not_a_function(fun, "a function of arrays", "xmap(f, in_axes=..., out_axes=...)")
        raise SpecTypeError(ProgramName(f"xmap of {fun!r}"), [problem])
    who = f"xmap of {describe(fun)}"
    problems: list[Problem] = []
    ins, outs = Mappings("in_axes", in_axes, problems), Mappings("out_axes", out_axes, problems)
    resources = read_resources(axis_resources, problems)
    sizes = read_sizes(axis_sizes, problems)
    donated = read_positions(donate_argnums, problems)
    if not problems:
        problems += undefined_names(ins, outs, sizes, resources)
    if isinstance(out_axes, tuple) and not out_axes:
        problems.append(NO_RESULTS)
    if backend is not None:
        problems.append(has_backend(backend))
    if problems:
        raise spec_error(who, problems)
    function = NamedFunction(fun, ins, outs, sizes, resources, donated, mesh, check_vma)
    return XMapped(function, options)


class XMapped(PickledByName, FrontEndFunction, Generic[_P, _R]):
    """A function mapped over named axes: a callable with the stages of `jax.jit`.

    Made by `xmap`.

    Attributes:
      fun: The function of named axes.
      axis_sizes: As given to `xmap`.
      axis_resources: As given to `xmap`, each a tuple.
      donate_argnums: As given to `xmap`, a tuple.
      mesh: As given to `xmap`.
      check_vma: As given to `xmap`.

    Examples:
      >>> f = xmap(lambda x: x * 2, in_axes=["rows", ...], out_axes=["rows", ...])
      >>> f.axis_resources, f(x).shape
      ({}, (16,))
    """

    def __init__(self, function: NamedFunction, options: dict[str, Setting]):
        fun = function.fun
        update_wrapper(self, fun, updated=())
        self.function = function
        self.options = options  # as they were given, which tell it from others of the function
        self.fun: Callable[_P, _R] = fun
        self.axis_sizes, self.axis_resources = function.axis_sizes, function.axis_resources
        self.donate_argnums, self.mesh = function.donate_argnums, function.mesh
        self.check_vma = function.check_vma

        def call(*args: PyTree) -> AnyValue:
            result = self._traced(*args)
            # The original traced a function once, even one that changes what it reads.
            trace_cache.keep(self, trace_cache.key(self.fun, self.options))
            return result

        call.__name__ = call.__qualname__ = function_name(fun)
        self._jitted = jax.jit(call, donate_argnums=self.donate_argnums)

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        if kwargs:
            raise SpecTypeError(self.function.who, [keyword_arguments(kwargs, "in_axes")])
        if enclosing_sizes() is not None:
            return self._traced(*args)
        return self._jitted(*args)

    def _traced(self, *args: PyTree) -> AnyValue:
        call = trace_call(self.function, args)
        program = call.program
        operands = (*program.constants, *jax.tree.leaves(args))
        if enclosing_sizes() is not None and program.mesh_axes:
            results = region.bind(program, *operands)
        else:
            results = placed(program)(*operands)
        return jax.tree.unflatten(call.out_tree, results)

    def trace(self, *args: PyTree) -> NamedProgram:
        """Traces the function.

        Args:
          *args: Arrays, or `jax.ShapeDtypeStruct`s.

        Returns:
          The `NamedProgram`. Printing it shows the named shape of every value.

        Raises:
          ShmapError: One of its subclasses, if the call or the function has a mistake.

        Examples:
          >>> f = xmap(lambda x: lax.psum(x, "rows"), in_axes=["rows", ...], out_axes=[...])
          >>> "a:f32[]{rows:16}" in str(f.trace(x))
          True
        """
        return trace_call(self.function, args).program

    def lower(
        self,
        *args: PyTree,
        partitioner: Partitioner | None = None,
        groups: GroupNaming = "axes",
        overlap: OverlapMode | None = None,
        overlap_rounding: bool | None = None,
    ) -> NamedLowered:
        """Traces the function, places it, and lowers it to StableHLO.

        Args:
          *args: Arrays, or `jax.ShapeDtypeStruct`s.
          partitioner: As for `shard_map`.
          groups: As for `shard_map`.
          overlap: As for `shard_map`.
          overlap_rounding: As for `shard_map`.

        Returns:
          A `Lowered`, whose stage "named" is the program with its named axes.

        Raises:
          ShmapError: One of its subclasses, if the call or the function has a mistake.

        Examples:
          >>> f = xmap(lambda x: lax.psum(x, "rows"), in_axes=["rows", ...], out_axes=[...],
          ...          axis_resources={"rows": "i"}, mesh=mesh)
          >>> lowered = f.lower(x)
          >>> "all_reduce" in lowered.as_text("body"), lowered.compile()(x).shape
          (True, ())
        """
        call = trace_call(self.function, args)
        program = call.program
        if program.mesh is not None and program.mesh_axes:
            found, axes = program.mesh, program.manual_axes
        else:  # on one device, which a mesh of one axis stands for
            found, axes = _one_device(), ("device",)
        mapped = mapped_over(program, found, axes, call.in_tree, call.out_tree)
        lowered = mapped.lower(
            *args,
            partitioner=partitioner,
            groups=groups,
            overlap=overlap,
            overlap_rounding=overlap_rounding,
        )
        fields = {name: getattr(lowered, name) for name in lowered.__dataclass_fields__}
        return NamedLowered(**fields, named=program)

    def replace(self, *, mesh: AnyMesh | None) -> XMapped[_P, _R]:
        """Returns the same function on another mesh.

        Args:
          mesh: As for `xmap`.

        Returns:
          An `XMapped`.

        Examples:
          >>> f = xmap(lambda x: x * 2, in_axes=["rows", ...], out_axes=["rows", ...],
          ...          axis_resources={"rows": "i"})
          >>> tuple(f.replace(mesh=mesh)(x).sharding.spec)
          ('i',)
        """
        return XMapped(replace(self.function, mesh=mesh), {**self.options, "mesh": mesh})

    def __get__(self, instance: object, owner: object = None) -> Wrapped:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<xmap of {describe(self.fun)}>"


def _one_device() -> Mesh:
    return Mesh(np.array(jax.devices()[:1]), ("device",))
