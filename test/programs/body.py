"""Programs as data: a `Body` is a list of `Op`s; what each one means is a `Rule` in a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Axes = frozenset[str]
Draw = Callable[..., tuple[Sequence[int], dict[str, Any]]]


@dataclass(frozen=True)
class Op:
    """A rule by its name, applied to earlier values of the body."""

    name: str
    operands: tuple[int, ...] = ()
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def bodies(self) -> tuple[Body, ...]:
        """The bodies that a control-flow operation runs."""
        branches = self.params.get("branches", ())
        return (self.params["body"],) if "body" in self.params else branches


@dataclass(frozen=True)
class Body:
    """Operations in order. Values are numbered: the inputs, then the result of each operation."""

    inputs: int
    ops: tuple[Op, ...]
    results: tuple[int, ...]

    def walk(self) -> Iterator[Op]:
        """Every operation, those of inner bodies included."""
        for op in self.ops:
            yield op
            for body in op.bodies:
                yield from body.walk()


@dataclass(frozen=True)
class Rule:
    """What an operation means under three interpretations, and how to draw one that is well-typed.

    jax      (*values, **params): per-device values inside `shard_map`
    oracle   (mesh, *values, **params): lists of NumPy blocks, all devices in lock step
    varying  (mesh, *values, **params): the mesh axes along which each value may differ
    draw     (scope): operands and parameters from a `Scope`; raises `Stuck` where nothing fits

    The first three give one value, or a tuple of `results` values. Rules that run a body (those of
    `control.py`) get a function `run(body, *values)` as their very first argument.
    """

    jax: Callable[..., Any]
    oracle: Callable[..., Any]
    varying: Callable[..., Any]
    draw: Draw
    results: int = 1


class Stuck(Exception):
    """Nothing in scope fits the operation that was to be drawn."""


def interpret(body: Body, values: Sequence[Any], apply: Callable[..., Any]) -> tuple[Any, ...]:
    """The results of the body on `values`; `apply(op, *operands)` is what an operation does."""
    assert len(values) == body.inputs
    values = list(values)
    for op in body.ops:
        results = apply(op, *(values[number] for number in op.operands))
        values.extend(results if isinstance(results, tuple) else (results,))
    return tuple(values[number] for number in body.results)


def union(mesh, *sets: Axes, **params: Any) -> Axes:
    """The `varying` rule of everything that a device does alone."""
    return frozenset().union(*sets)
