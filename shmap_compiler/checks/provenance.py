"""Why a value varies along an axis: the way back from it to where it last became varying."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jax.extend import core as jex_core
from shmap_passes.ir.axis_set import AxisSet

from shmap_compiler.base.jax_compat import Atom, Eqn
from shmap_compiler.base.source_lines import source_line
from shmap_compiler.replication.collective_rules import result_mask
from shmap_compiler.replication.inference import Frame, Replication
from shmap_compiler.replication.region_dataflow import Out, Source

# A held program is found by the positions of the equations around it and its number in each.
Path = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Place:
    """A variable of the program at `path`."""

    path: Path
    var: Atom


@dataclass(frozen=True)
class Step:
    """An equation on the way. `decides`: its value decides only which branch or step is taken."""

    eqn: Eqn
    decides: bool = False

    def __str__(self) -> str:
        role = "the predicate of " if self.decides else ""
        line = source_line(self.eqn)  # none if a derivative has put it in
        return f"{role}{self.eqn.primitive.name}" + (f" at {line}" if line else "")


@dataclass(frozen=True)
class History:
    """The shortest way from where a value became varying to where it was asked about.

    Attributes:
      input: the position of the program's input it started from; None if `steps[0]` made it vary.
      steps: the equations on the way, in order.
    """

    input: int | None
    steps: tuple[Step, ...]


def history(replication: Replication, place: Place, axis: str) -> History:
    """Why the value at `place`, which varies along `axis`, does so."""
    finder = _Finder(replication.frame, replication.axes, replication.axes.mask([axis]))
    # Breadth first: the first start found is the nearest.
    queue: deque[tuple[Place, tuple[Step, ...]]] = deque([(place, ())])
    seen = {place}
    longest: tuple[Step, ...] = ()
    while queue:
        place, after = queue.popleft()
        longest = max(longest, after, key=len)
        number = finder.input_of_graph(place)
        if number is not None:
            return History(number, after)
        before = list(finder.before(place))
        if not before:
            return History(None, (*finder.maker(place), *after))
        for earlier, step in before:
            if earlier not in seen:
                seen.add(earlier)
                queue.append((earlier, (step, *after) if step else after))
    return History(None, longest)


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

    def definition(self, place: Place) -> tuple[int, int] | None:
        """(position of the equation, number of the result); None for an input."""
        frame = self.frame_at(place.path)
        if id(frame) not in self.definitions:
            self.definitions[id(frame)] = {
                var: (position, k)
                for position, eqn in enumerate(frame.jaxpr.eqns)
                for k, var in enumerate(eqn.outvars)
            }
        return self.definitions[id(frame)].get(place.var)

    def input_of_graph(self, place: Place) -> int | None:
        if place.path or self.definition(place) is not None:
            return None
        return self.frame.jaxpr.invars.index(place.var)

    def maker(self, place: Place) -> Iterator[Step]:
        """The equation that makes the value vary, though none of its operands does."""
        definition = self.definition(place)
        path = place.path
        if definition is None:  # an argument that a nested shard_map splits
            *outer, (position, _) = path
            yield Step(self.frame_at(tuple(outer)).jaxpr.eqns[position])
        else:
            yield Step(self.frame_at(path).jaxpr.eqns[definition[0]])

    def before(self, place: Place) -> Iterator[tuple[Place, Step | None]]:
        """The varying values that this one is made of, and the equation between."""
        definition = self.definition(place)
        path = place.path
        if definition is None:
            *outer, (position, number) = path
            frame = self.frame_at(tuple(outer))
            wiring, _ = frame.nested[position]
            index = self.frame_at(path).jaxpr.invars.index(place.var)
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
                step = Step(eqn, decides) if decides or not isinstance(source, Out) else None
                yield from self.source(source, path, position, step)
        elif not self.makes(eqn):
            for atom in eqn.invars:
                yield from self.source(atom, path, position, Step(eqn))

    def makes(self, eqn: Eqn) -> bool:
        """Whether the result would vary even if the operand did not."""
        return bool((result_mask(eqn, 0, self.axes) or 0) & self.axis)

    def source(
        self, source: Source, path: Path, position: int, step: Step | None
    ) -> Iterator[tuple[Place, Step | None]]:
        if isinstance(source, Out):
            path = (*path, (position, source.program))
            source = self.frame_at(path).jaxpr.outvars[source.index]
        is_var = isinstance(source, jex_core.Var)
        if is_var and self.frame_at(path).mask(source) & self.axis:
            yield Place(path, source), step
