"""Prepares a linear program for transposition, so that its transpose sends as little as possible.

Every value that carries a tangent gets a type: the mesh axes along which its cotangent is a share
of each device's own. Inputs have the axes of their specs, those that are unreduced or reduced
included. Where a value meets one of a larger type, and where the user casts it to reduced, `pvary`
raises it; its transpose is the one psum that collects the shares. Loop constants are raised before
the loop, so that the psum comes once, after the backward loop, if that sends no more and changes
the type of no result. A psum ends its axes; over an axis along which its operand is invariant it is
a multiplication.

Branches raise their operands before the branch: a psum inside one might be reached by some devices
only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core

from shmap_compiler import collectives as coll
from shmap_compiler.base import specs
from shmap_compiler.base.errors import BodyError, Problem
from shmap_compiler.base.jax_compat import (
    Atom,
    Eqn,
    Jaxpr,
    jaxprs_in,
    open_jaxpr,
    replace_jaxpr,
    scan_counts,
)
from shmap_compiler.base.source_lines import shown_source
from shmap_compiler.collectives.to_reduced import to_reduced_p
from shmap_compiler.collectives.varying import psum_invariant_p, pvary_p
from shmap_compiler.graph.graph import Graph
from shmap_compiler.jaxprs.contents import equations
from shmap_compiler.jaxprs.held_programs import CUSTOM_LIN, JITS, called_program
from shmap_compiler.replication.collective_rules import jax_axes
from shmap_compiler.replication.inference import Frame
from shmap_compiler.transforms.backward_rules import BackwardRule
from shmap_compiler.transforms.whole_cotangents import refuse_sums_of_whole

Axes = frozenset[str]
NONE: Axes = frozenset()


@dataclass(frozen=True)
class Value:
    """Whether a value carries a tangent, and the type of its cotangent.

    For a value without a tangent, `axes` are those along which it varies.
    """

    has_tangent: bool
    axes: Axes


NO_TANGENT = Value(False, NONE)


def with_cotangent_types(graph: Graph, linear: Sequence[bool]) -> tuple[Any, list[Axes]]:
    """(the program of a graph with marks, the type of each output's cotangent).

    Args:
      linear: which inputs carry tangents.
    """
    typer = _Typer(graph)
    frame = graph.replication.frame
    inputs = [
        Value(is_linear, typer.names(frame.mask(v)) | (typer.reduced(spec) if is_linear else NONE))
        for v, is_linear, spec in zip(frame.jaxpr.invars, linear, graph.in_specs, strict=True)
    ]
    # An enclosing shard_map takes what devices owe along its axes to be their own.
    outside = frozenset(graph.outer_manual_axes)
    wanted = [typer.own(spec) | outside for spec in graph.out_specs]
    with jax.sharding.use_abstract_mesh(graph.body_mesh):
        program = typer.program(graph.jaxpr, frame, inputs, wanted)
    return program.jaxpr, [v.axes for v in program.outputs]


@dataclass(frozen=True)
class _CommCost:
    """What the transposes of marks send: how many psums, and their bytes."""

    psums: int = 0
    bytes: float = 0

    def __add__(self, other: _CommCost) -> _CommCost:
        return _CommCost(self.psums + other.psums, self.bytes + other.bytes)

    def __mul__(self, steps: int) -> _CommCost:
        return _CommCost(self.psums * steps, self.bytes * steps)

    def is_at_most(self, other: _CommCost) -> bool:
        return self.psums <= other.psums and self.bytes <= other.bytes


@dataclass(frozen=True)
class _Typed:
    """A marked program.

    Attributes:
      promoted: for each input, by its position, the axes that promotions add to its type, or to
        that of a value computed from it.
      comm_cost: what the transposes of the marks send in one run of the program.
    """

    jaxpr: Jaxpr
    inputs: list[Value]
    outputs: list[Value]
    promoted: dict[int, Axes]
    comm_cost: _CommCost


class _Typer:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.order = graph.mesh.axis_names
        self.sizes = dict(graph.mesh.shape)

    def names(self, mask: int) -> Axes:
        return frozenset(self.graph.replication.axes.names(mask))

    def own(self, spec: Any) -> Axes:
        return self.names(self.graph.replication.axes.mask(specs.own_cotangent_axes(spec)))

    def reduced(self, spec: Any) -> Axes:
        return self.names(self.graph.replication.axes.mask(spec.reduced))

    def over(self, eqn: Eqn) -> Axes:
        """The axes over which an equation communicates."""
        return self.names(self.graph.replication.axes.mask(jax_axes(eqn)))

    def ordered(self, axes: Axes) -> tuple[str, ...]:
        return tuple(a for a in self.order if a in axes)

    def comm_cost(self, atom: Atom, axes: Axes) -> _CommCost:
        """By the psum of a value over `axes`, as a share of twice its size."""
        devices = math.prod(self.sizes[a] for a in axes)
        return _CommCost(1, atom.aval.size * atom.aval.dtype.itemsize * (1 - 1 / devices))

    def program(
        self,
        jaxpr: Jaxpr,
        frame: Frame,
        inputs: Sequence[Value],
        wanted: Sequence[Axes | None],
        control: Axes = NONE,
    ) -> _Typed:
        """Marks a program.

        Args:
          wanted: the least type of each output that carries a tangent.
          control: the axes along which devices differ in whether they run it.
        """
        return _Program(self, frame, inputs, control).run(jaxpr, wanted)


class _Program:
    """One (held) program while it is being marked."""

    def __init__(self, typer: _Typer, frame: Frame, inputs: Sequence[Value], control: Axes):
        self.typer = typer
        self.frame = frame
        self.inputs = list(inputs)
        self.control = control
        self.values: dict[Any, Value] = {}
        self.promoted_vars: dict[tuple[Any, Axes], Any] = {}
        self.promoted_inputs: dict[int, Axes] = {}
        self.source_inputs: dict[Any, frozenset[int]] = {}  # that a value is computed from
        self.comm_cost = _CommCost()
        self.eqns: list[Any] = []

    def run(self, jaxpr: Jaxpr, wanted: Sequence[Axes | None]) -> _Typed:
        inner = open_jaxpr(jaxpr)
        self.source_inputs.update({v: frozenset({k}) for k, v in enumerate(inner.invars)})
        self.values.update(zip(inner.invars, self.inputs, strict=True))
        for position, eqn in enumerate(inner.eqns):
            operands = [self.value(v) for v in eqn.invars]
            if not any(v.has_tangent for v in operands):
                self.eqns.append(eqn)
                continue
            rows = zip(eqn.invars, operands, strict=True)
            sources = [self.source_inputs[v] for v, value in rows if value.has_tangent]
            self.source_inputs.update(dict.fromkeys(eqn.outvars, frozenset[int]().union(*sources)))
            self.equation(position, eqn, operands)
        outvars = [
            v if want is None else self.promoted(v, want, inner.eqns)
            for v, want in zip(inner.outvars, wanted, strict=True)
        ]
        outputs = [self.value(v) for v in outvars]
        fields = {"eqns": self.eqns, "outvars": outvars}
        program = replace_jaxpr(jaxpr, **fields)
        return _Typed(program, self.inputs, outputs, self.promoted_inputs, self.comm_cost)

    def value(self, atom: Atom) -> Value:
        if isinstance(atom, jex_core.Literal):
            return NO_TANGENT
        if atom in self.values:
            return self.values[atom]
        return Value(False, self.typer.names(self.frame.mask(atom)))

    # ------------------------------------------------------------------------------ equations

    def equation(self, position: int, eqn: Eqn, operands: list[Value]) -> None:
        name = eqn.primitive.name
        if eqn.primitive is coll.psum_p and eqn.params["groups"] is None:
            self.psum(eqn)
        elif eqn.primitive in coll.COLLECTIVES:
            self.collective(position, eqn, operands)
        elif name == "scan":
            self.scan(position, eqn, operands)
        elif name == "cond":
            self.cond(position, eqn, operands)
        elif (parameter := called_program(eqn)) is not None:
            self.call(position, eqn, operands, parameter)
        elif eqn.primitive is to_reduced_p:
            self.join_types(eqn, operands[0].axes | self.typer.over(eqn))
        elif name == CUSTOM_LIN:
            self.custom_rule(eqn, operands)
        elif name == "shard_map":
            self.join_types(eqn, frozenset(self.typer.graph.all_manual_axes))
        elif position in self.frame.nested:
            _, frames = self.frame.nested[position]
            inside = [self.typer.names(f.anything) for f in frames]
            inside += [self.typer.over(e) for p in jaxprs_in(eqn.params) for e in equations(p)]
            self.join_types(eqn, NONE.union(*inside, *(v.axes for v in operands)))
        else:
            self.join_types(eqn, NONE.union(*(v.axes for v in operands)))

    def join_types(self, eqn: Eqn, axes: Axes) -> None:
        """An equation whose operands and results are all of one type."""
        self.put(eqn.replace(invars=[self.promoted(v, axes, [eqn]) for v in eqn.invars]))
        self.define(eqn.outvars, [Value(True, axes)] * len(eqn.outvars))

    def custom_rule(self, eqn: Eqn, operands: list[Value]) -> None:
        """The user's rule takes and returns cotangents as the types of the function say.

        Where it returns shares of what should be whole, they are summed. But where not all devices
        call it, what each of them takes and returns is its own.
        """
        rule = BackwardRule(self.typer.graph, eqn)
        count = eqn.params["num_res"]
        residuals = [v.axes for v in operands[:count]]
        if rule.operands is None or rule.results is None:
            self.rule_of_shares(eqn, operands, rule, residuals)
            return
        if rule.sums_shares:
            if summed := rule.sums_whole() & NONE.union(*rule.results):
                where = shown_source(eqn.source_info)
                raise BodyError(f"`{self.typer.graph.name}`", [_sums_in_two_ways(where, summed)])
            self.rule_of_shares(eqn, operands, rule, residuals)
            return
        results = [axes | self.control for axes in rule.results]
        refuse_sums_of_whole(rule, results)
        returned = rule.returned(residuals, results)
        differentiated = [
            self.of_type(v, own | found | self.control, eqn)
            for v, own, found in zip(eqn.invars[count:], rule.operands, returned, strict=True)
        ]
        self.put(eqn.replace(invars=[*eqn.invars[:count], *differentiated]))
        self.define(eqn.outvars, [Value(True, axes) for axes in results])

    def rule_of_shares(
        self, eqn: Eqn, operands: list[Value], rule: BackwardRule, residuals: list[Axes]
    ) -> None:
        """It returns shares along the axes of its operands, and along those it adds itself.

        It takes shares where results vary: devices that have different results have different
        cotangents of them, which must not be summed.
        """
        axes = NONE.union(*(v.axes for v in operands), *self.result_axes(rule))
        results = len(eqn.outvars)
        while not (found := NONE.union(*rule.returned(residuals, [axes] * results))) <= axes:
            axes |= found
        self.join_types(eqn, axes)

    def result_axes(self, rule: BackwardRule) -> list[Axes]:
        """The axes along which results may vary."""
        if rule.results is not None:
            return rule.results
        return [
            self.typer.over(eqn) for eqn in rule.equations() if eqn.primitive in coll.COLLECTIVES
        ]

    def psum(self, eqn: Eqn) -> None:
        (x,), (out,) = eqn.invars, eqn.outvars
        typer, over = self.typer, frozenset(eqn.params["axes"])
        axes = self.value(x).axes
        ended, copies = axes & over, math.prod(typer.sizes[a] for a in over - axes)
        if ended:
            summed = out if copies == 1 else jex_core.Var(out.aval)
            self.put(
                eqn.replace(
                    primitive=psum_invariant_p,
                    params={"axes": typer.ordered(ended)},
                    invars=[x],
                    outvars=[summed],
                )
            )
            self.define([summed], [Value(True, axes - over)])
            x = summed
        if x is not out:
            self.put(_times(x, copies, out, eqn))
            self.define([out], [Value(True, axes - over)])

    def collective(self, position: int, eqn: Eqn, operands: list[Value]) -> None:
        """Its result belongs to each device on its own, unless only invariant values use it."""
        axes = NONE.union(*(v.axes for v in operands))
        self.join_types(eqn, axes | self.typer.over(eqn))

    def call(self, position: int, eqn: Eqn, operands: list[Value], parameter: str) -> None:
        _, (frame,) = self.frame.nested[position]

        def solve(inputs: list[Value]) -> _Typed:
            wanted = [None] * len(eqn.outvars)
            return self.typer.program(eqn.params[parameter], frame, inputs, wanted, self.control)

        if eqn.primitive.name in JITS:
            # Raise once for all uses of a value, rather than once in each call.
            typed = self.hoisted(eqn, operands, range(len(operands)), solve)
            eqn = eqn.replace(invars=self.all_promoted(eqn, [v.axes for v in typed.inputs]))
        else:
            typed = solve(operands)
        self.comm_cost += typed.comm_cost
        self.put(eqn.replace(params={**eqn.params, parameter: typed.jaxpr}))
        self.define(eqn.outvars, typed.outputs)

    def cond(self, position: int, eqn: Eqn, operands: list[Value]) -> None:
        _, frames = self.frame.nested[position]
        branches = eqn.params["branches"]
        invars = self.all_promoted(eqn, [v.axes | operands[0].axes for v in operands])
        inputs = [self.value(v) for v in invars[1:]]

        control = self.control | operands[0].axes

        def typed(wanted):
            return [
                self.typer.program(b, f, inputs, wanted, control)
                for b, f in zip(branches, frames, strict=True)
            ]

        outputs = _joined([t.outputs for t in typed([None] * len(eqn.outvars))])
        outputs = [Value(v.has_tangent, v.axes | operands[0].axes) for v in outputs]
        marked = typed([v.axes for v in outputs])
        self.comm_cost = sum((t.comm_cost for t in marked), self.comm_cost)
        self.put(
            eqn.replace(
                invars=invars,
                params={**eqn.params, "branches": tuple(t.jaxpr for t in marked)},
            )
        )
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
                typed = self.typer.program(body, frame, inputs, wanted, self.control)
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
        # A loop without steps gives what it got, even if a step would give no tangent.
        self.define(eqn.outvars, [*typed.inputs[loop], *typed.outputs[carries:]])

    def hoisted(
        self,
        eqn: Eqn,
        operands: list[Value],
        hoistable: range,
        solve: Callable[[list[Value]], _Typed],
        steps: int = 1,
    ) -> _Typed:
        """The marked program of an equation, with marks moved to its operands where that is
        no dearer: to all that are raised inside, or else to one of them, or else to none."""
        plain = solve(operands)
        missing = {
            k: axes - operands[k].axes
            for k, axes in plain.promoted.items()
            if k in hoistable and axes - operands[k].axes
        }
        choices = [missing] if missing else []
        if len(missing) > 1:
            choices += [{k: axes} for k, axes in missing.items()]
        for chosen in choices:
            before = [self.typer.comm_cost(eqn.invars[k], axes) for k, axes in chosen.items()]
            typed = solve(
                [Value(v.has_tangent, v.axes | chosen.get(k, NONE)) for k, v in enumerate(operands)]
            )
            cost = sum(before, typed.comm_cost * steps)
            if typed.outputs == plain.outputs and cost.is_at_most(plain.comm_cost * steps):
                return typed
        return plain

    # ---------------------------------------------------------------------------------- marks

    def put(self, eqn: Eqn) -> None:
        self.eqns.append(eqn)

    def define(self, outvars: Sequence[Any], values: Sequence[Value]) -> None:
        self.values.update(zip(outvars, values, strict=True))

    def all_promoted(self, eqn: Eqn, wanted: Sequence[Axes]) -> list[Any]:
        return [self.promoted(v, w, [eqn]) for v, w in zip(eqn.invars, wanted, strict=True)]

    def promoted(self, atom: Atom, wanted: Axes, near: Sequence[Any]) -> Any:
        """The value with at least the type `wanted`, if it carries a tangent."""
        value = self.value(atom)
        missing = wanted - value.axes
        if not value.has_tangent or not missing:
            return atom
        for position in self.source_inputs[atom]:
            self.promoted_inputs[position] = self.promoted_inputs.get(position, NONE) | missing
        key = (atom, missing)
        if key not in self.promoted_vars:
            var = jex_core.Var(atom.aval)
            self.put(_mark(atom, self.typer.ordered(missing), var, near))
            self.promoted_vars[key] = var
            self.source_inputs[var] = self.source_inputs[atom]
            self.comm_cost += self.typer.comm_cost(atom, missing)
            self.define([var], [Value(True, value.axes | missing)])
        return self.promoted_vars[key]

    def of_type(self, atom: Atom, wanted: Axes, eqn: Eqn) -> Any:
        """The value with exactly the type `wanted`, if it carries a tangent."""
        value = self.value(atom)
        spare = value.axes - wanted
        if value.has_tangent and spare:
            # It is equal along them, and so is the mean; whose transpose cuts a whole into shares.
            summed, mean = jex_core.Var(atom.aval), jex_core.Var(atom.aval)
            axes = self.typer.ordered(spare)
            self.put(_sum_of_equals(atom, axes, summed, eqn))
            share = 1 / math.prod(self.typer.sizes[a] for a in axes)
            self.put(_times(summed, share, mean, eqn))
            self.source_inputs[summed] = self.source_inputs[mean] = self.source_inputs[atom]
            self.define([summed, mean], [Value(True, value.axes & wanted)] * 2)
            atom = mean
        return self.promoted(atom, wanted, [eqn])


def _joined(rows: Sequence[Sequence[Value]]) -> list[Value]:
    return [
        Value(any(v.has_tangent for v in column), NONE.union(*(v.axes for v in column)))
        for column in zip(*rows, strict=True)
    ]


def _mark(x: Any, axes: tuple[str, ...], out: Any, near: Sequence[Any]) -> Any:
    source = near[-1].source_info if near else None
    return jex_core.new_jaxpr_eqn([x], [out], pvary_p, {"axes": axes}, set(), source)


def _sums_in_two_ways(where: str, summed: Axes) -> Problem:
    axes = ", ".join(map(repr, sorted(summed)))
    return Problem(
        f"the backward rule of the custom_vjp function called at {where}",
        f"psum of a cotangent over {axes}, and a derivative by jax.vjp of a function with psum",
        "a rule in which either jax.vjp or the rule itself sums over devices",
        "remove the psum from the function that jax.vjp differentiates, or write its derivative "
        "by hand",
    )


def _sum_of_equals(x: Any, axes: tuple[str, ...], out: Any, near: Any) -> Any:
    params = {"axes": axes}
    return jex_core.new_jaxpr_eqn([x], [out], psum_invariant_p, params, set(), near.source_info)


def _times(x: Any, factor: float, out: Any, eqn: Eqn) -> Any:
    template = open_jaxpr(jax.make_jaxpr(lambda v: v * jnp.asarray(factor, v.dtype))(x.aval))
    _, literal = template.eqns[-1].invars
    return template.eqns[-1].replace(
        invars=[x, literal], outvars=[out], source_info=eqn.source_info, ctx=eqn.ctx
    )
