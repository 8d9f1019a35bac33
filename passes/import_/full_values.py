"""What a module does with full arrays outside of its manual regions, and how they are split there.

Body form has no outside: @main is the program of one device. An operation on full arrays can be
moved into it where each device can do it on its blocks alone:

    any operation without effects     if its operands and results are whole on every device
    an elementwise operation          if its operands and results are split equally
    while, if, case                   if each value that they carry is always split equally

Every full value belongs to a class of values that are split equally. Regions say how their
arguments and results are split; what nothing says is whole. An operand that is split otherwise than
its operation wants it is converted: the operation takes a new full value, in a class of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from ..base import Violation
from ..ir.collective_ops import is_axis_index
from ..ir.elementwise import ELEMENTWISE
from ..ir.inline_calls import callee
from ..ir.ops import is_token, terminator
from ..ir.types import Value
from .crossing import Crossing
from .outside_ops import (
    CONTROL_FLOW,
    all_operands,
    has_effect,
    inner_ops,
    is_hint,
    rank,
    shape,
)
from .placement import Placement
from .split_classes import SplitClass, SplitClasses

CONVERSION = "builtin.unrealized_conversion_cast"


@dataclass
class FullValues:
    """Collects what is done with full values, then solves.

    Attributes:
      crossings: by op.
      inside: ops that belong to a region although none of their operands is a block.
      hints: what ops and arguments say about how their value may be split.
      acting: the functions that have an effect, or depend on the device that calls them.
      conversions: ops from a full value to the same, split in another way.
    """

    crossings: dict[ir.Operation, Crossing]
    inside: set[ir.Operation]
    hints: dict[Value | ir.Operation, Placement]
    acting: set[str]
    violations: list[Violation] = field(default_factory=list)
    conversions: list[ir.Operation] = field(default_factory=list)
    outside: list[ir.Operation] = field(default_factory=list)
    """The ops on full arrays, outer before inner."""
    constants: list[tuple[ir.Operation, int, Value | Placement]] = field(default_factory=list)
    """(op, operand, how it is split, or a full value that is split so): operands that depend on
    constants only. They are in no class, as each use may have its own copy."""
    _classes: SplitClasses = field(default_factory=SplitClasses)
    _blocks: set[Value] = field(default_factory=set)
    _said_to_be_whole: set[Value] = field(default_factory=set)

    def add_main(self, block: ir.Block) -> None:
        """Reads @main."""
        for argument in block.arguments:
            if not is_token(argument.type):
                self._add(argument)
                if self.hints.get(argument) == Placement.whole(argument.type):
                    self._said_to_be_whole.add(argument)
        self.add_block(block)
        for value in terminator(block).operands:
            if value in self._blocks:
                self._refuse(
                    terminator(block),
                    "@main returns the block of one device; return the full array that "
                    "SPMDShardToFullShape makes of it",
                )

    def is_full(self, value: Value) -> bool:
        return value in self._classes

    def all(self) -> list[Value]:
        """The full values."""
        return self._classes.values()

    def placement(self, value: Value) -> Placement:
        """How a full value is split, once everything was read."""
        return self._classes.placement(value)

    def add_block(self, block: ir.Block) -> None:
        for view in block.operations:
            op = view.operation
            if op in self.crossings:
                self._cross(op, self.crossings[op])
            elif op != terminator(block):
                self._add_op(op)

    # ---- one op ----------------------------------------------------------------------------------

    def _cross(self, op: ir.Operation, crossing: Crossing) -> None:
        source = op.operands[0]
        if crossing.placement is None:  # a token
            return
        if crossing.enters:
            if source in self._blocks:
                self._refuse(op, "enters a manual region with what is a block already")
                return
            self._blocks.add(op.results[0])
            if self.is_full(source):
                self._want_operand(op, 0, crossing.placement, "enters a manual region", op)
            else:
                self.constants.append((op, 0, crossing.placement))
        else:
            if self.is_full(source):
                self._refuse(op, "leaves a manual region with what is a full array already")
                return
            self._add(op.results[0])
            self._want(op.results[0], crossing.placement, "leaves a manual region", op)

    def _add_op(self, op: ir.Operation) -> None:
        operands = all_operands(op)
        any_full = any(map(self.is_full, operands))
        is_block = op in self.inside or any(value in self._blocks for value in operands)
        holds_region = any(inner in self.crossings for inner in inner_ops(op))
        if is_block:
            full = [value for value in operands if self.is_full(value)]
            if holds_region or not all(self._is_said_to_be_whole(value, op) for value in full):
                self._refuse(
                    op,
                    f"{op.name} takes blocks of one device and full arrays; bring the full arrays "
                    "into the region first",
                )
            self._blocks.update(op.results)
        elif is_axis_index(op):
            self._blocks.update(op.results)
        elif any_full or holds_region:
            self._add_outside(op, operands)
        elif self._has_effect(op):
            self._refuse_effect(op)

    def _is_said_to_be_whole(self, value: Value, op: ir.Operation) -> bool:
        """Whether each device holds a full value by the module's own words, and so may use it.

        torch_xla lets replicated parameters, and what it computes from them, enter regions without
        a call.
        """
        whole = Placement.whole(value.type)
        reason = f"is used by {op.name} of a manual region, as a whole"
        wanted = SplitClass(whole, None, reason, op.location)
        is_said = not rank(value) or value in self._said_to_be_whole
        return is_said and self._classes.want(value, wanted) is None

    def _note_whole(self, op: ir.Operation, operands: Sequence[Value]) -> None:
        """Notes the results of an op on full arrays that are said to be whole, as its operands."""
        if is_hint(op):
            is_said = self.hints.get(op) == Placement.whole(op.results[0].type)
        else:
            full = filter(self.is_full, operands)
            is_said = all(not rank(value) or value in self._said_to_be_whole for value in full)
        if is_said and op.name not in CONTROL_FLOW:
            self._said_to_be_whole.update(op.results)

    def _add_outside(self, op: ir.Operation, operands: Sequence[Value]) -> None:
        self.outside.append(op)
        for result in op.results:
            if not is_token(result.type):
                self._add(result)
        self._note_whole(op, operands)
        if op.name in CONTROL_FLOW:
            self._add_control_flow(op)
        elif self._has_effect(op):
            self._refuse_effect(op)
        elif is_hint(op):
            self._join(op.operands[0], op.results[0], op)
            if op in self.hints:
                self._hint(op.results[0], self.hints[op])
        elif op.name == "stablehlo.optimization_barrier":
            for k, value in enumerate(op.operands):
                self._join_operand(op, k, value, op.results[k])
        elif op.name in ELEMENTWISE and len(op.results) == 1:
            self._add_elementwise(op)
        elif op.name == "stablehlo.broadcast_in_dim" and not rank(op.operands[0]):
            self._want_whole(op)
        else:
            self._want_whole(op)
            for result in op.results:
                if self.is_full(result):
                    reason = f"is made by {op.name}, which works on whole arrays"
                    self._want(result, Placement.whole(result.type), reason, op)

    def _add_elementwise(self, op: ir.Operation) -> None:
        result = op.results[0]
        for k, value in enumerate(op.operands):
            if shape(value) == shape(result):
                self._join_operand(op, k, value, result)
            else:  # the predicate of a select, the limits of a clamp
                self._want_whole(op, [k])

    def _add_control_flow(self, op: ir.Operation) -> None:
        blocks = [region.blocks[0] for region in op.regions]
        is_loop = op.name == "stablehlo.while"
        for block in blocks:
            for argument in block.arguments:
                if not is_token(argument.type):
                    self._add(argument)
            self.add_block(block)
        if is_loop:
            ends = [terminator(blocks[1])]
            for k, result in enumerate(op.results):
                for block in blocks:
                    if not is_token(result.type):
                        self._join(block.arguments[k], result, op)
                self._join_operand(op, k, op.operands[k], result)
            self._want_whole(terminator(blocks[0]))
        else:
            self._want_whole(op, [0])
            ends = [terminator(block) for block in blocks]
        for end in ends:
            for k, result in enumerate(op.results):
                self._join_operand(end, k, end.operands[k], result)

    def _has_effect(self, op: ir.Operation) -> bool:
        called = {callee(each) for each in [op, *inner_ops(op)] if each.name == "func.call"}
        return has_effect(op) or bool(called & self.acting)

    def summands(self) -> list[Violation]:
        """A violation for each op on an array of which each device holds a summand."""
        return [
            Violation(
                op.location,
                f"{op.name} outside of the manual regions takes an array of which each device "
                f"holds a summand, split as {self.placement(value)}; sum it in the region",
            )
            for op in self.outside
            if op.name not in CONTROL_FLOW and not is_hint(op)
            for value in op.operands
            if self.is_full(value) and self.placement(value).unreduced.axes
        ]

    # ---- classes ---------------------------------------------------------------------------------

    def _add(self, value: Value) -> None:
        if self._classes.add(value) and value in self.hints:
            self._hint(value, self.hints[value])

    def _hint(self, value: Value, hint: Placement) -> None:
        self._classes.hint(value, hint)

    def _join_operand(self, op: ir.Operation, k: int, value: Value, full: Value) -> None:
        """Operand `k` of `op` is split as `full` is."""
        if is_token(value.type):
            return
        if value in self._blocks:
            self._refuse(op, f"{op.name} outside of manual regions takes the block of one device")
            return
        if not self.is_full(value):
            self.constants.append((op, k, full))
            return
        conflict = self._classes.join(value, full)
        if conflict is not None and self._can_convert(full, conflict, op):
            self._classes.join(self._convert(op, k, op), full)

    def _join(self, left: Value, right: Value, op: ir.Operation) -> None:
        conflict = self._classes.join(left, right)
        if conflict is not None:
            self._refuse_conflict(right, conflict, op, "join them before, in a region")

    def _want_operand(
        self, op: ir.Operation, k: int, placement: Placement, reason: str, at: ir.Operation
    ) -> None:
        """Operand `k` of `op`, which is `at` or in it, is split in one way."""
        wanted = SplitClass(placement, None, reason, at.location)
        conflict = self._classes.want(op.operands[k], wanted)
        if conflict is not None and self._can_convert(op.operands[k], conflict, at):
            self._classes.want(self._convert(op, k, at), wanted)

    def _want(self, value: Value, placement: Placement, reason: str, op: ir.Operation) -> None:
        conflict = self._classes.want(value, SplitClass(placement, None, reason, op.location))
        if conflict is not None:
            self._refuse_conflict(value, conflict, op, "write the collective into a region")

    def _want_whole(self, op: ir.Operation, numbers: Sequence[int] | None = None) -> None:
        """Operands of `op`, or all that it and the ops in it have, are whole on every device."""
        inner = inner_ops(op) if numbers is None else []
        for each in (op, *inner):
            for k in range(len(each.operands)) if numbers is None else numbers:
                value = each.operands[k]
                if self.is_full(value):
                    reason = f"is used by {op.name}, which works on whole arrays"
                    self._want_operand(each, k, Placement.whole(value.type), reason, op)

    def _convert(self, op: ir.Operation, k: int, at: ir.Operation) -> Value:
        """Lets operand `k` of `op` be a new full value, made before `at`; returns this."""
        value = op.operands[k]
        with ir.InsertionPoint(at), at.location:
            cast = ir.Operation.create(CONVERSION, results=[value.type], operands=[value])
        op.operands[k] = cast.results[0]
        self.conversions.append(cast)
        self._add(cast.results[0])
        return cast.results[0]

    # ---- refusals --------------------------------------------------------------------------------

    def _can_convert(
        self, value: Value, conflict: tuple[SplitClass, SplitClass], op: ir.Operation
    ) -> bool:
        """Refuses to convert summands: the program says nowhere when they are summed."""
        summands = any(each.placement and each.placement.unreduced.axes for each in conflict)
        if summands:
            self._refuse_conflict(value, conflict, op, "sum it in a region")
        return not summands

    def _refuse_conflict(
        self, value: Value, conflict: tuple[SplitClass, SplitClass], op: ir.Operation, fix: str
    ) -> None:
        one, other = conflict
        notes = tuple(
            Violation(each.location, f"the array {each.reason} here, split as {each.placement}")
            for each in conflict
            if each.location is not None
        )
        text = (
            f"an array {value.type} outside of the manual regions is wanted split as "
            f"{one.placement} and as {other.placement}; {fix}, or partition the module with XLA "
            "first and import the result"
        )
        self.violations.append(Violation(op.location, text, notes))

    def _refuse(self, op: ir.Operation, text: str) -> None:
        self.violations.append(Violation(op.location, text))

    def _refuse_effect(self, op: ir.Operation) -> None:
        self._refuse(
            op,
            f"{op.name} outside of the manual regions has an effect, or communicates, once for "
            "all devices; in body form each device would do it: move it into a region or remove it",
        )
