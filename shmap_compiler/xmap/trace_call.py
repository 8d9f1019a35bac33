"""Calls of a function of named axes: traced to a program, whose axes are placed."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from shmap_compiler.base.descriptions import describe
from shmap_compiler.base.errors import spec_error
from shmap_compiler.base.jax_compat import (
    AnyMesh,
    enclosing_manual_axes,
    mesh_in_scope,
    with_manual_axes,
)
from shmap_compiler.base.meshes import too_many_devices
from shmap_compiler.base.untyped import AnyValue, Function, Jaxpr, Leaf, PyTree, TreeDef
from shmap_compiler.base.values import type_of
from shmap_compiler.graph.callbacks import is_callback
from shmap_compiler.graph.nested_graphs import all_equations
from shmap_compiler.jaxprs.contents import names_any
from shmap_compiler.jaxprs.held_programs import CUSTOM_VMAP
from shmap_compiler.xmap import named_shapes
from shmap_compiler.xmap.arguments import check_results, no_array, shadows, wrong_rank
from shmap_compiler.xmap.axes import Mappings, sizes_of
from shmap_compiler.xmap.named_program import NamedProgram
from shmap_compiler.xmap.placement import all_vmapped, place_axes
from shmap_compiler.xmap.resources import find_mesh, is_another_mesh, mesh_changes
from shmap_compiler.xmap.trace import Scope, trace_named


@dataclass(frozen=True)
class NamedFunction:
    """What `xmap` was given, after its checks. The handle on it is `XMapped`."""

    fun: Function
    ins: Mappings
    outs: Mappings
    axis_sizes: dict[str, int]
    axis_resources: dict[str, tuple[AnyValue, ...]]
    donate_argnums: tuple[int, ...]
    mesh: AnyMesh | None
    check_vma: bool

    @property
    def who(self) -> str:
        return f"xmap of {describe(self.fun)}"

    @property
    def names(self) -> tuple[str, ...]:
        """The axes of arguments, then those that only `axis_sizes` has."""
        named = (name for mapping in self.ins.leaves for name in mapping.names)
        return tuple(dict.fromkeys([*named, *self.axis_sizes]))


@dataclass(frozen=True)
class NamedCall:
    """A traced call: the program, and the structure of arguments and results."""

    program: NamedProgram
    in_tree: TreeDef
    out_tree: TreeDef


_enclosing: ContextVar[dict[str, int] | None] = ContextVar("enclosing", default=None)
_mesh_around: ContextVar[AnyMesh | None] = ContextVar("mesh_around", default=None)


def enclosing_sizes() -> dict[str, int] | None:
    """The sizes of the axes in scope while the function of an xmap is traced; else None."""
    return _enclosing.get()


def trace_call(function: NamedFunction, args: tuple[PyTree, ...]) -> NamedCall:
    """Traces a function on the types of its arguments, and places its axes.

    Raises:
      ShmapError: one of its subclasses, if the call or the function has a mistake.
    """
    who = function.who
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
    mappings = function.ins.of_leaves(who, args)
    shapes = [t.shape for t in in_types]
    sizes = sizes_of(who, in_paths, shapes, mappings, function.axis_sizes, function.names)
    outer = enclosing_sizes() or {}
    shadowed = [shadows(name) for name in sizes if name in outer]
    if shadowed:
        raise spec_error(who, shadowed)
    found = find_mesh(function.mesh)
    if found is not None and (wrong := too_many_devices(found)):
        raise spec_error(who, wrong)
    if outer and function.axis_resources and is_another_mesh(found, _mesh_around.get()):
        raise spec_error(who, [mesh_changes(found)])
    placements = place_axes(who, sizes, function.axis_resources, found, tuple(outer))
    out: list[Any] = []

    def flat_fun(*leaves: Leaf) -> Sequence[AnyValue]:
        token, around = _enclosing.set({**outer, **sizes}), _mesh_around.set(found)
        try:
            result = function.fun(*jax.tree.unflatten(in_tree, leaves))
        finally:
            _enclosing.reset(token)
            _mesh_around.reset(around)
        paths, tree = jax.tree_util.tree_flatten_with_path(result)
        out[:] = [tree, [f"result{jax.tree_util.keystr(p)}" for p, _ in paths]]
        check_results(who, out[1], [x for _, x in paths])
        return [jnp.asarray(x) for _, x in paths]

    used = {a for p in placements.values() for a in p.mesh_axes}

    def traced(manual: set[str]) -> tuple[Jaxpr, tuple[AnyValue, ...]]:
        return trace_named(
            flat_fun,
            user_fun=function.fun,
            who=who,
            sizes=sizes,
            types=in_types,
            mappings=mappings,
            scope=Scope(outer, _body_mesh(found, manual)),
            check_vma=function.check_vma,
        )

    jaxpr, constants = traced(used)
    if found is not None and used and used != set(found.axis_names) and _calls_back(jaxpr):
        used |= set(found.axis_names).difference(enclosing_manual_axes(found))
        jaxpr, constants = traced(used)
    if names_any(jaxpr, [CUSTOM_VMAP]):
        placements = all_vmapped(placements, found, tuple(outer))
    tree, out_paths = out
    out_mappings = function.outs.of_leaves(who, tree.unflatten(out_paths))
    ranks = [len(v.aval.shape) for v in jaxpr.jaxpr.outvars]
    wrong = [
        problem
        for path, rank, m in zip(out_paths, ranks, out_mappings, strict=True)
        for problem in wrong_rank(path, rank, m)
    ]
    if wrong:
        raise spec_error(who, wrong)
    program = NamedProgram(
        fun=function.fun,
        who=who,
        jaxpr=jaxpr,
        constants=constants,
        placements=placements,
        mesh=found,
        manual_axes=tuple(a for a in found.axis_names if a in used) if found is not None else (),
        in_mappings=tuple(mappings),
        out_mappings=tuple(out_mappings),
        outer=dict(outer),
    )
    named_shapes.check(program, out_paths, in_paths)
    return NamedCall(program, in_tree, tree)


def _calls_back(jaxpr: Jaxpr) -> bool:
    """Whether a program calls into Python, which XLA supports if all axes are manual."""
    return any(is_callback(eqn.primitive) for eqn in all_equations(jaxpr))


def _body_mesh(found: AnyMesh | None, used: set[str]) -> AbstractMesh:
    """The mesh as the body sees it: the one in scope, with the axes of this xmap manual."""
    scope = mesh_in_scope()
    if found is None or not used:
        return scope if scope is not None else AbstractMesh((), ())
    outer = enclosing_manual_axes(found)
    return with_manual_axes(found, (*used, *outer))
