"""Prepares a linear program for transposition, so that its transpose sends as little as possible.

Every value that carries a tangent gets a type: the mesh axes along which its cotangent is a share
of each device's own. Inputs have the axes of their specs, including those that are unreduced or
reduced. Where a value is combined with one of a larger type, and where the user casts it to
reduced, it is promoted (`promotion`); the transpose of a promotion is the one psum that sums the
shares. Constants of a loop are promoted before the loop, so that the psum runs once, after the
backward loop, if that sends no more and changes the type of no result. A psum ends its axes; over
an axis along which its operand is invariant it is a multiplication.

The cotangent of a gathered array is a share of each device's own as well, and all_gather transposes
to psum_scatter. If no computation on varying values uses the array, its cotangent may instead be
whole, and the transpose is a slice, which sends nothing. What sends less is chosen.

Operands of a branch are promoted before the branch: a psum inside it might be reached by some
devices only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeAlias

import jax
from jax.extend import core as jex_core

from shmap_compiler import collectives as coll
from shmap_compiler.base.jax_compat import (
    jaxprs_in,
    open_jaxpr,
    replace_jaxpr,
    scan_counts,
    type_split,
)
from shmap_compiler.base.untyped import Atom, Eqn, Jaxpr
from shmap_compiler.collectives.to_reduced import to_reduced_p
from shmap_compiler.collectives.varying import all_gather_invariant_p, psum_invariant_p
from shmap_compiler.graph.graph import Graph
from shmap_compiler.jaxprs.contents import equations
from shmap_compiler.jaxprs.held_programs import CUSTOM_LIN, JITS, LINEAR_CALL, called_program
from shmap_compiler.replication.frames import Frame
from shmap_compiler.transforms.called_rules import put_rule
from shmap_compiler.transforms.linear_calls import put_linear_call
from shmap_compiler.transforms.promotion import (
    NONE,
    Axes,
    CommCost,
    GraphAxes,
    Promoter,
    Value,
    scaled,
)


def with_cotangent_types(graph: Graph, linear: Sequence[bool]) -> tuple[Jaxpr, list[Axes]]:
    """(the program of a graph with promotions, the type of each output's cotangent).

    Args:
      linear: which inputs carry tangents.
    """
    axes = GraphAxes(graph)
    frame = graph.replication.frame
    inputs = [
        Value(is_linear, axes.names(frame.mask(v)) | (axes.reduced(spec) if is_linear else NONE))
        for v, is_linear, spec in zip(frame.jaxpr.invars, linear, graph.in_specs, strict=True)
    ]
    # To an enclosing shard_map, shares along its axes are each device's own.
    outside = frozenset(graph.outer_manual_axes)
    wanted = [axes.own(spec) | outside for spec in graph.out_specs]

    def solve(axes: GraphAxes) -> _Typed:
        return _typed(axes, frame, inputs, {}, NONE, graph.jaxpr, wanted)

    with jax.sharding.use_abstract_mesh(graph.body_mesh):
        best = solve(axes)
        gathered = frozenset(axes.gathered)
        whole: Set[Atom] = frozenset()
        for each in [gathered, *map(frozenset, zip(list(axes.gathered)[:_MOST_TRIED]))]:
            if each <= whole:
                continue
            found = solve(GraphAxes(graph, whole | each))
            if found.comm_cost != best.comm_cost and found.comm_cost.is_at_most(best.comm_cost):
                best, whole = found, whole | each
    return best.jaxpr, [v.axes for v in best.outputs]


_MOST_TRIED = 4
"""For so many all_gathers it is tried one by one whether whole cotangents send less."""


@dataclass(frozen=True)
class _Typed:
    """A program with promotions.

    Attributes:
      promoted_inputs, comm_cost, smaller: see `Promoter`.
    """

    jaxpr: Jaxpr
    inputs: list[Value]
    outputs: list[Value]
    promoted_inputs: dict[int, Axes]
    comm_cost: CommCost
    smaller: dict[Atom, Axes]


_Known: TypeAlias = "dict[Hashable, tuple[_Typed, Jaxpr, Frame]]"
"""Typed programs by all that their types depend on, with what must live as long as its `id`."""


def _typed(
    axes: GraphAxes,
    frame: Frame,
    inputs: Sequence[Value],
    typed: _Known,
    control: Axes,
    jaxpr: Jaxpr,
    wanted: Sequence[Axes | None],
) -> _Typed:
    """Types a program, top-level or nested.

    A promoted value may be larger than what it is made of, as the product of a gathered array and a
    weight is. Then the smaller values are promoted for all their uses, if that sends less and
    leaves the types of results as they are.

    Args:
      typed, control, wanted: see `_Typing`.
    """
    best = _Typing(axes, frame, inputs, typed, control, {}).run(jaxpr, wanted)
    choices = [best.smaller] if best.smaller else []
    if len(best.smaller) > 1:
        choices += [{v: missing} for v, missing in best.smaller.items()]
    for early in choices:
        found = _Typing(axes, frame, inputs, typed, control, early).run(jaxpr, wanted)
        is_less = found.comm_cost.bytes < best.comm_cost.bytes
        if is_less and found.comm_cost.is_at_most(best.comm_cost) and found.outputs == best.outputs:
            return found
    return best


class _Typing(Promoter):
    """Types one program with given early promotions.

    Args:
      typed: the nested ones of the Graph that have been typed.
    """

    def __init__(
        self,
        axes: GraphAxes,
        frame: Frame,
        inputs: Sequence[Value],
        typed: _Known,
        control: Axes,
        early: Mapping[Atom, Axes],
    ):
        super().__init__(axes, frame, inputs, control, early)
        self._typed = typed
        self._gathered: dict[Atom, frozenset[Atom]] = {}

    def run(self, jaxpr: Jaxpr, wanted: Sequence[Axes | None]) -> _Typed:
        """Types the program.

        Args:
          wanted: the least type of each output that carries a tangent; None if any will do.
        """
        inner = open_jaxpr(jaxpr)
        self.source_inputs.update({v: frozenset({k}) for k, v in enumerate(inner.invars)})
        self.values.update(zip(inner.invars, self.inputs, strict=True))
        for position, eqn in enumerate(inner.eqns):
            if any(v in self.early for v in eqn.invars if not isinstance(v, jex_core.Literal)):
                eqn = eqn.replace(invars=[self.promoted_early(v) for v in eqn.invars])
            operands = [self.value(v) for v in eqn.invars]
            if not any(v.has_tangent for v in operands):
                self.eqns.append(eqn)
                continue
            rows = zip(eqn.invars, operands, strict=True)
            sources = [self.source_inputs[v] for v, value in rows if value.has_tangent]
            self.source_inputs.update(dict.fromkeys(eqn.outvars, frozenset[int]().union(*sources)))
            if self._gathered:
                self.follow_gathered(position, eqn)
            self.equation(position, eqn, operands)
        last = inner.eqns[-1] if inner.eqns else None
        outvars = [
            v if want is None else self.promoted(v, want, last)
            for v, want in zip(inner.outvars, wanted, strict=True)
        ]
        outputs = [self.value(v) for v in outvars]
        program = replace_jaxpr(jaxpr, eqns=self.eqns, outvars=outvars)
        return _Typed(
            program, self.inputs, outputs, self.promoted_inputs, self.comm_cost, self.smaller
        )

    def nested(
        self,
        jaxpr: Jaxpr,
        frame: Frame,
        inputs: Sequence[Value],
        wanted: Sequence[Axes | None],
        control: Axes | None = None,
    ) -> _Typed:
        """Types a program that an equation holds. `control` is by default that of this program."""
        control = self.control if control is None else control
        # Several equations may hold it, and each asks more than once.
        key = id(jaxpr), id(frame), tuple(inputs), tuple(wanted), control
        if key not in self._typed:
            found = _typed(self.axes, frame, inputs, self._typed, control, jaxpr, wanted)
            self._typed[key] = found, jaxpr, frame
        return self._typed[key][0]

    def equation(self, position: int, eqn: Eqn, operands: list[Value]) -> None:
        name = eqn.primitive.name
        if eqn.primitive is coll.psum_p and eqn.params["groups"] is None:
            self.psum(eqn)
        elif eqn.primitive in coll.COLLECTIVES:
            self.collective(eqn, operands)
        elif name == "scan":
            self.scan(position, eqn, operands)
        elif name == "cond":
            self.cond(position, eqn, operands)
        elif (parameter := called_program(eqn)) is not None:
            self.call(position, eqn, operands, parameter)
        elif eqn.primitive is to_reduced_p:
            self.join_types(eqn, operands[0].axes | self.axes.over(eqn))
        elif name == CUSTOM_LIN:
            put_rule(self, eqn, operands)
        elif name == LINEAR_CALL:
            self.linear_call(position, eqn, operands)
        elif name == "shard_map":
            self.join_types(eqn, frozenset(self.axes.graph.all_manual_axes))
        elif position in self.frame.nested:
            _, frames = self.frame.nested[position]
            inside = [self.axes.names(f.anything) for f in frames]
            inside += [self.axes.over(e) for p in jaxprs_in(eqn.params) for e in equations(p)]
            self.join_types(eqn, NONE.union(*inside, *(v.axes for v in operands)))
        else:
            self.join_types(eqn, NONE.union(*(v.axes for v in operands)))
            linear = {v for v, of in zip(eqn.invars, operands, strict=True) if of.has_tangent}
            if len(linear) == 1:
                self.made_of.update(dict.fromkeys(eqn.outvars, *linear))

    def psum(self, eqn: Eqn) -> None:
        (x,), (out,) = eqn.invars, eqn.outvars
        over = frozenset(eqn.params["axes"])
        axes = self.value(x).axes
        ended, copies = axes & over, self.axes.product(over - axes)
        if ended:
            summed = out if copies == 1 else jex_core.Var(out.aval)
            self.put(
                eqn.replace(
                    primitive=psum_invariant_p,
                    params={"axes": self.axes.ordered(ended)},
                    invars=[x],
                    outvars=[summed],
                )
            )
            self.define([summed], [Value(True, axes - over)])
            x = summed
        if x is not out:
            self.put(scaled(x, copies, out, eqn))
            self.define([out], [Value(True, axes - over)])

    def collective(self, eqn: Eqn, operands: list[Value]) -> None:
        """Along the axes of the collective, the cotangent of its result is each device's own.

        Except that of a gathered array, if it is whole.
        """
        axes, over = NONE.union(*(v.axes for v in operands)), self.axes.over(eqn)
        if _may_be_whole(eqn):
            (x,), (out,) = eqn.invars, eqn.outvars
            if out in self.axes.whole:
                params = {k: eqn.params[k] for k in ("axes", "dimension", "size")}
                x = self.promoted(x, axes | over, eqn)
                self.put(eqn.replace(primitive=all_gather_invariant_p, params=params, invars=[x]))
                self.define([out], [Value(True, axes - over)])
                return
            self.axes.gathered[out] = over
            self._gathered[out] = frozenset([out])
            self.comm_cost += self.axes.scatter_cost(out, over)
        self.join_types(eqn, axes | over)

    def follow_gathered(self, position: int, eqn: Eqn) -> None:
        """Rules gathered arrays out that are combined with varying values before they get smaller.

        If their cotangents were whole, a psum there would send no less.
        """
        varying = [self.axes.names(self.frame.mask(v)) for v in eqn.invars]
        together = NONE if position in self.frame.nested else NONE.union(*varying)
        made_of: set[Atom] = set()
        for atom in eqn.invars:
            for array in () if isinstance(atom, jex_core.Literal) else self._gathered.get(atom, ()):
                over = self.axes.gathered.get(array, NONE)
                if not over & together:
                    made_of.add(array)
                elif (
                    self.axes.comm_cost(atom, over).bytes
                    >= self.axes.scatter_cost(array, over).bytes
                ):
                    self.axes.gathered.pop(array, None)
        if made_of:
            self._gathered.update(dict.fromkeys(eqn.outvars, frozenset(made_of)))

    def call(self, position: int, eqn: Eqn, operands: list[Value], parameter: str) -> None:
        _, (frame,) = self.frame.nested[position]

        def solve(inputs: list[Value]) -> _Typed:
            return self.nested(eqn.params[parameter], frame, inputs, [None] * len(eqn.outvars))

        if eqn.primitive.name in JITS:
            # Promote a value once for all its uses, rather than once in each call.
            typed = self.hoisted(eqn, operands, range(len(operands)), solve)
            eqn = eqn.replace(invars=self.all_promoted(eqn, [v.axes for v in typed.inputs]))
        else:
            typed = solve(operands)
        self.comm_cost += typed.comm_cost
        self.put(eqn.replace(params={**eqn.params, parameter: typed.jaxpr}))
        self.define(eqn.outvars, typed.outputs)

    def linear_call(self, position: int, eqn: Eqn, operands: list[Value]) -> None:
        _, (frame,) = self.frame.nested[position]
        typed = self.nested(eqn.params["callee"], frame, operands, [None] * len(eqn.outvars))
        put_linear_call(self, eqn, operands, [v.axes for v in typed.outputs])

    def cond(self, position: int, eqn: Eqn, operands: list[Value]) -> None:
        _, frames = self.frame.nested[position]
        branches = eqn.params["branches"]
        invars = self.all_promoted(eqn, [v.axes | operands[0].axes for v in operands])
        inputs = [self.value(v) for v in invars[1:]]
        control = self.control | operands[0].axes

        def solve(wanted: Sequence[Axes | None]) -> list[_Typed]:
            return [
                self.nested(b, f, inputs, wanted, control)
                for b, f in zip(branches, frames, strict=True)
            ]

        outputs = _joined([t.outputs for t in solve([None] * len(eqn.outvars))])
        outputs = [Value(v.has_tangent, v.axes | operands[0].axes) for v in outputs]
        typed = solve([v.axes for v in outputs])
        self.comm_cost = sum((t.comm_cost for t in typed), self.comm_cost)
        params = {**eqn.params, "branches": tuple(t.jaxpr for t in typed)}
        self.put(eqn.replace(invars=invars, params=params))
        self.define(eqn.outvars, outputs)

    def scan(self, position: int, eqn: Eqn, operands: list[Value]) -> None:
        _, (frame,) = self.frame.nested[position]
        body = eqn.params["jaxpr"]
        consts, carries = scan_counts(eqn.params)
        loop = slice(consts, consts + carries)
        free: list[Axes | None] = [None] * (len(eqn.outvars) - carries)

        def solve(inputs: list[Value]) -> _Typed:
            while True:
                wanted = [v.axes for v in inputs[loop]] + free
                typed = self.nested(body, frame, inputs, wanted)
                grown = list(inputs)
                grown[loop] = _joined([inputs[loop], typed.outputs[:carries]])
                if grown == inputs:
                    return typed
                inputs = grown

        length = eqn.params["length"]
        typed = self.hoisted(eqn, operands, range(consts), solve, length)
        self.comm_cost += typed.comm_cost * length
        invars = self.all_promoted(eqn, [v.axes for v in typed.inputs])
        self.put(eqn.replace(invars=invars, params={**eqn.params, "jaxpr": typed.jaxpr}))
        # A loop without steps returns its initial carry, even if a step would give no tangent.
        self.define(eqn.outvars, [*typed.inputs[loop], *typed.outputs[carries:]])

    def hoisted(
        self,
        eqn: Eqn,
        operands: list[Value],
        hoistable: range,
        solve: Callable[[list[Value]], _Typed],
        steps: int = 1,
    ) -> _Typed:
        """Types the program of an equation, with promotions moved to its operands if that is cheap.

        Either all operands that are promoted inside are promoted before the equation, or one of
        them, or none: the first of these choices that sends no more than promoting inside does, and
        that leaves the types of results as they are.

        Args:
          hoistable: the positions of the operands that may be promoted before.
          solve: types the program for given inputs.
          steps: how often the equation runs the program.
        """
        plain = solve(operands)
        missing = {
            k: axes - operands[k].axes
            for k, axes in plain.promoted_inputs.items()
            if k in hoistable and axes - operands[k].axes
        }
        choices = [missing] if missing else []
        if len(missing) > 1:
            choices += [{k: axes} for k, axes in missing.items()]
        for chosen in choices:
            before = [self.axes.comm_cost(eqn.invars[k], axes) for k, axes in chosen.items()]
            typed = solve(
                [Value(v.has_tangent, v.axes | chosen.get(k, NONE)) for k, v in enumerate(operands)]
            )
            cost = sum(before, typed.comm_cost * steps)
            if typed.outputs == plain.outputs and cost.is_at_most(plain.comm_cost * steps):
                return typed
        return plain


def _may_be_whole(eqn: Eqn) -> bool:
    """Whether an equation gathers, on every device, all of an array that is not split otherwise."""
    if eqn.primitive is not coll.all_gather_p or eqn.params["groups"] is not None:
        return False
    (out,) = eqn.outvars
    return out.aval.size > 0 and not any(type_split(out.aval))


def _joined(rows: Sequence[Sequence[Value]]) -> list[Value]:
    return [
        Value(any(v.has_tangent for v in column), NONE.union(*(v.axes for v in column)))
        for column in zip(*rows, strict=True)
    ]
