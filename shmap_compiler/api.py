"""`shard_map`: maps a per-device function over the blocks of its arguments."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from shmap_passes import Groups, Partitioner

from shmap_compiler import specs, stages
from shmap_compiler._compat import AnyMesh
from shmap_compiler.errors import Problem, ResultTypeError, SpecError, describe, function_name
from shmap_compiler.graph import Graph
from shmap_compiler.primitive import bind
from shmap_compiler.stages import Call, Lowered
from shmap_compiler.tracer import trace


def shard_map(
    f: Callable[..., Any] | None = None,
    /,
    *,
    mesh: AnyMesh,
    in_specs: Any,
    out_specs: Any,
    axis_names: Sequence[str] | frozenset[str] = frozenset(),
) -> Any:
    """Maps `f`, written for one device, over a mesh of devices.

    Each device applies `f` to its blocks of the arguments. Collectives in `f` name mesh axes.

    Args:
      f: the per-device function, of arrays and pytrees of them. Without it, returns a decorator.
      mesh: the devices (`jax.sharding.Mesh`), or only their arrangement (`AbstractMesh`).
      in_specs: a pytree of `PartitionSpec`, a prefix of the tuple of arguments. Dimension d of an
        argument is split over the mesh axes that its spec names at d; along axes that a spec does
        not name, all devices get equal blocks. An argument whose spec is None is not an array: `f`
        receives it as it is.
      out_specs: the same for the result: how the blocks form the full array. Along axes that a spec
        does not name the blocks are taken to be equal.
      axis_names: the axes over which `f` is per-device; all by default. The others stay automatic.

    Returns:
      A `ShardMapped`: a function of full arrays.
    """
    if f is None:
        return functools.partial(
            shard_map, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names=axis_names
        )
    return ShardMapped(f, mesh, in_specs, out_specs, frozenset(axis_names))


class ShardMapped:
    """A per-device function mapped over a mesh: a callable with the stages of `jax.jit`."""

    def __init__(self, fun, mesh, in_specs, out_specs, axis_names=frozenset()):
        functools.update_wrapper(self, fun, updated=())
        self.fun = fun
        self.mesh = mesh
        self.in_specs = in_specs
        self.out_specs = out_specs
        self.axis_names = axis_names or frozenset(getattr(mesh, "axis_names", ()))

    def __call__(self, *args: Any) -> Any:
        # jit keeps what was traced and compiled for equal types. It takes arrays only, and would
        # hide from an enclosing transformation which of its values are used.
        concrete = all(
            _type_of(leaf) is not None and not isinstance(leaf, jax.core.Tracer)
            for leaf in jax.tree.leaves(args)
        )
        return self._jitted(*args) if concrete else self._bound(*args)

    @functools.cached_property
    def _jitted(self) -> Callable[..., Any]:
        return jax.jit(self._bound)

    def _bound(self, *args: Any) -> Any:
        call, inputs = self._traced(args)
        outs = bind(call.graph, *call.constants, *inputs)
        return jax.tree.unflatten(call.out_tree, outs)

    def trace(self, *args: Any) -> Graph:
        """The Graph of `f` for these arguments: arrays, or `jax.ShapeDtypeStruct`s."""
        return self._traced(args)[0].graph

    def lower(
        self, *args: Any, partitioner: Partitioner = "gspmd", groups: Groups = "axes"
    ) -> Lowered:
        """Lowers for these arguments: arrays, or `jax.ShapeDtypeStruct`s.

        Args:
          partitioner: "gspmd", the full-to-shard custom calls, or "shardy".
          groups: collectives name their groups by mesh "axes", or list the device "ids" of each,
            for a compiler that does not read mesh axes.
        """
        return stages.lower(self._traced(args)[0], partitioner, groups)

    def replace(self, **fields: Any) -> ShardMapped:
        """The same function with another mesh, in_specs, out_specs or axis_names."""
        return shard_map(
            fields.pop("fun", self.fun),
            **{
                "mesh": self.mesh,
                "in_specs": self.in_specs,
                "out_specs": self.out_specs,
                "axis_names": self.axis_names if "mesh" not in fields else frozenset(),
                **fields,
            },
        )

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<shard_map of {describe(self.fun)}>"

    def _traced(self, args: tuple[Any, ...]) -> tuple[Call, list[Any]]:
        inputs = self._inputs(args)
        leaves, in_tree = jax.tree.flatten(args)
        results = _Results(self)

        def flat_fun(*blocks):
            return results.record(self.fun(*inputs.rebuild(args, blocks)))

        traced = trace(
            flat_fun,
            name=function_name(self.fun),
            who=describe(self.fun),
            mesh=self.mesh,
            manual_axes=self._manual_axes,
            in_specs=[i.spec for i in inputs.dynamic],
            out_specs=results.checked_specs,
            in_types=[i.type for i in inputs.dynamic],
        )
        call = Call(
            fun=self.fun,
            graph=traced.graph,
            constants=tuple(traced.constants),
            in_tree=in_tree,
            in_paths=tuple(i.path for i in inputs.dynamic),
            select=lambda flat: [flat[i.position] for i in inputs.dynamic],
            out_tree=results.tree,
        )
        return call, call.select(leaves)

    @property
    def _manual_axes(self) -> tuple[str, ...]:
        return tuple(a for a in self.mesh.axis_names if a in self.axis_names)

    def _inputs(self, args: tuple[Any, ...]) -> _Inputs:
        """The array arguments with specs and types. Raises SpecError for all that is wrong."""
        problems = list(_mesh_problems(self.mesh, self.axis_names))
        if problems:
            raise SpecError(describe(self.fun), problems)
        in_specs = tuple(self.in_specs) if isinstance(self.in_specs, list) else self.in_specs
        matched, problems = specs.broadcast_specs(in_specs, args, "in_specs", "args")
        inputs, bad_specs = [], set()
        for position, (path, leaf, spec_path, spec) in enumerate(matched):
            if spec is None:
                continue
            faults = list(specs.spec_problems(spec, spec_path, self.mesh, self._manual_axes))
            if faults:
                problems += faults if spec_path not in bad_specs else []
                bad_specs.add(spec_path)
                continue
            aval = _type_of(leaf)
            if aval is None:
                problems.append(_not_an_array(path, leaf, spec_path))
                continue
            problems += specs.input_problems(aval.shape, path, spec, spec_path, self.mesh)
            inputs.append(_Input(position, path, spec, aval))
        if problems:
            raise SpecError(describe(self.fun), problems)
        return _Inputs(inputs)


@dataclasses.dataclass(frozen=True)
class _Input:
    position: int
    path: str
    spec: PartitionSpec
    type: Any


@dataclasses.dataclass(frozen=True)
class _Inputs:
    dynamic: list[_Input]

    def rebuild(self, args: tuple[Any, ...], blocks: Sequence[Any]) -> tuple[Any, ...]:
        """The user's arguments with each array replaced by its block."""
        leaves, tree = jax.tree.flatten(args)
        for i, block in zip(self.dynamic, blocks, strict=True):
            leaves[i.position] = block
        return jax.tree.unflatten(tree, leaves)


class _Results:
    """Records the structure of the user's result while it is traced, and checks out_specs."""

    def __init__(self, mapped: ShardMapped):
        self.mapped = mapped
        self.tree: Any = None
        self.matched: list[tuple[str, Any, str, Any]] = []

    def record(self, result: Any) -> list[Any]:
        who = describe(self.mapped.fun)
        leaves, self.tree = jax.tree.flatten(result)
        self.matched, problems = specs.broadcast_specs(
            self.mapped.out_specs, result, "out_specs", "result"
        )
        for spec_path, spec in {m[2]: m[3] for m in self.matched}.items():
            problems += specs.spec_problems(
                spec, spec_path, self.mapped.mesh, self.mapped._manual_axes
            )
        if problems:
            raise SpecError(who, problems)
        no_arrays = [
            Problem(
                path,
                f"{leaf!r}, a {type(leaf).__name__}",
                "an array, or a pytree of arrays",
                "return arrays only; close over other values, or return them outside shard_map",
            )
            for path, leaf, _, _ in self.matched
            if _type_of(leaf) is None
        ]
        if no_arrays:
            raise ResultTypeError(who, no_arrays)
        return leaves

    def checked_specs(self, types: Sequence[Any]) -> list[PartitionSpec]:
        problems = [
            problem
            for t, (path, _, spec_path, spec) in zip(types, self.matched, strict=True)
            for problem in specs.output_problems(t.shape, path, spec, spec_path)
        ]
        if problems:
            raise SpecError(describe(self.mapped.fun), problems)
        return [m[3] for m in self.matched]


def _type_of(leaf: Any) -> Any:
    """Type of an argument or result, or None if it is no array."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    try:
        return jax.typeof(leaf)
    except TypeError:
        return None


def _not_an_array(path: str, leaf: Any, spec_path: str) -> Problem:
    return Problem(
        path,
        f"{leaf!r}, a {type(leaf).__name__}",
        "an array, a NumPy array or a number",
        f"pass an array, or give {spec_path} the value None to hand it to the function as it is",
    )


def _mesh_problems(mesh: Any, axis_names: frozenset[str]):
    if not isinstance(mesh, (Mesh, AbstractMesh)):
        yield Problem(
            "mesh",
            f"a {type(mesh).__name__}",
            "a jax.sharding.Mesh or AbstractMesh",
            "make one with jax.make_mesh((4, 2), ('i', 'j'))",
        )
        return
    for name in sorted(axis_names - set(mesh.axis_names), key=str):
        yield Problem(
            f"axis_names={set(axis_names)}",
            f"axis {name!r}",
            f"axes of {specs.show_mesh(mesh)}",
            f"use some of {', '.join(map(repr, mesh.axis_names))}",
        )
