"""Computes with gathered rows in stages: gathers and sums over devices beside products of chunks.

A chunk is gathered beside the first products of the one before, and its sum is scattered beside the
last products of the next one, as in shmap-overlap-gather-scatter.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from ...ir import build
from ...ir.types import Value
from ..find.products import DOT
from ..find.row_block import RowBlock
from ..find.row_sums import REDUCE
from ..find.scatters import ScatteredProducts
from ..form import Form
from .pieces import compute, empty, join, no_rows
from .row_pieces import RowPieces
from .row_rounds import Round, rounds_of


def compute_in_stages(block: RowBlock, form: Form) -> None:
    """Rewrites a block, if chunks have as many rows of each device."""
    parts = form.chunks(block.size)
    if parts:
        _Stages(block, form, parts).rewrite()


@dataclass
class _Stages(RowPieces):
    """A block whose chunks are scattered one after the other."""

    def rewrite(self) -> None:
        for each in rounds_of(self.block):
            with ir.InsertionPoint(each.place), each.place.location:
                self._run(each)
            with ir.InsertionPoint(each.end), each.place.location:
                for known in self.known:
                    self.compute(known, each.after)
                self.sum_all(op for op in each.after if op in self.block.sums)
            for op in self.block.late:
                if op.is_before_in_block(each.end):
                    op.move_before(each.end)
        for op in reversed(self.block.all_ops):
            op.erase()

    def _run(self, this: Round) -> None:
        """Computes all chunks of a round."""
        sums: dict[Value, Value] = {}
        results: list[Value] = []
        waiting: list[Value] = []
        following = [self.gather(gather, 0) for gather in this.gathers]
        for part, known in enumerate(self.known):
            gathered, following = following, []
            if part + 1 < self.parts:
                own = [self.own(gather, part + 1) for gather in this.gathers]
                own, gathered = self._ordered(own, gathered)
                following = list(map(self.gather_chunk, this.gathers, own))
            known.update(zip((op.results[0] for op in this.gathers), gathered, strict=True))
            pieces = dict(known)
            names = self._stage(pieces, sums, this.first)
            stored = [pieces[name] for name in names]
            stored, following, waiting = self._ordered(stored, following, waiting, sums=sums)
            known.update(zip(names, stored, strict=True))
            if not this.second and this.scatter is None:
                continue
            scattered = [self._scattered(this, value) for value in waiting]
            pieces = dict(known)
            self._stage(pieces, sums, this.second)
            waiting = self._summed(this, pieces)
            waiting, scattered, following = self._ordered(waiting, scattered, following, sums=sums)
            results += scattered
        results += [self._scattered(this, value) for value in waiting]
        if this.scatter is not None:
            self._join(this.scatter, results)
        for value, total in sums.items():
            self.put(value, total)

    def _stage(
        self,
        pieces: dict[Value, Value],
        sums: dict[Value, Value],
        ops: Sequence[ir.Operation],
    ) -> list[Value]:
        """Computes products of a chunk, and adds to sums what it has of them.

        XLA for GPUs merges small products that have an operand in common: it concatenates the
        others, and slices the result, for each chunk. So one waits for the other.

        Returns:
          The products and reductions of which there are pieces now.
        """
        read_by: dict[Value, Value] = {}
        found: list[Value] = []
        for op in ops:
            result = op.results[0]
            if op.name == DOT:
                for operand in dict.fromkeys(op.operands):
                    if operand not in self.block.cuts:
                        continue
                    piece = self.piece(pieces, operand)
                    if (other := read_by.get(operand)) is not None:
                        made = sums if other in sums else pieces
                        pieces[operand], made[other] = self.order(piece, made[other])
                    read_by[operand] = result
            if op in self.block.sums:
                product = self.product(pieces, op)
                sums[result] = build.add(sums[result], product) if result in sums else product
            elif op.name in (DOT, REDUCE):
                self.piece(pieces, result)
                found.append(result)
        return found

    def _summed(self, this: Round, pieces: dict[Value, Value]) -> list[Value]:
        """What is scattered of a chunk, if anything."""
        if this.scatter is None:
            return []
        for product in this.scatter.products:
            for operand in product.op.operands:
                if operand in self.block.cuts:
                    self.piece(pieces, operand)
        found = compute(this.scatter.ops, pieces, self.block.cuts, self.size, no_rows)
        return [found[this.scatter.summed]]

    def _scattered(self, this: Round, summed: Value) -> Value:
        """Scatters a chunk."""
        assert this.scatter is not None, "what is summed is scattered"
        return self.scatter_chunk(this.scatter, summed)

    def _join(self, scatter: ScatteredProducts, chunks: Sequence[Value]) -> None:
        """Replaces the result of a scatter by its chunks."""
        result = scatter.op.results[0]
        buffer = empty(result.type, self.form.empty) if self.form.in_place else None
        joined = join(chunks, self.block.scattered_cut(scatter), result.type, buffer)
        result.replace_all_uses_with(joined)

    def _ordered(
        self, *groups: Sequence[Value], sums: dict[Value, Value] | None = None
    ) -> list[list[Value]]:
        """Groups of values, none of which is used before all are there, as are `sums`."""
        sums = {} if sums is None else sums
        values = [*sums.values(), *itertools.chain(*groups)]
        ordered = iter(self.order(*values) if len(values) > 1 else values)
        sums.update(zip(list(sums), ordered, strict=False))
        return [list(itertools.islice(ordered, len(group))) for group in groups]
