"""`ShardMapped`: a function mapped over a mesh, which can be called, traced and lowered."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar

import jax
from jax.core import Tracer
from jax.sharding import AbstractMesh
from shmap_passes import GroupNaming, Partitioner

from shmap_compiler.base import specs
from shmap_compiler.base.caches import Cache
from shmap_compiler.base.common_mistakes import keyword_arguments, not_a_function
from shmap_compiler.base.descriptions import describe, show_value, update_wrapper
from shmap_compiler.base.errors import (
    BodyError,
    Problem,
    ProgramName,
    SpecTypeError,
    TargetError,
    errors_of,
)
from shmap_compiler.base.front_ends import FrontEndFunction
from shmap_compiler.base.jax_compat import (
    closes_over_explicit,
    is_on_host,
    is_tracing,
    needs_varying_types,
)
from shmap_compiler.base.mesh_context import region_of
from shmap_compiler.base.meshes import ManualRegion, no_devices
from shmap_compiler.base.pickling import PickledByName
from shmap_compiler.base.untyped import Function, Leaf, PyTree, Setting, Wrapped
from shmap_compiler.frontend import ref_arguments, trace_cache
from shmap_compiler.frontend.arguments import reduces, refuse_types
from shmap_compiler.frontend.call_eagerly import call_eagerly
from shmap_compiler.frontend.call_traced import apply_call, trace_call
from shmap_compiler.frontend.mapped import MappedFunction
from shmap_compiler.graph.graph import Graph
from shmap_compiler.graph.structural_keys import Identity
from shmap_compiler.lowering.added_passes import added_passes
from shmap_compiler.lowering.overlap import OverlapMode, read_setting
from shmap_compiler.records.traced_call import TracedCall
from shmap_compiler.stages import lowered
from shmap_compiler.stages.lowered import Lowered
from shmap_compiler.tracing.vma_queries import casts_to_reduced

_P = ParamSpec("_P")
_R = TypeVar("_R")


def make(fun: Callable[_P, _R], options: dict[str, Setting]) -> ShardMapped[_P, _R]:
    """The `ShardMapped` of a function, an existing one if the function was mapped equally before.

    Args:
      options: the other arguments of `shard_map`, by name.
    """
    return trace_cache.find(ShardMapped, fun, options) or ShardMapped(fun, **options)


_EXAMPLE = "shard_map(f, mesh=..., in_specs=..., out_specs=...)"


@dataclass(eq=False, repr=False)
class ShardMapped(PickledByName, FrontEndFunction, MappedFunction, Generic[_P, _R]):
    """A per-device function mapped over a mesh: a callable with the stages of `jax.jit`.

    Made by `shard_map`.

    Attributes:
      fun: The per-device function.
      mesh: As given to `shard_map`.
      in_specs: As given to `shard_map`.
      out_specs: As given to `shard_map`.
      axis_names: As given to `shard_map`; empty for all axes.
      check_vma: As given to `shard_map`.
      check_hangs: As given to `shard_map`.
      calls: The traced calls, by argument types.

    Examples:
      >>> f = shard_map(jnp.sin, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
      >>> f.mesh == mesh, f.check_vma
      (True, True)
    """

    _lowered: Cache[Lowered] = field(default_factory=lambda: Cache(maxsize=32), init=False)

    def __post_init__(self) -> None:
        if not callable(self.fun):
            problem = not_a_function(self.fun, "a function of one device's blocks", _EXAMPLE)
            raise SpecTypeError(repr(self.fun), [problem])
        update_wrapper(self, self.fun, updated=())

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        if kwargs:
            raise SpecTypeError(describe(self.fun), [keyword_arguments(kwargs, "in_specs")])
        leaves = jax.tree.leaves(args)
        region = self._region(leaves)
        if is_tracing() or any(isinstance(leaf, Tracer) for leaf in leaves):
            return self._bound(region, args)
        if region.has_types_inside:
            return self._bound(region, args)  # the types of eager values have no split
        if any(map(is_on_host, leaves)):
            return self._bound(region, args)  # blocks of eager values are on the devices
        if self._has_reductions or any(map(reduces, leaves)):
            return self._placed(region, args)  # only types know what may be done with summands
        if isinstance(region.mesh, AbstractMesh):
            raise TargetError(describe(self.fun), [no_devices(region.mesh)])
        try:
            return call_eagerly(self, region, args)
        except (BodyError, NotImplementedError) as error:
            if not (needs_varying_types(error) or closes_over_explicit(error)):
                raise
            return self._placed(region, args)

    @functools.cached_property
    def _has_reductions(self) -> bool:
        said = specs.has_reductions((self.in_specs, self.out_specs))
        return said or (self.check_vma and casts_to_reduced(self.fun))

    def _placed(self, region: ManualRegion, args: tuple[PyTree, ...]) -> PyTree:
        """The result with exactly the shardings that out_specs say."""
        call, inputs = trace_call(self, region, args)
        outs = apply_call(call, inputs)
        placed = zip(outs, call.signature.out_shardings[: len(outs)], strict=True)
        return jax.tree.unflatten(call.out_tree, [jax.device_put(x, s) for x, s in placed])

    def _bound(self, region: ManualRegion, args: tuple[PyTree, ...]) -> PyTree:
        with errors_of("shard_map"):  # this may be inside of another front end
            call, inputs = trace_call(self, region, args)
            refuse_types(self.fun, call.in_paths, inputs)
        outs = apply_call(call, inputs)
        return jax.tree.unflatten(call.out_tree, outs)

    def _region(self, leaves: Sequence[Leaf]) -> ManualRegion:
        return region_of(describe(self.fun), self.mesh, self.axis_names, leaves)

    def trace(self, *args: PyTree) -> Graph:
        """Traces the function.

        Args:
          *args: Arrays, or `jax.ShapeDtypeStruct`s.

        Returns:
          The `Graph` of the program of one device.

        Raises:
          ShmapError: One of its subclasses, if the call or the function has a mistake.

        Examples:
          >>> f = shard_map(jnp.sin, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
          >>> [str(t) for t in f.trace(x).body_in_types]
          ['float32[2]']
        """
        return self._call(args).graph

    def lower(
        self,
        *args: PyTree,
        partitioner: Partitioner | None = None,
        groups: GroupNaming = "axes",
        overlap: OverlapMode | None = None,
        overlap_rounding: bool | None = None,
    ) -> Lowered:
        """Traces and lowers the function to StableHLO.

        Args:
          *args: Arrays, or `jax.ShapeDtypeStruct`s.
          partitioner: "gspmd" (full-to-shard custom calls) or "shardy" (a manual computation).
            Defaults to "gspmd", and to "shardy" where an axis of the mesh is automatic or a result
            is unreduced.
          groups: Whether collectives name their groups by mesh "axes" or list device "ids", for
            compilers that do not read mesh axes. "one-axis" lists ids along several axes only.
          overlap: As for the context manager `overlap`. Defaults to its setting.
          overlap_rounding: As `rounding` of that context manager.

        Returns:
          A `Lowered`.

        Raises:
          ShmapError: One of its subclasses, if the call or the function has a mistake, or if
            `partitioner` or `groups` is not one of the choices.

        Examples:
          >>> f = shard_map(jnp.sin, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
          >>> "stablehlo.sine" in f.lower(x).as_text("body")
          True
        """
        setting = read_setting(overlap, overlap_rounding, describe(self.fun))
        call = self._call(args)
        if call.references:
            ref_arguments.refuse_lowered(describe(self.fun), call.reference_paths)
        if partitioner is None:
            partitioner = call.default_partitioner
        is_choice = partitioner in lowered.PARTITIONERS and groups in lowered.GROUPS
        if call.constants or not is_choice:
            return lowered.lower(call, partitioner, groups, setting)
        key = Identity(call), partitioner, groups, added_passes(), setting
        return self._lowered.get(key, lambda: lowered.lower(call, partitioner, groups, setting))

    def _call(self, args: tuple[PyTree, ...]) -> TracedCall:
        call, _ = trace_call(self, self._region(jax.tree.leaves(args)), args)
        return call

    def replace(self, **fields: Setting) -> ShardMapped[..., PyTree]:
        """Returns the same function with other arguments of `shard_map`.

        Args:
          **fields: Arguments of `shard_map` by name, or `fun`, another per-device function.

        Returns:
          A `ShardMapped`.

        Examples:
          >>> f = shard_map(jnp.sin, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
          >>> f.replace(check_vma=False).check_vma
          False
        """
        fun: Callable[..., Any] = fields.pop("fun", self.fun)
        options = {**self.options, **fields}
        options["axis_names"] = names_of_axes(fun, options["axis_names"])
        return make(fun, options)

    def __get__(self, instance: object, owner: object = None) -> Wrapped:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<shard_map of {describe(self.fun)}>"


def names_of_axes(fun: Function | None, axis_names: str | Iterable[str]) -> frozenset[str]:
    """`axis_names` as a set; one name is not a sequence of names."""
    try:
        return frozenset({axis_names} if isinstance(axis_names, str) else axis_names)
    except TypeError:
        problem = Problem(
            "axis_names",
            show_value(axis_names),
            "names of mesh axes: a string, or a set or another collection of strings",
            "write axis_names={'i'}, or omit it for all axes of the mesh",
        )
        who = describe(fun) if callable(fun) else ProgramName("shard_map")
        raise SpecTypeError(who, [problem]) from None
