"""What a module does with full arrays outside of its manual regions, and how they are split there.

Body form has no outside: @main is the program of one device. An operation on full arrays can be
moved into it where each device can do it on its blocks alone:

    any operation without effects     if its operands and results are whole on every device
    an elementwise operation          if its operands and results are split equally
    while, if, case                   if each value that they carry is always split equally

Regions say how their arguments and results are split, and operations on full arrays which of their
operands and results are split equally (splits.py); what nothing says is whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from ..base import Violation
from ..ir.collective_ops import is_axis_index
from ..ir.elementwise import ELEMENTWISE
from ..ir.inline_calls import callee
from ..ir.ops import is_token, terminator
from ..ir.types import BlockArgument, Value
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
from .splits import Splits

_IS_NO_ARRAY = (
    "is a {}, and body form has arrays of a known rank; take the arrays of a tuple apart, and "
    "lower the program for known shapes"
)


@dataclass
class FullValues:
    """Reads what is done with full values, into `splits`.

    Attributes:
      crossings: by op.
      inside: ops that belong to a region although none of their operands is a block.
      acting: the functions that have an effect, or depend on the device that calls them.
      splits: how the full values read so far are split.
      outside: the ops on full arrays, outer before inner.
    """

    crossings: dict[ir.Operation, Crossing]
    inside: set[ir.Operation]
    acting: set[str]
    splits: Splits
    outside: list[ir.Operation] = field(default_factory=list)
    _arguments: list[BlockArgument] = field(default_factory=list, init=False)
    _said_to_be_whole: set[Value] = field(default_factory=set)

    def add_main(self, block: ir.Block) -> None:
        """Reads @main."""
        self._arguments = [each for each in block.arguments if not is_token(each.type)]
        for argument in self._arguments:
            if not _can_be_split(argument):
                text = f"argument {argument.arg_number} {_IS_NO_ARRAY.format(argument.type)}"
                self.splits.violations.append(Violation(argument.location, text))
                continue
            self.splits.add(argument)
            if self.splits.hints.get(argument) == Placement.whole(argument.type):
                self._said_to_be_whole.add(argument)
        self.add_block(block)
        for k, value in enumerate(terminator(block).operands):
            if not _can_be_split(value):
                text = f"result {k} of @main {_IS_NO_ARRAY.format(value.type)}"
                self.splits.refuse(terminator(block), text)
            elif value in self.splits.blocks:
                self.splits.refuse(
                    terminator(block),
                    "@main returns the block of one device; return the full array that "
                    "SPMDShardToFullShape makes of it",
                )

    def add_block(self, block: ir.Block) -> None:
        end = terminator(block)
        for view in block.operations:
            op = view.operation
            if op in self.crossings:
                self._cross(op, self.crossings[op])
            elif op != end:
                self._add_op(op)

    # ---- one op ----------------------------------------------------------------------------------

    def _cross(self, op: ir.Operation, crossing: Crossing) -> None:
        source = op.operands[0]
        if crossing.placement is None:  # a token
            return
        if crossing.enters:
            if source in self.splits.blocks:
                self.splits.refuse(op, "enters a manual region with what is a block already")
                return
            self.splits.blocks.add(op.results[0])
            if self.splits.is_full(source):
                self.splits.want_operand(op, 0, crossing.placement, "enters a manual region", op)
            else:
                self.splits.constants.append((op, 0, crossing.placement))
        else:
            if self.splits.is_full(source):
                self.splits.refuse(op, "leaves a manual region with what is a full array already")
                return
            self.splits.add(op.results[0])
            self.splits.want(op.results[0], crossing.placement, "leaves a manual region", op)

    def _add_op(self, op: ir.Operation) -> None:
        operands = all_operands(op)
        any_full = any(map(self.splits.is_full, operands))
        is_block = op in self.inside or any(value in self.splits.blocks for value in operands)
        holds_region = any(inner in self.crossings for inner in inner_ops(op))
        if is_block:
            full = [value for value in operands if self.splits.is_full(value)]
            if holds_region or not all(self._is_said_to_be_whole(value, op) for value in full):
                self.splits.refuse(
                    op,
                    f"{op.name} takes blocks of one device and full arrays; bring the full arrays "
                    "into the region first",
                )
            self.splits.blocks.update(op.results)
        elif is_axis_index(op):
            self.splits.blocks.update(op.results)
        elif any_full or holds_region:
            self._add_outside(op, operands)
        elif is_hint(op):  # about a constant
            self.outside.append(op)
        elif self._has_effect(op):
            self._refuse_effect(op)

    def _is_said_to_be_whole(self, value: Value, op: ir.Operation) -> bool:
        """Whether each device holds a full value by the module's own words, and so may use it.

        torch_xla lets replicated parameters, and what it computes from them, enter regions without
        a call.
        """
        reason = f"is used by {op.name} of a manual region, as a whole"
        is_said = not rank(value) or value in self._said_to_be_whole
        return is_said and self.splits.can_be(value, Placement.whole(value.type), reason, op)

    def _note_whole(self, op: ir.Operation, operands: Sequence[Value]) -> None:
        """Notes the results of an op on full arrays that are said to be whole, as its operands."""
        if is_hint(op):
            is_said = self.splits.hints.get(op.results[0]) == Placement.whole(op.results[0].type)
        else:
            full = filter(self.splits.is_full, operands)
            is_said = all(not rank(value) or value in self._said_to_be_whole for value in full)
        if is_said and op.name not in CONTROL_FLOW:
            self._said_to_be_whole.update(op.results)

    def _add_outside(self, op: ir.Operation, operands: Sequence[Value]) -> None:
        self.outside.append(op)
        strange = [result for result in op.results if not _can_be_split(result)]
        if strange:
            text = f"what {op.name} makes outside of the manual regions {_IS_NO_ARRAY}"
            self.splits.refuse(op, text.format(strange[0].type))
            return
        for result in op.results:
            if not is_token(result.type):
                self.splits.add(result)
        self._note_whole(op, operands)
        if op.name in CONTROL_FLOW:
            self._add_control_flow(op)
        elif self._has_effect(op):
            self._refuse_effect(op)
        elif is_hint(op):
            self.splits.join(op.operands[0], op.results[0], op)
        elif op.name == "stablehlo.optimization_barrier":
            for k, value in enumerate(op.operands):
                self.splits.join_operand(op, k, value, op.results[k])
        elif op.name in ELEMENTWISE and len(op.results) == 1:
            self._add_elementwise(op)
        elif op.name == "stablehlo.broadcast_in_dim" and not rank(op.operands[0]):
            self.splits.want_whole(op)
        else:
            self.splits.want_whole(op)
            for result in op.results:
                if self.splits.is_full(result):
                    reason = f"is made by {op.name}, which works on whole arrays"
                    self.splits.want(result, Placement.whole(result.type), reason, op)

    def _add_elementwise(self, op: ir.Operation) -> None:
        result = op.results[0]
        for k, value in enumerate(op.operands):
            if shape(value) == shape(result):
                self.splits.join_operand(op, k, value, result)
            else:  # the predicate of a select, the limits of a clamp
                self.splits.want_whole(op, [k])

    def _add_control_flow(self, op: ir.Operation) -> None:
        blocks = [region.blocks[0] for region in op.regions]
        is_loop = op.name == "stablehlo.while"
        for block in blocks:
            for argument in block.arguments:
                if not is_token(argument.type):
                    self.splits.add(argument)
            self.add_block(block)
        if is_loop:
            ends = [terminator(blocks[1])]
            for k, result in enumerate(op.results):
                for block in blocks:
                    if not is_token(result.type):
                        self.splits.join(block.arguments[k], result, op)
                self.splits.join_operand(op, k, op.operands[k], result)
            self.splits.want_whole(terminator(blocks[0]))
        else:
            self.splits.want_whole(op, [0])
            ends = [terminator(block) for block in blocks]
        for end in ends:
            for k, result in enumerate(op.results):
                self.splits.join_operand(end, k, end.operands[k], result)

    def _has_effect(self, op: ir.Operation) -> bool:
        called = {callee(each) for each in [op, *inner_ops(op)] if each.name == "func.call"}
        return has_effect(op) or bool(called & self.acting)

    def summands(self) -> list[Violation]:
        """A violation for each op on an array of which each device holds a summand.

        And for each argument that would be one, but has a sharding of its own that says otherwise.
        """
        return [*self._arguments_as_summands(), *self._ops_on_summands()]

    def _arguments_as_summands(self) -> Iterator[Violation]:
        for argument in self._arguments:
            given = self.splits.hints.get(argument)
            if given is None or given.unreduced.axes or not self.splits.is_full(argument):
                continue
            found = self.splits.placement(argument)
            if found.unreduced.axes:
                yield Violation(
                    argument.location,
                    f"argument {argument.arg_number} is whole by its sharding, and a region takes "
                    f"summands of it, split as {found}; make the summands in a region",
                )

    def _ops_on_summands(self) -> list[Violation]:
        return [
            Violation(
                op.location,
                f"{op.name} outside of the manual regions takes an array of which each device "
                f"holds a summand, split as {self.splits.placement(value)}; sum it in the region",
            )
            for op in self.outside
            if op.name not in CONTROL_FLOW and not is_hint(op)
            for value in op.operands
            if self.splits.is_full(value) and self.splits.placement(value).unreduced.axes
        ]

    def _refuse_effect(self, op: ir.Operation) -> None:
        self.splits.refuse(
            op,
            f"{op.name} outside of the manual regions has an effect, or communicates, once for "
            "all devices; in body form each device would do it: move it into a region or remove it",
        )


def _can_be_split(value: Value) -> bool:
    """Whether a value is an array of a known rank; a token is taken as it is."""
    return isinstance(value.type, ir.RankedTensorType) or is_token(value.type)
