"""Promotes values of a linear program to larger types of cotangents, and counts what that sends.

The type of a cotangent is the set of mesh axes along which it is a share of each device's own. A
`pvary` promotes a value to a larger set; its transpose is the psum that sums the shares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax
from jax.extend import core as jex_core
from jax.sharding import PartitionSpec

from shmap_compiler.base import specs
from shmap_compiler.base.jax_compat import open_jaxpr
from shmap_compiler.base.meshes import Axes
from shmap_compiler.base.untyped import Atom, Eqn
from shmap_compiler.collectives.varying import psum_invariant_p, pvary_p
from shmap_compiler.graph.graph import Graph
from shmap_compiler.replication.collective_rules import jax_axes
from shmap_compiler.replication.frames import Frame

NONE: Axes = frozenset()


@dataclass(frozen=True)
class Value:
    """Whether a value carries a tangent, and the type of its cotangent.

    For a value without a tangent, `axes` are those along which it varies.
    """

    has_tangent: bool
    axes: Axes


NO_TANGENT = Value(False, NONE)


@dataclass(frozen=True)
class CommCost:
    """What the transposes of promotions and of all_gathers send.

    Attributes:
      calls: the number of collectives.
    """

    calls: int = 0
    bytes: float = 0

    def __add__(self, other: CommCost) -> CommCost:
        return CommCost(self.calls + other.calls, self.bytes + other.bytes)

    def __mul__(self, steps: int) -> CommCost:
        return CommCost(self.calls * steps, self.bytes * steps)

    def is_at_most(self, other: CommCost) -> bool:
        return self.calls <= other.calls and self.bytes <= other.bytes


def _bytes(atom: Atom) -> int:
    return atom.aval.size * atom.aval.dtype.itemsize


class GraphAxes:
    """The mesh axes of a Graph as the types of its cotangents need them.

    Attributes:
      whole: results of all_gathers whose cotangents are whole.
      gathered: results of other all_gathers, added as they are found, whose cotangents could be,
        and the axes over which they are gathered.
    """

    def __init__(self, graph: Graph, whole: Set[Atom] = frozenset()):
        self.graph = graph
        self.whole = whole
        self.gathered: dict[Atom, Axes] = {}
        self.order = graph.mesh.axis_names
        self.sizes = dict(graph.mesh.shape)

    def names(self, mask: int) -> Axes:
        return frozenset(self.graph.replication.axes.names(mask))

    def own(self, spec: PartitionSpec) -> Axes:
        """The axes along which the cotangent of an array with this spec is each device's own."""
        return self.names(self.graph.replication.axes.mask(specs.own_cotangent_axes(spec)))

    def reduced(self, spec: PartitionSpec) -> Axes:
        return self.names(self.graph.replication.axes.mask(spec.reduced))

    def over(self, eqn: Eqn) -> Axes:
        """The axes over which an equation communicates."""
        return self.names(self.graph.replication.axes.mask(jax_axes(eqn)))

    def ordered(self, axes: Axes) -> tuple[str, ...]:
        return tuple(a for a in self.order if a in axes)

    def product(self, axes: Axes) -> int:
        """The number of devices along `axes`."""
        return math.prod(self.sizes[a] for a in axes)

    def comm_cost(self, atom: Atom, axes: Axes) -> CommCost:
        """The cost of a psum of a value over `axes`, in units of twice the bytes of the value."""
        return CommCost(1, _bytes(atom) * (1 - 1 / self.product(axes)))

    def scatter_cost(self, atom: Atom, axes: Axes) -> CommCost:
        """The cost of a psum_scatter of a value over `axes`, which is half a psum."""
        return CommCost(1, self.comm_cost(atom, axes).bytes / 2)


class Promoter:
    """Builds a program in which values are promoted where they meet larger types.

    Attributes:
      axes: the axes of the Graph.
      frame: the replication of the program.
      inputs: the values of the program's inputs.
      control: the axes along which devices differ in whether they run the program.
      early: the axes along which variables are promoted for all their uses.
      eqns: the equations built so far.
      values: the values of the variables they define.
      source_inputs: the inputs, by their positions, from which a value is computed.
      promoted_inputs: for each input, the axes that promotions add to its type, or to that of a
        value computed from it.
      comm_cost: what the transposes of promotions and all_gathers send in one run of the program.
      made_of: for a value, the one that alone among the operands of its equation has a tangent.
      smaller: the axes along which earlier and smaller values could be promoted instead.
    """

    def __init__(
        self,
        axes: GraphAxes,
        frame: Frame,
        inputs: Sequence[Value],
        control: Axes,
        early: Mapping[Atom, Axes],
    ):
        self.axes = axes
        self.frame = frame
        self.inputs = list(inputs)
        self.control = control
        self.early = early
        self.eqns: list[Eqn] = []
        self.values: dict[Atom, Value] = {}
        self.source_inputs: dict[Atom, frozenset[int]] = {}
        self.promoted_inputs: dict[int, Axes] = {}
        self.comm_cost = CommCost()
        self.made_of: dict[Atom, Atom] = {}
        self.smaller: dict[Atom, Axes] = {}
        self._promoted: dict[tuple[Atom, Axes], Atom] = {}

    def value(self, atom: Atom) -> Value:
        if isinstance(atom, jex_core.Literal):
            return NO_TANGENT
        if atom in self.values:
            return self.values[atom]
        return Value(False, self.axes.names(self.frame.mask(atom)))

    def put(self, eqn: Eqn) -> None:
        self.eqns.append(eqn)

    def define(self, outvars: Sequence[Atom], values: Sequence[Value]) -> None:
        self.values.update(zip(outvars, values, strict=True))

    def join_types(self, eqn: Eqn, axes: Axes) -> None:
        """Puts an equation whose operands and results are all of one type."""
        self.put(eqn.replace(invars=[self.promoted(v, axes, eqn) for v in eqn.invars]))
        self.define(eqn.outvars, [Value(True, axes)] * len(eqn.outvars))

    def all_promoted(self, eqn: Eqn, wanted: Sequence[Axes]) -> list[Atom]:
        return [self.promoted(v, w, eqn) for v, w in zip(eqn.invars, wanted, strict=True)]

    def promoted(self, atom: Atom, wanted: Axes, near: Eqn | None) -> Atom:
        """The value with at least the type `wanted`, if it carries a tangent.

        Args:
          near: the equation whose source line the promotion gets.
        """
        value = self.value(atom)
        missing = wanted - value.axes
        if not value.has_tangent or not missing:
            return atom
        for position in self.source_inputs[atom]:
            self.promoted_inputs[position] = self.promoted_inputs.get(position, NONE) | missing
        key = (atom, missing)
        if key not in self._promoted:
            var = self._promoted[key] = jex_core.Var(atom.aval)
            self.put(_pvary(atom, self.axes.ordered(missing), var, near))
            self.source_inputs[var] = self.source_inputs[atom]
            self.comm_cost += self.axes.comm_cost(atom, missing)
            self._note_smaller(atom, missing)
            self.define([var], [Value(True, value.axes | missing)])
        return self._promoted[key]

    def _note_smaller(self, atom: Atom, missing: Axes) -> None:
        """Notes the smallest value that a promoted one is made of, if it is smaller."""
        smallest, source = atom, self.made_of.get(atom)
        while source is not None and missing.isdisjoint(self.value(source).axes):
            if _bytes(source) < _bytes(smallest):
                smallest = source
            source = self.made_of.get(source)
        if smallest is not atom:
            self.smaller[smallest] = self.smaller.get(smallest, NONE) | missing

    def promoted_early(self, atom: Atom) -> Atom:
        """The value for all its uses."""
        if isinstance(atom, jex_core.Literal) or atom not in self.early:
            return atom
        return self.promoted(atom, self.value(atom).axes | self.early[atom], None)

    def of_type(self, atom: Atom, wanted: Axes, eqn: Eqn) -> Atom:
        """The value with exactly the type `wanted`, if it carries a tangent."""
        value = self.value(atom)
        surplus = value.axes - wanted
        if value.has_tangent and surplus:
            # The value is equal along them, and so is its mean. The transpose of the mean divides a
            # whole cotangent into shares.
            total, mean = jex_core.Var(atom.aval), jex_core.Var(atom.aval)
            axes = self.axes.ordered(surplus)
            self.put(_psum_invariant(atom, axes, total, eqn))
            self.put(scaled(total, 1 / self.axes.product(surplus), mean, eqn))
            self.source_inputs[total] = self.source_inputs[mean] = self.source_inputs[atom]
            self.define([total, mean], [Value(True, value.axes & wanted)] * 2)
            atom = mean
        return self.promoted(atom, wanted, eqn)


def _pvary(x: Atom, axes: tuple[str, ...], out: Atom, near: Eqn | None) -> Eqn:
    source, context = (near.source_info, near.ctx) if near else (None, None)
    return jex_core.new_jaxpr_eqn([x], [out], pvary_p, {"axes": axes}, set(), source, context)


def _psum_invariant(x: Atom, axes: tuple[str, ...], out: Atom, near: Eqn) -> Eqn:
    params: dict[str, Any] = {"axes": axes}
    return jex_core.new_jaxpr_eqn(
        [x], [out], psum_invariant_p, params, set(), near.source_info, near.ctx
    )


def scaled(x: Atom, factor: float, out: Atom, near: Eqn) -> Eqn:
    """The equation that multiplies a value by a number, and leaves its type as weak as it is."""
    template = open_jaxpr(jax.make_jaxpr(lambda v: v * lax.full_like(v, factor, shape=()))(x.aval))
    _, literal = template.eqns[-1].invars
    return template.eqns[-1].replace(
        invars=[x, literal], outvars=[out], source_info=near.source_info, ctx=near.ctx
    )
