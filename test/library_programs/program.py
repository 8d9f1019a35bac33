"""Programs as data: a `Body` is a list of `Step`s; what a step means is an `Operation` in a table.

Every value of a body is a float64 scalar "s", vector "v" of `SIZE` or matrix "m" of `SIZE` squared,
so that any operation can follow any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from jax.sharding import PartitionSpec

SIZE = 4
SHAPES = {"s": (), "v": (SIZE,), "m": (SIZE, SIZE)}
Axes = frozenset[str]


@dataclass(frozen=True)
class Step:
    """An operation by its name, applied to earlier values of the body."""

    name: str
    operands: tuple[int, ...]
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def bodies(self) -> tuple[Body, ...]:
        return tuple(v for v in self.params.values() if isinstance(v, Body))


@dataclass(frozen=True)
class Body:
    """Steps in order. Values are numbered: the inputs, then the one result of each step."""

    inputs: str  # one kind per input: "svm"
    steps: tuple[Step, ...]
    results: tuple[int, ...]

    def walk(self) -> Iterator[Step]:
        for step in self.steps:
            yield step
            for body in step.bodies:
                yield from body.walk()

    def pruned(self) -> Body:
        """The same without steps on which no result depends."""
        needed, kept = set(self.results), []
        for number in range(len(self.inputs) + len(self.steps) - 1, len(self.inputs) - 1, -1):
            step = self.steps[number - len(self.inputs)]
            if number in needed:
                needed |= set(step.operands)
                kept.append((number, step))
        new = {n: n for n in range(len(self.inputs))}
        steps = []
        for number, step in reversed(kept):
            new[number] = len(self.inputs) + len(steps)
            steps.append(replace(step, operands=tuple(new[n] for n in step.operands)))
        return Body(self.inputs, tuple(steps), tuple(new[n] for n in self.results))


@dataclass(frozen=True)
class Operation:
    """What a step means.

    Attributes:
      operands: the kind of each operand.
      result: the kind of the result.
      run: (how, *values, **params) -> value, on one device; `how` runs bodies and regions.
      varying: (mesh, *sets, **params) -> the axes along which the result may differ.
      draw: (scope) -> params.
    """

    operands: str
    result: str
    run: Callable[..., Any]
    varying: Callable[..., Axes]
    draw: Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Argument:
    kind: str
    spec: PartitionSpec

    def array(self, axes: Mapping[str, int], seed: int) -> np.ndarray:
        parts = [prod(axes[a] for a in names_of(entry)) for entry in self.spec]
        parts += [1] * (len(SHAPES[self.kind]) - len(parts))
        shape = [n * p for n, p in zip(SHAPES[self.kind], parts, strict=True)]
        return np.random.default_rng(seed).uniform(-1, 1, shape)


def names_of(entry: Any) -> tuple[str, ...]:
    """The mesh axes in an entry of a spec."""
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


@dataclass(frozen=True)
class Program:
    """A per-device function with all that `shard_map` asks for. The repr makes it again.

    Attributes:
      axes: of the mesh, in order; those in `manual` are the program's, the others are left to
        nested regions.
      transformation: a key of `transformations.TRANSFORMATIONS`.
    """

    axes: dict[str, int]
    manual: tuple[str, ...]
    arguments: tuple[Argument, ...]
    body: Body
    out_specs: tuple[PartitionSpec, ...]
    transformation: str

    def arrays(self) -> list[np.ndarray]:
        return [a.array(self.axes, seed) for seed, a in enumerate(self.arguments)]

    def only(self, number: int) -> Program:
        """The program with one of its results, and no step that this does not need."""
        body = replace(self.body, results=(self.body.results[number],)).pruned()
        return replace(self, body=body, out_specs=(self.out_specs[number],))

    @property
    def in_specs(self) -> tuple[PartitionSpec, ...]:
        return tuple(a.spec for a in self.arguments)


def union(mesh: Mapping[str, int], *sets: Axes, **params: Any) -> Axes:
    """The `varying` rule of what a device does alone."""
    return frozenset().union(*sets)


def no_params(scope: Any) -> dict[str, Any]:
    return {}


def run_body(operations: Mapping[str, Operation], how: Any, body: Body, values: Sequence[Any]):
    """The results of a body on one device."""
    values = list(values)
    for step in body.steps:
        operands = [values[n] for n in step.operands]
        values.append(operations[step.name].run(how, *operands, **step.params))
    return tuple(values[n] for n in body.results)
