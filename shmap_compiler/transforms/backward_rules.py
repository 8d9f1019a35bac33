"""Along which axes the cotangents vary that the backward rule of a `custom_vjp` returns.

What such a rule does shows only in the program that it runs: `all_gather` in the function, say, is
`psum_scatter` in a rule made by `jax.vjp`, and gives each device a share of its own where operands
and results are equal on all devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from shmap_compiler._compat import trace_with_axes, with_manual_axes
from shmap_compiler.graph import Graph
from shmap_compiler.normalize import normalize
from shmap_compiler.replication.inference import infer_program

PRIMITIVE = "custom_lin"
"""What a forward derivative puts where the rule will be called."""


def varying(
    graph: Graph, eqn: Any, residuals: Sequence[frozenset[str]], cotangents: frozenset[str]
) -> frozenset[str]:
    """The axes along which any cotangent varies that the rule of `eqn` returns.

    Args:
      residuals: the axes along which each residual varies.
      cotangents: those along which the cotangents of all results do.
    """
    count = eqn.params["num_res"]

    def backward(*blocks):
        def linear(*tangents):
            return eqn.primitive.bind(*blocks[:count], *tangents, **eqn.params)

        types = [v.aval for v in eqn.invars[count:]]
        return jax.linear_transpose(linear, *types)(list(blocks[count:]))

    mesh = with_manual_axes(graph.mesh, graph.all_manual_axes)
    types = [v.aval for v in (*eqn.invars[:count], *eqn.outvars)]
    traced = trace_with_axes(backward, mesh, graph.manual_axes, types)
    program = normalize(traced, mesh, graph.all_manual_axes, f"`{graph.name}`")
    inputs = [*residuals, *[cotangents] * len(eqn.outvars)]
    return frozenset().union(*infer_program(graph, program, inputs).outputs)
