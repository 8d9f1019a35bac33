"""How full values are split: alike where ops join them, and as manual regions want them.

An operand that is split otherwise than its operation wants it is converted: the operation takes a
new full value, in a class of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from ..base import Violation
from ..ir.ops import is_token
from ..ir.types import Value
from .outside_ops import inner_ops
from .placement import Placement
from .split_classes import SplitClass, SplitClasses

CONVERSION = "builtin.unrealized_conversion_cast"


@dataclass
class Splits:
    """Joins full values that are split equally, and converts operands where that is impossible.

    Attributes:
      hints: how results of hints and arguments of @main may be split.
      blocks: the values of one device.
      conversions: ops from a full value to the same, split in another way.
    """

    hints: dict[Value, Placement]
    blocks: set[Value] = field(default_factory=set)
    violations: list[Violation] = field(default_factory=list)
    conversions: list[ir.Operation] = field(default_factory=list)
    constants: list[tuple[ir.Operation, int, Value | Placement]] = field(default_factory=list)
    """(op, operand, how it is split, or a full value that is split so): operands that depend on
    constants only. They are in no class, as each use may have its own copy."""
    _classes: SplitClasses = field(default_factory=SplitClasses)

    def is_full(self, value: Value) -> bool:
        return value in self._classes

    def all(self) -> list[Value]:
        """The full values."""
        return self._classes.values()

    def placement(self, value: Value) -> Placement:
        """How a full value is split, once everything was read."""
        return self._classes.placement(value)

    def can_be(self, value: Value, placement: Placement, reason: str, op: ir.Operation) -> bool:
        """Wants a full value split in one way; returns whether nothing wants another."""
        wanted = SplitClass(placement, None, reason, op.location)
        return self._classes.want(value, wanted) is None

    def add(self, value: Value) -> None:
        """Takes up a full value."""
        if self._classes.add(value) and value in self.hints:
            self._classes.hint(value, self.hints[value])

    def join_operand(self, op: ir.Operation, k: int, value: Value, full: Value) -> None:
        """Operand `k` of `op` is split as `full` is."""
        if is_token(value.type):
            return
        if value in self.blocks:
            self.refuse(op, f"{op.name} outside of manual regions takes the block of one device")
            return
        if not self.is_full(value):
            self.constants.append((op, k, full))
            return
        conflict = self._classes.join(value, full)
        if conflict is not None and self._can_convert(full, conflict, op):
            self._classes.join(self._convert(op, k, op), full)

    def join(self, left: Value, right: Value, op: ir.Operation) -> None:
        """Two full values are split equally, because of `op`."""
        conflict = self._classes.join(left, right)
        if conflict is not None:
            self._refuse_conflict(right, conflict, op, "join them before, in a region")

    def want_operand(
        self, op: ir.Operation, k: int, placement: Placement, reason: str, at: ir.Operation
    ) -> None:
        """Operand `k` of `op`, which is `at` or in it, is split in one way."""
        wanted = SplitClass(placement, None, reason, at.location)
        conflict = self._classes.want(op.operands[k], wanted)
        if conflict is not None and self._can_convert(op.operands[k], conflict, at):
            self._classes.want(self._convert(op, k, at), wanted)

    def want(self, value: Value, placement: Placement, reason: str, op: ir.Operation) -> None:
        """A full value is split in one way, because of `op`."""
        conflict = self._classes.want(value, SplitClass(placement, None, reason, op.location))
        if conflict is not None:
            self._refuse_conflict(value, conflict, op, "write the collective into a region")

    def want_whole(self, op: ir.Operation, numbers: Sequence[int] | None = None) -> None:
        """Operands of `op`, or all that it and the ops in it have, are whole on every device."""
        inner = inner_ops(op) if numbers is None else []
        for each in (op, *inner):
            for k in range(len(each.operands)) if numbers is None else numbers:
                value = each.operands[k]
                if self.is_full(value):
                    reason = f"is used by {op.name}, which works on whole arrays"
                    self.want_operand(each, k, Placement.whole(value.type), reason, op)

    def _convert(self, op: ir.Operation, k: int, at: ir.Operation) -> Value:
        """Lets operand `k` of `op` be a new full value, made before `at`; returns this."""
        value = op.operands[k]
        with ir.InsertionPoint(at), at.location:
            cast = ir.Operation.create(CONVERSION, results=[value.type], operands=[value])
        op.operands[k] = cast.results[0]
        self.conversions.append(cast)
        self.add(cast.results[0])
        return cast.results[0]

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

    def refuse(self, op: ir.Operation, text: str) -> None:
        self.violations.append(Violation(op.location, text))
