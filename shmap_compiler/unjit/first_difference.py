"""The first line of a generated source that computes something else than its module."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from shmap_compiler.base.errors import ShmapError
from shmap_compiler.base.untyped import AnyValue, PyTree
from shmap_compiler.frontend.shard_mapped import ShardMapped
from shmap_compiler.simulate.agreement import default_tolerance
from shmap_compiler.simulate.inner_values import returning
from shmap_compiler.simulate.simulate_module import simulate_module
from shmap_compiler.simulate.trace_values import distance
from shmap_compiler.unjit.source import Assigned, Source


def first_difference(
    body: str,
    source: Source,
    mapped: ShardMapped[..., PyTree],
    mesh: jax.sharding.Mesh,
    args: Sequence[PyTree],
    kept: Sequence[int],
) -> str:
    """Where the variables of the source begin to differ from the values of the module.

    Args:
      mapped: the function of the source.
      args: its arguments.
      kept: the leaves of these that the module takes.
    """
    if not source.assigned:
        return "the source assigns no variables"
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(list(args))]
    try:
        blocks = _of_module(body, source.assigned, [arrays[k] for k in kept])
        values = _of_source(source, mapped, mesh, args)
    except ShmapError as error:
        return f"its lines cannot be compared: {error.problems[0].found}"
    lines = source.text.splitlines()
    for each, expected, found in zip(source.assigned, blocks, values, strict=True):
        for device, block in enumerate(expected):
            apart = distance(found[device], block)
            if found.dtype != block.dtype or apart > 4 * default_tolerance(block.dtype):
                text = lines[each.line - 1].strip()
                return (
                    f"the first variable to differ is {each.name}, on device {device}, "
                    f"in line {each.line}: {text}"
                )
    return "no variable differs by more than its results"


def _of_module(
    body: str, assigned: Sequence[Assigned], arrays: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """What the devices hold in each variable, in one array, simulated."""
    text = returning(body, [(each.op, each.result) for each in assigned])
    return list(simulate_module(text, arrays).arrays)


def _of_source(
    source: Source,
    mapped: ShardMapped[..., PyTree],
    mesh: jax.sharding.Mesh,
    args: Sequence[PyTree],
) -> list[np.ndarray]:
    """The same of the source: for each variable, the blocks of all devices in one array."""
    tree = ast.parse(source.text)
    function = next(
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == source.name
    )
    function.decorator_list = []
    names: list[ast.expr] = [ast.Name(each.name, ast.Load()) for each in source.assigned]
    function.body[-1] = ast.Return(ast.List(names, ast.Load()))
    namespace: dict[str, Any] = {"__name__": "unjit_variables"}
    exec(compile(ast.fix_missing_locations(tree), "<unjit variables>", "exec"), namespace)
    inner = namespace[source.name]

    def stacked(*inputs: AnyValue) -> list[AnyValue]:
        return [jnp.asarray(value)[None] for value in inner(*inputs)]

    everyone = PartitionSpec(mesh.axis_names)
    found = mapped.replace(fun=stacked, out_specs=everyone)
    return [np.asarray(value) for value in jax.jit(found)(*args)]
