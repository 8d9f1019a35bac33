"""Records which values are computed from which, while a program is played op by op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shmap_compiler.simulate.device import Arrays
from shmap_compiler.simulate.places import SourcePlace
from shmap_compiler.simulate.steps import Enter, Leave, Step


@dataclass(eq=False)
class Node:
    """One time that devices take a step.

    Attributes:
      results: of each device that takes it.
      sources: the nodes whose results the first of these devices reads.
    """

    step: Step
    results: dict[int, Arrays] = field(default_factory=dict)
    sources: list[Node] = field(default_factory=list)

    @property
    def place(self) -> SourcePlace:
        return self.step.place

    @property
    def is_input(self) -> bool:
        """Whether its results are blocks of arguments."""
        return isinstance(self.step, Enter)

    def blocks(self, count: int) -> Iterator[list[np.ndarray]]:
        """Of each result, the blocks of `count` devices; nothing if some did not take the step."""
        if len(self.results) == count:
            for block in zip(*(self.results[d] for d in range(count)), strict=True):
                yield list(block)


class DataFlow:
    """An observer. Nodes are in the order of the program.

    Devices take the same step for the n-th time in the same node.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._left: list[Any] = []
        self._counts: Counter[Any] = Counter()
        self._nodes: dict[Any, Node] = {}
        self._makers: dict[tuple[int, int], Node] = {}

    def see(
        self,
        devices: Sequence[int],
        step: Step,
        operands: Sequence[Arrays],
        results: Sequence[Arrays],
    ) -> None:
        """Notes one step."""
        for device, read, made in zip(devices, operands, results, strict=True):
            self._note(device, step, read, made)

    def _note(self, device: int, step: Step, operands: Arrays, results: Arrays) -> None:
        if isinstance(step, Leave):
            if device == 0:
                self._left = list(operands)
            return
        key = step, self._counts[device, step]
        self._counts[device, step] += 1
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = Node(step)
            makers = (self._makers.get((device, id(operand))) for operand in operands)
            node.sources = list(dict.fromkeys(maker for maker in makers if maker is not None))
            self.nodes.append(node)
        # The node keeps its results alive, so that no other array gets their identity.
        node.results[device] = results
        for result in results:
            self._makers.setdefault((device, id(result)), node)

    def maker(self, result: int) -> Node | None:
        """The node that makes a result of the region that ends last."""
        return self._makers.get((0, id(self._left[result])))

    def behind(self, node: Node) -> list[Node]:
        """The nodes from which `node` is computed, and itself, in program order."""
        found, waiting = {node}, [node]
        while waiting:
            for source in waiting.pop().sources:
                if source not in found:
                    found.add(source)
                    waiting.append(source)
        return [each for each in self.nodes if each in found]
