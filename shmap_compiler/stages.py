"""What comes after tracing, in the stages of `jax.stages`: Lowered, then Executable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import jax
from jax.core import Tracer
from jax.sharding import AbstractMesh, NamedSharding
from shmap_passes import Groups, Partitioner

from shmap_compiler import specs
from shmap_compiler._compat import partitioner as partitioner_is
from shmap_compiler.errors import Problem, TargetError, describe, show_value
from shmap_compiler.graph import Graph
from shmap_compiler.inputs import is_hashable
from shmap_compiler.primitive import LoweringOptions, bind, lowering_with
from shmap_compiler.region import no_devices

STAGES = ("graph", "body", "stablehlo", "hlo")
"""Names of the stages of a program, in order: see `Lowered.as_text`."""

PARTITIONERS: tuple[Partitioner, ...] = get_args(Partitioner)
GROUPS: tuple[Groups, ...] = get_args(Groups)


@dataclass(frozen=True)
class Call:
    """A traced call: the graph, and how the user's arguments and results map to it.

    Attributes:
      fun: the user's function, for error messages.
      constants: values for the leading inputs of the graph, which `fun` closed over.
      in_tree: structure of the user's arguments `(args...)`.
      in_paths: the path of each remaining input of the graph, for error messages.
      static: position in the flat arguments, path and value of each argument that is no array.
      select: picks the inputs of the graph out of the flat arguments.
      out_tree: structure of the user's result.
    """

    fun: Callable[..., Any]
    graph: Graph
    constants: tuple[Any, ...]
    in_tree: Any
    in_paths: tuple[str, ...]
    static: tuple[tuple[int, str, Any], ...]
    select: Callable[[Sequence[Any]], list[Any]]
    out_tree: Any


def lower(call: Call, partitioner: Partitioner, groups: Groups) -> Lowered:
    """Lowers a traced call by itself, for the devices of its mesh.

    Raises:
      TargetError: `partitioner` is not one of PARTITIONERS, or `groups` not one of GROUPS.
    """
    if partitioner not in PARTITIONERS:
        raise _no_such_choice(call, "partitioner", partitioner, PARTITIONERS)
    if groups not in GROUPS:
        raise _no_such_choice(call, "groups", groups, GROUPS)
    graph = call.graph
    snapshots: list[tuple[str, str]] = []

    def observe(stage, module):
        if stage == "body":  # What came before was of graphs nested in this one.
            snapshots.clear()
        snapshots.append((stage, str(module)))

    def program(*inputs):
        return bind(graph, *inputs)

    program.__name__ = graph.name
    types = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in graph.in_types]
    jitted = jax.jit(program, in_shardings=tuple(_shardings(graph, graph.in_specs)))
    with partitioner_is(partitioner), lowering_with(LoweringOptions(groups, observe)):
        jax_lowered = jitted.trace(*types).lower(
            lowering_platforms=("cpu",) if isinstance(graph.mesh, AbstractMesh) else None
        )
    return Lowered(call, partitioner, jax_lowered, tuple(snapshots))


def _no_such_choice(call: Call, name: str, value: Any, choices: Sequence[str]) -> TargetError:
    problem = Problem(
        f"{name}={value!r}",
        show_value(value),
        f"one of {', '.join(map(repr, choices))}",
        f"write {name}={choices[0]!r}",
    )
    return TargetError(describe(call.fun), [problem])


def _shardings(graph: Graph, all_specs: Sequence[Any]) -> list[NamedSharding]:
    return [NamedSharding(graph.mesh, s) for s in all_specs]


@dataclass(frozen=True)
class Lowered:
    """A program lowered to StableHLO, not yet compiled.

    Attributes:
      call: the traced call this comes from.
      partitioner: "gspmd" (full-to-shard custom calls) or "shardy" (manual computation).
      jax_lowered: the same program as a `jax.stages.Lowered`.
      passes: the module after emission ("body") and after each pass, as (name, text).
    """

    call: Call
    partitioner: str
    jax_lowered: Any
    passes: tuple[tuple[str, str], ...]

    @property
    def graph(self) -> Graph:
        return self.call.graph

    def as_text(self, stage: str = "stablehlo") -> str:
        """The program at one of its stages.

        - "graph": the traced per-device program;
        - "body": the emitted module, on per-device types;
        - "stablehlo": the module handed to XLA, after all passes;
        - "hlo": the per-device program XLA made of it (this compiles).
        """
        if stage == "graph":
            return str(self.graph)
        if stage == "body":
            return self.passes[0][1]
        if stage == "stablehlo":
            return self.jax_lowered.as_text()
        if stage == "hlo":
            return self.compile().as_text()
        raise _no_such_choice(self.call, "stage", stage, STAGES)

    def compile(self) -> Executable:
        """Compiles for the devices of the mesh.

        Raises:
          TargetError: the mesh has no devices.
        """
        return self._executable

    @cached_property
    def _executable(self) -> Executable:
        if isinstance(self.graph.mesh, AbstractMesh):
            raise TargetError(describe(self.call.fun), [no_devices(self.graph.mesh)])
        with partitioner_is(self.partitioner):
            return Executable(self.call, self.jax_lowered.compile())


@dataclass(frozen=True)
class Executable:
    """A compiled program: call it on arrays, NumPy arrays and pytrees of them.

    Arguments are moved only where they do not lie as the program needs them; results stay where the
    program leaves them, as `jax.Array`s with the sharding of their out_specs.
    """

    call: Call
    jax_compiled: Any

    @property
    def graph(self) -> Graph:
        return self.call.graph

    @cached_property
    def _flat_input_shardings(self) -> list[NamedSharding]:
        return _shardings(self.graph, self.graph.in_specs)

    @cached_property
    def _constants(self) -> list[Any]:
        count = len(self.call.constants)
        return jax.device_put(list(self.call.constants), self._flat_input_shardings[:count])

    @property
    def input_shardings(self) -> list[NamedSharding]:
        """One sharding per array argument, in flattening order."""
        return self._flat_input_shardings[len(self.call.constants) :]

    @property
    def output_shardings(self) -> Any:
        """The shardings of the results, in the structure of the results."""
        return jax.tree.unflatten(self.call.out_tree, _shardings(self.graph, self.graph.out_specs))

    def as_text(self) -> str:
        """The optimized HLO of one device."""
        return self.jax_compiled.as_text()

    def cost_analysis(self) -> Any:
        """XLA's own estimates (flops, bytes accessed, ...) for one device, by name."""
        return self.jax_compiled.cost_analysis()

    def memory_analysis(self) -> Any:
        """XLA's memory figures for one device, in bytes."""
        return self.jax_compiled.memory_analysis()

    def __call__(self, *args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        if tree != self.call.in_tree:
            self._refuse_structure(tree)
        inputs = self.call.select(leaves)
        self._check(inputs, leaves)
        placed = [
            x if isinstance(x, jax.Array) and x.sharding == s else jax.device_put(x, s)
            for x, s in zip(inputs, self.input_shardings, strict=True)
        ]
        return jax.tree.unflatten(self.call.out_tree, self.jax_compiled(*self._constants, *placed))

    def _check(self, inputs: Sequence[Any], leaves: Sequence[Any]) -> None:
        expected = self.graph.in_types[len(self.call.constants) :]
        problems = [
            Problem(
                path,
                _found(x),
                f"{specs.show_type(t)}, for which this executable was compiled",
                "call the shard_mapped function itself inside jit, grad and vmap"
                if isinstance(x, Tracer)
                else "pass such an array, or lower and compile for the other type",
            )
            for x, t, path in zip(inputs, expected, self.call.in_paths, strict=True)
            if not _fits(x, t)
        ]
        problems += [
            Problem(
                path,
                show_value(leaves[position]),
                f"{show_value(value)}, for which this executable was compiled",
                "pass the value given to lower(), or lower and compile for the other one",
            )
            for position, path, value in self.call.static
            if not _same(leaves[position], value)
        ]
        if problems:
            raise TargetError(describe(self.call.fun), problems)

    def _refuse_structure(self, tree: Any) -> None:
        problem = Problem(
            "args",
            f"the arguments {_paths(tree)}",
            f"{_paths(self.call.in_tree)}, for which this executable was compiled",
            "call it with the arguments given to lower(), or lower again",
        )
        raise TargetError(describe(self.call.fun), [problem])


def _paths(tree: Any) -> str:
    """The paths of all arguments of a structure: `args[0]['w'], args[1]`."""
    numbered = jax.tree.unflatten(tree, range(tree.num_leaves))
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(numbered)[0]]
    return ", ".join("args" + jax.tree_util.keystr(path) for path in paths) or "none"


def _same(found: Any, expected: Any) -> bool:
    """Whether a program made for one value without spec holds for another."""
    if found is expected:
        return True
    return type(found) is type(expected) and is_hashable(expected) and found == expected


def _fits(x: Any, expected: Any) -> bool:
    if isinstance(x, Tracer):
        return False
    try:
        found = jax.typeof(x)
    except TypeError:
        return False
    return (found.shape, found.dtype) == (expected.shape, expected.dtype)


def _found(x: Any) -> str:
    if isinstance(x, Tracer):
        return f"a value being traced, {specs.show_type(x.aval)}"
    try:
        return specs.show_type(jax.typeof(x))
    except TypeError:
        return f"a {type(x).__name__}, which is no array"
