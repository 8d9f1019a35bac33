"""The result of replication inference: for each value, the mesh axes along which it may vary.

Sets of axes are bit masks (`AxisSet`).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, reduce

from jax.extend import core as jex_core
from shmap_passes.ir.axis_set import AxisSet

from shmap_compiler.base.untyped import Atom, Jaxpr
from shmap_compiler.replication.region_dataflow import Wiring


@dataclass(frozen=True, eq=False)
class Replication:
    """The varying axes of every value of a Graph.

    Made by `Graph.replication`.

    Attributes:
      axes: Translates the masks in `frame` to names of axes.
      frame: The solved program, for code that follows values through it.

    Examples:
      >>> f = shard_map(lambda b: lax.psum(b, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
      >>> graph = f.trace(x)
      >>> graph.replication.of(graph.jaxpr.jaxpr.invars[0]), graph.replication.outputs
      (frozenset({'i'}), (frozenset(),))
    """

    axes: AxisSet
    frame: Frame

    def of(self, atom: Atom) -> frozenset[str]:
        """Returns the axes along which a value may differ between devices.

        A program that is called by several equations is solved for each of them; its variables have
        the union.

        Args:
          atom: A variable or literal of the Graph's jaxpr, or of a jaxpr nested in it.
        """
        if isinstance(atom, jex_core.Literal):
            return frozenset()
        return frozenset(self.axes.names(self._masks.get(atom, 0)))

    @cached_property
    def outputs(self) -> tuple[frozenset[str], ...]:
        """The axes along which each output may differ between devices."""
        return tuple(frozenset(self.axes.names(m)) for m in self.frame.outputs)

    @cached_property
    def _masks(self) -> dict[Atom, int]:
        masks: dict[Atom, int] = {}
        for frame in self.frame.walk():
            for var, mask in frame.masks.items():
                masks[var] = masks.get(var, 0) | mask
        return masks


@dataclass(frozen=True, eq=False)
class Frame:
    """The solution of a program, for given sets of its inputs.

    Attributes:
      masks: the set of each variable; variables with the empty set are left out.
      outputs: the set of each output.
      nested: by the position of an equation, its wiring and the solutions of its programs.
    """

    jaxpr: Jaxpr
    masks: dict[Atom, int]
    outputs: tuple[int, ...]
    nested: dict[int, tuple[Wiring, tuple[Frame, ...]]]

    def mask(self, atom: Atom) -> int:
        return 0 if isinstance(atom, jex_core.Literal) else self.masks.get(atom, 0)

    @cached_property
    def anything(self) -> int:
        """The union of all sets in the program and the programs it holds."""
        return union(m for f in self.walk() for m in f.masks.values())

    def walk(self) -> Iterator[Frame]:
        """This frame and those it holds, each once."""
        seen: set[int] = set()
        stack: list[Frame] = [self]
        while stack:
            frame = stack.pop()
            if id(frame) not in seen:
                seen.add(id(frame))
                yield frame
                stack.extend(f for _, frames in frame.nested.values() for f in frames)


def union(masks: Iterable[int]) -> int:
    return reduce(operator.or_, masks, 0)
