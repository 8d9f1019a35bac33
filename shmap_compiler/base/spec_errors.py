"""Checks of specs: by themselves, and against the arrays that they split."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from shmap_compiler.base import specs
from shmap_compiler.base.descriptions import show_value
from shmap_compiler.base.errors import Problem, TypeProblem
from shmap_compiler.base.jax_compat import (
    PARTLY_MANUAL_REDUCTIONS,
    AnyMesh,
    axis_types,
    reductions,
)
from shmap_compiler.base.untyped import Leaf, PyTree


def tree_problems(
    tree: PyTree, root: str, mesh: AnyMesh, manual: Sequence[str]
) -> Iterator[Problem]:
    """The problems of a tree of specs, whatever arrays they split."""
    if not any(any(spec_problems(s, root, mesh, manual)) for s in _distinct(jax.tree.leaves(tree))):
        return  # paths are for messages only
    for path, spec in jax.tree_util.tree_flatten_with_path(tree)[0]:
        yield from spec_problems(spec, root + jax.tree_util.keystr(path), mesh, manual)


def _distinct(leaves: Sequence[Leaf]) -> Iterable[Leaf]:
    """The distinct leaves, few of hundreds; all leaves if they cannot be compared."""
    try:
        return {(type(leaf), leaf): leaf for leaf in leaves}.values()
    except Exception:
        return leaves


def spec_problems(
    spec: object, path: str, mesh: AnyMesh, manual: Sequence[str]
) -> Iterator[Problem]:
    """The problems of a spec, whatever array it splits."""
    if not isinstance(spec, PartitionSpec):
        yield no_spec(spec, path, manual)
        return
    names = specs.mentioned(spec)
    summed = (*sorted(spec.unreduced, key=str), *sorted(spec.reduced, key=str))
    if not summed and len(set(names)) == len(names) and set(names) <= {*manual}:
        return  # as nearly all are; manual axes are axes of the mesh
    at = f"{path}={specs.show(spec)}"
    if reductions(spec) and len(manual) < len(mesh.axis_names) and not PARTLY_MANUAL_REDUCTIONS:
        yield only_fully_manual(at, "unreduced or reduced axes")
        return
    for name in dict.fromkeys((*names, *summed)):
        if not isinstance(name, str):
            yield Problem(
                at,
                f"the entry {name!r}",
                f"for each dimension, None or names of axes of {specs.show_mesh(mesh)}",
                "write None for a dimension that is not split",
            )
        elif name not in mesh.axis_names:
            yield Problem(
                at,
                f"axis {name!r}",
                f"an axis of {specs.show_mesh(mesh)}",
                f"use one of {', '.join(map(repr, mesh.axis_names))}, or add {name!r} to the mesh",
            )
        elif name not in manual:
            yield Problem(
                at,
                f"axis {name!r}, which is not manual here",
                f"only manual axes: {', '.join(map(repr, manual)) or 'none'}",
                f"add {name!r} to axis_names, or remove it from the spec",
            )
        elif name in summed and axis_types(mesh)[name] != AxisType.Explicit:
            yield Problem(
                at,
                f"axis {name!r} of type {axis_types(mesh)[name].name}, unreduced or reduced",
                "an axis of type Explicit: only its arrays have types that record pending sums",
                f"make the mesh with AxisType.Explicit for {name!r}, or reduce inside the function",
            )
        if names.count(name) > 1:
            yield Problem(
                at,
                f"axis {name!r} {names.count(name)} times",
                "each axis at most once in a spec",
                f"keep {name!r} at one dimension: its devices can split an array only once",
            )


def only_fully_manual(where: str, found: str) -> Problem:
    return Problem(
        where,
        f"{found}, where not all axes of the mesh are manual",
        "all axes manual; from JAX 0.12 on, or that no other axis splits the array",
        "omit axis_names, and do not nest; or reduce the array before",
    )


def no_spec(spec: object, path: str, manual: Sequence[str]) -> Problem:
    """The problem of something that is not a spec, where a spec should be."""
    return TypeProblem(
        path,
        show_value(spec),
        "a jax.sharding.PartitionSpec",
        f"write {_as_spec(spec, manual)}",
    )


def _as_spec(spec: object, manual: Sequence[str]) -> str:
    """The spec that the user may have meant."""
    if isinstance(spec, NamedSharding):
        return f"its spec, {specs.show(spec.spec)}"
    if isinstance(spec, str):
        return f"P({spec!r})"
    return " or ".join([*(f"P({a!r})" for a in manual[:1]), "P()"])


def input_problems(
    shape: specs.Shape, path: str, spec: PartitionSpec, spec_path: str, mesh: AnyMesh
) -> Iterator[Problem]:
    """Why an array of this shape cannot be split by a (well-formed) spec."""
    if len(spec) > len(shape):
        at = f"{path} with {spec_path}={specs.show(spec)}"
        yield Problem(
            at,
            f"a spec for {len(spec)} dimensions and an array of rank {len(shape)}, shape {shape}",
            f"at most {len(shape)} entries in the spec",
            "shorten the spec" + (", to P()" if not shape else ""),
        )
        return
    for d, axes in enumerate(specs.dim_axes(spec, len(shape))):
        parts = math.prod(mesh.shape[a] for a in axes)
        if shape[d] % parts:
            at = f"{path} with {spec_path}={specs.show(spec)}"
            yield Problem(
                at,
                f"dimension {d} of size {shape[d]}, shape {shape}",
                f"a multiple of {_product(axes, mesh)}: {parts} does not divide {shape[d]}",
                f"pad dimension {d} to {-(-shape[d] // parts) * parts}, or split another dimension",
            )


def output_problems(
    shape: specs.Shape, path: str, spec: PartitionSpec, spec_path: str
) -> list[Problem]:
    """Why blocks of this shape cannot be concatenated by a (well-formed) spec."""
    if len(spec) <= len(shape):
        return []
    return [
        Problem(
            f"{path} with {spec_path}={specs.show(spec)}",
            f"a result of rank {len(shape)}, shape {shape}, on each device",
            f"rank {len(spec)} or more: blocks are put together along {len(spec)} dimensions",
            f"add dimensions in the function (e.g. x[{'None, ' * (len(spec) - len(shape))}...]), "
            "or shorten the spec",
        )
    ]


def _product(axes: Sequence[str], mesh: AnyMesh) -> str:
    sizes = [mesh.shape[a] for a in axes]
    if len(axes) == 1:
        return f"{sizes[0]}, the size of axis {axes[0]!r}"
    named = ", ".join(map(repr, axes))
    return f"{'*'.join(map(str, sizes))} = {math.prod(sizes)}, the size of axes ({named})"
