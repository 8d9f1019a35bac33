"""Orders products around those that are computed in pieces, so that they need less memory together.

    order([Ordered(op, product, rows)], flows)

A compiler that hides transfers takes what is independent of a piece for the time of its transfer.
An array that only such an operation reads stays in memory until then.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from ...ir.dataflow import Dataflow, Dataflows, Node
from ...ir.elementwise import ELEMENTWISE
from ...ir.ops import Position, next_op
from ...ir.types import Value, array_bytes
from ..find.independence import Independence, bits, numbers
from ..find.stored import FEW_BYTES, is_fused
from .pieces import barrier

_ALIKE = ("stablehlo.broadcast_in_dim", "stablehlo.constant", "stablehlo.iota")

_MOST = 2**14
"""In blocks with more operations no product is moved: what each needs would take hundreds of MB."""


@dataclass(frozen=True)
class Ordered:
    """Products that are computed in pieces, around which others are ordered.

    Attributes:
      op: the sum of `products` over devices.
      rows: of each product, the number of the operand that becomes one that is there when those
        before it are computed. Only what is built before `op` may read it.
      stores: whether operands that are computed element by element are stored as they are.
    """

    op: ir.Operation
    products: tuple[ir.Operation, ...]
    rows: tuple[int, ...]
    stores: bool = False


def changes_nothing(
    op: ir.Operation,
    products: Sequence[ir.Operation],
    stores: bool,
    independence: Independence,
) -> bool:
    """Whether `order` is known to do nothing around products; arguments as in `Ordered`.

    No other product could be moved, and no operand be stored. It holds also when other sites of the
    block have been rewritten, as pieces need, and are needed by, what their products are.

    Args:
      independence: of the block.
    """
    flow = independence.flow
    if independence.apart(flow.node(op).number):
        return False
    sources = [flow.source(operand) for product in products for operand in product.operands]
    return not (stores and any(s is not None and _may_be_stored(s, flow) for s in sources))


def order(found: Sequence[Ordered], flows: Dataflows) -> None:
    """Has the last other readers of large arrays computed before products, and operands stored.

    Products are moved that read an array that neither the ordered product reads nor anything that
    needs its sum, if that array is larger than what they compute for others.

    Args:
      flows: as the module is before.
    """
    for op_block in dict.fromkeys(each.op.block for each in found):
        inside = [each for each in found if each.op.block == op_block]
        flow = flows.of(op_block)
        stored = {n: op for each in inside if each.stores for n, op in _store(each, flow)}
        if len(flow.nodes) > _MOST:
            continue
        block = _Block(flow, stored, [op for each in inside for op in each.products])
        for each in inside:
            block.release(each)


def _store(ordered: Ordered, flow: Dataflow) -> Iterator[tuple[int, ir.Operation]]:
    """Stores operands of products; (the number of what computes one, its barrier).

    If pieces read such an array, libtpu stores it apart from the product that it is computed from,
    also if other products read it, which compute it again. With a barrier only the array is stored:
    on v6e e with 8192 rows of 8192, and 131072 between, on 2 groups of 8, took 7.39 ms for 8.21,
    and 384 MiB of temporaries for 640. It is left so if others read what it is computed from.
    """
    for operand in dict.fromkeys(value for op in ordered.products for value in op.operands):
        node = flow.source(operand)
        if node is None or not _is_computed_once(node, flow):
            continue
        with ir.InsertionPoint(next_op(node.op)), node.op.location:
            (stored,) = barrier(operand)
        copy = ir.OpResult(stored).owner.operation
        operand.replace_all_uses_except(stored, [copy])
        yield node.number, copy


def _may_be_stored(node: Node, flow: Dataflow) -> bool:
    """Whether `_store` may store a result, also when others have been rewritten.

    A product that is rewritten may be converted then.
    """
    return not is_fused(node.name) or _is_computed_once(node, flow)


def _is_computed_once(node: Node, flow: Dataflow) -> bool:
    """Whether a value is computed element by element from what is read only through it."""
    if node.name not in ELEMENTWISE:
        return False
    made, pending = {node.number}, [-node.number]
    while pending:
        # The last one: what reads it, and is made, is known.
        each = flow.nodes[-heapq.heappop(pending)]
        users = (user.number for value in each.results for user in flow.users(value))
        if each is not node and not made.issuperset(users):
            return False
        for value in each.operands if is_fused(each.name) else ():
            source = flow.source(value)
            if source is not None and source.name not in _ALIKE and source.number not in made:
                made.add(source.number)
                heapq.heappush(pending, -source.number)
    return True


class _Block:
    """What the operations of a block need of each other, as products are moved in it.

    Operations are known by their numbers before the first was moved, several as bits.

    Attributes:
      needed, needing: by operation, what it needs and what needs it, directly or not.
      readers: by value; what is fused is not one, but what reads it is.
      large: (bytes, number of what computes it, value) of large arrays, the largest first.
      products: those that can be moved.
      barriers: by operation, what stores its result, or what it waits for if it is ordered.
      stored: what is not computed where it is read, though it could be.
      awaited: what they wait for.
      moved: what was moved.
    """

    def __init__(
        self, flow: Dataflow, stored: dict[int, ir.Operation], ordered: Sequence[ir.Operation]
    ) -> None:
        independence = Independence(flow)
        self.flow = flow
        self.needed = list(flow.needed)
        self.needing = list(flow.needing)
        self.readers: dict[Value, int] = {}
        self.large: list[tuple[int, int, Value]] = []
        self.products = bits(independence.products) & ~bits(flow.node(op).number for op in ordered)
        self.barriers = dict(stored)
        self.stored = {*stored}
        self.awaited: set[int] = set()
        self.moved = 0
        seen = [1 << node.number for node in flow.nodes]  # what reads the result if it is fused
        for node in reversed(flow.nodes):
            fused = is_fused(node.name) and node.number not in stored
            for value, users in zip(node.results, node.users, strict=True):
                readers = 0
                for user in users:
                    readers |= seen[user.number]
                self.readers[value] = readers
                if fused:
                    seen[node.number] = readers
                elif (size := array_bytes(value)) > FEW_BYTES:
                    self.large.append((size, node.number, value))
        self.large.sort(key=lambda each: (-each[0], each[1]))

    def release(self, ordered: Ordered) -> None:
        """Has the last readers of large arrays computed before products, as `order` says."""
        products = [self.flow.node(each).number for each in ordered.products]
        releasing = self._releasing(self.flow.node(ordered.op).number, products)
        found = [self._following(node) for node in releasing]
        if not found:
            return
        for *_, last in found:
            self._move_before(last, ordered.op)
        places = list(zip(ordered.products, ordered.rows, strict=True))
        rows = list(dict.fromkeys(each.operands[number] for each, number in places))
        with ir.InsertionPoint(ordered.op), ordered.op.location:
            late = barrier(*rows, *(f[-1].result for f in found))
        waiting = dict(zip(rows, late, strict=False))
        for each, number in places:
            each.operands[number] = waiting[each.operands[number]]
        for product in products:
            self.barriers[product] = ir.OpResult(late[0]).owner.operation
            self._wait(product, found)

    def _releasing(self, op: int, products: Sequence[int]) -> list[Node]:
        """The products that are the last to read large arrays, in program order."""
        before, after, ordered = self.needed[op], self.needing[op] | 1 << op, bits(products)
        stays, end = after | ~self.products, 1 << len(self.flow.nodes) - 1
        found = 0
        for size, number, value in self.large:
            if (after | ordered) >> number & 1:
                continue
            readers = self.readers[value]
            others = readers & ~before & ~found
            if not others or others & stays or readers & ordered:
                continue
            results = [each for n in numbers(others) for each in self.flow.nodes[n].results]
            # What is returned has its place all the time.
            kept = [each for each in results if self.readers[each] != end]
            if sum(map(array_bytes, kept)) + FEW_BYTES < size:
                found |= others
        return sorted((self.flow.nodes[n] for n in numbers(found)), key=lambda n: Position(n.op))

    def _following(self, node: Node) -> list[Node]:
        """An operation, and what is computed from it alone where its result is read, in turn."""
        found = [node]
        while node.number not in self.awaited and node.number not in self.stored:
            users = self.flow.users(node.result)
            if len(users) != 1 or len(users[0].operands) != 1 or not is_fused(users[0].name):
                break
            node = users[0]
            found.append(node)
        return found

    def _move_before(self, node: Node, place: ir.Operation) -> None:
        """Moves an operation, with what it needs, before another, of which it needs nothing."""
        needed, at = self.needed[node.number] | 1 << node.number, self.flow.node(place).number
        if not self.moved >> at & 1:
            needed = needed >> at << at  # The others are before it, where they were or moved.
        found = numbers(needed)
        ops = [self.flow.nodes[n].op for n in found]
        ops += [self.barriers[n] for n in found if n in self.barriers]
        ops = [each for each in ops if not each.is_before_in_block(place)]
        for each in sorted(dict.fromkeys(ops), key=Position):
            each.move_before(place)
        self.moved |= needed

    def _wait(self, product: int, found: Sequence[Sequence[Node]]) -> None:
        """Notes that a product waits for the last of each of some operations in turn."""
        needed = 0
        for nodes in found:
            needed |= self.needed[nodes[-1].number] | 1 << nodes[-1].number
            self.awaited.add(nodes[-1].number)
            for node in nodes:
                self.readers[node.result] |= 1 << product
        waiting = self.needing[product] | 1 << product
        for number in numbers(waiting):
            self.needed[number] |= needed
        for number in numbers(needed):
            self.needing[number] |= waiting
