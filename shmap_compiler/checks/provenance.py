"""Provenance: the path of a varying value back to the equation or input where it became varying."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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


def provenance(replication: Replication, ref: ValueRef, axis: str) -> Provenance:
    """Returns why a value varies along `axis`, which must be one of its varying axes."""
    finder = _Finder(replication.frame, replication.axes, replication.axes.mask([axis]))
    # Breadth first: the first start found is the nearest.
    queue: deque[tuple[ValueRef, tuple[ProvenanceStep, ...]]] = deque([(ref, ())])
    seen = {ref}
    longest: tuple[ProvenanceStep, ...] = ()
    while queue:
        ref, after = queue.popleft()
        longest = max(longest, after, key=len)
        number = finder.input_of_graph(ref)
        if number is not None:
            return Provenance(number, after)
        before = list(finder.before(ref))
        if not before:
            return Provenance(None, (finder.maker(ref), *after))
        for earlier, step in before:
            if earlier not in seen:
                seen.add(earlier)
                queue.append((earlier, (step, *after) if step else after))
    return Provenance(None, longest)


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


class _Finder:
    def __init__(self, frame: Frame, axes: AxisSet, axis: int):
        self.frame = frame
        self.axes = axes
        self.axis = axis
        self.definitions: dict[int, dict[Any, tuple[int, int]]] = {}

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
        if ref.path or self.definition(ref) is not None:
            return None
        return self.frame.jaxpr.invars.index(ref.var)

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
