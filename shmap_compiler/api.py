"""`shard_map`: maps a per-device function over the blocks of its arguments."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from shmap_passes import Groups, Partitioner

from shmap_compiler import specs, stages
from shmap_compiler._compat import AnyMesh
from shmap_compiler.errors import (
    Problem,
    ResultTypeError,
    SpecError,
    TargetError,
    describe,
    function_name,
    show_value,
)
from shmap_compiler.graph import Graph
from shmap_compiler.primitive import bind
from shmap_compiler.replication.check import check_outputs
from shmap_compiler.replication.hangs import check_hangs
from shmap_compiler.stages import Call, Lowered
from shmap_compiler.tracer import trace


def shard_map(
    f: Callable[..., Any] | None = None,
    /,
    *,
    mesh: AnyMesh,
    in_specs: Any,
    out_specs: Any,
    axis_names: str | Iterable[str] = frozenset(),
    check_vma: bool = True,
    check_hangs: bool = True,
) -> Any:
    """Maps `f`, written for one device, over a mesh of devices.

    Each device applies `f` to its blocks of the arguments. Collectives in `f` name mesh axes.

    Args:
      f: the per-device function, of arrays and pytrees of them. Without it, returns a decorator.
      mesh: the devices (`jax.sharding.Mesh`), or only their arrangement (`AbstractMesh`).
      in_specs: a pytree of `PartitionSpec`, a prefix of the tuple of arguments. Dimension d of an
        argument is split over the mesh axes that its spec names at d; along axes that a spec does
        not name, all devices get equal blocks. An argument whose spec is None is not an array: `f`
        receives it as it is. It must be hashable: programs are kept by its value.
      out_specs: the same for the result: how the blocks form the full array. Along axes that a spec
        does not name the blocks are taken to be equal.
      axis_names: the axes over which `f` is per-device; all by default. The others stay automatic.
      check_vma: refuse results that may differ along axes their specs do not name.
      check_hangs: refuse collectives that some of the devices they unite would not reach.

    Returns:
      A `ShardMapped`: a function of full arrays.
    """
    if f is None:
        return functools.partial(
            shard_map,
            mesh=mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names=axis_names,
            check_vma=check_vma,
            check_hangs=check_hangs,
        )
    # One name is no sequence of names.
    names = {axis_names} if isinstance(axis_names, str) else axis_names
    return ShardMapped(f, mesh, in_specs, out_specs, frozenset(names), check_vma, check_hangs)


class ShardMapped:
    """A per-device function mapped over a mesh: a callable with the stages of `jax.jit`."""

    def __init__(
        self,
        fun,
        mesh,
        in_specs,
        out_specs,
        axis_names=frozenset(),
        check_vma=True,
        check_hangs=True,
    ):
        if not callable(fun):
            raise SpecError(repr(fun), [_not_a_function(fun)])
        functools.update_wrapper(self, fun, updated=())
        self.fun = fun
        self.mesh = mesh
        self.in_specs = in_specs
        self.out_specs = out_specs
        self.axis_names = axis_names or frozenset(getattr(mesh, "axis_names", ()))
        self.check_vma = check_vma
        self.check_hangs = check_hangs

    def __call__(self, *args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            # jit would hide from the enclosing transformation which of its values are used.
            return self._bound(*args)
        if isinstance(self.mesh, AbstractMesh):
            raise TargetError(describe(self.fun), [stages.no_devices(self.mesh)])
        static = self._static(args)
        arrays = [leaf for k, leaf in enumerate(leaves) if k not in static]
        if not (all(map(_is_array, arrays)) and all(map(_is_hashable, static.values()))):
            return self._bound(*args)  # says what is wrong with them
        return self._jitted(arrays, _Rest(tree, tuple(static.items())))

    @functools.cached_property
    def _jitted(self) -> Callable[[list[Any], _Rest], Any]:
        """Keeps what was traced and compiled for equal types and equal other arguments."""
        return jax.jit(lambda arrays, rest: self._bound(*rest.filled(arrays)), static_argnums=1)

    def _bound(self, *args: Any) -> Any:
        call, inputs = self._traced(args)
        only_types = [
            _only_a_type(path, x)
            for path, x in zip(call.in_paths, inputs, strict=True)
            if isinstance(x, jax.ShapeDtypeStruct)
        ]
        if only_types:
            raise SpecError(describe(self.fun), only_types)
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
        """The same function with other arguments of `shard_map`."""
        return shard_map(
            fields.pop("fun", self.fun),
            **{
                "mesh": self.mesh,
                "in_specs": self.in_specs,
                "out_specs": self.out_specs,
                "axis_names": self.axis_names if "mesh" not in fields else frozenset(),
                "check_vma": self.check_vma,
                "check_hangs": self.check_hangs,
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
        self._check_replication(traced.graph, inputs, results)
        call = Call(
            fun=self.fun,
            graph=traced.graph,
            constants=tuple(traced.constants),
            in_tree=in_tree,
            in_paths=tuple(i.path for i in inputs.dynamic),
            static=tuple(inputs.static),
            select=lambda flat: [flat[i.position] for i in inputs.dynamic],
            out_tree=results.tree,
        )
        return call, call.select(leaves)

    def _check_replication(self, graph: Graph, inputs: _Inputs, results: _Results) -> None:
        who, in_paths = describe(self.fun), [i.path for i in inputs.dynamic]
        if self.check_hangs:
            check_hangs(graph, who, in_paths)
        if self.check_vma:
            out_paths = [(path, spec_path) for path, _, spec_path, _ in results.matched]
            check_outputs(graph, who, in_paths, out_paths)

    @property
    def _manual_axes(self) -> tuple[str, ...]:
        return tuple(a for a in self.mesh.axis_names if a in self.axis_names)

    def _inputs(self, args: tuple[Any, ...]) -> _Inputs:
        """The array arguments with specs and types. Raises SpecError for all that is wrong."""
        problems = list(_mesh_problems(self.mesh, self.axis_names))
        if problems:
            raise SpecError(describe(self.fun), problems)
        on_mesh = self.mesh, self._manual_axes
        problems += specs.tree_problems(self.in_specs, "in_specs", *on_mesh, optional=True)
        problems += specs.tree_problems(self.out_specs, "out_specs", *on_mesh)
        matched, mismatches = self._matched(args)
        problems += mismatches
        dynamic, static = [], []
        for position, (path, leaf, spec_path, spec) in enumerate(matched):
            if spec is None:
                problems += [] if _is_hashable(leaf) else [_not_hashable(path, leaf)]
                static.append((position, path, leaf))
                continue
            aval = _type_of(leaf)
            if aval is None:
                problems.append(_not_an_array(path, leaf, spec_path))
            elif not any(specs.spec_problems(spec, spec_path, *on_mesh)):
                problems += specs.input_problems(aval.shape, path, spec, spec_path, self.mesh)
                dynamic.append(_Input(position, path, spec, aval))
        if problems:
            raise SpecError(describe(self.fun), problems)
        return _Inputs(dynamic, static)

    def _static(self, args: tuple[Any, ...]) -> dict[int, Any]:
        """The arguments that are no arrays, by their positions in the flat arguments."""
        if None not in jax.tree.leaves(self.in_specs, is_leaf=lambda s: s is None):
            return {}
        matched, mismatches = self._matched(args)
        if mismatches:
            raise SpecError(describe(self.fun), mismatches)
        return {k: leaf for k, (_, leaf, _, spec) in enumerate(matched) if spec is None}

    def _matched(self, args: tuple[Any, ...]):
        in_specs = tuple(self.in_specs) if isinstance(self.in_specs, list) else self.in_specs
        return specs.broadcast_specs(in_specs, args, "in_specs", "args")


@dataclasses.dataclass(frozen=True)
class _Input:
    position: int
    path: str
    spec: PartitionSpec
    type: Any


@dataclasses.dataclass(frozen=True)
class _Inputs:
    dynamic: list[_Input]
    static: list[tuple[int, str, Any]]

    def rebuild(self, args: tuple[Any, ...], blocks: Sequence[Any]) -> tuple[Any, ...]:
        """The user's arguments with each array replaced by its block."""
        leaves, tree = jax.tree.flatten(args)
        for i, block in zip(self.dynamic, blocks, strict=True):
            leaves[i.position] = block
        return jax.tree.unflatten(tree, leaves)


@dataclasses.dataclass(frozen=True)
class _Rest:
    """What jit must know of a call besides its arrays: their structure, and the other arguments."""

    tree: Any
    static: tuple[tuple[int, Any], ...]

    def filled(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """The user's arguments."""
        leaves = list(arrays)
        for position, value in self.static:
            leaves.insert(position, value)
        return jax.tree.unflatten(self.tree, leaves)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Rest) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> Any:
        # 1, 1.0 and True are equal, but a function may treat them differently.
        return self.tree, tuple((k, type(v), v) for k, v in self.static)


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
        if problems:
            raise SpecError(who, problems)
        no_arrays = [
            Problem(
                path,
                show_value(leaf),
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


def _is_array(leaf: Any) -> bool:
    return _type_of(leaf) is not None and not isinstance(leaf, jax.ShapeDtypeStruct)


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


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
        show_value(leaf),
        "an array, a NumPy array or a number",
        f"pass an array, or give {spec_path} the value None to hand it to the function as it is",
    )


def _only_a_type(path: str, leaf: jax.ShapeDtypeStruct) -> Problem:
    return Problem(
        path,
        f"a ShapeDtypeStruct, {specs.show_type(leaf)}",
        "an array: a call computes with its values",
        "pass an array; types alone are enough for trace() and lower()",
    )


def _not_hashable(path: str, leaf: Any) -> Problem:
    return Problem(
        path,
        f"{show_value(leaf)}, which is not hashable, and its spec is None",
        "a hashable value: programs are kept by the values of arguments without spec",
        "give it the spec P() if it is an array, or close over it",
    )


def _not_a_function(fun: Any) -> Problem:
    return Problem(
        "the first argument of shard_map",
        show_value(fun),
        "a function of one device's blocks",
        "pass the function itself: shard_map(f, mesh=..., in_specs=..., out_specs=...)",
    )


def _mesh_problems(mesh: Any, axis_names: frozenset[str]) -> Iterator[Problem]:
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
    devices = list(mesh.devices.flat) if isinstance(mesh, Mesh) else []
    repeated = sorted({d for d in devices if devices.count(d) > 1}, key=str)
    if repeated:
        yield Problem(
            "mesh",
            f"{specs.show_mesh(mesh)} with more than one place for {', '.join(map(str, repeated))}",
            f"{len(devices)} different devices",
            f"make a smaller mesh: it has {len(set(devices))} different devices",
        )
