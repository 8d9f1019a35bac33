"""What a module does with full arrays outside of its manual regions, and how they are split there.

Body form has no outside: @main is the program of one device. An operation on full arrays can be
moved into it where each device can do it on its blocks alone:

    any operation without effects     if its operands and results are whole on every device
    an elementwise operation          if its operands and results are split equally
    while, if, case                   if each value that they carry is always split equally

Every full value belongs to a class of values that are split equally. Regions say how their
arguments and results are split; what nothing says is whole. `solve` gives the placement of each
value, or refuses with every value that is wanted in two placements.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from ..base import Violation
from ..ir.collective_ops import is_axis_index
from ..ir.inline_calls import callee
from ..ir.ops import is_token, terminator
from ..ir.types import Value
from .outside_ops import (
    CONTROL_FLOW,
    ELEMENTWISE,
    all_operands,
    has_effect,
    inner_ops,
    is_hint,
    rank,
    shape,
)
from .placement import Placement


@dataclass
class Crossing:
    """An op that turns a full array into blocks, or blocks into a full array.

    Attributes:
      op: it has one operand and one result.
      placement: how the full array is split; None for a token.
      enters: whether blocks are its result.
    """

    op: ir.Operation
    placement: Placement | None
    enters: bool

    @property
    def full(self) -> Value:
        return self.op.operands[0] if self.enters else self.op.results[0]

    @property
    def block(self) -> Value:
        return self.op.results[0] if self.enters else self.op.operands[0]


@dataclass
class _Class:
    """Values that are split equally."""

    placement: Placement | None = None
    hint: Placement | None = None
    reason: str = ""
    location: ir.Location | None = None


@dataclass
class FullValues:
    """Collects what is done with full values, then solves.

    Attributes:
      crossings: by op.
      inside: ops that belong to a region although none of their operands is a block.
      hints: what ops and arguments say about how their value may be split.
      acting: the functions that have an effect, or depend on the device that calls them.
    """

    crossings: dict[ir.Operation, Crossing]
    inside: set[ir.Operation]
    hints: dict[Value | ir.Operation, Placement]
    acting: set[str]
    violations: list[Violation] = field(default_factory=list)
    outside: list[ir.Operation] = field(default_factory=list)
    """The ops on full arrays, outer before inner."""
    constants: list[tuple[ir.Operation, int, Value | Placement]] = field(default_factory=list)
    """(op, operand, how it is split, or a full value that is split so): operands that depend on
    constants only. They are in no class, as each use may have its own copy."""
    _parents: dict[Value, Value] = field(default_factory=dict)
    _classes: dict[Value, _Class] = field(default_factory=dict)
    _blocks: set[Value] = field(default_factory=set)

    def add_main(self, block: ir.Block) -> None:
        """Reads @main."""
        for argument in block.arguments:
            if not is_token(argument.type):
                self._add(argument)
        self.add_block(block)
        for value in terminator(block).operands:
            if value in self._blocks:
                self._refuse(
                    terminator(block),
                    "@main returns the block of one device; return the full array that "
                    "SPMDShardToFullShape makes of it",
                )

    def is_full(self, value: Value) -> bool:
        return value in self._parents

    def all(self) -> list[Value]:
        """The full values."""
        return list(self._parents)

    def placement(self, value: Value) -> Placement:
        """How a full value is split, once everything was read."""
        found = self._classes[self._root(value)]
        placement = found.placement or found.hint
        if placement is None or len(placement.dims) != ir.RankedTensorType(value.type).rank:
            return Placement.whole(value.type)
        return placement

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
                self._set(source, crossing.placement, "enters a manual region", op)
            else:
                self.constants.append((op, 0, crossing.placement))
        else:
            if self.is_full(source):
                self._refuse(op, "leaves a manual region with what is a full array already")
                return
            self._add(op.results[0])
            self._set(op.results[0], crossing.placement, "leaves a manual region", op)

    def _add_op(self, op: ir.Operation) -> None:
        operands = all_operands(op)
        any_full = any(map(self.is_full, operands))
        is_block = op in self.inside or any(value in self._blocks for value in operands)
        holds_region = any(inner in self.crossings for inner in inner_ops(op))
        if is_block:
            if any_full or holds_region:
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

    def _add_outside(self, op: ir.Operation, operands: Sequence[Value]) -> None:
        self.outside.append(op)
        for result in op.results:
            if not is_token(result.type):
                self._add(result)
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
            self._want_whole(op, op.operands)
        else:
            self._want_whole(op, [*operands, *op.results])

    def _add_elementwise(self, op: ir.Operation) -> None:
        result = op.results[0]
        for k, value in enumerate(op.operands):
            if shape(value) == shape(result):
                self._join_operand(op, k, value, result)
            else:  # the predicate of a select, the limits of a clamp
                self._want_whole(op, [value])

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
            self._want_whole(terminator(blocks[0]), terminator(blocks[0]).operands)
        else:
            self._want_whole(op, [op.operands[0]])
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
        if value not in self._parents:
            self._parents[value] = value
            self._classes[value] = _Class()
            if value in self.hints:
                self._hint(value, self.hints[value])

    def _root(self, value: Value) -> Value:
        while self._parents[value] != value:
            self._parents[value] = self._parents[self._parents[value]]
            value = self._parents[value]
        return value

    def _join_operand(self, op: ir.Operation, k: int, value: Value, full: Value) -> None:
        if is_token(value.type):
            return
        if value in self._blocks:
            self._refuse(op, f"{op.name} outside of manual regions takes the block of one device")
        elif self.is_full(value):
            self._join(value, full, op)
        else:
            self.constants.append((op, k, full))

    def _join(self, left: Value, right: Value, op: ir.Operation) -> None:
        a, b = self._root(left), self._root(right)
        if a == b:
            return
        one, other = self._classes[a], self._classes[b]
        if one.placement and other.placement and one.placement != other.placement:
            self._conflict(right, one, other, op)
        if one.placement is None:
            one.placement, one.reason, one.location = (
                other.placement, other.reason, other.location,
            )  # fmt: skip
        one.hint = one.hint or other.hint
        self._parents[b] = a

    def _set(self, value: Value, placement: Placement, reason: str, op: ir.Operation) -> None:
        found = self._classes[self._root(value)]
        wanted = _Class(placement, None, reason, op.location)
        if found.placement is None:
            found.placement, found.reason, found.location = placement, reason, op.location
        elif found.placement != placement:
            self._conflict(value, found, wanted, op)

    def _hint(self, value: Value, hint: Placement) -> None:
        found = self._classes[self._root(value)]
        found.hint = found.hint or hint

    def _want_whole(self, op: ir.Operation, values: Iterable[Value]) -> None:
        for value in values:
            if self.is_full(value):
                reason = f"is used by {op.name}, which works on whole arrays"
                if value in list(op.results):
                    reason = f"is made by {op.name}, which works on whole arrays"
                self._set(value, Placement.whole(value.type), reason, op)

    # ---- refusals --------------------------------------------------------------------------------

    def _conflict(self, value: Value, one: _Class, other: _Class, op: ir.Operation) -> None:
        notes = tuple(
            Violation(each.location, f"the array {each.reason} here, split as {each.placement}")
            for each in (one, other)
            if each.location is not None
        )
        text = (
            f"an array {value.type} outside of the manual regions is wanted split as "
            f"{one.placement} and as {other.placement}, which takes communication that the module "
            "does not spell out; write the collective into a region, or partition the module with "
            "XLA first and import the result"
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
