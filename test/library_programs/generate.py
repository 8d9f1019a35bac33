"""Draws programs. The same number always gives the same program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax.sharding import PartitionSpec as P

from library_programs import control_steps
from library_programs.collective_steps import COLLECTIVE
from library_programs.local_steps import LOCAL
from library_programs.program import SHAPES, Argument, Axes, Body, Operation, Program, Step
from library_programs.reference import mentioned
from library_programs.transformations import TRANSFORMATIONS

MESHES = [{"i": 2}, {"i": 4}, {"i": 2, "j": 2}, {"j": 2, "i": 4}, {"i": 2, "j": 2, "k": 2}]


def varying_results(mesh: Mapping[str, int], body: Body, sets: Sequence[Axes]) -> list[Axes]:
    """The axes along which each result of a body may differ."""
    values = list(sets)
    for step in body.steps:
        operands = [values[n] for n in step.operands]
        values.append(OPERATIONS[step.name].varying(mesh, *operands, **step.params))
    return [values[n] for n in body.results]


CONTROL = control_steps.make(varying_results)
OPERATIONS: dict[str, Operation] = {**LOCAL, **COLLECTIVE, **CONTROL}

# A custom_vjp function has no forward derivative.
LEFT_OUT = {"jvp": ("halved_sine", "scaled"), "linearized": ("halved_sine", "scaled")}

# `jax.checkpoint` of JAX 0.10 cannot save complex numbers.
COMPLEX = ("spectrum", "roots_of_unity")


class Scope:
    """The values that the next step can use."""

    complex_steps = COMPLEX

    def __init__(
        self,
        rng,
        mesh,
        nested,
        kinds: str,
        sets: Sequence[Axes],
        depth: int,
        local: bool,
        left_out: Sequence[str] = (),
    ):
        self.rng, self.mesh, self.nested = rng, dict(mesh), dict(nested)
        self.inputs, self.kinds, self.sets = kinds, list(kinds), list(sets)
        self.depth, self.local = depth, local
        self.left_out = left_out
        self.steps: list[Step] = []
        self.chosen: tuple[int, ...] = ()

    def choose(self, options):
        options = list(options)
        return options[int(self.rng.integers(len(options)))]

    def shuffled(self, items):
        items = list(items)
        return [items[k] for k in self.rng.permutation(len(items))]

    def axis(self) -> str:
        return self.choose(self.mesh)

    def axes(self):
        names = self.shuffled(self.mesh)[: self.choose(range(1, len(self.mesh) + 1))]
        return names[0] if len(names) == 1 else tuple(names)

    def nested_axis(self) -> str:
        return self.choose(self.nested)

    def last_varying(self, operand: int) -> Axes:
        """The axes along which an operand of the step being drawn may differ."""
        return self.sets[self.chosen[operand]]

    def within(self, mesh, nested, kinds: str, sets: Sequence[Axes], local: bool) -> Scope:
        return Scope(self.rng, mesh, nested, kinds, sets, self.depth + 1, local, self.left_out)

    def body(self, kinds: str, results: str, local: bool, left_out=()) -> Body:
        sets = [frozenset(self.mesh)] * len(kinds)  # loops may make any input vary
        inner = self.within(self.mesh, self.nested, kinds, sets, local or self.local)
        inner.left_out = (*self.left_out, *left_out)
        return inner.draw(self.choose([1, 2, 3]), results)

    def nested_body(self, kinds: str, results: str, axis: str, sets: Sequence[Axes]) -> Body:
        """A body of a region over `axis`, which sends along this axis only."""
        inner = self.within({axis: self.nested[axis]}, {}, kinds, sets, self.local)
        return inner.draw(self.choose([1, 2, 3]), results)

    def draw(self, count: int, results: str) -> Body:
        while len(self.steps) < count:
            self.draw_step()
        while any(kind not in self.kinds for kind in results):
            self.draw_step()
        outputs = []
        for kind in results:  # late values are more interesting
            fitting = [n for n, k in enumerate(self.kinds) if k == kind and n not in outputs]
            fitting = fitting or [n for n, k in enumerate(self.kinds) if k == kind]
            outputs.append(fitting[-1] if self.choose([0, 1, 2]) else self.choose(fitting))
        return Body(self.inputs, tuple(self.steps), tuple(outputs)).pruned()

    def draw_step(self) -> None:
        tables = [LOCAL, LOCAL]
        if not self.local:
            tables += [COLLECTIVE, COLLECTIVE]
        if self.depth < 2:
            tables.append(CONTROL)
        name = self.choose(self.choose(tables))
        if name in self.left_out:
            return
        operation = OPERATIONS[name]
        if name == "region" and (not self.nested or self.local):
            return
        operands = []
        for kind in operation.operands:
            fitting = [n for n, k in enumerate(self.kinds) if k == kind]
            if not fitting:
                return
            operands.append(fitting[-1] if self.choose([0, 1]) else self.choose(fitting))
        self.chosen = tuple(operands)
        params = operation.draw(self)
        self.steps.append(Step(name, tuple(operands), params))
        self.kinds.append(operation.result)
        sets = [self.sets[n] for n in operands]
        self.sets.append(operation.varying(self.mesh, *sets, **params))


def draw_spec(scope: Scope, kind: str, axes: Sequence[str], all_of_them: bool = False) -> P:
    """A spec of these axes, some of them or all, on any dimensions."""
    rank = len(SHAPES[kind])
    if not rank:
        return P()
    entries: list[list[str]] = [[] for _ in range(rank)]
    for axis in scope.shuffled(axes):
        if all_of_them or scope.choose([True, True, False]):
            entries[scope.choose(range(rank))].append(axis)
    return P(*[tuple(e) if len(e) > 1 else e[0] if e else None for e in entries])


def draw_program(number: int, seed: int = 0, transformation: str | None = None) -> Program:
    rng = np.random.default_rng((seed, number))
    pick = Scope(rng, {}, {}, "", (), 0, False)
    axes = pick.choose(MESHES)
    names = pick.shuffled(axes)
    inner = names[:1] if len(axes) > 1 and pick.choose([0, 0, 1]) else []
    manual = tuple(a for a in axes if a not in inner)
    mesh = {a: axes[a] for a in manual}
    arguments = tuple(
        Argument(kind, draw_spec(pick, kind, manual))
        for kind in ("v", "m", pick.choose("vm"), "s")[: pick.choose([3, 4])]
    )
    kinds = "".join(a.kind for a in arguments)
    sets = [frozenset(mentioned(a.spec)) for a in arguments]
    chosen = transformation or pick.choose(sorted(TRANSFORMATIONS))
    nested = {a: axes[a] for a in inner}
    scope = Scope(rng, mesh, nested, kinds, sets, 0, False, LEFT_OUT.get(chosen, ()))
    body = scope.draw(pick.choose([2, 3, 5, 8]), "".join(pick.choose("vm") for _ in range(2)))
    varying = varying_results(mesh, body, sets)
    result_kinds = result_kinds_of(body)
    out_specs = tuple(
        draw_out_spec(pick, kind, axes_of, manual)
        for kind, axes_of in zip(result_kinds, varying, strict=True)
    )
    return Program(axes, manual, arguments, body, out_specs, chosen)


def draw_out_spec(scope: Scope, kind: str, varying: Axes, manual: Sequence[str]) -> P:
    """A spec of the axes along which a result varies, and sometimes of another one."""
    more = [a for a in manual if a in varying or not scope.choose([0, 1, 2])]
    return draw_spec(scope, kind, more, all_of_them=True)


def result_kinds_of(body: Body) -> list[str]:
    kinds: list[Any] = list(body.inputs) + [OPERATIONS[s.name].result for s in body.steps]
    return [kinds[n] for n in body.results]
