"""Leaves out forms for which a program would need more memory than it does as it is.

The buffers of rings are taken to be there all the time, each in the place of the others: compilers
seldom find another use for such a place. Those of chunks and of partial sums are in that place as
well, or in that of what is gathered or summed in the plain program.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence

from jaxlib.mlir import ir

from ...cost import libtpu_memory
from ...cost.machine import Machine
from ...ir.collective_ops import ALL_REDUCE, REDUCE_SCATTER
from ...ir.dataflow import Dataflow, Dataflows
from ...ir.ops import defining_op
from ...ir.types import Value, array_bytes
from ..find.stored import FEW_BYTES, is_fused
from ..form import Form
from .joined_rows import JoinedRows
from .lives import Lives, Timeline
from .site import SUMS, Site

_BLOCKS_OF_A_RING = 2
"""What a ring holds: halves that are multiplied, and halves that are sent and received."""
_BLOCKS_OF_SUMS = 2
CHUNKS_OF_SUMS = 3
"""One that is computed, and what another is summed from and to."""


def too_large(
    sites: Mapping[Site, Form],
    rows: Collection[JoinedRows],
    flows: Dataflows,
    lives: Lives,
    machine: Machine | None,
) -> dict[Site, str]:
    """The sites whose forms are to be left out, and why.

    Unrolled loops stay: a step gathers before the one before it ends.

    Args:
      sites: those of a module that have a form.
      rows: that the plain program does not store.
      flows: of the module.
      lives: of its blocks.
      machine: None if it is not known.
    """
    refused: dict[Site, str] = {}
    for site, form in sites.items():
        if site.pattern in SUMS and len(site.products) > 1:
            more = _kept_longer(site, form, flows.of(site.op.block), lives)
            refused |= {site: _reason(form, more)} if more else {}
    sites = {site: form for site, form in sites.items() if site not in refused}
    sums = [site for site in sites if site.pattern == "product-sum"]
    for block in dict.fromkeys(site.op.block for site in sums):
        inside = {site: sites[site] for site in sums if site.op.block == block}
        refused |= _too_large_sums(block, inside, lives, machine)
    gathers = [site for site, form in sites.items() if form.name in ("ring", "rows", "columns")]
    gathers = [site for site in gathers if site.op.name == "stablehlo.all_gather"]
    for block in dict.fromkeys(site.op.block for site in gathers):
        inside = {site: form for site, form in sites.items() if site.op.block == block}
        between = [each for each in rows if each.site in inside]
        here = [site for site in gathers if site in inside]
        flow = flows.of(block)
        is_late = machine is not None and _computes_late(inside, flow, machine)
        lasts = {site.op.results[0]: _last_read(site, flow) for site in here if is_late}
        refused |= _too_large_in(block, inside, here, between, lasts, lives)
    return refused


def _kept_longer(site: Site, form: Form, flow: Dataflow, lives: Lives) -> int:
    """The bytes that products which are added up would need more, if that is too much; else 0.

    Pieces of all of them are computed together, so what the first ones read stays until then.
    """
    timeline, arrays = lives.timeline(site.op.block), lives.of(site.op.block)
    sent = flow.node(site.op).number
    pending = [value for op in site.products for value in op.operands]
    seen, later = {*pending}, dict[Value, int]()
    while pending:
        value = pending.pop()
        place, node = timeline.places.get(value), flow.source(value)
        if place is not None:
            later[value] = max(arrays[place].last, sent)
        elif node is not None and is_fused(node.name):
            pending += {*node.operands} - seen
            seen.update(node.operands)
    plain = timeline.peak()
    more = timeline.peak(in_pieces(site, buffers(site, form)), later) - plain
    return more if more > lives.allowed(site.op.block, plain) else 0


def _too_large_sums(
    block: ir.Block, forms: Mapping[Site, Form], lives: Lives, machine: Machine | None
) -> dict[Site, str]:
    """The sums of a block that are not to be computed in chunks, and why.

    As it is, a sum takes the place of the product. Chunks are put in place in an array that is
    there from the start, beside one that is computed, and what another is summed from and to.
    Results of the program have their places all the time, also if they are transposed before,
    unless the sum may stay in VMEM. On v5p gradients of d with 8 to 128 MiB needed as much, and 1.2
    to 1.8 times as much in chunks; on v6e one with 128 MiB needed 192, and 240, and three with up
    to 64 needed at most 1 MiB more.
    """
    computed = lives.computed(block)
    inside = {life.value for life in computed}
    inner = {site: form for site, form in forms.items() if site.op.results[0] in inside}
    largest = max((array_bytes(site.op.results[0]) for site in inner), default=0)
    if largest <= FEW_BYTES:
        return {}
    is_small = machine is not None and libtpu_memory.keeps_product(machine, largest)
    arrays = [
        each._replace(is_fused=each.is_fused or _is_in_place(each.value))
        for each in computed
        if is_small or not each.becomes_result
    ]
    timeline = Timeline.of(arrays)
    plain = timeline.peak()
    most = lives.allowed(block, plain)
    refused: dict[Site, str] = {}
    for site, form in inner.items():
        whole = array_bytes(site.op.results[0])
        # In 16 chunks d' took 177 MiB for 160 on v6e, and 153 for 128 on v5p.
        chunks = whole + CHUNKS_OF_SUMS * whole // min(max(2, form.parts), 8)
        more = timeline.peak(in_pieces(site, chunks)) - plain
        if more > most:
            refused[site] = _reason(form, more)
    return refused


def _is_in_place(value: Value) -> bool:
    source = defining_op(value)
    return source is not None and source.name == ALL_REDUCE


def _reason(form: Form, more: int) -> str:
    return f"{form.name} would need {more / 2**20:.0f} MiB of memory more than the plain program"


def _too_large_in(
    block: ir.Block,
    forms: Mapping[Site, Form],
    gathers: Sequence[Site],
    rows: Collection[JoinedRows],
    lasts: Mapping[Value, int],
    lives: Lives,
) -> dict[Site, str]:
    sizes = [buffers(site, forms[site]) for site in gathers]
    if max([*sizes, *(each.bytes_ for each in rows)]) <= FEW_BYTES:
        return {}
    refused: dict[Site, str] = {}
    timeline = lives.timeline(block)
    plain = timeline.peak(_sizes_between(rows, ()), lasts)
    most = lives.allowed(block, plain)
    kept = dict(forms)
    while gathers:
        more = _needed(timeline, kept, rows, lasts) - plain
        if more <= most:
            break
        without = {
            site: _needed(timeline, {s: form for s, form in kept.items() if s != site}, rows, lasts)
            for site in gathers
        }
        worst = min(gathers, key=lambda site: without[site])
        refused[worst] = _reason(kept.pop(worst), more)
        gathers = [site for site in gathers if site != worst]
    return refused


def _sizes_between(rows: Collection[JoinedRows], sites: Collection[Site]) -> dict[Value, int]:
    """The bytes of rows, and of what they are computed from, if these sites have a form."""
    sizes: dict[Value, int] = {}
    for each in rows:
        sizes |= dict.fromkeys(each.before, 0)
        sizes[each.rows] = each.bytes_ if each.are_stored(sites) else 0
    return sizes


def _computes_late(sites: Collection[Site], flow: Dataflow, machine: Machine) -> bool:
    """Whether gathered arrays of a block stay as `_last_read` says, if they are left.

    Not so on v6e beside large sums that are left, which rings would slow down.
    """
    if not machine.is_tpu or not libtpu_memory.slows_sums(machine):
        return machine.is_tpu
    rewritten = {site.op for site in sites}
    return not any(
        node.name in (ALL_REDUCE, REDUCE_SCATTER)
        and node.op not in rewritten
        and array_bytes(node.operands[0]) > FEW_BYTES
        for node in flow.nodes
    )


def _last_read(site: Site, flow: Dataflow) -> int:
    """The number of the last operation beside which a gathered array that is left is in memory.

    libtpu computes a product just before something reads it: that for the values of attention after
    the scores, and until then the gathered rows are there. With them, two layers of Llama 3 8B
    took 675, 679 and 670 MiB on v5e, v6e and v5p, and 562, 577 and 609 with rings.
    """
    readers = [user.number for user in flow.users(site.op.results[0])]
    return max(readers + [_first_read(op, flow) - 1 for op in site.products])


def _first_read(product: ir.Operation, flow: Dataflow) -> int:
    """The number of the first operation that reads a product in memory; 0 if none does."""
    pending = [user.number for value in product.results for user in flow.users(value)]
    heapq.heapify(pending)
    last = -1
    while pending:
        number = heapq.heappop(pending)
        if number == last:
            continue
        last, node = number, flow.nodes[number]
        if not is_fused(node.name):
            return number
        for user in flow.users(node.result):
            heapq.heappush(pending, user.number)
    return 0


def _needed(
    timeline: Timeline,
    forms: Mapping[Site, Form],
    rows: Collection[JoinedRows],
    lasts: Mapping[Value, int],
) -> int:
    """The peak of a block with these forms."""
    gathers = {s: form for s, form in forms.items() if s.op.name == "stablehlo.all_gather"}
    in_chunks = {s for s, form in gathers.items() if form.name == "columns" and not s.kept}
    of_rings = [buffers(s, form) for s, form in gathers.items() if s not in in_chunks]
    most = max(of_rings, default=0)
    sizes = _sizes_between(rows, forms)
    sizes |= {s.op.results[0]: 0 for s in gathers if not s.kept}
    for site, form in forms.items():
        more = max(0, buffers(site, form) - most)
        if site in in_chunks:
            sizes[site.op.results[0]] = more
        elif site.pattern == "product-scatter":
            sizes |= in_pieces(site, more)
    return timeline.peak(sizes, lasts) + most


def in_pieces(site: Site, bytes_: int) -> dict[Value, int]:
    """So many bytes for pieces of what is summed, and none for the products that it is the sum of.

    Nothing for what is transposed before, as the gradients of weights are, which needs as much as a
    whole: with chunks of its gather and of its sum, b' took 322 MiB of temporaries on v6e for 192.
    """
    summed = site.op.operands[0]
    source = defining_op(summed)
    if source is not None and source.name == "stablehlo.transpose":
        return {}
    return {op.results[0]: 0 for op in site.products} | {summed: bytes_}


def buffers(site: Site, form: Form) -> int:
    """The bytes of what is on the way, and of what is computed with."""
    if form.name == "ring":
        return _BLOCKS_OF_A_RING * array_bytes(site.op.operands[0]) // (2 if form.narrow else 1)
    if form.name == "partial-sums":
        return _BLOCKS_OF_SUMS * array_bytes(site.op.results[0])
    whole = max(array_bytes(site.op.operands[0]), array_bytes(site.op.results[0]))
    return 2 * whole // max(2, form.parts)
