"""The places of a module where communication and computation can overlap.

    site = find_sites(module)[0]
    site.pattern, site.axes, site.count     "gather-product", ("i",), 8
    site.received, site.flops               bytes and operations of one device

The passes of this room rewrite these sites, and no others; `form.write(site.op, ...)` says how.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..cost.overlap import ProductShape
from ..ir.body_form import BodyForm, read_body_form
from ..ir.collective_ops import ALL_GATHER, REDUCE_SCATTER
from ..ir.ops import walk
from ..ir.types import array_bytes, element_bytes
from .blocks import ScatteredBlock, scattered_blocks
from .exchanges import Exchange, exchanges
from .gather_sites import rewritable
from .gathers import gathers
from .loops import carried_bytes, gathering_loops
from .products import Product
from .scatter_chunks import free_dimensions
from .scatters import scattered_products, summed_products

Pattern = Literal[
    "gather-product",
    "gather-contraction",
    "product-scatter",
    "product-sum",
    "gather-scatter",
    "all-to-all",
    "gathering-loop",
]
PATTERNS: tuple[Pattern, ...] = (
    "gather-product",
    "gather-contraction",
    "product-scatter",
    "product-sum",
    "gather-scatter",
    "all-to-all",
    "gathering-loop",
)


@dataclass(frozen=True)
class Site:
    """A collective, or a loop of collectives, and the products beside which it can run.

    Attributes:
      op: the collective on which the form is written: the gather, the reduce_scatter, the
        all_reduce, the first of two all_to_alls, or the while of a loop.
      products: the products that communication can overlap with; of one step, for a loop.
      shapes: their sizes.
      axes: the axes of the group, first axis major.
      count: the number of devices in the group.
      element, element_bytes: the type of what is sent, such as "bf16".
      received: the bytes that a device receives; in one step, for a loop. Of two all_to_alls, the
        sum; of an all_reduce, half, which is that of a reduce_scatter.
      trips: the number of steps of a loop; else 1.
      cut: the size of the dimension that is cut to pieces: the block of a device for a gather or a
        scatter, the free dimension of the gathered operand for a contraction, the largest free one
        for a sum, the dimension beside the exchanged one for all_to_alls; 1 for a loop.
      columns: the size of the largest free dimension of the other operand, for a scatter.
      scattered: the bytes that a device receives in the reduce_scatter at the end of a block that
        begins with a gather; else 0.
      reduced: how much of `received` is of reduce_scatters, for a loop.
      carried: the bytes that a step of a loop computes for the next one, without stacks.
      kept: the bytes of a gathered array that is put together from pieces, because other operations
        than the products read it; else 0.
      collectives: those of a loop that run beside other steps if it is unrolled.
    """

    pattern: Pattern
    op: ir.Operation
    products: tuple[ir.Operation, ...]
    shapes: tuple[ProductShape, ...]
    axes: tuple[str, ...]
    count: int
    element: str
    element_bytes: int
    received: int
    trips: int
    cut: int
    columns: int = 1
    scattered: int = 0
    reduced: int = 0
    carried: int = 0
    kept: int = 0
    collectives: tuple[ir.Operation, ...] = ()

    @property
    def product(self) -> ir.Operation | None:
        """The first of the products."""
        return self.products[0] if self.products else None

    @property
    def flops(self) -> int:
        """The operations of the products together."""
        return sum(shape.flops for shape in self.shapes)

    @property
    def location(self) -> ir.Location:
        """Where the program has the operation."""
        return self.op.location


def find_sites(module: ModuleOp) -> tuple[Site, ...]:
    """The sites of a module in body form, in program order.

    A gather or a reduce_scatter in a loop can be a site, and its loop another; so can those of a
    block, and the block. Nothing is found in a program with automatic axes.
    """
    form = read_body_form(module)
    if form.is_partly_manual:
        return ()
    root = module.operation
    found = [*_gathers(root, form), *_scatters(root, form), *_sums(root, form)]
    found += [*_exchanges(root, form), *_blocks(root, form), *_loops(root, form)]
    places = {op: place for place, op in enumerate(walk(root))} if found else {}
    return tuple(sorted(found, key=lambda site: places[site.op]))


def _gathers(root: ir.Operation, form: BodyForm) -> Iterable[Site]:
    for gather in gathers(root, form):
        found = rewritable(gather)
        if found is None:
            continue
        is_free = found.pattern == "gather-product"
        yield Site(
            found.pattern,
            gather.op,
            tuple(each.product.op for each in found.operands),
            tuple(_shape(each.product, each.side, is_free) for each in found.operands),
            gather.axes,
            gather.count,
            *_element(gather.op),
            received(gather.op, gather.count),
            1,
            _block(gather.op, gather.dimension)
            if is_free
            else _columns(found.operands[0].product, found.operands[0].side),
            kept=found.kept,
        )


def _scatters(root: ir.Operation, form: BodyForm) -> Iterable[Site]:
    for each in scattered_products(root, form):
        side, _ = next(iter(each.product.operand_dimensions(each.cut.dimension).items()))
        yield Site(
            "product-scatter",
            each.op,
            (each.product.op,),
            (_shape(each.product, side, True),),
            each.axes,
            each.count,
            *_element(each.op),
            received(each.op, each.count),
            1,
            each.cut.size,
            _columns(each.product, 1 - side),
        )


def _sums(root: ir.Operation, form: BodyForm) -> Iterable[Site]:
    for each in summed_products(root, form):
        size, side, _ = next(iter(free_dimensions(each, (1, 0))), (1, 0, 0))
        yield Site(
            "product-sum",
            each.op,
            (each.product.op,),
            (_shape(each.product, side, True),),
            each.axes,
            each.count,
            *_element(each.op),
            received(each.op, each.count),
            1,
            size,
        )


def _exchanges(root: ir.Operation, form: BodyForm) -> Iterable[Site]:
    for each in exchanges(root, form):
        yield _between("all-to-all", each, received(each.back, each.count), 0)


def _blocks(root: ir.Operation, form: BodyForm) -> Iterable[Site]:
    for each in scattered_blocks(root, form):
        yield _between("gather-scatter", each, 0, received(each.back, each.count))


def _between(
    pattern: Pattern, found: Exchange | ScatteredBlock, exchanged: int, scattered: int
) -> Site:
    """The site of two collectives and what is computed between them.

    Args:
      exchanged, scattered: the bytes that a device receives in the second one, by its kind.
    """
    return Site(
        pattern,
        found.op,
        tuple(product.op for product in found.products),
        tuple(_shape(product, 0, True) for product in found.products),
        found.axes,
        found.count,
        *_element(found.op),
        received(found.op, found.count) + exchanged,
        1,
        found.cuts[found.op.operands[0]].size,
        scattered=scattered,
    )


def _loops(root: ir.Operation, form: BodyForm) -> Iterable[Site]:
    for each in gathering_loops(root, form):
        op, axes = each.collectives[0]
        moved = [(op.name, received(op, form.mesh.product(axes))) for op, axes in each.collectives]
        yield Site(
            "gathering-loop",
            each.loop.op,
            tuple(product.op for product in each.products),
            tuple(_shape(product, 0, True) for product in each.products),
            axes,
            form.mesh.product(axes),
            *_element(op),
            sum(bytes_ for _, bytes_ in moved),
            each.loop.trips,
            1,
            reduced=sum(bytes_ for name, bytes_ in moved if name == REDUCE_SCATTER),
            carried=carried_bytes(each.loop),
            collectives=tuple(op for op, _ in each.collectives),
        )


def received(op: ir.Operation, count: int) -> int:
    """The bytes that a device receives in a gather, a reduce_scatter or an all_to_all."""
    whole = op.results[0] if op.name == ALL_GATHER else op.operands[0]
    return array_bytes(whole) * (count - 1) // count


def _element(op: ir.Operation) -> tuple[str, int]:
    """The type of what is sent, and its bytes."""
    element = ir.RankedTensorType(op.operands[0].type).element_type
    return str(element), element_bytes(element)


def _block(op: ir.Operation, dimension: int) -> int:
    return ir.RankedTensorType(op.operands[0].type).shape[dimension]


def _columns(product: Product, side: int) -> int:
    shape = ir.RankedTensorType(product.op.operands[side].type).shape
    return max((shape[dimension] for dimension in product.free[side]), default=1)


def _shape(product: Product, side: int, is_free: bool) -> ProductShape:
    """The sizes of a product, with operand `side` as that of `m` or, if not `is_free`, of `n`."""
    rows, columns = (side, 1 - side) if is_free else (1 - side, side)
    return ProductShape(
        product.size(0, product.batch[0]),
        product.size(rows, product.free[rows]),
        product.size(columns, product.free[columns]),
        product.size(0, product.contracted[0]),
    )
