"""Provenance: the path of a varying value back to the equation or input where it became varying.

Paths of values of one program have parts in common. Each value's next step is found once, and a
search ends where it meets a path that is known.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jax.extend import core as jex_core
from shmap_passes.ir.axis_set import AxisSet

from shmap_compiler.base import specs
from shmap_compiler.base.source_lines import source_line
from shmap_compiler.base.untyped import Atom, Eqn
from shmap_compiler.graph.graph import Graph
from shmap_compiler.replication.collective_rules import result_mask
from shmap_compiler.replication.frames import Frame, Replication
from shmap_compiler.replication.region_dataflow import Out, Source

_MOST_STEPS = 5
"""Messages leave out the middle of longer paths."""

# A held program is found by the positions of the equations around it and its number in each.
Path = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ValueRef:
    """A variable of the program at `path`."""

    path: Path
    var: Atom


@dataclass(frozen=True)
class ProvenanceStep:
    """An equation that a varying value passes through.

    Attributes:
      decides: whether the value only decides which branch or loop step runs.
    """

    eqn: Eqn
    decides: bool = False

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        role = "the predicate of " if self.decides else ""
        line = source_line(self.eqn)  # empty for equations that a derivative inserted
        return f"{role}{self.eqn.primitive.name}" + (f" at {line}" if line else "")


@dataclass(frozen=True)
class Provenance:
    """The shortest path from where a value became varying to where it is used.

    Attributes:
      input: the position of the program's input at which the path starts; None if it starts at
        `steps[0]`.
      steps: the equations on the path, in order.
    """

    input: int | None
    steps: tuple[ProvenanceStep, ...]


_finders: weakref.WeakKeyDictionary[Replication, dict[str, _Finder]] = weakref.WeakKeyDictionary()
"""By axis; they live as long as the program."""


def provenance(replication: Replication, ref: ValueRef, axis: str) -> Provenance:
    """Returns why a value varies along `axis`, which must be one of its varying axes."""
    finders = _finders.setdefault(replication, {})
    if axis not in finders:
        finders[axis] = _Finder(replication.frame, replication.axes, replication.axes.mask([axis]))
    return finders[axis].provenance(ref)


def format_provenance(graph: Graph, found: Provenance, names: Sequence[str]) -> str:
    """The lines of a message that show the path, without the middle of a long one.

    Args:
      names: the inputs of the graph, as the user names them.
    """
    return "".join(f"\n              {line}" for line in _lines(graph, found, names))


def _lines(graph: Graph, found: Provenance, names: Sequence[str]) -> Iterator[str]:
    if found.input is not None:
        spec = graph.in_specs[found.input]
        does = "splits or leaves unreduced" if spec.unreduced else "splits"
        yield f"{names[found.input]}, which its spec {specs.show(spec)} {does}"
    lines = list(dict.fromkeys(map(str, found.steps)))
    if len(lines) > _MOST_STEPS:
        yield from lines[:2]
        yield f"... {len(lines) - 4} more operations ..."
        yield from lines[-2:]
    else:
        yield from lines


@dataclass(frozen=True)
class _Hop:
    """The first part of the shortest path from a value to where it became varying.

    Attributes:
      length: the number of hops of the whole path.
      earlier: the next value; None at the end of the path.
      step: the equation between them, if it is to be shown.
    """

    length: int
    earlier: ValueRef | None = None
    step: ProvenanceStep | None = None


class _Finder:
    """Finds shortest paths for one axis.

    Attributes:
      hops: those of the values on the paths that were found.
    """

    def __init__(self, frame: Frame, axes: AxisSet, axis: int):
        self.frame = frame
        self.axes = axes
        self.axis = axis
        self.inputs = {var: number for number, var in enumerate(frame.jaxpr.invars)}
        self.definitions: dict[int, dict[Any, tuple[int, int]]] = {}
        self.hops: dict[ValueRef, _Hop] = {}

    def provenance(self, ref: ValueRef) -> Provenance:
        if ref not in self.hops:
            self.search(ref)
        steps: list[ProvenanceStep] = []
        while (hop := self.hops[ref]).earlier is not None:
            steps += [hop.step] if hop.step else []
            ref = hop.earlier
        number = self.input_of_graph(ref)
        if number is None:
            steps.append(self.maker(ref))
        return Provenance(number, tuple(reversed(steps)))

    def search(self, ref: ValueRef) -> None:
        """Adds the hops of the values on the shortest path from `ref`.

        Of several shortest paths, it is the one with the earliest operands.
        """
        levels = {ref: 0}
        before: dict[ValueRef, list[tuple[ValueRef, ProvenanceStep | None]]] = {}
        found: dict[ValueRef, _Hop] = {}
        queue = deque([ref])
        shortest = math.inf
        while queue and levels[queue[0]] <= shortest:  # breadth first
            each = queue.popleft()
            if each not in self.hops:
                is_input = self.input_of_graph(each) is not None
                before[each] = [] if is_input else list(self.before(each))
                for earlier, _ in before[each]:
                    if earlier not in levels:
                        levels[earlier] = levels[each] + 1
                        queue.append(earlier)
            hop = self.hops.get(each) or (None if before[each] else _Hop(0))
            if hop:
                found[each] = hop
                shortest = min(shortest, levels[each] + hop.length)
        # On a shortest path each value is one level after the last.
        for each in reversed(before):
            nexts = [
                _Hop(found[earlier].length + 1, earlier, step)
                for earlier, step in before[each]
                if earlier in found and levels[earlier] == levels[each] + 1
            ]
            if nexts:
                found[each] = min(nexts, key=lambda hop: hop.length)
        found.setdefault(ref, _Hop(0))  # if it only depends on itself
        while ref not in self.hops:
            self.hops[ref] = found[ref]
            ref = found[ref].earlier or ref

    def frame_at(self, path: Path) -> Frame:
        frame = self.frame
        for position, number in path:
            frame = frame.nested[position][1][number]
        return frame

    def definition(self, ref: ValueRef) -> tuple[int, int] | None:
        """(position of the equation, number of the result); None for an input."""
        frame = self.frame_at(ref.path)
        if id(frame) not in self.definitions:
            self.definitions[id(frame)] = {
                var: (position, k)
                for position, eqn in enumerate(frame.jaxpr.eqns)
                for k, var in enumerate(eqn.outvars)
            }
        return self.definitions[id(frame)].get(ref.var)

    def input_of_graph(self, ref: ValueRef) -> int | None:
        return None if ref.path else self.inputs.get(ref.var)

    def maker(self, ref: ValueRef) -> ProvenanceStep:
        """The equation that makes the value vary, though none of its operands does."""
        definition = self.definition(ref)
        if definition is None:  # an argument that a nested shard_map splits
            *outer, (position, _) = ref.path
            return ProvenanceStep(self.frame_at(tuple(outer)).jaxpr.eqns[position])
        return ProvenanceStep(self.frame_at(ref.path).jaxpr.eqns[definition[0]])

    def before(self, ref: ValueRef) -> Iterator[tuple[ValueRef, ProvenanceStep | None]]:
        """The varying values that this one is computed from, and the equation between them."""
        definition = self.definition(ref)
        path = ref.path
        if definition is None:
            *outer, (position, number) = path
            frame = self.frame_at(tuple(outer))
            wiring, _ = frame.nested[position]
            index = self.frame_at(path).jaxpr.invars.index(ref.var)
            for source in wiring.programs[number].inputs[index]:
                yield from self.source(source, tuple(outer), position, None)
            return
        position, k = definition
        frame = self.frame_at(path)
        eqn = frame.jaxpr.eqns[position]
        if position in frame.nested:
            wiring, _ = frame.nested[position]
            control = {id(s) for p in wiring.programs for s in p.control}
            for source in wiring.results[k]:
                decides = id(source) in control
                passes = isinstance(source, Out) and not decides
                step = None if passes else ProvenanceStep(eqn, decides)
                yield from self.source(source, path, position, step)
        elif not self.makes(eqn):
            for atom in eqn.invars:
                yield from self.source(atom, path, position, ProvenanceStep(eqn))

    def makes(self, eqn: Eqn) -> bool:
        """Whether the result would vary even if the operand did not."""
        return bool((result_mask(eqn, 0, self.axes) or 0) & self.axis)

    def source(
        self, source: Source, path: Path, position: int, step: ProvenanceStep | None
    ) -> Iterator[tuple[ValueRef, ProvenanceStep | None]]:
        if isinstance(source, Out):
            path = (*path, (position, source.program))
            source = self.frame_at(path).jaxpr.outvars[source.index]
        is_var = isinstance(source, jex_core.Var)
        if is_var and self.frame_at(path).mask(source) & self.axis:
            yield ValueRef(path, source), step
