"""Computes what is between exchanges chunk by chunk, and adds up sums over what is exchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from ...ir import build
from ...ir.ops import defining_op, needed_first
from ...ir.types import Value, element_of, shape_of, tensor
from ..find.cuts import Cut
from ..find.exchange_blocks import ExchangeBlock
from ..find.exchange_segments import Segment
from ..form import Form
from .pieces import adding_type, barrier, compute, empty, join, piece_type, put, take


def exchange_in_chunks(block: ExchangeBlock, form: Form) -> None:
    """Rewrites a block, if it can be cut into as many chunks."""
    parts = form.chunks(block.size)
    if parts:
        _Chunks(block, form, parts).rewrite()


@dataclass
class _Chunks:
    """The values of a block by chunk, as they are built.

    Attributes:
      known: of each chunk, by what they are chunks of.
      totals: sums over the chunks until now.
      results: the chunks of what is joined and not added up.
      last: the chunk and the value of the last exchange.
      places: for results of exchanges, what was sent, in whose place they are put.
      buffers: what was sent, with the results until now.
      taken: chunks of what was sent that are taken together with the ones before.
      inside: the results of all operations.
    """

    block: ExchangeBlock
    form: Form
    parts: int
    known: list[dict[Value, Value]] = field(default_factory=list)
    totals: dict[Value, Value] = field(default_factory=dict)
    results: dict[Value, list[Value]] = field(default_factory=dict)
    last: tuple[int, Value] | None = None
    places: dict[Value, Value] = field(default_factory=dict)
    buffers: dict[Value, Value] = field(default_factory=dict)
    taken: dict[tuple[Value, int], Value] = field(default_factory=dict)
    inside: frozenset[Value] = frozenset()

    @property
    def size(self) -> int:
        """The indices of a chunk."""
        return self.block.size // self.parts

    def rewrite(self) -> None:
        self.known = [{} for _ in range(self.parts)]
        # By their results: what else is known of operations changes while they are rewritten.
        self.inside = frozenset(op.results[0] for op in self.block.ops)
        clones = self._clones()
        for segment in self.block.segments:
            self.last = None
            self.places |= self._places(segment)
            with ir.InsertionPoint(segment.end), segment.end.location:
                self._compute(segment)
                self._finish(segment)
            for op in segment.late:
                clone = clones.get(op.results[0]) if len(op.results) == 1 else None
                (clone or op).move_before(segment.end)
        for op in reversed(self.block.ops):
            op.erase()

    def _clones(self) -> dict[Value, ir.Operation]:
        """Copies of what others read, too, by result; they read the copies."""
        clones: dict[Value, ir.Operation] = {}
        for op in self.block.kept:
            copy = op.clone(ip=ir.InsertionPoint(op)).operation
            for number, value in enumerate(op.operands):
                if value in clones:
                    copy.operands[number] = clones[value].results[0]
            clones[op.results[0]] = copy
        for value, copy in clones.items():
            self._replace_outside(value, copy.results[0])
        return clones

    def _compute(self, segment: Segment) -> None:
        """Exchanges chunks in turns, and adds what the last exchange of each leaves."""
        for step in range(self.parts + max(segment.lags)):
            for op, lag in zip(segment.exchanges, segment.lags, strict=True):
                if 0 <= step - lag < self.parts:
                    self._exchange(op, step - lag)
                    if op == segment.end:
                        for each in segment.sums:
                            self._add(step - lag, each)

    def _places(self, segment: Segment) -> dict[Value, Value]:
        """For results of exchanges that others read, arrays that are sent and then not needed.

        Chunks of the results take the place of those that were sent, which needs less memory.
        """
        if not self.form.in_place:
            return {}
        found: dict[Value, Value] = {}
        for number, op in enumerate(segment.exchanges):
            result = op.results[0]
            if all(map(self._is_inside, result.uses)):
                continue
            kind = result.type, self.block.cuts[result]
            # A chunk is sent before the result of it, or of an earlier one, is put in its place.
            for first in segment.exchanges[:number]:
                sent = first.operands[0]
                own = sent.type, self.block.taken.get((first.results[0], 0))
                if own == kind and sent not in found.values() and _is_free(sent):
                    found[result] = sent
                    break
        return found

    def _exchange(self, op: ir.Operation, part: int) -> None:
        """An exchange of a chunk, which begins when the one before it has ended."""
        operand = self._operand(part, op, 0)
        if self.form.barriers and self.last is not None:
            number, value = self.last
            operand, self.known[number][value] = barrier(operand, self.known[number][value])
        self.known[part][op.results[0]] = self._copy(op, [operand])
        self.last = part, op.results[0]
        if op.results[0] in self.places:
            place, cut = self.places[op.results[0]], self.block.cuts[op.results[0]]
            piece, buffer = self.known[part][op.results[0]], self.buffers.get(place, place)
            self.buffers[place] = put(buffer, piece, cut, part * self.size, self.size)

    def _copy(self, op: ir.Operation, operands: list[Value]) -> Value:
        type_ = piece_type(op.results[0], self.block.cuts[op.results[0]], self.size)
        return build.like(op, type_, operands)

    def _operand(self, part: int, op: ir.Operation, number: int) -> Value:
        value = op.operands[number]
        cut = self.block.taken.get((op.results[0], number))
        if value in self.block.cuts:
            return self._piece(part, value)
        return value if cut is None else self._take(part)(value, cut)

    def _take(self, part: int):
        def take_piece(value: Value, cut: Cut) -> Value:
            if (value, part) in self.taken:
                return self.taken.pop((value, part))
            whole = self.buffers.get(value, value)
            # libtpu takes two pieces of one array in two thirds of the time of one and another.
            if value in self.places.values() and part % 2 == 0 and part + 1 < self.parts:
                self.taken[value, part + 1] = self._part(whole, cut, part + 1)
            return self._part(whole, cut, part)

        return take_piece

    def _part(self, value: Value, cut: Cut, part: int) -> Value:
        return take(value, cut, part * self.size, self.size)

    def _piece(self, part: int, value: Value) -> Value:
        """A chunk of a value, computed where it is needed first."""
        known = self.known[part]
        for each in needed_first([value], lambda value: self._needed(known, value)):
            op = defining_op(each)
            if each not in known and op is not None:
                pieces = compute([op], known, self.block.cuts, self.size, self._take(part))
                known[each] = pieces[each]
        return known[value]

    def _needed(self, known: Mapping[Value, Value], value: Value) -> list[Value]:
        """What is cut and needed to compute a value, unless its chunk is known."""
        if value in known:
            return []
        op = defining_op(value)
        assert op is not None, "what is cut is computed from what is exchanged"
        return [operand for operand in op.operands if operand in self.block.cuts]

    def _add(self, part: int, op: ir.Operation) -> None:
        """Adds a product that sums over a chunk to that of the chunks before, or keeps it."""
        result = op.results[0]
        if result in self.block.joined:
            type_ = piece_type(result, self.block.joined[result], self.size)
            piece = build.like(op, type_, [self._operand(part, op, number) for number in (0, 1)])
            self.results.setdefault(result, []).append(piece)
            return
        type_ = tensor(shape_of(result), adding_type(element_of(result)))
        product = build.like(op, type_, [self._operand(part, op, number) for number in (0, 1)])
        before = self.totals.get(result)
        total = product if before is None else build.add(before, product)
        is_last = part == self.parts - 1
        # Otherwise a compiler may keep all products, and add them up together with the last one.
        self.totals[result] = barrier(total)[0] if self.form.ordered and not is_last else total

    def _finish(self, segment: Segment) -> None:
        """Gives others the sums, and the results of exchanges that they read, as whole arrays."""
        for op in segment.sums:
            result = op.results[0]
            if result in self.results:
                total = self._joined(result, self.block.joined[result], self.results[result])
            else:
                total = build.convert(self.totals[result], element_of(result))
            result.replace_all_uses_with(total)
        for op in segment.exchanges:
            result = op.results[0]
            if all(self._is_inside(use) for use in result.uses):
                continue
            if result in self.places:
                self._replace_outside(result, self.buffers[self.places[result]])
                continue
            pieces = [known[result] for known in self.known]
            self._replace_outside(result, self._joined(result, self.block.cuts[result], pieces))

    def _joined(self, value: Value, cut: Cut, pieces: list[Value]) -> Value:
        buffer = empty(value.type, self.form.empty) if self.form.in_place else None
        return join(pieces, cut, value.type, buffer)

    def _is_inside(self, use: ir.OpOperand) -> bool:
        """Whether an operation of the block has the operand."""
        return any(result in self.inside for result in use.owner.operation.results)

    def _replace_outside(self, value: Value, by: Value) -> None:
        """Lets operations outside of the block use another value."""
        for use in list(value.uses):
            if not self._is_inside(use):
                use.owner.operation.operands[use.operand_number] = by


def _is_free(sent: Value) -> bool:
    """Whether a value that is sent is computed by an operation, and nothing else reads it."""
    return defining_op(sent) is not None and len(list(sent.uses)) == 1
