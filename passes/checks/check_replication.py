"""Rejects results that vary along a manual axis that their sharding does not mention.

A result whose sharding does not mention an axis is replicated along it. If the blocks of the
devices differ, the array has no well-defined value: it depends on the device that is read.
`shard_map` checks this on the Graph, where the user's source lines are known. This pass is the same
check for modules written by hand; it infers replication on the module
(passes/analysis/replication.py).

Before:  func.func public @main(%x: tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
             -> (tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) { return %x }
After:   error: @main's result 0, tensor<2xf32>: may differ between devices along "i", which its
             sharding does not mention; mention the axis there, or make the blocks equal ...
         note: it varies along "i" since argument 0, which devices along the axis hold parts of
Needs:   what shmap-verify accepts.
Leaves:  the module as it is.

Modules do not record `shmap_compiler.assume_replicated`, so a program that relies on it is
rejected. Results without elements are always accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..analysis.provenance import described, origin
from ..analysis.replication import Varying, infer
from ..base import Pass, PassRefused, Violation
from ..ir.body_form import BodyForm, read_body_form
from ..ir.boundary import Boundary
from ..ir.ops import terminator
from ..ir.types import Value
from .collective_diagnostics import quoted


@dataclass(frozen=True)
class CheckReplication(Pass):
    """Rejects results that vary along a manual axis that their sharding does not mention."""

    name = "shmap-check-replication"
    code = "SHM-P02"
    keeps_bits = True
    needs_body_form = True

    def run(self, module: ModuleOp) -> None:
        form = read_body_form(module)
        varying = infer(form, module)
        results = terminator(form.main.entry_block).operands
        violations = [
            _violation(boundary, value, axes, varying, module)
            for boundary, value in zip(form.outputs, results, strict=True)
            if (axes := _hidden(boundary, value, form, varying))
        ]
        if violations:
            raise PassRefused(violations)


def _hidden(boundary: Boundary, value: Value, form: BodyForm, varying: Varying) -> tuple[str, ...]:
    """The manual axes along which a result varies and that its sharding does not mention."""
    if boundary.dims is None or 0 in ir.RankedTensorType(boundary.type).shape:
        return ()
    return tuple(
        axis for axis in varying.of(value) if axis in form.manual and axis not in boundary.varying
    )


def _violation(
    boundary: Boundary,
    value: Value,
    axes: tuple[str, ...],
    varying: Varying,
    module: ModuleOp,
) -> Violation:
    functions = {op.name.value: op for op in module.body.operations if isinstance(op, func.FuncOp)}
    one = len(axes) == 1
    return Violation(
        value.location,
        f"@main's {boundary.name}, {boundary.type}: may differ between devices along "
        f"{quoted(axes)}, which its sharding does not mention; mention "
        f"{'the axis' if one else 'the axes'} there, or make the blocks equal before they are "
        f"returned, by an all_reduce or all_gather over {quoted(axes)}",
        notes=tuple(_notes(value, axes, varying, functions)),
    )


def _notes(
    value: Value, axes: tuple[str, ...], varying: Varying, functions: dict[str, func.FuncOp]
) -> Iterator[Violation]:
    for axis in axes:
        start = origin(value, axis, varying, functions)
        yield Violation(start.location, f'it varies along "{axis}" since {described(start)}')
