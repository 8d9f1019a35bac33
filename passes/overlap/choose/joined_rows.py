"""Rows that libtpu computes where a product reads them, so that the plain program stores none.

    %a = dot_general(%gathered, %w)
    %h = tanh %a                          in one kernel with the product that follows
    %y = dot_general(%h, %v)

If the first product is computed in pieces and the second one is not, the rows are stored between
the two. In pieces of both they stay in VMEM, or need less memory than the whole result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from jaxlib.mlir import ir

from ...cost import libtpu_kernels, libtpu_memory
from ...cost.machine import Machine
from ...ir.collective_ops import ALL_GATHER
from ...ir.dataflow import Dataflow, Dataflows, Node
from ...ir.elementwise import ELEMENTWISE
from ...ir.types import Value, array_bytes
from ..find.products import DOT, Product, has_default_precision
from ..find.row_sources import computed_from, source_of
from .site import Site


@dataclass(frozen=True)
class JoinedRows:
    """The rows between a product of a gather and the only operation that reads them, a product.

    Attributes:
      reader: the second product.
      rows: what it reads.
      before: the first product, and what the rows are computed from element by element.
      bytes_: of memory for the rows, if they are stored.
      is_slow: whether the products take longer apart than a form saves.
    """

    site: Site
    reader: ir.Operation
    rows: Value
    before: tuple[Value, ...]
    bytes_: int
    is_slow: bool

    def are_stored(self, sites: Collection[Site]) -> bool:
        """Whether they are if the products of these sites are computed in pieces."""
        return self.site in sites and not any(self.reader in site.products for site in sites)


def joined_rows(
    sites: Collection[Site], flows: Dataflows, machine: Machine | None
) -> tuple[JoinedRows, ...]:
    """Those of the gathers among sites; none on GPUs, where it was not measured.

    Args:
      flows: of the module.
    """
    if machine is None or not machine.is_tpu:
        return ()
    gathers = [site for site in sites if site.op.name == ALL_GATHER]
    return tuple(
        rows for site in gathers for rows in _joined_rows(site, flows.of(site.op.block), machine)
    )


def separated(sites: Collection[Site], rows: Collection[JoinedRows]) -> dict[Site, str]:
    """The sites whose forms are to be left out as the program would be slower, and why."""
    reason = "its product would not be in one kernel with the next one, which takes longer"
    return {each.site: reason for each in rows if each.is_slow and each.are_stored(sites)}


def _joined_rows(site: Site, flow: Dataflow, machine: Machine) -> Iterator[JoinedRows]:
    for op, shape in zip(site.products, site.shapes, strict=True):
        found = _only_reader(flow.node(op), flow)
        if found is None:
            continue
        reader, side = found
        between = reader.size(side, reader.contracted[side])
        columns = reader.size(1 - side, reader.free[1 - side])
        if libtpu_kernels.computes_where_read(machine, shape.k, between, columns):
            rows = reader.op.operands[side]
            size = _stored_bytes(reader.op, rows)
            memory = 0 if libtpu_memory.keeps_product(machine, size) else size
            is_slow = libtpu_kernels.is_slow_apart(machine, shape.k)
            yield JoinedRows(site, reader.op, rows, _before(rows, flow), memory, is_slow)


def _only_reader(node: Node, flow: Dataflow) -> tuple[Product, int] | None:
    """The product that reads what is computed from another one only, if nothing else does.

    And the side of the operand.
    """
    value = node.result
    while users := flow.users(value):
        node = users[0]
        if node.name == DOT:
            product, side = Product.of(node.op), node.operands.index(value)
            return (product, side) if source_of(product, side, flow) == "product" else None
        if node.name not in ELEMENTWISE:
            return None
        value = node.result
    return None


def _before(rows: Value, flow: Dataflow) -> tuple[Value, ...]:
    between, before = computed_from(rows, flow) or ((), ())
    return tuple(result for node in (*between, *before) for result in node.results)


def _stored_bytes(reader: ir.Operation, rows: Value) -> int:
    """Of rows that are stored as the product reads them: f32 as bf16, with default precision."""
    is_narrowed = isinstance(rows.type.element_type, ir.F32Type) and has_default_precision(reader)
    return array_bytes(rows) // (2 if is_narrowed else 1)
