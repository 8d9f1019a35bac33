"""The operations of a block with what they read and who reads it, taken from MLIR once.

    flow = Dataflow(block)
    flow.nodes[2].operands                    the values that the third operation reads
    flow.users(value)                         the operations of the block that read a value
    flow.source(value)                        the one that computes it
    flow.needed[3], flow.needing[3]           all that the fourth needs, and that need it, as bits

Reading operands and uses through MLIR's bindings takes most of the time of an analysis that follows
values back and forth. A dataflow holds until an operation of the block is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from .analyses import analysis
from .ops import walk
from .types import Value


@dataclass(eq=False, slots=True)
class Node:
    """An operation of a block.

    Attributes:
      number: its place in the block.
      inner: what the operations in its regions read.
      sources: the numbers of the operations of the block that compute what it reads, or what those
        in its regions read, once for each time.
      users: of each result, the operations that read it, or hold one that does, in the same way.
    """

    op: ir.Operation
    name: str
    number: int
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    inner: tuple[Value, ...]
    sources: list[int]
    users: tuple[list[Node], ...]

    @property
    def result(self) -> Value:
        """The first one."""
        return self.results[0]


class Dataflow:
    """The operations of a block, in order, and how values go from one to another."""

    def __init__(self, block: ir.Block):
        self.nodes: list[Node] = []
        users = self._users = dict[Value, list[Node]]()
        sources = self._sources = dict[Value, Node]()
        for number, each in enumerate(block.operations):
            node = _node(each.operation, number)
            self.nodes.append(node)
            for value in (*node.operands, *node.inner) if node.inner else node.operands:
                source = sources.get(value)
                if source is None:
                    users.setdefault(value, []).append(node)
                else:
                    node.sources.append(source.number)
                    users[value].append(node)
            for value, its_users in zip(node.results, node.users, strict=True):
                sources[value] = node
                users[value] = its_users

    @cached_property
    def needed(self) -> list[int]:
        """What each operation needs, directly or not, as bits by number."""
        needed: list[int] = []
        for node in self.nodes:
            found = 0
            for source in node.sources:
                found |= needed[source] | 1 << source
            needed.append(found)
        return needed

    @cached_property
    def needing(self) -> list[int]:
        """What needs each operation, in the same way."""
        needing = [0] * len(self.nodes)
        for node in reversed(self.nodes):
            waiting = needing[node.number] | 1 << node.number
            for source in node.sources:
                needing[source] |= waiting
        return needing

    def users(self, value: Value) -> Sequence[Node]:
        """The operations that read a value, or hold one that does, once for each time it is."""
        return self._users.get(value, ())

    def source(self, value: Value) -> Node | None:
        """The operation that computes a value; None if it is outside of the block."""
        return self._sources.get(value)

    def node(self, op: ir.Operation) -> Node:
        """That of an operation of the block with results."""
        return self._sources[op.results[0]]


class Dataflows:
    """The dataflow of each block that is asked for."""

    def __init__(self) -> None:
        self._known: dict[ir.Block, Dataflow] = {}

    def of(self, block: ir.Block) -> Dataflow:
        if block not in self._known:
            self._known[block] = Dataflow(block)
        return self._known[block]


@analysis
def dataflows(module: ModuleOp) -> Dataflows:
    """Those of the blocks of a module."""
    del module
    return Dataflows()


def _node(op: ir.Operation, number: int) -> Node:
    inner = [value for each in walk(op)[1:] for value in each.operands] if len(op.regions) else ()
    found = op.results
    if len(found) == 1:  # as nearly all have
        results, users = (found[0],), ([],)
    else:
        results = tuple(found)
        users = tuple([] for _ in results)
    return Node(op, op.name, number, tuple(op.operands), results, tuple(inner), [], users)
