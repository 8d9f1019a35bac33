"""Rejects collectives that only some of their devices would reach, or reach less often.

Devices synchronize at a collective. If it is inside a branch that some of them do not take, or in a
loop that they leave earlier, the others wait forever. `shard_map` checks this on the Graph (R18 of
docs/replication.md), where the user's source lines are known. This pass is the same check for
modules of other producers: it follows conditions, loops and calls, and infers along which axes the
value varies that decides (passes/analysis/replication.py).

Before:  %c = ... %x ...                   // %x is split along "i", so %c varies along it
         "stablehlo.if"(%c) ({
           %0 = "stablehlo.all_reduce"(%b) ... axes = ["i"]
After:   error: all_reduce over "i" is inside of an if whose predicate varies along "i": devices
         that reach it wait for those that do not; run it outside, or decide the same way on all
         devices along "i"
         note: the if is here
         note: the predicate varies along "i" since argument 0, ...
Needs:   what shmap-verify accepts.
Leaves:  the module as it is.

A collective_permute waits for all devices, and a `custom_call @ragged_all_to_all`, for which
StableHLO has no operation, is a collective. Inside of an `sdy.manual_computation` the axes that are
manual only there count, too. What is inferred is an upper bound, so a program whose devices decide
alike for a reason that the module does not show is rejected, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..analysis.per_device_constants import evaluate
from ..analysis.provenance import described, origin
from ..analysis.replication import Varying, infer
from ..base import Pass, PassRefused, Violation
from ..ir.body_form import BodyForm, read_body_form
from ..ir.collective_ops import (
    GROUPS,
    PERMUTE,
    device_ids,
    group_axes,
    is_collective,
    is_ragged_all_to_all,
    ragged_groups,
    short_name,
)
from ..ir.inline_calls import callee, functions_of
from ..ir.mesh import MOST_LISTED
from ..ir.ops import terminator
from ..ir.types import Value
from ..ir.unverified import manual_axes
from .collective_diagnostics import quoted


@dataclass(frozen=True)
class CheckHangs(Pass):
    """Rejects collectives that only some of their devices would reach, or reach less often."""

    name = "shmap-check-hangs"
    code = "SHM-P24"
    keeps_bits = True
    needs_body_form = True

    def run(self, module: ModuleOp) -> None:
        form = read_body_form(module)
        checker = _Checker(form, infer(form, module), functions_of(module))
        violations = checker.block(form.main.entry_block, _Around(form.region))
        found = {(str(v.location), v.message): v for v in violations}
        if found:
            raise PassRefused(found.values())


@dataclass(frozen=True)
class _Control:
    """An op that decides which devices run its regions, or how often.

    Attributes:
      decides: the value by which it decides.
      axes: the manual axes along which that value varies.
    """

    op: ir.Operation
    decides: Value
    axes: tuple[str, ...]


@dataclass(frozen=True)
class _Around:
    """What is around a block.

    Attributes:
      region: the axes that are manual there.
      controls: what decides which devices reach it, the innermost last.
    """

    region: tuple[str, ...]
    controls: tuple[_Control, ...] = ()


class _Checker:
    def __init__(self, form: BodyForm, varying: Varying, functions: dict[str, func.FuncOp]):
        self.form, self.varying, self.functions = form, varying, functions
        self._entered: set[tuple[str, _Around]] = set()

    def block(self, block: ir.Block, around: _Around) -> Iterator[Violation]:
        for view in block.operations:
            op = view.operation
            if is_collective(op):
                yield from self._collective(op, around)
            elif op.name == "func.call":
                yield from self._call(callee(op), around)
            elif op.name == "stablehlo.composite":
                name = ir.FlatSymbolRefAttr(op.attributes["decomposition"]).value
                yield from self._call(name, around)
            else:
                inner = self._inside(op, around)
                for region in op.regions:
                    for each in region.blocks:
                        yield from self.block(each, inner)

    def _call(self, name: str, around: _Around) -> Iterator[Violation]:
        if name in self.functions and (name, around) not in self._entered:
            self._entered.add((name, around))
            yield from self.block(self.functions[name].entry_block, around)

    def _inside(self, op: ir.Operation, around: _Around) -> _Around:
        if op.name == "sdy.manual_computation":
            axes = manual_axes(op.attributes["manual_axes"]) or ()
            return replace(around, region=(*around.region, *axes))
        if op.name == "stablehlo.while":
            decides = terminator(op.regions[0].blocks[0]).operands[0]
        elif op.name in ("stablehlo.if", "stablehlo.case"):
            decides = op.operands[0]
        else:
            return around
        axes = tuple(axis for axis in self._axes_of(decides) if axis in around.region)
        if not axes:
            return around
        return replace(around, controls=(*around.controls, _Control(op, decides, axes)))

    def _axes_of(self, decides: Value) -> tuple[str, ...]:
        """The axes along which a value may vary: exactly, if it is known on every device.

        In regions inside of regions, positions are arithmetic on `partition_id`.
        """
        axes, mesh = self.varying.of(decides), self.form.mesh
        if not axes or mesh.size > MOST_LISTED:
            return axes
        known = evaluate(decides, mesh, {})
        if known is None:
            return axes
        return tuple(
            axis for k, axis in enumerate(mesh.names) if np.any(known != np.take(known, [0], k))
        )

    def _collective(self, op: ir.Operation, around: _Around) -> Iterator[Violation]:
        synchronized = self._synchronized(op, around) if around.controls else ()
        for control in around.controls:
            clash = tuple(axis for axis in control.axes if axis in synchronized)
            if clash:
                yield self._violation(op, synchronized, control, clash)

    def _synchronized(self, op: ir.Operation, around: _Around) -> tuple[str, ...]:
        """The axes along which devices wait for each other."""
        if op.name == PERMUTE:
            return around.region
        mesh = self.form.mesh
        if is_ragged_all_to_all(op):
            rows = ragged_groups(op)
        elif (named := group_axes(op)) is not None:
            return named
        else:
            rows = device_ids(op, GROUPS)
        groups = [[device for device in row if device >= 0] for row in rows]  # rows are padded
        return tuple(
            axis
            for axis in mesh.names
            if any(len({mesh.position(device, axis) for device in group}) > 1 for group in groups)
        )

    def _violation(
        self, op: ir.Operation, over: tuple[str, ...], control: _Control, clash: tuple[str, ...]
    ) -> Violation:
        kind = control.op.name.removeprefix("stablehlo.")
        what = "condition" if kind == "while" else "predicate"
        decides = f"{'number of steps' if kind == 'while' else what} varies along {quoted(clash)}"
        repair = (
            f"let all devices along {quoted(clash)} take the same number of steps"
            if kind == "while"
            else f"run it outside, or decide the same way on all devices along {quoted(clash)}"
        )
        start = origin(control.decides, clash[0], self.varying, self.functions)
        why = f'the {what} varies along "{clash[0]}" since {described(start)}'
        return Violation(
            op.location,
            f"{short_name(op)} over {quoted(over)} is inside of "
            f"{'an' if kind == 'if' else 'a'} {kind} whose {decides}: devices that reach it wait "
            f"for those that do not; {repair}",
            notes=(
                Violation(control.op.location, f"the {kind} is here"),
                Violation(start.location, why),
            ),
        )
