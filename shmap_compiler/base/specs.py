"""Partition specs: what they mean for shapes, how they are written, and how they match pytrees.

A spec names, for each dimension of an array, the mesh axes that split it (major axis first). The
block on one device has `shape[d] / (product of the sizes of the axes of d)` elements along d.

Over Explicit axes an array may also be unreduced or reduced. Each device along an
unreduced axis holds a summand of the array. All devices along a reduced axis hold the whole array,
and each of them a summand of its cotangent: the cotangent of a reduced array is unreduced, that of
an unreduced array reduced.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from shmap_compiler.base.descriptions import show_type_of
from shmap_compiler.base.errors import Problem
from shmap_compiler.base.jax_compat import (
    AnyMesh,
    Reductions,
    reductions,
    type_reductions,
    type_split,
    with_reductions,
)
from shmap_compiler.base.untyped import Aval, Leaf, PyTree, TreeDef, Unchecked

Shape = tuple[int, ...]


def dim_axes(spec: PartitionSpec, rank: int) -> tuple[tuple[str, ...], ...]:
    """The axes of each of `rank` dimensions: `P('i', ('j', 'k'))` -> `(('i',), ('j', 'k'))`."""
    entries = [_names(e) for e in spec.partitions]
    return tuple(entries) + ((),) * (rank - len(entries))


def mentioned(spec: PartitionSpec) -> tuple[str, ...]:
    """All axes that split a dimension, in order, repeated ones repeated."""
    return tuple(a for entry in spec.partitions for a in _names(entry))


def varying_axes(spec: PartitionSpec) -> tuple[str, ...]:
    """The axes along which devices hold different blocks."""
    return (*mentioned(spec), *sorted(spec.unreduced))


def own_cotangent_axes(spec: PartitionSpec) -> frozenset[str]:
    """The axes along which each device holds its own share of the cotangent of a block."""
    return frozenset((*mentioned(spec), *spec.unreduced, *spec.reduced))


def cotangent_spec(spec: PartitionSpec) -> PartitionSpec:
    """The spec of the cotangent of an array.

    Raises:
      NotImplementedError: the array is unreduced in another way than as a sum.
    """
    found = reductions(spec)
    if not found:
        return spec
    if found.kind is not None and found.kind.name != "sum":
        raise NotImplementedError(f"the gradient of an array with the spec {show(spec)}")
    return PartitionSpec(*spec.partitions, unreduced=spec.reduced, reduced=spec.unreduced)


def shard_shape(shape: Shape, spec: PartitionSpec, mesh: AnyMesh) -> Shape:
    """Shape of one device's block of an array of shape `shape`."""
    splits = _splits(spec, len(shape), mesh)
    return tuple(n // k for n, k in zip(shape, splits, strict=True))


def global_shape(shape: Shape, spec: PartitionSpec, mesh: AnyMesh) -> Shape:
    """Shape of the array whose blocks have shape `shape`."""
    splits = _splits(spec, len(shape), mesh)
    return tuple(n * k for n, k in zip(shape, splits, strict=True))


def has_reductions(tree: object) -> bool:
    """Whether some spec of a tree has unreduced or reduced axes."""
    leaves = jax.tree.leaves(tree)
    return any(isinstance(s, PartitionSpec) and (s.unreduced or s.reduced) for s in leaves)


def show(spec: object) -> str:
    """A spec as users write it: `P('i', None)`."""
    if not isinstance(spec, PartitionSpec):
        return repr(spec)
    return f"P({', '.join([*map(repr, spec.partitions), *_shown_reductions(reductions(spec))])})"


def _shown_reductions(found: Reductions) -> Iterator[str]:
    for name, axes in (("unreduced", found.unreduced), ("reduced", found.reduced)):
        if axes:
            yield f"{name}={{{', '.join(map(repr, sorted(axes)))}}}"
    if found.kind is not None and found.kind.name != "sum":
        yield f"unreduced_kind={found.kind}"


def show_mesh(mesh: AnyMesh) -> str:
    """A mesh in words: `mesh(i=4, j=2)`."""
    return f"mesh({', '.join(f'{a}={n}' for a, n in mesh.shape.items())})"


def show_type(aval: Aval) -> str:
    """`f32[8,16]` for an array type."""
    name = (
        jnp.dtype(aval.dtype).name
        if not jnp.issubdtype(aval.dtype, jax.dtypes.extended)
        else str(aval.dtype)
    )
    short = name.replace("bfloat", "bf").replace("float", "f").replace("uint", "u")
    short = short.replace("int", "i").replace("complex", "c")
    return f"{short}[{','.join(map(str, aval.shape))}]"


def show_split(aval: object) -> str:
    """A type and the axes over which it is split: `f32[8,2] split as P('i', None)`."""
    split = [axes[0] if len(axes) == 1 else axes or None for axes in type_split(aval)]
    spec = with_reductions(PartitionSpec(*split), type_reductions(aval))
    return f"{show_type(aval)} split as {show(spec)}"


# ----------------------------------------------------------------------- specs against pytrees


def broadcast_specs(
    specs: PyTree, tree: PyTree, spec_root: str, tree_root: str, noun: str = "spec"
) -> tuple[list[tuple[str, Leaf, str, Leaf]], list[Problem]]:
    """Matches a tree of specs, as a prefix, with a tree of arguments or results.

    The leaves may be other values that describe arrays; messages call each of them a `noun`.

    Returns:
      One `(path in tree, leaf, path in specs, spec)` for each leaf of `tree`, in flattening order,
      and a problem for each place where the two trees differ.
    """
    matched = _matched(specs, tree, spec_root, tree_root)
    if matched is not None:
        return matched, []
    leaves: list[tuple[str, Any, str, Any]] = []
    problems: list[Problem] = []
    _match(specs, tree, spec_root, tree_root, leaves, problems, noun)
    return leaves, problems


def _matched(
    specs: PyTree, tree: PyTree, spec_root: str, tree_root: str
) -> list[tuple[str, Leaf, str, Leaf]] | None:
    """The result of `broadcast_specs` for a tree with one spec for each leaf; None for others."""
    try:
        pairs, structure = jax.tree_util.tree_flatten_with_path(specs, is_leaf=_is_spec)
        leaves = structure.flatten_up_to(tree)
    except Exception:  # which of their nodes differ is found by matching them one by one
        return None
    if not jax.tree_util.all_leaves(leaves):
        return None
    paths = [jax.tree_util.keystr(path) for path, _ in pairs]
    return [
        (tree_root + path, leaf, spec_root + path, spec)
        for path, leaf, (_, spec) in zip(paths, leaves, pairs, strict=True)
    ]


def _is_spec(spec: object) -> bool:
    return spec is None or isinstance(spec, PartitionSpec)


def _match(spec, tree, spec_path, tree_path, leaves, problems, noun) -> None:
    if _is_spec_leaf(spec):
        if jax.tree_util.all_leaves([tree]):  # the usual case, and the slow one without this
            leaves.append((tree_path, tree, spec_path, spec))
            return
        leaves += [
            (tree_path + jax.tree_util.keystr(path), leaf, spec_path, spec)
            for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
        ]
        return
    spec_children, spec_node = _children(spec)
    tree_children, tree_node = _children(tree)
    if spec_node == tree_node:
        for (key, sub_spec), (_, sub_tree) in zip(spec_children, tree_children, strict=True):
            _match(sub_spec, sub_tree, spec_path + key, tree_path + key, leaves, problems, noun)
        return
    problems.append(
        _tree_problem(spec, spec_path, spec_children, tree, tree_path, tree_children, noun)
    )


def _tree_problem(spec, spec_path, spec_children, tree, tree_path, tree_children, noun) -> Problem:
    fix = f"give {spec_path} the structure of {tree_path}, or one {noun} for all of it"
    single = "a single PartitionSpec" if noun == "spec" else f"a single {noun}"
    if type(spec) is not type(tree):
        return Problem(
            f"{spec_path} against {tree_path}",
            f"{show_type_of(spec)} of {noun}s for {_kind(tree)}",
            single
            if jax.tree_util.all_leaves([tree])
            else f"{show_type_of(tree)} of {noun}s, or {single}",
            fix,
        )
    spec_keys, tree_keys = [k for k, _ in spec_children], [k for k, _ in tree_children]
    missing = [k for k in tree_keys if k not in spec_keys]
    surplus = [k for k in spec_keys if k not in tree_keys]
    details = [f"no {noun} for {tree_path}{k}" for k in missing]
    details += [f"a {noun} {spec_path}{k} for which there is no {tree_path}{k}" for k in surplus]
    return Problem(
        f"{spec_path} against {tree_path}",
        "; ".join(details) or f"other metadata in the {type(spec).__name__}",
        f"{len(tree_children)} entries: {', '.join(tree_keys) or 'none'}",
        fix,
    )


def _children(tree: PyTree) -> tuple[list[tuple[str, PyTree]], TreeDef]:
    """One level of a pytree: ([(key, child)], the node's own structure)."""
    pairs, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
    return [(jax.tree_util.keystr(path), child) for path, child in pairs], treedef


def _is_spec_leaf(spec: object) -> bool:
    return _is_spec(spec) or jax.tree_util.all_leaves([spec])


def _kind(tree: object) -> str:
    is_leaf = jax.tree_util.all_leaves([tree])
    return "one array" if is_leaf else f"{show_type_of(tree)} of {len(_children(tree)[0])}"


def _names(entry: Unchecked) -> tuple[str, ...]:
    if entry is None:
        return ()
    return tuple(entry) if isinstance(entry, (tuple, list)) else (entry,)


def _splits(spec: PartitionSpec, rank: int, mesh: AnyMesh) -> Iterable[int]:
    return [math.prod(mesh.shape[a] for a in axes) for axes in dim_axes(spec, rank)]
