"""Cuts the computation between a gather and a reduce-scatter into stages of rows.

In a block of two layers, rows are gathered for the first product, and sums of the second one are
scattered. Each piece of a device's rows can pass through the whole block on its own: the gather of
the next piece then runs beside the first product, and the reduce-scatter of the previous piece
beside the second. The intermediate values of the pieces are never concatenated.

Before:  %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0, ... axes = ["i"]}>
         %h = stablehlo.tanh (stablehlo.dot_general %g, %v)
         %z = stablehlo.dot_general %h, %w
         %y = "stablehlo.reduce_scatter"(%z) <{scatter_dimension = 0, ... axes = ["i"]}> ({ add })
After, parts=2:
         %g0 = "stablehlo.all_gather"(stablehlo.slice %x [0:r])
         %x1, %k0 = stablehlo.optimization_barrier (stablehlo.slice %x [r:2*r]), %g0
         %g1 = "stablehlo.all_gather"(%x1)                      // beside the first product
         %h0 = stablehlo.tanh (stablehlo.dot_general %k0, %v)
         %z0 = stablehlo.dot_general %h0, %w
         %h1 = stablehlo.tanh (stablehlo.dot_general %g1, %v)
         %i1, %a0 = stablehlo.optimization_barrier %h1, %z0
         %y0 = "stablehlo.reduce_scatter"(%a0)                  // beside the second product
         %z1 = stablehlo.dot_general %i1, %w
         %y1 = "stablehlo.reduce_scatter"(%z1)
         // %y0 and %y1 are concatenated
Needs:   what shmap-verify accepts. With form=chosen, the attribute `shmap.overlap` on the gathers.
Leaves:  a gather that does not lead, through at least two products, elementwise operations,
         transposes and reshapes alone, to a reduce_scatter that adds over the same axes; one that
         has other uses, or has values between the two with other uses; one whose blocks cannot be
         cut into `parts` equal chunks.

Each row is computed and summed as before. If some axes are automatic, nothing is rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from jaxlib.mlir import ir

from ..base import Count
from ..ir import build
from ..ir.body_form import BodyForm
from ..ir.collective_ops import ALL_GATHER
from ..ir.types import Value
from .find.blocks import ScatteredBlock, scattered_blocks
from .find.cuts import Cut
from .form import Empty, Form
from .rewrite.pieces import barrier, compute, empty, join, piece_type, take
from .rewrite.rewriting import RewritingPass


@dataclass(frozen=True)
class OverlapGatherScatter(RewritingPass[ScatteredBlock]):
    """Cuts the computation between a gather and a reduce-scatter into stages of rows."""

    name = "shmap-overlap-gather-scatter"
    code = "SHM-P22"
    keeps_bits = True
    needs_body_form = True
    forms = ("stages",)
    op_name = ALL_GATHER

    form: Literal["chosen", "stages"] = "chosen"
    parts: Count = 0
    empty: Empty = "zeros"

    def sites(self, ops: Sequence[ir.Operation], body: BodyForm) -> Iterator[ScatteredBlock]:
        return scattered_blocks(ops, body)

    def rewrite(self, site: ScatteredBlock, body: BodyForm, form: Form) -> None:
        parts = form.chunks(site.size)
        if not parts:
            return
        result = site.back.results[0]
        with ir.InsertionPoint(site.back), site.op.location:
            buffer = empty(result.type, form.empty) if form.in_place else None
            pieces = _Stages(site, site.size // parts, form.barriers).pieces(parts)
            joined = join(pieces, site.cuts[result], result.type, buffer)
        result.replace_all_uses_with(joined)
        for op in (site.back, *reversed(site.second), *reversed(site.first), site.op):
            op.erase()


@dataclass(frozen=True)
class _Stages:
    """The stages of the pieces of a block, which has `size` rows in each piece."""

    block: ScatteredBlock
    size: int
    barriers: bool

    def pieces(self, parts: int) -> list[Value]:
        """Of the result, in order."""
        results: list[Value] = []
        gathered = self._gather(self._chunk(0))
        summed: Value | None = None
        for part in range(parts):
            following: Value | None = None
            if part + 1 < parts:
                chunk, gathered = self._order(self._chunk(part + 1), gathered)
                following = self._gather(chunk)
            between = self._first(part, gathered)
            if following is not None:
                *between, following = self._order(*between, following)
            scattered: Value | None = None
            if summed is not None:
                *between, summed = self._order(*between, summed)
                scattered = self._scatter(summed)
            summed = self._second(part, between)
            if scattered is not None:
                summed, scattered = self._order(summed, scattered)
                results.append(scattered)
            if following is not None:
                summed, gathered = self._order(summed, following)
        assert summed is not None, "there is a piece"
        return [*results, self._scatter(summed)]

    def _order(self, *values: Value) -> list[Value]:
        """The values, none of which is used before all are there."""
        return barrier(*values) if self.barriers else list(values)

    def _chunk(self, part: int) -> Value:
        operand = self.block.op.operands[0]
        return take(operand, self.block.cuts[operand], part * self.size, self.size)

    def _gather(self, chunk: Value) -> Value:
        return self._of_piece(self.block.op, chunk)

    def _first(self, part: int, gathered: Value) -> list[Value]:
        known = self._compute(part, self.block.first, {self.block.op.results[0]: gathered})
        return [known[value] for value in self._needed]

    def _second(self, part: int, between: Sequence[Value]) -> Value:
        known = dict(zip(self._needed, between, strict=True))
        return self._compute(part, self.block.second, known)[self.block.back.operands[0]]

    @property
    def _needed(self) -> tuple[Value, ...]:
        return self.block.between

    def _compute(
        self, part: int, ops: Sequence[ir.Operation], known: dict[Value, Value]
    ) -> dict[Value, Value]:
        def take_piece(value: Value, cut: Cut) -> Value:
            return take(value, cut, part * self.size, self.size)

        return compute(ops, known, self.block.cuts, self.size, take_piece)

    def _scatter(self, summed: Value) -> Value:
        return self._of_piece(self.block.back, summed)

    def _of_piece(self, op: ir.Operation, operand: Value) -> Value:
        result = op.results[0]
        type_ = piece_type(result, self.block.cuts[result], self.size)
        return build.like(op, type_, [operand])
