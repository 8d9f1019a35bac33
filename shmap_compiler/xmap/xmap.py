"""The public surface: `xmap` maps a function over named axes, which resources are assigned to."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh
from shmap_passes import GroupNaming, Partitioner

from shmap_compiler.base.common_mistakes import keyword_arguments, not_a_function
from shmap_compiler.base.descriptions import describe, function_name
from shmap_compiler.base.errors import Problem, SpecTypeError, spec_error
from shmap_compiler.base.jax_compat import (
    AnyMesh,
    enclosing_manual_axes,
    mesh_in_scope,
    with_manual_axes,
)
from shmap_compiler.base.values import type_of
from shmap_compiler.frontend import trace_cache
from shmap_compiler.lowering.overlap import OverlapMode
from shmap_compiler.xmap import named_shapes, region
from shmap_compiler.xmap.arguments import (
    NO_RESULTS,
    check_results,
    has_backend,
    no_array,
    read_positions,
    read_resources,
    read_sizes,
    shadows,
    undefined_names,
    wrong_rank,
)
from shmap_compiler.xmap.axes import Mappings, sizes_of
from shmap_compiler.xmap.named_lowered import NamedLowered
from shmap_compiler.xmap.named_program import NamedProgram
from shmap_compiler.xmap.placed import mapped_over, placed
from shmap_compiler.xmap.resources import find_mesh, is_another_mesh, mesh_changes, place_axes
from shmap_compiler.xmap.trace import Scope, trace_named

_P = ParamSpec("_P")
_R = TypeVar("_R")


def xmap(
    fun: Callable[_P, _R],
    in_axes: Any,
    out_axes: Any,
    *,
    axis_sizes: Mapping[str, int] | None = None,
    axis_resources: Mapping[str, Any] | None = None,
    donate_argnums: int | Sequence[int] = (),
    backend: str | None = None,
    mesh: AnyMesh | None = None,
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
    }
    made = trace_cache.find(XMapped, fun, options) if backend is None else None
    if made is not None:
        return made
    if not callable(fun):
        problem = not_a_function(fun, "a function of arrays", "xmap(f, in_axes=..., out_axes=...)")
        raise SpecTypeError(f"xmap of {fun!r}", [problem])
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
    return XMapped(fun, ins, outs, sizes, resources, donated, mesh, options)


_enclosing: ContextVar[dict[str, int] | None] = ContextVar("enclosing", default=None)
"""While the function of an xmap is traced: the sizes of the axes in scope."""


@dataclass(frozen=True)
class _Call:
    """A traced call: the program, and the structure of arguments and results."""

    program: NamedProgram
    in_tree: Any
    out_tree: Any


class XMapped(Generic[_P, _R]):
    """A function mapped over named axes: a callable with the stages of `jax.jit`.

    Made by `xmap`.

    Attributes:
      fun: The function of named axes.
      axis_sizes: As given to `xmap`.
      axis_resources: As given to `xmap`, each a tuple.
      donate_argnums: As given to `xmap`, a tuple.
      mesh: As given to `xmap`.

    Examples:
      >>> f = xmap(lambda x: x * 2, in_axes=["rows", ...], out_axes=["rows", ...])
      >>> f.axis_resources, f(x).shape
      ({}, (16,))
    """

    def __init__(
        self,
        fun: Callable[_P, _R],
        ins: Mappings,
        outs: Mappings,
        axis_sizes: dict[str, int],
        axis_resources: dict[str, tuple[Any, ...]],
        donate_argnums: tuple[int, ...],
        mesh: AnyMesh | None,
        options: dict[str, Any],
    ):
        functools.update_wrapper(self, fun, updated=())
        self.fun = fun
        self._ins, self._outs = ins, outs
        self.axis_sizes, self.axis_resources = axis_sizes, axis_resources
        self.donate_argnums, self.mesh = donate_argnums, mesh
        self.options = options  # as they were given, which tell it from others of the function
        self._names = tuple(dict.fromkeys([*(n for m in ins.leaves for n in m.names), *axis_sizes]))

        def call(*args: Any) -> Any:
            result = self._traced(*args)
            trace_cache.keep(self)
            return result

        call.__name__ = call.__qualname__ = function_name(fun)
        self._jitted = jax.jit(call, donate_argnums=donate_argnums)

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        if kwargs:
            raise SpecTypeError(self._who, [keyword_arguments(kwargs, "in_axes")])
        if _enclosing.get() is not None:
            return self._traced(*args)
        return self._jitted(*args)

    @property
    def _who(self) -> str:
        return f"xmap of {describe(self.fun)}"

    def _traced(self, *args: Any) -> Any:
        call = self._call(args)
        program = call.program
        operands = (*program.constants, *jax.tree.leaves(args))
        if _enclosing.get() is not None and program.mesh_axes:
            results = region.bind(program, *operands)
        else:
            results = placed(program)(*operands)
        return jax.tree.unflatten(call.out_tree, results)

    def trace(self, *args: Any) -> NamedProgram:
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
        return self._call(args).program

    def lower(
        self,
        *args: Any,
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

        Examples:
          >>> f = xmap(lambda x: lax.psum(x, "rows"), in_axes=["rows", ...], out_axes=[...],
          ...          axis_resources={"rows": "i"}, mesh=mesh)
          >>> lowered = f.lower(x)
          >>> "all_reduce" in lowered.as_text("body"), lowered.compile()(x).shape
          (True, ())
        """
        call = self._call(args)
        program = call.program
        if program.mesh is not None and program.mesh_axes:
            found, axes = program.mesh, program.mesh_axes
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
        read = self.axis_sizes, self.axis_resources, self.donate_argnums
        options = {**self.options, "mesh": mesh}
        return XMapped(self.fun, self._ins, self._outs, *read, mesh, options)

    def _call(self, args: tuple[Any, ...]) -> _Call:
        who = self._who
        paths, in_tree = jax.tree_util.tree_flatten_with_path(args)
        in_paths = ["args" + jax.tree_util.keystr(path) for path, _ in paths]
        in_types = [type_of(leaf) for _, leaf in paths]
        wrong = [
            no_array(path, leaf)
            for path, (_, leaf), t in zip(in_paths, paths, in_types, strict=True)
            if t is None
        ]
        if wrong:
            raise spec_error(who, wrong)
        mappings = self._ins.of_leaves(who, args)
        shapes = [t.shape for t in in_types]
        sizes = sizes_of(who, in_paths, shapes, mappings, self.axis_sizes, self._names)
        outer = _enclosing.get() or {}
        shadowed = [shadows(name) for name in sizes if name in outer]
        if shadowed:
            raise spec_error(who, shadowed)
        found = find_mesh(self.mesh)
        if outer and self.axis_resources and is_another_mesh(found):
            raise spec_error(who, [mesh_changes(found)])
        placements = place_axes(who, sizes, self.axis_resources, found, tuple(outer))
        out: list[Any] = []

        def flat_fun(*leaves: Any) -> Sequence[Any]:
            token = _enclosing.set({**outer, **sizes})
            try:
                fun: Callable[..., Any] = self.fun
                result = fun(*jax.tree.unflatten(in_tree, leaves))
            finally:
                _enclosing.reset(token)
            paths, tree = jax.tree_util.tree_flatten_with_path(result)
            out[:] = [tree, [f"result{jax.tree_util.keystr(p)}" for p, _ in paths]]
            check_results(who, out[1], [x for _, x in paths])
            return [jnp.asarray(x) for _, x in paths]

        used = {a for p in placements.values() for a in p.mesh_axes}
        jaxpr, constants = trace_named(
            flat_fun,
            user_fun=self.fun,
            who=who,
            sizes=sizes,
            types=in_types,
            mappings=mappings,
            scope=Scope(outer, _body_mesh(found, used)),
        )
        tree, out_paths = out
        out_mappings = self._outs.of_leaves(who, tree.unflatten(out_paths))
        ranks = [len(v.aval.shape) for v in jaxpr.jaxpr.outvars]
        wrong = [
            problem
            for path, rank, m in zip(out_paths, ranks, out_mappings, strict=True)
            for problem in wrong_rank(path, rank, m)
        ]
        if wrong:
            raise spec_error(who, wrong)
        program = NamedProgram(
            fun=self.fun,
            who=who,
            jaxpr=jaxpr,
            constants=constants,
            placements=placements,
            mesh=found,
            in_mappings=tuple(mappings),
            out_mappings=tuple(out_mappings),
            outer=dict(outer),
        )
        named_shapes.check(program, out_paths, in_paths)
        return _Call(program, in_tree, tree)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<xmap of {describe(self.fun)}>"


def _one_device() -> Mesh:
    return Mesh(np.array(jax.devices()[:1]), ("device",))


def _body_mesh(found: AnyMesh | None, used: set[str]) -> AbstractMesh:
    """The mesh as the body sees it: the one in scope, with the axes of this xmap manual."""
    scope = mesh_in_scope()
    if found is None or not used:
        return scope if scope is not None else AbstractMesh((), ())
    outer = enclosing_manual_axes(found)
    return with_manual_axes(found, (*used, *outer))
