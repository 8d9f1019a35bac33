"""Makes a portable program of any function that JAX can trace: a jitted training step, a gradient.

The function may contain shard_maps and xmaps; XLA partitions the rest. How arguments are split is
read from them: they are arrays, or `jax.ShapeDtypeStruct`s with shardings. Those without get the
`in_shardings` of the jitted function, or the `in_specs` of the shard_mapped one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.extend import core as jex_core
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from shmap_passes.cost.machine import Machine

from shmap_compiler.artifacts import argument_problems, result_problems
from shmap_compiler.base.descriptions import describe, function_name
from shmap_compiler.base.errors import Problem, TargetError
from shmap_compiler.base.jax_compat import axis_types, memory_kinds, shardy_is_on
from shmap_compiler.base.specs import show_mesh
from shmap_compiler.base.untyped import AnyValue, Aval, Function, Jaxpr, Leaf, PyTree
from shmap_compiler.base.values import input_type
from shmap_compiler.graph.callbacks import callback_lines
from shmap_compiler.graph.primitive import shmap_p
from shmap_compiler.jaxprs.contents import equations
from shmap_compiler.lowering.lower_graph import LoweringOptions, lowering_with
from shmap_compiler.lowering.portable_module import portable
from shmap_compiler.records.signature import Signature
from shmap_compiler.stages.lower_call import calls_back, refusals_named
from shmap_compiler.stages.portable import Portable


def lower_function(
    fun: Function, args: Sequence[PyTree], platform: str, machine: Machine | None = None
) -> Portable:
    """Lowers `fun(*args)` for devices of a platform.

    The program takes the arguments of `fun` and returns its results. Where a file cannot hold the
    structure of the arguments or results, or the value of a constant, it takes or returns the
    arrays only, in their order.

    Args:
      fun: A function of arrays and pytrees of them, jitted or not. Other leaves of its arguments
        are constants.
      args: Its arguments; of arrays, only types and shardings count.
      platform: "cpu", "tpu" or "cuda".
      machine: The devices for which its shard_maps are overlapped; None for those of their meshes.

    Raises:
      TargetError: Its arrays are on no mesh, and on several devices, or on meshes of different
        devices; or it calls back into Python, or cannot be lowered for the platform.
    """
    with_paths, tree = jax.tree_util.tree_flatten_with_path(tuple(args))
    paths = ["args" + jax.tree_util.keystr(path) for path, _ in with_paths]
    leaves = [leaf for _, leaf in with_paths]
    arrays = _arrays(leaves)
    of_arrays, types = function_of_arrays(fun, args)
    traced: Any = jax.jit(of_arrays, keep_unused=True).trace(*types)
    if placed := _in_shardings(types, traced.jaxpr) | _by_in_specs(types, traced.jaxpr):
        types = [placed.get(k, t) for k, t in enumerate(types)]
        traced = jax.jit(of_arrays, keep_unused=True).trace(*types)
    if lines := callback_lines(traced.jaxpr.jaxpr):
        raise TargetError(_who(fun), [calls_back(line) for line in lines])
    mesh = _mesh(fun, types, traced.jaxpr)
    options = LoweringOptions(machine=machine, compiler_options=True)
    with (
        lowering_with(options) if machine else contextlib.nullcontext(),
        _unplaced_named(fun, types, mesh),
        refusals_named(_who(fun), platform),
    ):
        lowered = traced.lower(lowering_platforms=(platform,))
    out_types = tuple(
        jax.ShapeDtypeStruct(out.shape, out.dtype, weak_type=out.weak_type)
        for out in jax.tree.leaves(traced.out_info)
    )
    signature = Signature(
        who=_who(fun),
        name=function_name(fun),
        mesh=mesh,
        in_tree=tree,
        in_paths=tuple(paths[i] for i in arrays),
        static=tuple((i, paths[i], x) for i, x in enumerate(leaves) if i not in arrays),
        constants=(),
        in_types=tuple(jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types),
        in_specs=tuple(_spec(t) for t in types),
        out_tree=jax.tree.structure(traced.out_info),
        out_types=out_types,
        out_specs=(PartitionSpec(),) * len(out_types),
        in_memory_kinds=memory_kinds(types),
        out_memory_kinds=memory_kinds(traced.jaxpr.out_avals),
        places_results=False,
    )
    partitioner = "shardy" if shardy_is_on() else "gspmd"
    signature = _writable(signature)
    return Portable.of(portable(signature, lowered.compiler_ir("stablehlo"), partitioner, platform))


def function_of_arrays(
    fun: Function, args: Sequence[PyTree]
) -> tuple[Function, list[jax.ShapeDtypeStruct]]:
    """(the function of the arrays in `args`, with the other leaves as constants; their types)."""
    leaves, tree = jax.tree.flatten(tuple(args))
    arrays = _arrays(leaves)

    def of_arrays(*inputs: AnyValue) -> PyTree:
        filled = list(leaves)
        for i, x in zip(arrays, inputs, strict=True):
            filled[i] = x
        return fun(*jax.tree.unflatten(tree, filled))

    of_arrays.__name__ = of_arrays.__qualname__ = function_name(fun)
    return of_arrays, [_type(leaves[i]) for i in arrays]


def _writable(signature: Signature) -> Signature:
    """The signature, of the arrays only where a file cannot hold the user's own structure."""
    if argument_problems(signature):
        flat = jax.tree.structure((0,) * len(signature.in_paths))
        signature = replace(signature, in_tree=flat, static=())
    if result_problems(signature):
        flat = jax.tree.structure([0] * len(signature.out_types))
        signature = replace(signature, out_tree=flat)
    return signature


def _who(fun: Function) -> str:
    return f"jit of {describe(fun)}"


def _arrays(leaves: Sequence[Leaf]) -> list[int]:
    """The positions of arrays among `leaves`."""
    return [i for i, x in enumerate(leaves) if hasattr(x, "shape") and hasattr(x, "dtype")]


def _type(leaf: Leaf) -> jax.ShapeDtypeStruct:
    """The type of an input of the program."""
    sharding = getattr(leaf, "sharding", None)
    sharding = sharding if isinstance(sharding, NamedSharding) else None
    return input_type(leaf, sharding)


def _in_shardings(types: Sequence[Aval], jaxpr: Jaxpr) -> dict[int, jax.ShapeDtypeStruct]:
    """The types of arguments without shardings that a jitted function is called with, split by it.

    Returns:
      Types by the position of the argument.
    """
    positions = {var: k for k, var in enumerate(jaxpr.jaxpr.invars)}
    found: dict[int, jax.ShapeDtypeStruct] = {}
    for eqn in jaxpr.jaxpr.eqns:
        for var, sharding in zip(eqn.invars, eqn.params.get("in_shardings", ()), strict=False):
            k = None if isinstance(var, jex_core.Literal) else positions.get(var)
            if (
                k is None
                or types[k].sharding is not None
                or not isinstance(sharding, NamedSharding)
            ):
                continue
            found[k] = input_type(types[k], sharding)
    return found


def _by_in_specs(types: Sequence[Aval], jaxpr: Jaxpr) -> dict[int, jax.ShapeDtypeStruct]:
    """The types of arguments without shardings of a shard_mapped function, split by its in_specs.

    Returns:
      Types by the position of the argument; none if the program is not one shard_map.
    """
    if [eqn.primitive for eqn in jaxpr.jaxpr.eqns] != [shmap_p]:
        return {}
    (eqn,) = jaxpr.jaxpr.eqns
    graph = eqn.params["graph"]
    specs = {id(var): spec for var, spec in zip(eqn.invars, graph.in_specs, strict=True)}
    return {
        k: input_type(type_, NamedSharding(graph.mesh, specs[id(var)]))
        for k, (var, type_) in enumerate(zip(jaxpr.jaxpr.invars, types, strict=True))
        if type_.sharding is None and id(var) in specs
    }


@contextlib.contextmanager
def _unplaced_named(
    fun: Function, types: Sequence[Aval], mesh: Mesh | AbstractMesh
) -> Iterator[None]:
    """Raises a TargetError if lowering inside fails as no array says on how many devices it is."""
    try:
        yield
    except TargetError as error:
        is_placed = any(type_.sharding is not None for type_ in types)
        is_typed = AxisType.Explicit in axis_types(mesh).values()
        if is_placed or not is_typed or not isinstance(mesh, AbstractMesh):
            raise
        problem = Problem(
            "the shardings of its arguments",
            "none",
            f"shardings on {show_mesh(mesh)}, which has axes of type Explicit and no devices",
            "pass jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec)) for each",
        )
        raise TargetError(_who(fun), [problem]) from error


def _spec(type_: jax.ShapeDtypeStruct) -> PartitionSpec:
    sharding = type_.sharding
    return sharding.spec if isinstance(sharding, NamedSharding) else PartitionSpec()


def _mesh(fun: Function, types: Sequence[Aval], jaxpr: Jaxpr) -> Mesh | AbstractMesh:
    """The mesh of the program: that of its arguments, or else of the shard_maps inside."""
    of_arguments = [t.sharding.mesh for t in types if t.sharding is not None]
    meshes = [*of_arguments, *_meshes_inside(jaxpr)]
    meshes = [mesh for mesh in meshes if not mesh.empty]
    if not meshes:
        return AbstractMesh((1,), ("devices",))
    chosen = max(meshes, key=lambda mesh: len(mesh.shape))
    sizes = {mesh.size for mesh in meshes}
    specs = {dict(t.sharding.mesh.shape) == dict(chosen.shape) for t in types if t.sharding}
    if len(sizes) > 1 or specs == {False, True} or specs == {False}:
        shown = sorted({str(dict(mesh.shape)) for mesh in meshes})
        problem = Problem(
            "the meshes of its arrays and shard_maps",
            ", ".join(shown),
            "one mesh for all arguments, and no other number of devices inside",
            "give all arguments shardings on one mesh",
        )
        raise TargetError(_who(fun), [problem])
    return chosen


def _meshes_inside(jaxpr: Jaxpr) -> Iterator[Mesh | AbstractMesh]:
    for eqn in equations(jaxpr.jaxpr):
        for value in eqn.params.values():
            mesh = getattr(value, "mesh", value)
            if isinstance(mesh, (Mesh, AbstractMesh)):
                yield mesh
