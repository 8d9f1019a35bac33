"""The types of cotangents where a linear program holds a `linear_call`.

Its transpose is the user's. Where a result of the function does not vary along an axis, as after a
psum, it takes the whole cotangent on every device, as in JAX. A transpose that sums such cotangents
over devices was written for shares, and takes shares.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax

from shmap_compiler import collectives as coll
from shmap_compiler.base.jax_compat import trace_with_axes
from shmap_compiler.base.meshes import Axes
from shmap_compiler.base.untyped import Eqn, Jaxpr
from shmap_compiler.graph.graph import Graph
from shmap_compiler.jaxprs.contents import equations
from shmap_compiler.replication.inference import infer_program, infer_types
from shmap_compiler.tracing.canonicalize_collectives import normalize
from shmap_compiler.transforms.promotion import NONE, Promoter, Value

_COMBINES = {r.primitive for r in coll.RECORDS if r.combines is not coll.Combines.NOTHING}


def put_linear_call(
    program: Promoter, eqn: Eqn, operands: Sequence[Value], results: Sequence[Axes]
) -> None:
    """Adds a `linear_call` to a program.

    Args:
      results: the types of its results, if cotangents are whole wherever results do not vary.
    """
    graph = program.axes.graph
    count = eqn.params["num_callee_consts"] + eqn.params["num_res"]
    transpose = _transpose(graph, eqn, count)
    residuals = [v.axes for v in operands[:count]]
    results = [axes | program.control for axes in results]
    shares = NONE
    while whole := _combined_whole(graph, transpose, residuals, results):
        shares |= whole
        results = [axes | whole for axes in results]
    # Where both the function and its transpose sum over devices, each device has an operand and a
    # result of its own.
    sums = (program.axes.over(e) for e in equations(eqn.params["callee"]) if _combines(e))
    own = shares.intersection(NONE.union(*sums)) | program.control
    returned = infer_program(graph.region, transpose, [*residuals, *results]).outputs
    differentiated = [
        program.promoted(v, found | own, eqn)
        for v, found in zip(eqn.invars[count:], returned, strict=True)
    ]
    program.put(eqn.replace(invars=[*eqn.invars[:count], *differentiated]))
    program.define(eqn.outvars, [Value(True, axes) for axes in results])


def _transpose(graph: Graph, eqn: Eqn, count: int) -> Jaxpr:
    """The program from `count` residuals and the cotangents of results to those of operands."""

    def backward(*blocks):
        def linear(*tangents):
            return eqn.primitive.bind(*blocks[:count], *tangents, **eqn.params)

        types = [v.aval for v in eqn.invars[count:]]
        return jax.linear_transpose(linear, *types)(list(blocks[count:]))

    types = [v.aval for v in (*eqn.invars[:count], *eqn.outvars)]
    traced = trace_with_axes(backward, graph.body_mesh, graph.manual_axes, types)
    return normalize(traced, graph.body_mesh, graph.all_manual_axes, f"`{graph.name}`")


def _combined_whole(
    graph: Graph, transpose: Jaxpr, residuals: Sequence[Axes], results: Sequence[Axes]
) -> Axes:
    """The axes over which a transpose combines cotangents that are equal on all devices."""
    types = infer_types(graph.region, transpose, [*residuals, *results])
    everywhere = frozenset(graph.all_manual_axes)
    marks = [*[NONE] * len(residuals), *[everywhere] * len(results)]
    marked = infer_program(graph.region, transpose, marks, lambda eqn, mask, axes: mask)
    combined = NONE.union(
        *(
            frozenset(eqn.params["axes"]) - types.of(eqn.invars[0])
            for eqn in equations(transpose)
            if _combines(eqn) and marked.of(eqn.invars[0])
        )
    )
    return combined.difference(*results)


def _combines(eqn: Eqn) -> bool:
    return eqn.primitive in _COMBINES
