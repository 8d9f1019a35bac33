"""From a module to the steps that devices play."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, sdy, stablehlo
from shmap_passes.ir.body_form import MANUAL_AXES, read_body_form
from shmap_passes.ir.collective_ops import (
    COLLECTIVES,
    GROUPS,
    call_target,
    device_ids,
    group_axes,
    indexed_axes,
    is_axis_index,
    split_group_axes,
)
from shmap_passes.ir.ops import free_values, terminator, walk
from shmap_passes.ir.types import Value
from shmap_passes.ir.unverified import manual_axes

from shmap_compiler.base.device_groups import group_axes as axes_of_groups
from shmap_compiler.base.device_groups import pair_axes
from shmap_compiler.simulate import borders, lapack
from shmap_compiler.simulate.arithmetic import COMPUTED
from shmap_compiler.simulate.collectives import result_of
from shmap_compiler.simulate.cuts import Cut, Groups
from shmap_compiler.simulate.element_types import (
    ElementType,
    UnknownElementType,
    known_element_type,
)
from shmap_compiler.simulate.interpreter import shared
from shmap_compiler.simulate.module import ReadModule
from shmap_compiler.simulate.places import SourcePlace, place_of
from shmap_compiler.simulate.segments import (
    CALLS,
    callee_name,
    element_type,
    elementwise,
    outline,
)
from shmap_compiler.simulate.steps import (
    Block,
    Branch,
    Call,
    Collective,
    Computed,
    Enter,
    Leave,
    Local,
    Loop,
    Position,
    Same,
    Step,
    Unsupported,
)

_IDENTITY_CALLS = frozenset({"Sharding", "annotate_device_placement", "LayoutConstraint"})
_TOKENS = frozenset({"stablehlo.after_all", "stablehlo.create_token"})
_CONTROL = frozenset({"stablehlo.while", "stablehlo.if", "stablehlo.case"})
_POSITIONS = frozenset({"stablehlo.partition_id", "stablehlo.replica_id"})
_ALWAYS_PLAYED = {*COMPUTED, *COLLECTIVES, *_TOKENS, *_POSITIONS, "stablehlo.custom_call"}
_INTO, _OUT_OF = "SPMDFullToShardShape", "SPMDShardToFullShape"
_RAGGED = "ragged_all_to_all"


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
        self.module, self.mesh, self.every_op = module, module.mesh, every_op
        self._numbers: dict[Any, int] = {}
        self._played: dict[str, bool] = {}
        self._blocks: dict[str, Block] = {}

    def program(self) -> Playable:
        main = self.module.functions["main"]
        if MANUAL_AXES in main.attributes:
            return self._body_form(main)
        types = (main.type.inputs, main.type.results)
        return Playable(self.module, self.function("main"), *(tuple(map(_typed, t)) for t in types))

    def _body_form(self, main: func.FuncOp) -> Playable:
        """The border that body form describes by attributes, around the body."""
        form = read_body_form(self.module.module)
        body = self.function("main")
        fulls = [
            [boundary.full_type(form.mesh) for boundary in side]
            for side in (form.inputs, form.outputs)
        ]
        cuts = [
            tuple(
                None
                if b.dims is None
                else borders.by_axes(form.mesh, b.dims, _shape(t), form.region, b.unreduced.axes)
                for b, t in zip(side, types, strict=True)
            )
            for side, types in zip((form.inputs, form.outputs), fulls, strict=True)
        ]
        place = place_of(main.operation)
        arguments = tuple(self._fresh() for _ in body.arguments)
        results = tuple(self._fresh() for _ in body.results)
        enter = Enter(place, arguments, body.arguments, cuts[0])
        leave = self._leave(place, body.results, results, cuts[1], [_shape(t) for t in fulls[1]])
        entry = Block(arguments, (enter, *body.steps, leave), results)
        return Playable(self.module, entry, *(tuple(map(_typed, types)) for types in fulls))

    def _leave(
        self,
        place: SourcePlace,
        operands: tuple[int, ...],
        results: tuple[int, ...],
        cuts: tuple[Cut | None, ...],
        shapes: Sequence[tuple[int, ...]],
    ) -> Leave:
        groups = next((cut.groups for cut in cuts if cut is not None), self._everyone())
        return Leave(place, operands, results, groups, cuts=cuts, shapes=tuple(shapes))

    def _everyone(self) -> Groups:
        return (tuple(range(self.mesh.size)),)

    # --------------------------------------------------------------------------------- values

    def _number(self, value: Value) -> int:
        if value not in self._numbers:
            self._numbers[value] = self._fresh()
        return self._numbers[value]

    def _fresh(self) -> int:
        self._count = getattr(self, "_count", -1) + 1
        return self._count

    def _all(self, values: Sequence[Value]) -> tuple[int, ...]:
        return tuple(map(self._number, values))

    # --------------------------------------------------------------------------------- blocks

    def function(self, name: str) -> Block:
        if name not in self._blocks:
            self._blocks[name] = self._block(self.module.functions[name].entry_block)
        return self._blocks[name]

    def _block(self, block: ir.Block) -> Block:
        steps = tuple(self._steps(block))
        return Block(self._all(list(block.arguments)), steps, self._all(terminator(block).operands))

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
            return self.every_op or self._calls_played(op)
        if op.name in _CONTROL:
            inside = (each for each in walk(op) if each != op)
            return self.every_op or any(self.is_played(each) for each in inside if _is_step(each))
        is_foreign = not op.name.startswith("stablehlo.")
        return is_foreign or op.name in _ALWAYS_PLAYED

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
            found = f"{ops[0].name}, which has a value of element type {error.args[0]}"
            return Unsupported(
                place_of(ops[0]), (), self._all(outputs), found, "use another element type"
            )
        places = tuple(map(place_of, ops))
        numbers = self._all(inputs), self._all(outputs)
        return Local(places[0], *numbers, segment, places, partial(self._singly, ops))

    def _singly(self, ops: list[ir.Operation]) -> tuple[Step, ...]:
        with self.module.module.context, ir.Location.unknown():
            return tuple(self._local([op], list(op.results)) for op in ops)

    # ------------------------------------------------------------------------------- one step

    def _play(self, op: ir.Operation) -> list[Step]:
        for result in op.results:
            _check_static(op, result)
        if op.name == "sdy.manual_computation":
            return self._manual_computation(op)
        place = place_of(op)
        numbers = self._all(op.operands), self._all(op.results)
        if op.name in COMPUTED:
            return [Computed(place, *numbers, COMPUTED[op.name](op))]
        if op.name in COLLECTIVES:
            return [self._collective(op, place)]
        if op.name in _POSITIONS:
            is_partition = op.name == "stablehlo.partition_id"
            devices = [device if is_partition else 0 for device in range(self.mesh.size)]
            return [Position(place, *numbers, self._scalars(op, devices))]
        if op.name in _TOKENS:
            return [Computed(place, (), numbers[1], lambda: [np.empty(0)])]
        if op.name in CALLS:
            return [Call(place, *numbers, partial(self._callee, callee_name(op)))]
        if op.name == "stablehlo.while":
            condition, body = (self._block(region.blocks[0]) for region in op.regions)
            return [Loop(place, *numbers, condition, body)]
        if op.name in _CONTROL:
            branches = [self._block(region.blocks[0]) for region in op.regions]
            if op.name == "stablehlo.if":  # as an index, true is the second branch
                branches.reverse()
            return [Branch(place, *numbers, tuple(branches))]
        if op.name == "stablehlo.custom_call":
            return [self._custom_call(op, place)]
        fix = "bring the program into StableHLO and Shardy's manual computations"
        return [Unsupported(place, *numbers, f"the op {op.name}", fix)]

    def _callee(self, name: str) -> Block:
        with self.module.module.context, ir.Location.unknown():
            return self.function(name)

    def _scalars(self, op: ir.Operation, values: Sequence[int]) -> tuple[np.ndarray, ...]:
        dtype = element_type(op.results[0]).dtype
        return tuple(np.array(value, dtype) for value in values)

    def _custom_call(self, op: ir.Operation, place: SourcePlace) -> Step:
        numbers = self._all(op.operands), self._all(op.results)
        target = call_target(op)
        if is_axis_index(op):
            axes = indexed_axes(op)
            ranks = [self._rank(device, axes) for device in range(self.mesh.size)]
            return Position(place, *numbers, self._scalars(op, ranks))
        if target in _IDENTITY_CALLS:
            return Same(place, *numbers)
        if target == _RAGGED:
            return self._collective(op, place)
        if target == _INTO:
            text = _sharding_text(ir.OpResult(op.operands[0]).owner)
            cut = borders.read_text(text, _shape(op.operands[0].type), self.mesh.size)
            return Enter(place, *numbers, (cut,))
        if target == _OUT_OF:
            shape = _shape(op.results[0].type)
            cut = borders.read_text(_sharding_text(op), shape, self.mesh.size)
            return self._leave(place, *numbers, (cut,), [shape])
        if (computed := lapack.call_of(op, target)) is not None:
            return Computed(place, *numbers, computed)
        if "callback" in target:
            found = "a call back into Python, whose function the module does not contain"
            fix = "remove the callback or print, or run the program on devices"
        else:
            found = f"the custom call @{target}, whose meaning is not known"
            fix = "replace it by operations of jax.lax, or run the program on devices"
        return Unsupported(place, *numbers, found, fix)

    def _rank(self, device: int, axes: Sequence[str]) -> int:
        at, index = self.mesh.coordinates(device), 0
        for axis in axes:
            index = index * self.mesh.sizes[axis] + at[axis]
        return index

    def _collective(self, op: ir.Operation, place: SourcePlace) -> Step:
        numbers = self._all(op.operands), self._all(op.results)
        if op.name in COLLECTIVES and GROUPS in op.attributes and split_group_axes(op):
            fix = "name whole axes, or list the devices"
            return Unsupported(place, *numbers, "groups over a part of a mesh axis", fix)
        groups, axes = self._groups(op)
        result = result_of(op, self._general)
        if op.name == "stablehlo.custom_call":
            place = SourcePlace(f"stablehlo.{_RAGGED}", place.line)
        return Collective(place, *numbers, groups, axes=axes, result=result)

    def _groups(self, op: ir.Operation) -> tuple[Groups, tuple[str, ...] | None]:
        sizes = self.mesh.sizes
        if op.name == "stablehlo.collective_permute":
            pairs = tuple((a, b) for a, b in device_ids(op, "source_target_pairs"))
            return self._everyone(), pair_axes(pairs, sizes) if pairs else ()
        if op.name == "stablehlo.custom_call":
            config = ir.DictAttr(op.attributes["backend_config"])
            rows = np.array(ir.DenseIntElementsAttr(config["replica_groups"])).tolist()
        elif (axes := group_axes(op)) is not None:
            named = self.module.mesh_of(
                stablehlo.ReplicaGroupMeshAxesAttr(op.attributes[GROUPS]).mesh
            )
            return tuple(map(tuple, named.groups(axes))), axes
        else:
            rows = device_ids(op, GROUPS)
        groups = tuple(tuple(d for d in row if d >= 0) for row in rows) or self._everyone()
        equal = len({len(group) for group in groups}) == 1
        everyone = sorted(d for group in groups for d in group) == list(range(self.mesh.size))
        return groups, axes_of_groups(groups, sizes) if equal and everyone else None

    def _general(self, op: ir.Operation, type_: ir.Type) -> Any:
        segment = elementwise(op, type_)
        (element,) = segment.outputs

        def combine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            carriers = [*element.packed(a), *element.packed(b)]
            return element.unpacked(shared().evaluate(segment.number, segment.code, carriers))

        return combine

    def _manual_computation(self, op: ir.Operation) -> list[Step]:
        region = manual_axes(op.attributes["manual_axes"]) or ()
        block = op.regions[0].blocks[0]
        body = self._block(block)
        place = place_of(op)
        operands, results = self._all(op.operands), self._all(op.results)
        ins = self._cuts(op, "in_shardings", [v.type for v in op.operands], region)
        outs = self._cuts(op, "out_shardings", [v.type for v in op.results], region)
        shapes = [_shape(v.type) for v in op.results]
        return [
            Enter(place, operands, body.arguments, ins),
            *body.steps,
            self._leave(place, body.results, results, outs, shapes),
        ]

    def _cuts(
        self, op: ir.Operation, name: str, types: Sequence[ir.Type], region: Sequence[str]
    ) -> tuple[Cut | None, ...]:
        shardings = sdy.TensorShardingPerValueAttr(op.attributes[name]).shardings
        return tuple(
            None
            if _shape_or_none(type_) is None
            else borders.read_sdy(sharding, self.mesh, _shape(type_), region)
            for sharding, type_ in zip(shardings, types, strict=True)
        )


def _sharding_text(op: Any) -> str:
    return ir.StringAttr(op.operation.attributes["mhlo.sharding"]).value


def _is_step(op: ir.Operation) -> bool:
    """Whether an op is no end of a block; reductions inside of ops are not steps either."""
    return not op.name.endswith(".return") and op.name != "func.func"


def _shape(type_: ir.Type) -> tuple[int, ...]:
    return tuple(ir.RankedTensorType(type_).shape) if isinstance(type_, ir.RankedTensorType) else ()


def _shape_or_none(type_: ir.Type) -> tuple[int, ...] | None:
    return _shape(type_) if isinstance(type_, ir.RankedTensorType) else None


def _typed(type_: ir.Type) -> tuple[tuple[int, ...], ElementType] | None:
    if not isinstance(type_, ir.RankedTensorType):
        return None
    return tuple(type_.shape), known_element_type(str(type_.element_type))


def _check_static(op: ir.Operation, value: Value) -> None:
    type_ = value.type
    if isinstance(type_, ir.RankedTensorType) and not type_.has_static_shape:
        raise DynamicShape(place_of(op), str(type_))
