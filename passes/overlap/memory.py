"""Leaves out forms for which a program would need more memory than it does as it is.

The arrays of a block are taken to be in memory from the operation that computes them to the last
one that reads them. What is computed element by element, or only moved, is taken to be computed
where it is read, unless a product, a communication or a loop reads it. The buffers of
forms are taken to be there all the time, each at the place of the others: compilers seldom find
another use for such a place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jaxlib.mlir import ir

from ..ir.elementwise import ELEMENTWISE
from ..ir.types import Value, array_bytes
from .form import Form
from .site import Site
from .stored import FEW_BYTES, is_fused

SHARE = 0.02
"""A form may need this share of the arrays of the plain program more. `measure` allows the same."""
_BLOCKS_OF_A_RING = 2
"""What a ring holds: halves that are multiplied, and halves that are sent and received."""
_BLOCKS_OF_SUMS = 2
_CHUNKS_OF_SUMS = 3
"""One that is computed, and what another is summed from and to."""


def too_large(sites: Mapping[Site, Form]) -> dict[Site, str]:
    """The sites whose forms are to be left out, and why.

    Unrolled loops stay: a step gathers before the one before it ends.

    Args:
      sites: those of a module that have a form.
    """
    refused: dict[Site, str] = {}
    sums = [site for site in sites if site.pattern == "product-sum"]
    for block in dict.fromkeys(site.op.block for site in sums):
        inside = {site: sites[site] for site in sums if site.op.block == block}
        refused |= _too_large_sums(block, inside)
    gathers = [site for site, form in sites.items() if form.name in ("ring", "rows", "columns")]
    gathers = [site for site in gathers if site.op.name == "stablehlo.all_gather"]
    for block in dict.fromkeys(site.op.block for site in gathers):
        inside = {site: form for site, form in sites.items() if site.op.block == block}
        refused |= _too_large_in(block, inside, [s for s in gathers if s in inside])
    return refused


def _too_large_sums(block: ir.Block, forms: Mapping[Site, Form]) -> dict[Site, str]:
    """The sums of a block that are not to be computed in chunks, and why.

    As it is, a sum takes the place of the product. Chunks are put in place in an array that is
    there from the start, beside one that is computed, and what another is summed from and to.
    Results of the program have their places all the time.
    """
    inner = {site: form for site, form in forms.items() if not _is_returned(site.op.results[0])}
    if max((array_bytes(site.op.results[0]) for site in inner), default=0) <= FEW_BYTES:
        return {}
    in_place = {site.op.results[0] for site in inner}
    lives = [
        replace(life, is_fused=life.is_fused or life.value in in_place)
        for life in _lives(block)
        if not _is_returned(life.value)
    ]
    plain = _peak(lives, {})
    allowed = _allowed(block, plain)
    refused: dict[Site, str] = {}
    for site, form in inner.items():
        whole = array_bytes(site.op.results[0])
        chunks = whole + _CHUNKS_OF_SUMS * whole // max(2, form.parts)
        more = _peak(lives, {site.op.operands[0]: chunks}) - plain
        if more > allowed:
            refused[site] = _reason(form, more)
    return refused


def _is_returned(value: Value) -> bool:
    """Whether a value is a result, and nothing reads it."""
    return {use.owner.operation.name for use in value.uses} == {"func.return"}


def _allowed(block: ir.Block, plain: int) -> float:
    """How much more than the plain program a program with forms may need."""
    given = sum(array_bytes(each) for each in block.arguments if _is_array(each))
    return max(SHARE * (plain + given), FEW_BYTES)


def _reason(form: Form, more: int) -> str:
    return f"{form.name} would need {more / 2**20:.0f} MiB of memory more than the plain program"


def _too_large_in(
    block: ir.Block, forms: Mapping[Site, Form], gathers: Sequence[Site]
) -> dict[Site, str]:
    if max(_buffers(site, forms[site]) for site in gathers) <= FEW_BYTES:
        return {}
    refused: dict[Site, str] = {}
    lives = _lives(block)
    plain = _peak(lives, {})
    allowed = _allowed(block, plain)
    kept = dict(forms)
    while gathers:
        more = _needed(lives, kept) - plain
        if more <= allowed:
            break
        without = {s: _needed(lives, {k: f for k, f in kept.items() if k != s}) for s in gathers}
        worst = min(gathers, key=lambda site: without[site])
        refused[worst] = _reason(kept.pop(worst), more)
        gathers = [site for site in gathers if site != worst]
    return refused


def _needed(lives: Sequence[_Life], forms: Mapping[Site, Form]) -> int:
    """The peak of a block with these forms."""
    sizes: dict[Value, int] = {}
    buffers = 0
    for site, form in forms.items():
        if site.op.name == "stablehlo.all_gather":
            buffers = max(buffers, _buffers(site, form))
            if not site.kept:
                sizes[site.op.results[0]] = 0
        elif site.pattern == "product-scatter":
            buffers = max(buffers, _buffers(site, form))
            sizes[site.op.operands[0]] = 0
    return _peak(lives, sizes) + buffers


def _buffers(site: Site, form: Form) -> int:
    """The bytes of what is on the way, and of what is computed with."""
    if form.name == "ring":
        return _BLOCKS_OF_A_RING * array_bytes(site.op.operands[0]) // (2 if form.narrow else 1)
    if form.name == "partial-sums":
        return _BLOCKS_OF_SUMS * array_bytes(site.op.results[0])
    whole = max(array_bytes(site.op.operands[0]), array_bytes(site.op.results[0]))
    return 2 * whole // max(2, form.parts)


@dataclass(frozen=True)
class _Life:
    """An array of a block.

    Attributes:
      first, last: the numbers of the operations that compute it and read it last.
      is_fused: whether it takes the place of what it is computed from.
    """

    value: Value
    bytes_: int
    first: int
    last: int
    is_fused: bool


def _lives(block: ir.Block) -> list[_Life]:
    ops = [op.operation for op in block.operations]
    numbers = {op: number for number, op in enumerate(ops)}
    fused = [is_fused(op) for op in ops]
    through: dict[int, int] = {}  # when the results of an operation that are not stored are read
    lives: list[_Life] = []
    for number in range(len(ops) - 1, -1, -1):
        op = ops[number]
        for value in op.results:
            users = [numbers.get(use.owner.operation, len(ops)) for use in value.uses]
            # What is fused reads nothing in memory.
            is_read = any(n >= len(ops) or not fused[n] for n in users)
            is_stored = not fused[number] or (is_read and op.name in ELEMENTWISE)
            # What is not stored is computed where it is read, from what it is computed from.
            last = max([number, *users, *(through.get(n, 0) for n in users)])
            if is_stored and _is_array(value):
                lives.append(_Life(value, array_bytes(value), number, last, fused[number]))
            elif fused[number]:
                through[number] = max(through.get(number, 0), last)
    return lives


def _is_array(value: Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType)


def _peak(lives: Sequence[_Life], sizes: Mapping[Value, int]) -> int:
    """The most bytes at any time, with other sizes for some arrays."""
    steps: list[tuple[float, int]] = []
    for life in lives:
        size = sizes.get(life.value, life.bytes_)
        # What is fused is there when its operands are not needed any more.
        steps += [(life.first + 0.5 * life.is_fused, size), (life.last + 0.25, -size)]
    total = most = 0
    for _, change in sorted(steps):
        total += change
        most = max(most, total)
    return most
