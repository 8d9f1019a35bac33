"""Draws programs that are well-typed, exact, and honest about which results vary.

A program is made from a seed and a size. Of two programs with one seed, the smaller is how the
larger begins: so hypothesis, which supplies both (`programs()`), can make a failing program small.
The generator runs the oracle as it goes: types are read off the blocks, and need no rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from random import Random
from typing import Any

import hypothesis.strategies as st
import oracle
from jax.sharding import PartitionSpec
from oracle import Mesh

from programs.body import Axes, Body, Op, Stuck
from programs.case import DERIVATIVES, Case
from programs.collective import COLLECTIVE
from programs.control import CONTROL
from programs.derivative import check_derivable
from programs.exact import Inexact
from programs.interpret import RULES, apply_oracle, apply_varying
from programs.local import LOCAL, SMOOTH
from programs.program import Argument, Program
from programs.transformation import Transformation
from programs.value import Value

Choose = Callable[[Sequence[Any]], Any]
Seed = int | str

MESH_SIZES = [
    *[(4,), (8,), (3,), (1,)],
    *[(4, 2), (2, 4), (2, 2), (2, 3), (1, 4)],
    *[(2, 2, 2), (4, 1, 2), (1, 2, 2)],
]
DIM_SIZES = [4, 2, 1, 8, 3]
DTYPES = ["float32", "int32", "bfloat16", "bool"]
DERIVABLE = ["float32", "float32", "int32", "bool"]
LARGEST_BLOCK = 512
LARGEST_RANK = 4
DEEPEST_BODY = 2


def programs(batch: str = "") -> st.SearchStrategy[Program]:
    """The hypothesis strategy; batches have no program in common."""
    return st.builds(draw_program, seeds(batch), st.sampled_from(range(1, 17)))


def cases(chain: Sequence[str], batch: str = "") -> st.SearchStrategy[Case]:
    """Programs under these transformations, the first one innermost."""
    draw = partial(draw_case, chain)
    found = st.builds(draw, seeds(f"{batch} {'-'.join(chain)}"), st.sampled_from(range(1, 9)))
    return found.filter(Case.fits)


def seeds(batch: str) -> st.SearchStrategy[str]:
    # Not a list of seeds, one for each operation: hypothesis would spend most of its runs on lists
    # that repeat a few numbers.
    return st.integers(0, 2**32 - 1).map(f"{batch} {{}}".format)


def draw_case(chain: Sequence[str], seed: Seed, size: int) -> Case:
    program = draw_program(seed, size, [name for name in chain if name in DERIVATIVES])
    choose = Random(f"{seed} transformations").choice
    return Case(program, tuple(draw_transformation(choose, name, program) for name in chain))


def draw_transformation(choose: Choose, name: str, program: Program) -> Transformation:
    if name != "vmap":
        return Transformation(name)
    in_axes = [choose([0, -1, None]) for _ in program.arguments]
    in_axes[choose(range(len(in_axes)))] = 0
    return Transformation(name, tuple(in_axes))


def draw_program(
    seed: Seed,
    size: int,
    derivatives: Sequence[str] = (),
    mesh_sizes: Sequence[tuple[int, ...]] = MESH_SIZES,
) -> Program:
    """A program of about `size` operations, inner ones not counted.

    It has the `derivatives`: "grad" and "jvp" in the order in which they will be taken.
    """
    choose = Random(seed).choice
    sizes = choose(mesh_sizes)
    devices = draw_devices(choose, prod(sizes))
    mesh = dict(zip("ijk", sizes, strict=False))
    first, others = (["float32"], DERIVABLE) if derivatives else (DTYPES, DTYPES)
    arguments = tuple(
        draw_argument(choose, mesh, others if number else first)
        for number in range(choose([1, 2, 3]))
    )
    scope = Scope(choose, mesh, tuple(derivatives))
    for number, argument in enumerate(arguments):
        blocks = oracle.split(argument.array(number), argument.spec, mesh)
        scope.values.append(Value(blocks, axes_in(argument.spec)))
    scope.grow(size)
    read = {number for op in scope.ops for number in op.operands}
    unread = [number for number in range(len(scope.values)) if number not in read]
    results = tuple(finish(scope, number) for number in unread)
    out_specs = tuple(
        draw_spec(choose, mesh, len(scope[number].shape), scope[number].varying)
        for number in results
    )
    body = Body(len(arguments), tuple(scope.ops), results)
    return Program(mesh, devices, arguments, body, out_specs)


def draw_devices(choose: Choose, count: int) -> tuple[int, ...]:
    order = choose(["first", "last", "any"])
    if order == "any":
        return shuffled(choose, range(8))[:count]
    return tuple(range(count) if order == "first" else range(8 - count, 8))


def draw_argument(choose: Choose, mesh: Mesh, dtypes: Sequence[str]) -> Argument:
    block = [choose(DIM_SIZES) for _ in range(choose([2, 1, 3, 0]))]
    if block and choose([False] * 15 + [True]):
        block[choose(range(len(block)))] = 0
    spec = draw_spec(choose, mesh, len(block), frozenset())
    tiles = oracle.tiles(spec, len(block), mesh)
    shape = tuple(n * count for n, count in zip(block, tiles, strict=True))
    return Argument(shape, choose(dtypes), spec)


def draw_spec(choose: Choose, mesh: Mesh, rank: int, varying: Axes) -> PartitionSpec:
    """Mentions the varying axes, and any of the others, in any order and in any spelling."""
    dims: list[list[str]] = [[] for _ in range(rank)]
    for axis in shuffled(choose, mesh):
        dim = choose([*range(rank)] if axis in varying else [None, *range(rank), *range(rank)])
        if dim is not None:
            dims[dim].append(axis)
    while dims and not dims[-1] and choose([True, False]):
        dims.pop()
    return PartitionSpec(*(draw_entry(choose, axes) for axes in dims))


def draw_entry(choose: Choose, axes: list[str]) -> Any:
    if len(axes) == 1:
        return choose([axes[0], tuple(axes)])
    return tuple(axes) or None


def axes_in(spec: PartitionSpec) -> Axes:
    return frozenset().union(*oracle.axes_of_dims(spec, len(spec)))


def shuffled(choose: Choose, items: Iterable[Any]) -> tuple[Any, ...]:
    rest = list(items)
    return tuple(rest.pop(choose(range(len(rest)))) for _ in range(len(rest)))


def finish(scope: Scope, number: int) -> int:
    """Makes a value fit to be returned: it needs a dimension for the axes along which it varies."""
    if scope[number].varying and not scope[number].shape:
        number = scope.push(Op("reshape", (number,), {"shape": (1,)}))
    if scope[number].kind == "f" and not scope.derivatives and scope.choose([False, True]):
        number = scope.push(Op(scope.choose(list(SMOOTH)), (number,)))
        scope.values[number] = replace(scope[number], final=True)
    return number


class Scope:
    """The values that the next operation of a body can read, and what it may do."""

    def __init__(
        self,
        choose: Choose,
        mesh: Mesh,
        derivatives: Sequence[str],
        depth: int = 0,
        collectives: bool = True,
    ):
        self.choose = choose
        self.mesh = mesh
        self.derivatives = derivatives
        self.depth = depth
        self.collectives = collectives
        self.values: list[Value] = []
        self.ops: list[Op] = []

    def __getitem__(self, number: int) -> Value:
        return self.values[number]

    def shuffled(self, items: Iterable[Any]) -> tuple[Any, ...]:
        return shuffled(self.choose, items)

    def operand(self, fits: Callable[[Value], Any] = lambda value: True) -> int:
        options = [n for n, v in enumerate(self.values) if not v.final and fits(v)][::-1]
        if not options:
            raise Stuck
        return self.choose(options[:1] * 2 + options)  # programs that go on from what they have

    def like(self, number: int) -> int:
        """Draws an operand of the same type as another one."""
        return self.operand(self[number].like)

    def operand_and_dim(self, fits: Callable[[Value, int], Any]) -> tuple[int, int]:
        def dims(value: Value) -> list[int]:
            return [dim for dim in range(len(value.shape)) if fits(value, dim)]

        number = self.operand(dims)
        return number, self.choose(dims(self[number]))

    def scalar(self, kinds: str) -> int:
        """Draws an operand of rank 0, and makes one where there is none."""
        try:
            return self.operand(lambda v: v.kind in kinds and not v.shape)
        except Stuck:
            name = self.choose(["axis_index", "axis_size"])
            return self.push(Op(name, (), {"axis_name": self.choose(list(self.mesh))}))

    def inner(self, *inputs: Value, collectives: bool = True) -> Scope:
        """The scope of a body that an operation of this one runs."""
        collectives = self.collectives and collectives
        scope = Scope(self.choose, self.mesh, self.derivatives, self.depth + 1, collectives)
        scope.values = list(inputs)
        return scope

    def body(self, *types: Value | None) -> Body:
        """Draws a body for the inputs in scope, with a result of each type (`None`: of any)."""
        inputs = len(self.values)
        self.grow(self.choose([1, 2, 3]))
        results = tuple(
            max(
                number
                for number, value in enumerate(self.values)
                if wanted is None or value.like(wanted)
            )
            for wanted in types
        )
        return Body(inputs, tuple(self.ops), results)

    def grow(self, count: int) -> None:
        """Draws `count` operations, or fewer where most of what is drawn does not fit."""
        tables = [LOCAL, LOCAL]
        if self.collectives:
            tables += [COLLECTIVE, COLLECTIVE, COLLECTIVE]
        if self.depth < DEEPEST_BODY:
            tables += [CONTROL]
        count += len(self.ops)
        for _ in range(3 * count):
            if len(self.ops) >= count:
                break
            name = self.choose(list(self.choose(tables)))
            try:
                operands, params = RULES[name].draw(self)
                self.push(Op(name, tuple(operands), params))
            except (Stuck, Inexact):
                continue

    def push(self, op: Op) -> int:
        """Appends the operation; the number of its first result."""
        operands = [self[number] for number in op.operands]
        results = apply_oracle(self.mesh, op, *(value.blocks for value in operands))
        varying = apply_varying(self.mesh, op, *(value.varying for value in operands))
        if RULES[op.name].results == 1:
            results, varying = (results,), (varying,)
        for blocks in results:
            if blocks[0].size > LARGEST_BLOCK or blocks[0].ndim > LARGEST_RANK:
                raise Stuck
        new = [Value(*parts) for parts in zip(results, varying, strict=True)]
        if self.derivatives:
            check_derivable(self.derivatives, op, operands, new)
        number = len(self.values)
        self.values += new
        self.ops.append(op)
        return number
