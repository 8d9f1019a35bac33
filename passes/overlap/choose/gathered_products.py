"""Finds gathers whose products can be computed one right after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from ...cost import libtpu_memory
from ...cost.machine import Machine
from ...ir.collective_ops import ALL_GATHER
from ...ir.elementwise import ELEMENTWISE
from ...ir.instructions import has_instructions
from ...ir.ops import Position, defining_op
from ...ir.types import Value, array_bytes
from ..find.consumers import users_of
from ..find.products import DOT
from ..find.stored import FEW_BYTES
from .decision import Choice

_MOVES = ("stablehlo.transpose", "stablehlo.reshape")


@dataclass(frozen=True)
class GatheredProducts:
    """A gather, and everything that reads its result.

    Attributes:
      products: at least two, in program order. What the others read is there before the first.
    """

    op: ir.Operation
    products: tuple[ir.Operation, ...]


def gathered_products(ops: Iterable[ir.Operation]) -> Iterator[GatheredProducts]:
    """The gathers among some operations that only products of their block read, two or more."""
    for op in ops:
        products = sorted(users_of(op.results[0]), key=Position) if _reads_here(op) else []
        first, others = products[:1], products[1:]
        if others and all(_is_there(value, first[0]) for each in others for value in each.operands):
            yield GatheredProducts(op, tuple(products))


def _reads_here(gather: ir.Operation) -> bool:
    return all(
        user.name == DOT and user.block == gather.block and not has_instructions(user)
        for user in users_of(gather.results[0])
    )


def _is_there(value: Value, op: ir.Operation) -> bool:
    """Whether a value is computed before an operation."""
    source = defining_op(value)
    return source is None or source.block != op.block or source.is_before_in_block(op)


def kept_too_long(choices: Sequence[Choice], machine: Machine | None) -> list[ir.Operation]:
    """The gathers that are left, and whose results a compiler may keep longer than it should.

    In the gradient of a layer, a cotangent is gathered for two products, and only one of them leads
    on: the other one becomes the gradient of a weight. libtpu computes that one beside a later
    transfer, and keeps the cotangent until then. Products that hide a collective which is left for
    them may be as late as that.
    """
    if machine is None or not libtpu_memory.keeps_gathered(machine):
        return []
    hiding = {op for choice in choices for op in choice.beside}
    rewritten = {
        op for each in choices if each.is_rewritten for op in (each.site.op, *each.site.collectives)
    }
    left = [
        choice.site.op
        for choice in choices
        if choice.site.op.name == ALL_GATHER
        and choice.site.op not in rewritten
        and not choice.site.has_instructions
    ]
    return [
        each.op
        for each in gathered_products(dict.fromkeys(left))
        if hiding.isdisjoint(each.products) and _is_kept(each)
    ]


def _is_kept(gathered: GatheredProducts) -> bool:
    """Whether what is gathered is large, and some products of it lead on and others do not.

    What is computed element by element from a product that leads on is computed with it, and could
    not be if it waited for the others: the gradient of e in f32 with 32768 rows of 256, and 16384
    between, on 16 devices of v5e, took 2.32 ms for 1.91, and 258 MiB of temporaries for 130.
    """
    size = array_bytes(gathered.op.results[0])
    ends = [each for each in gathered.products if _is_returned(each.results[0])]
    leading = [each for each in gathered.products if each not in ends]
    saved = size - sum(array_bytes(each.results[0]) for each in ends)
    is_fused = any(_is_read_by_elements(each.results[0]) for each in leading)
    return bool(ends and leading) and saved > FEW_BYTES and not is_fused


def _is_returned(value: Value) -> bool:
    """Whether a value, perhaps of another type or transposed, is only returned."""
    readers = _readers(value, (*_MOVES, "stablehlo.convert"))
    return all(reader.name == "func.return" for reader in readers)


def _is_read_by_elements(value: Value) -> bool:
    """Whether something is computed element by element from a value, perhaps transposed."""
    return any(reader.name in ELEMENTWISE for reader in _readers(value, _MOVES))


def _readers(value: Value, through: Sequence[str]) -> Iterator[ir.Operation]:
    """What reads a value, or what operations of some names make of it."""
    pending = [value]
    while pending:
        for user in users_of(pending.pop()):
            if user.name in through:
                pending += user.results
            else:
                yield user
