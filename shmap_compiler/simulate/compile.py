"""From a module to the steps that devices play."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from jaxlib.mlir import ir
from shmap_passes.ir.body_form import MANUAL_AXES, read_body_form
from shmap_passes.ir.collective_ops import COLLECTIVES
from shmap_passes.ir.ops import free_values, is_token, terminator, walk
from shmap_passes.ir.types import Value

from shmap_compiler.simulate.by_numpy import COMPUTED, function_of
from shmap_compiler.simulate.collective_steps import collective_step
from shmap_compiler.simulate.crossings import around_body, around_region
from shmap_compiler.simulate.custom_calls import custom_call_step, scalars
from shmap_compiler.simulate.element_types import (
    ElementType,
    UnknownElementType,
    known_element_type,
)
from shmap_compiler.simulate.module import ReadModule
from shmap_compiler.simulate.numbering import Numbering
from shmap_compiler.simulate.places import SourcePlace, place_of
from shmap_compiler.simulate.random_bits import bits_of
from shmap_compiler.simulate.segments import CALLS, callee_name, outline
from shmap_compiler.simulate.steps import (
    Block,
    Branch,
    Call,
    Computed,
    Local,
    Loop,
    Position,
    Step,
    Unsupported,
)

_TOKENS = frozenset({"stablehlo.after_all", "stablehlo.create_token"})
_CONTROL = frozenset({"stablehlo.while", "stablehlo.if", "stablehlo.case"})
_POSITIONS = frozenset({"stablehlo.partition_id", "stablehlo.replica_id"})
_OUTSIDE = frozenset(f"stablehlo.{name}" for name in ("infeed", "outfeed", "recv", "send"))
_RANDOM = "stablehlo.rng_bit_generator"
_ALWAYS_PLAYED = {
    *COMPUTED,
    *COLLECTIVES,
    *_TOKENS,
    *_POSITIONS,
    *_OUTSIDE,
    _RANDOM,
    "stablehlo.custom_call",
}


@dataclass(frozen=True)
class Playable:
    """A program that can be played.

    Attributes:
      module: what it was made of.
      entry: its steps, from full arrays to full arrays.
      in_types: shape and element type of each argument; None for a token.
      out_types: the same of each result.
    """

    module: ReadModule
    entry: Block
    in_types: tuple[tuple[tuple[int, ...], ElementType] | None, ...]
    out_types: tuple[tuple[tuple[int, ...], ElementType] | None, ...]


class DynamicShape(Exception):
    """A value whose shape is known only at run time."""

    def __init__(self, place: SourcePlace, type_: str):
        super().__init__(f"{place}: {type_}")
        self.place, self.type = place, type_


def compile_module(module: ReadModule, *, every_op: bool = False) -> Playable:
    """The steps of the `@main` of a module.

    Args:
      every_op: whether each op becomes a step of its own, so that a player sees every value.

    Raises:
      DynamicShape: a value has no static shape.
      UnreadableSharding: a sharding is in a form that is not known.
    """
    return _Compiler(module, every_op).program()


class _Compiler:
    def __init__(self, module: ReadModule, every_op: bool):
        self.module, self.every_op = module, every_op
        self._numbering = Numbering()
        self._played: dict[str, bool] = {}
        self._holds_played: dict[ir.Operation, bool] = {}
        self._blocks: dict[tuple[str, str], Block] = {}
        self._call = ""  # the line of the call whose function is compiled

    def program(self) -> Playable:
        main = self.module.functions["main"]
        entry, types = self.function("main"), (main.type.inputs, main.type.results)
        if MANUAL_AXES in main.attributes:
            form = read_body_form(self.module.module)
            entry, types = around_body(form, entry, self._numbering, self.module)
        return Playable(self.module, entry, *(tuple(map(_typed, side)) for side in types))

    # --------------------------------------------------------------------------------- blocks

    def function(self, name: str) -> Block:
        key = name, self._call
        if key not in self._blocks:
            self._blocks[key] = self._block(self.module.functions[name].entry_block)
        return self._blocks[key]

    def _block(self, block: ir.Block) -> Block:
        steps = tuple(self._steps(block))
        results = list(terminator(block).operands)
        return Block(self._numbering.of(list(block.arguments)), steps, self._numbering.of(results))

    def _steps(self, block: ir.Block) -> list[Step]:
        groups: list[list[ir.Operation]] = []
        together = False
        for op in [each.operation for each in block.operations][:-1]:
            played = self.is_played(op)
            if played or self.every_op or not together:
                groups.append([op])
            else:
                groups[-1].append(op)
            together = not played
        needed = set(terminator(block).operands)
        steps: list[Step] = []
        # From the end, so that it is known what later steps need.
        for ops in reversed(groups):
            if self.is_played(ops[0]):
                steps = [*self._play(ops[0]), *steps]
                needed.update(free_values(ops))
                continue
            outputs = [r for op in ops for r in op.results if r in needed]
            if outputs:
                steps = [self._local(ops, outputs), *steps]
                needed.update(free_values(ops))
        return steps

    def is_played(self, op: ir.Operation) -> bool:
        """Whether an op cannot be left to the interpreter."""
        if op.name in CALLS:
            passes_tokens = any(is_token(value.type) for value in (*op.operands, *op.results))
            return self.every_op or passes_tokens or self._calls_played(op)
        if op.name in _CONTROL:
            if op not in self._holds_played:
                inside = walk(op)[1:]
                played = any(self.is_played(each) for each in inside if _is_step(each))
                self._holds_played[op] = self.every_op or played
            return self._holds_played[op]
        is_foreign = not op.name.startswith("stablehlo.")
        return is_foreign or op.name in _ALWAYS_PLAYED or function_of(op) is not None

    def _calls_played(self, op: ir.Operation) -> bool:
        name = callee_name(op)
        if name not in self._played:
            self._played[name] = False  # a recursive call decides nothing
            self._played[name] = any(
                self.is_played(each)
                for each in walk(self.module.functions[name].operation)
                if _is_step(each)
            )
        return self._played[name]

    def _local(self, ops: list[ir.Operation], outputs: Sequence[Value]) -> Step:
        inputs = free_values(ops)
        for value in (*inputs, *outputs):
            _check_static(ops[0], value)
        try:
            segment = outline(ops, inputs, outputs, self.module.functions)
        except UnknownElementType as error:
            found = f"{ops[0].name}, which has a value of type {error.args[0]}"
            fix = "use arrays, of another element type"
            return Unsupported(self._place(ops[0]), (), self._numbering.of(outputs), found, fix)
        places = tuple(map(self._place, ops))
        numbers = self._numbering.of(inputs), self._numbering.of(outputs)
        return Local(places[0], *numbers, segment, places, partial(self._singly, ops, self._call))

    def _singly(self, ops: list[ir.Operation], call: str) -> tuple[Step, ...]:
        with self._called_at(call):
            return tuple(self._local([op], list(op.results)) for op in ops)

    # ------------------------------------------------------------------------------- one step

    def _play(self, op: ir.Operation) -> list[Step]:
        for result in op.results:
            _check_static(op, result)
        if op.name == "sdy.manual_computation":
            body = self._block(op.regions[0].blocks[0])
            return around_region(op, body, self._numbering, self.module)
        if op.name in COLLECTIVES:
            return [collective_step(op, self.module, self._numbering)]
        if op.name == "stablehlo.custom_call":
            return [custom_call_step(op, self.module, self._numbering)]
        place, numbers = self._place(op), self._numbering.around(op)
        if (function := function_of(op)) is not None:
            return [Computed(place, *numbers, function)]
        if op.name == _RANDOM:
            return [_random_step(op, place, numbers)]
        if op.name in _POSITIONS:
            is_partition = op.name == "stablehlo.partition_id"
            devices = [device if is_partition else 0 for device in range(self.module.mesh.size)]
            return [Position(place, *numbers, scalars(op, devices))]
        if op.name in _OUTSIDE:
            found = f"{op.name}, which has a value of type !stablehlo.token"
            fix = "remove it, or run the program on devices: nothing outside of it is simulated"
            return [Unsupported(place, *numbers, found, fix)]
        if op.name in _TOKENS:
            return [Computed(place, (), numbers[1], lambda: [np.empty(0)])]
        if op.name in CALLS:
            return [Call(place, *numbers, partial(self._callee, callee_name(op), place.line))]
        if op.name == "stablehlo.while":
            condition, body = (self._block(region.blocks[0]) for region in op.regions)
            return [Loop(place, *numbers, condition, body)]
        if op.name in _CONTROL:
            branches = [self._block(region.blocks[0]) for region in op.regions]
            if op.name == "stablehlo.if":  # as an index, true is the second branch
                branches.reverse()
            return [Branch(place, *numbers, tuple(branches))]
        fix = "bring the program into StableHLO and Shardy's manual computations"
        return [Unsupported(place, *numbers, f"the op {op.name}", fix)]

    def _callee(self, name: str, call: str) -> Block:
        with self._called_at(call):
            return self.function(name)

    @contextlib.contextmanager
    def _called_at(self, line: str) -> Iterator[None]:
        """Steps that are made inside are of a function that is called at this line."""
        before, self._call = self._call, line
        try:
            with self.module.module.context, ir.Location.unknown():
                yield
        finally:
            self._call = before

    def _place(self, op: ir.Operation) -> SourcePlace:
        """The place of an op; in functions of JAX, which have no lines, that of the call."""
        place = place_of(op)
        return place if place.line else replace(place, line=self._call)


def _random_step(
    op: ir.Operation, place: SourcePlace, numbers: tuple[tuple[int, ...], tuple[int, ...]]
) -> Step:
    computed = bits_of(op)
    if computed is not None:
        return Computed(place, *numbers, computed)
    found = f"random bits by {op.attributes['rng_algorithm']}, which is not XLA's default on CPUs"
    return Unsupported(place, *numbers, found, "use the default algorithm, or jax.random")


def _is_step(op: ir.Operation) -> bool:
    """Whether an op is no end of a block; reductions inside of ops are not steps either."""
    return not op.name.endswith(".return") and op.name != "func.func"


def _typed(type_: ir.Type) -> tuple[tuple[int, ...], ElementType] | None:
    if not isinstance(type_, ir.RankedTensorType):
        return None
    return tuple(type_.shape), known_element_type(str(type_.element_type))


def _check_static(op: ir.Operation, value: Value) -> None:
    type_ = value.type
    if isinstance(type_, ir.RankedTensorType) and not type_.has_static_shape:
        raise DynamicShape(place_of(op), str(type_))
