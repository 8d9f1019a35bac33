"""What the primitive does outside of `jit`: its Graph is compiled, kept and run.

Derivatives and vmapped programs of an eager call arrive here, after their trace has ended.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from shmap_compiler.base import specs
from shmap_compiler.base.caches import Cache
from shmap_compiler.base.errors import TargetError
from shmap_compiler.base.jax_compat import is_tracing, memory_kinds
from shmap_compiler.base.mesh_context import has_devices, region_of
from shmap_compiler.base.meshes import ManualRegion, no_devices
from shmap_compiler.base.untyped import AnyValue, Function
from shmap_compiler.eager.operations import Rules
from shmap_compiler.eager.placing import on_mesh, refuse_elsewhere, splitting_empty
from shmap_compiler.eager.run import run_on_mesh
from shmap_compiler.graph.graph import Graph
from shmap_compiler.graph.primitive import bind, shmap_p
from shmap_compiler.graph.structural_keys import key

_PROGRAMS: Cache[Callable[..., Any]] = Cache(maxsize=1024)
"""Compiled graphs, by structure: outside of jit, every derivative makes new graphs."""


def _impl(*args, graph, witness):
    if not has_devices(graph.mesh, args):
        raise TargetError(f"`{graph.name}`", [no_devices(graph.mesh)])
    refuse_elsewhere(
        f"`{graph.name}`",
        graph.mesh,
        args,
        # A derivative has other arguments than the user's function.
        lambda k: f"an argument with spec {specs.show(graph.in_specs[k])}",
    )
    program = _PROGRAMS.get(key(graph), lambda: _jitted(graph))
    with jax.disable_jit(False):  # else the program would come here again
        placed = (on_mesh(x, graph.mesh, s) for x, s in zip(args, graph.in_specs, strict=True))
        return program(*placed)


def _jitted(graph: Graph) -> Function:
    """Results are split by their specs, as written; XLA, left to choose, changes their entries."""
    program = functools.partial(_program, graph)
    if not isinstance(graph.mesh, Mesh) or graph.automatic_axes:
        return jax.jit(program)
    placed = zip(graph.out_specs, memory_kinds(graph.out_types), strict=True)
    shardings = [NamedSharding(graph.mesh, spec, memory_kind=kind) for spec, kind in placed]
    return splitting_empty(jax.jit(program, out_shardings=shardings), graph.out_types, shardings)


def _program(graph: Graph, *args: AnyValue) -> Sequence[AnyValue]:
    """What jit traces.

    If it computed a value that jax_debug_nans forbids, jit calls it on arrays, to find where.
    """
    return bind(graph, *args) if is_tracing() else _operation_by_operation(graph, args)


def _operation_by_operation(graph: Graph, args: Sequence[AnyValue]) -> list[jax.Array]:
    who = f"`{graph.name}`"
    mesh = region_of(who, graph.mesh, frozenset(graph.manual_axes), args).mesh
    region = ManualRegion(mesh, graph.manual_axes)
    rules = Rules(refuse_hangs=False, typed=False, watch=False)
    return run_on_mesh(graph.fun, who, region, rules, args, graph.in_specs, graph.out_specs)


shmap_p.def_impl(_impl)
