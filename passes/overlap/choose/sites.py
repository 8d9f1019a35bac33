"""The places of a module where communication and computation can overlap, and softmax.

    site = find_sites(module)[0]
    site.pattern, site.axes, site.count     "gather-product", ("i",), 8
    site.received, site.flops               bytes and operations of one device

The passes of this room rewrite these sites, and no others; `form.write(site.op, ...)` says how.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Protocol, TypeAlias

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ...cost.work import ProductShape, Stages
from ...ir.body_form import BodyForm, read_body_form
from ...ir.collective_ops import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from ...ir.dataflow import Dataflows, dataflows
from ...ir.find_ops import find_ops
from ...ir.ops import Position, walk
from ...ir.types import Value, element_bytes, element_of, shape_of
from ..find.blocks import scattered_blocks
from ..find.exchange_blocks import exchange_blocks_of
from ..find.exchanges import ALL_TO_ALL, exchanges_of
from ..find.gathers import Gather, gathers
from ..find.loops import WHILE, copied_bytes, gathering_loops, readers, stacks
from ..find.row_blocks import row_blocks_of
from ..find.row_sources import Source, source_of_all
from ..find.row_sums import REDUCE
from ..find.scatters import SummedProducts, scattered_products, summed_products
from ..find.sequence_blocks import sequence_blocks_of
from ..rewrite.row_rounds import Round, rounds_of
from ..rewrite.scatter_chunks import free_dimensions, whole_operands
from .gather_sites import rewritable
from .site import Pattern, Site
from .sizes import most_columns, received, shaped
from .softmax_sites import softmax_sites


def find_sites(
    module: ModuleOp,
    form: BodyForm | None = None,
    *,
    blocks: bool = True,
    rows: bool = False,
    sequences: bool = False,
    exchanged: bool = False,
    exponentials: bool = False,
) -> tuple[Site, ...]:
    """The sites of a module in body form, in program order.

    A gather or a reduce_scatter in a loop can be a site, and its loop another; so can those of a
    block, and the block.

    Args:
      form: of the module, if it has been read.
      blocks: whether to look for those of the pattern "gather-scatter".
      rows: whether to look for those of the pattern "row-block".
      sequences: whether to look for those of the pattern "sequence-block".
      exchanged: whether to look for those of the pattern "exchange-block".
      exponentials: whether to look for those of the pattern "softmax".
    """
    form = form or read_body_form(module)
    by_name: dict[str, list[ir.Operation]] = {}
    for op in find_ops(module.operation, {name for name, _ in _FINDERS}):
        by_name.setdefault(op.name, []).append(op)
    unwanted = [
        find
        for find, is_wanted in (
            (_blocks, blocks),
            (_rows, rows),
            (_sequences, sequences),
            (_exchange_blocks, exchanged),
            (softmax_sites, exponentials),
        )
        if not is_wanted
    ]
    flows = dataflows(module)
    found = [
        site
        for name, find in _FINDERS
        if name in by_name and find not in unwanted
        for site in find(by_name[name], form, flows)
    ]
    if len(found) < 2:
        return tuple(found)
    if len({site.op.block for site in found}) == 1:
        return tuple(sorted(found, key=lambda site: Position(site.op)))
    places = {op: place for place, op in enumerate(walk(module.operation))}
    return tuple(sorted(found, key=lambda site: places[site.op]))


def _gathers(ops: Sequence[ir.Operation], form: BodyForm, flows: Dataflows) -> Iterator[Site]:
    for each in gathers(ops, form):
        found = rewritable(each)
        if found is None:
            continue
        is_free = found.pattern == "gather-product"
        products = [shaped(each.product, each.side, is_free) for each in found.operands]
        first = found.operands[0]
        size = shape_of(each.op.operands[0])[each.dimension]
        cut = size if is_free else most_columns(first.product, first.side)
        yield _site(found.pattern, each, products, cut, kept=found.kept)


def _scatters(ops: Sequence[ir.Operation], form: BodyForm, flows: Dataflows) -> Iterator[Site]:
    for each in scattered_products(ops, form):
        columns = most_columns(each.products[0], 1 - each.rows[0])
        products = list(map(shaped, each.products, each.rows))
        source = source_of_all(each.products, each.rows, flows.of(each.op.block))
        size = each.cut.size
        yield _site("product-scatter", each, products, size, columns=columns, source=source)


def _sums(ops: Sequence[ir.Operation], form: BodyForm, flows: Dataflows) -> Iterator[Site]:
    for each in summed_products(ops, form):
        size, side, dimension = next(iter(free_dimensions(each, (1, 0))), (1, 0, None))
        rows = None if dimension is None else whole_operands(each, dimension)
        rows = rows or (1 - side,) * len(each.products)
        products = list(map(shaped, each.products, rows))
        source = source_of_all(each.products, rows, flows.of(each.op.block))
        yield _site("product-sum", each, products, size, source=source)


def _exchanges(ops: Sequence[ir.Operation], form: BodyForm, flows: Dataflows) -> Iterator[Site]:
    for each in exchanges_of(form.module):
        products = [shaped(product) for product in each.products]
        both = received(each.op, each.count) + received(each.back, each.count)
        yield _site("all-to-all", each, products, each.size, received=both)


def _blocks(ops: Sequence[ir.Operation], form: BodyForm, flows: Dataflows) -> Iterator[Site]:
    for each in scattered_blocks(ops, form):
        products = [shaped(product) for product in each.products]
        scattered = received(each.back, each.count)
        yield _site("gather-scatter", each, products, each.size, scattered=scattered)


def _rows(ops: Sequence[ir.Operation], form: BodyForm, flows: Dataflows) -> Iterator[Site]:
    for each in row_blocks_of(form.module):
        yield _site(
            "row-block",
            each,
            [shaped(product) for product in each.products],
            each.size,
            collectives=(*each.gathers, *(scattered.op for scattered in each.scatters)),
            added=each.rows,
            stages=tuple(_stages(found, each.count) for found in rounds_of(each)),
            received=sum(received(op, each.count) for op in each.gathers),
        )


def _sequences(ops: Sequence[ir.Operation], form: BodyForm, flows: Dataflows) -> Iterator[Site]:
    for each in sequence_blocks_of(form.module):
        (scattered,) = each.scatters
        exponentials = (op.results[0] for op in each.ops if op.name == "stablehlo.exponential")
        yield _site(
            "sequence-block",
            each,
            [shaped(product) for product in (*each.products, *scattered.products)],
            each.size,
            collectives=(each.op, scattered.op),
            scattered=received(scattered.op, each.count),
            exponentials=sum(prod(shape_of(value)) for value in exponentials),
        )


def _stages(found: Round, count: int) -> Stages:
    return Stages(
        sum(received(op, count) for op in found.gathers),
        0 if found.scatter is None else received(found.scatter.op, count),
        tuple(shaped(product)[1] for product in found.first_products),
        tuple(shaped(product)[1] for product in found.last_products),
        len(found.gathers),
    )


def _exchange_blocks(
    ops: Sequence[ir.Operation], form: BodyForm, flows: Dataflows
) -> Iterator[Site]:
    for each in exchange_blocks_of(form.module):
        products = [shaped(one) for segment in each.segments for one in segment.all_products]
        segments = tuple(
            (
                sum(received(op, each.count) for op in segment.exchanges),
                sum(product.flops for product in segment.all_products),
                len(segment.exchanges),
            )
            for segment in each.segments
        )
        results = (op.results[0] for segment in each.segments for op in segment.sums)
        sums = [value for value in results if value not in each.joined]
        yield _site(
            "exchange-block",
            each,
            products,
            each.size,
            collectives=each.exchanges,
            segments=segments,
            columns=sum(prod(shape_of(value)) for value in sums),
            received=sum(bytes_ for bytes_, _, _ in segments),
        )


def _loops(ops: Sequence[ir.Operation], form: BodyForm, flows: Dataflows) -> Iterator[Site]:
    for each in gathering_loops(ops, form):
        moved = [(op.name, received(op, form.mesh.product(axes))) for op, axes in each.collectives]
        filled = stacks(each.loop)
        yield _site(
            "gathering-loop",
            each,
            [shaped(product) for product in each.products],
            1,
            collectives=tuple(op for op, _ in each.collectives),
            readers=readers(each.loop, filled),
            received=sum(bytes_ for _, bytes_ in moved),
            trips=each.loop.trips,
            reduced=sum(bytes_ for name, bytes_ in moved if name == REDUCE_SCATTER),
            copied=copied_bytes(each.loop, filled),
        )


_Finder: TypeAlias = "Callable[[Sequence[ir.Operation], BodyForm, Dataflows], Iterator[Site]]"

_FINDERS: tuple[tuple[str, _Finder], ...] = (
    (ALL_GATHER, _gathers),
    (REDUCE_SCATTER, _scatters),
    (ALL_REDUCE, _sums),
    (ALL_TO_ALL, _exchanges),
    (ALL_TO_ALL, _exchange_blocks),
    (ALL_GATHER, _blocks),
    (ALL_GATHER, _rows),
    (ALL_GATHER, _sequences),
    (WHILE, _loops),
    (REDUCE, softmax_sites),
)
"""The operations on which forms are written, and what finds the sites of a pattern among them."""


class _Found(Protocol):
    """What a pass of this room rewrites, as far as all have it."""

    @property
    def op(self) -> ir.Operation: ...
    @property
    def axes(self) -> tuple[str, ...]: ...
    @property
    def count(self) -> int: ...


def _site(
    pattern: Pattern,
    found: _Found,
    products: Sequence[tuple[ir.Operation, ProductShape]],
    cut: int,
    *,
    collectives: tuple[ir.Operation, ...] = (),
    readers: tuple[ir.Operation, ...] = (),
    source: Source = "other",
    segments: tuple[tuple[int, int, int], ...] = (),
    stages: tuple[Stages, ...] = (),
    **sizes: int,
) -> Site:
    """A site; `sizes` are other fields of it, of which one has no default: `received`."""
    sent = collectives[0] if collectives else found.op
    if "received" not in sizes:
        sizes["received"] = received(sent, found.count)
    element = ir.RankedTensorType(sent.operands[0].type).element_type
    return Site(
        pattern,
        found.op,
        tuple(op for op, _ in products),
        tuple(shape for _, shape in products),
        found.axes,
        found.count,
        str(element),
        element_bytes(element),
        cut=cut,
        collectives=collectives,
        readers=readers,
        source=source,
        segments=segments,
        stages=stages,
        factors=_widest(operand for op, _ in products for operand in op.operands),
        found=found if isinstance(found, Gather | SummedProducts) else None,
        **sizes,
    )


def _widest(values: Iterable[Value]) -> str:
    """The element type of most bytes of some arrays; "" without any."""
    elements = [element_of(value) for value in values]
    return str(max(elements, key=element_bytes)) if elements else ""
