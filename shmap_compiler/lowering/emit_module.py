"""Emits a Graph as an MLIR module in body form, inside the lowering of an enclosing jit.

Body form is standard StableHLO on per-device types: the mesh as `sdy.mesh @mesh`, the program as
`@main` whose arguments and results carry their specs as `#sdy.sharding`, collectives with replica
groups named by mesh axes. Its size does not depend on the number of devices. Equations other than
collectives are lowered by JAX's own rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

from jax.core import eval_context
from jax.extend import core as jex_core
from jax.interpreters import mlir
from jax.interpreters.mlir import ir
from jax.sharding import PartitionSpec
from jaxlib.mlir.dialects import func as func_dialect
from jaxlib.mlir.dialects import sdy
from shmap_passes.ir.body_form import EQUAL_ARGUMENTS, MANUAL_AXES, OUTER_MANUAL_AXES
from shmap_passes.ir.boundary import Placed, Unreduced, write_boundaries
from shmap_passes.ir.mesh import Mesh

from shmap_compiler.base import specs
from shmap_compiler.base.jax_compat import (
    fresh_module_context,
    keep_unreduced,
    lower_program,
    reductions,
    run_with_axes,
    shardy_is_on,
    type_reductions,
    unreduced_axes,
    without_high_primitives,
)
from shmap_compiler.base.jax_compat.name_stacks import within_scope
from shmap_compiler.base.untyped import Aval, Effect, Jaxpr, LoweringContext, OpView
from shmap_compiler.collectives.base import MESH_SYMBOL
from shmap_compiler.graph.graph import Graph
from shmap_compiler.jaxprs.contents import names_any
from shmap_compiler.jaxprs.held_programs import KERNELS
from shmap_compiler.lowering.axis_index_of_jax import axis_index_rule
from shmap_compiler.lowering.watchdog import Watched
from shmap_compiler.lowering.watched_collectives import watched
from shmap_compiler.tracing.canonicalize_collectives import normalize


def emit(
    graph: Graph,
    ctx: LoweringContext,
    ordered_effects: Sequence[jex_core.Effect],
    watch: bool = False,
) -> ir.Module:
    """The module of `graph`, in the MLIR context of `ctx`.

    `@main` takes and returns one token per ordered effect before its arguments and results. Before
    the tokens it takes what the enclosing `jax.export` computes: sizes of symbolic dimensions, and
    the number of the platform it runs on.
    """
    context = ctx.module_context.context
    current = cast("ir.Location | None", ir.Location.current)
    location = current or ir.Location.unknown(context)
    with ir.Location.unknown(context):
        module = ir.Module.create()
        module.operation.attributes["sym_name"] = ir.StringAttr.get(graph.name)
        with ir.InsertionPoint(module.body):
            sdy.MeshOp(MESH_SYMBOL, _mesh_attribute(graph))
            main = _empty_main(graph, ctx, len(ordered_effects), location)
        with ir.InsertionPoint(main.add_entry_block()):
            func_dialect.ReturnOp(_emit_body(graph, ctx, module, main, ordered_effects, watch))
    return module


def _empty_main(
    graph: Graph, ctx: LoweringContext, tokens: int, location: ir.Location
) -> func_dialect.FuncOp:
    """`@main` without a body, with the attributes that say how blocks are placed."""
    of_tokens = [Placed(mlir.token_type(), None)] * tokens
    of_sizes = [Placed(value.type, ()) for value in ctx.dim_var_values]
    inputs = [*of_sizes, *of_tokens, *_placed(graph.in_specs, graph.body_in_types, graph, ctx)]
    outputs = [*of_tokens, *_placed(graph.out_specs, graph.body_out_types, graph, ctx)]
    type_ = ([each.type for each in inputs], [each.type for each in outputs])
    main = func_dialect.FuncOp("main", type_, visibility="public", loc=location)
    write_boundaries(main, inputs, outputs, _mesh(graph))
    attributes = main.attributes
    attributes[MANUAL_AXES] = sdy.ManualAxesAttr.get(
        [ir.StringAttr.get(a) for a in graph.manual_axes]
    )
    first = len(inputs) - len(graph.in_specs)
    if equal := [first + k for k, is_equal in enumerate(graph.equal_inputs) if is_equal]:
        attributes[EQUAL_ARGUMENTS] = ir.DenseI64ArrayAttr.get(equal)
    if graph.outer_manual_axes:
        attributes[OUTER_MANUAL_AXES] = ir.ArrayAttr.get(
            [ir.StringAttr.get(a) for a in graph.outer_manual_axes]
        )
    return main


def _emit_body(
    graph: Graph,
    ctx: LoweringContext,
    module: ir.Module,
    main: func_dialect.FuncOp,
    ordered_effects: Sequence[Effect],
    watch: bool,
) -> list[OpView]:
    """Has JAX lower the program at the insertion point, in `main`. Returns what `main` returns."""
    axes = graph.all_manual_axes
    rule = axis_index_rule(main, _mesh(graph), axes)
    rules = ((jex_core.primitives.axis_index_p, rule),)
    body_ctx = fresh_module_context(ctx.module_context, module, graph.mesh, axes, rules)
    program = _named(lowerable(graph), graph, ctx)
    # With automatic axes, XLA decides on which devices callbacks run.
    if watch and set(axes) == set(graph.mesh.axis_names):
        program = watched(program, Watched(graph.name, graph.mesh))
    sizes, rest = _split(main.arguments, len(ctx.dim_var_values))
    tokens, arguments = _split(rest, len(ordered_effects))

    def lower() -> list[OpView]:
        blocks = keep_unreduced(arguments, graph.body_in_types, MESH_SYMBOL)
        tokens_in = dict(zip(ordered_effects, tokens, strict=True))
        results, tokens_out = lower_program(body_ctx, program, tokens_in, sizes, blocks)
        return [*(tokens_out[effect] for effect in ordered_effects), *results]

    return _with_axes(lower, graph) if names_any(program, KERNELS) else lower()


def _split(values: Iterable[OpView], count: int) -> tuple[list[OpView], list[OpView]]:
    listed = list(values)
    return listed[:count], listed[count:]


def _with_axes(lower: Callable[[], list[OpView]], graph: Graph) -> list[OpView]:
    """Runs `lower` with the manual axes in scope, which the lowering rules of kernels need."""

    def run() -> list[OpView]:
        with eval_context():
            return lower()

    return run_with_axes(run, graph.body_mesh, graph.all_manual_axes)


def lowerable(graph: Graph) -> Jaxpr:
    """The program of a graph, in which primitives that stand for programs are expanded."""
    axes = graph.all_manual_axes
    jaxpr = without_high_primitives(graph.jaxpr, graph.body_mesh, axes)
    if jaxpr is graph.jaxpr:
        return jaxpr
    return normalize(jaxpr, graph.body_mesh, axes, f"`{graph.name}`")


def _named(jaxpr: Jaxpr, graph: Graph, ctx: LoweringContext) -> Jaxpr:
    """The program, whose operations get their full names if it carries them."""
    if carries_names(graph):
        return within_scope(jaxpr, ctx.name_stack.extend("shard_map"))
    return jaxpr


def carries_names(graph: Graph) -> bool:
    """Whether operations have their full names, as XLA sees no call that carries a prefix.

    On a mesh of one device there is no call, and Shardy removes regions whose axes have size one.
    """
    devices = math.prod(graph.mesh.shape[a] for a in graph.manual_axes)
    return graph.mesh.size == 1 or (devices == 1 and shardy_is_on())


def _placed(
    array_specs: Sequence[PartitionSpec], blocks: Sequence[Aval], graph: Graph, ctx: LoweringContext
) -> Iterator[Placed]:
    """How arrays are placed, given their specs and the types of their blocks."""
    made: dict[tuple[int, int], Placed] = {}  # few of the hundreds of them differ
    for spec, block in zip(array_specs, blocks, strict=True):
        key = id(spec), id(block)
        if key not in made:
            type_ = mlir.aval_to_ir_type(ctx.module_context, block)
            # The rank is that of the MLIR type: random keys have dimensions there that JAX does
            # not show. An array may also be unreduced over axes that are not manual here.
            dims = specs.dim_axes(spec, ir.RankedTensorType(type_).rank)
            unreduced = unreduced_axes(reductions(spec) | type_reductions(block), graph.mesh)
            made[key] = Placed(type_, dims, Unreduced(*unreduced))
        yield made[key]


def _mesh(graph: Graph) -> Mesh:
    return Mesh(MESH_SYMBOL, tuple(graph.mesh.shape.items()))


def _mesh_attribute(graph: Graph) -> ir.Attribute:
    return sdy.MeshAttr.get([sdy.MeshAxisAttr.get(a, n) for a, n in graph.mesh.shape.items()])
