"""The axes along which the results of an operation may differ, and the check for deadlocks in it.

An eager call is checked by the rules of `replication`, operation by operation, so that it accepts
what the compiled call accepts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from jax.sharding import PartitionSpec

from shmap_compiler.base.meshes import Axes
from shmap_compiler.checks.hangs import check_hangs
from shmap_compiler.eager.layout import Layout, Operand, Operation, stacked_type


def infer_varying(
    layout: Layout, operation: Operation, operands: Sequence[Operand], refuse_hangs: bool
) -> tuple[Axes, ...]:
    """For each result, the axes along which it may differ between devices.

    Raises HangError, if `refuse_hangs`, for a collective that not all devices would reach.
    """

    # Every operand gets a new dimension, split along the axes along which it varies.
    splits = [layout.in_order(o.varying) for o in operands]
    counts = [math.prod(layout.mesh.shape[a] for a in axes) for axes in splits]

    def fun(*blocks):
        return [r[None] for r in operation.fun(*[b[0] for b in blocks])]

    graph = layout.trace(
        replace(operation, fun=fun),
        [stacked_type(o.type, n) for o, n in zip(operands, counts, strict=True)],
        [PartitionSpec(axes or None) for axes in splits],
        PartitionSpec(),
    ).graph
    if refuse_hangs:
        check_hangs(graph, operation.who, [f"operand {k}" for k in range(len(operands))])
    return graph.replication.outputs
