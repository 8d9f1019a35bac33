"""Infers along which mesh axes each value of a module in body form may vary.

The set of a value is an upper bound: along a manual axis that is not in it, the value is bitwise
equal on all devices that compute it. The set may contain automatic axes, which mean nothing. The
rules are those of replication inference on the Graph (`docs/replication.md`), applied to StableHLO.
Rules for single ops are in replication_rules.py; those for ops with regions or calls are here:

    @main      an argument varies along the axes that split it, and along all that are manual around
    function   solved once per call with other sets; one that nobody calls, for any arguments
    while      carries by fixpoint; how often a device loops decides which step's carry it returns
    case, if   a result comes from any branch, and from the predicate; unless all return one value
    other      what a region takes from outside counts as an operand

Inside a branch or loop every computed value also varies as the predicate does, because only the
devices that take part compute it together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, sdy
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..ir.axis_set import AxisSet
from ..ir.body_form import BodyForm
from ..ir.boundary import Boundary
from ..ir.collective_ops import COLLECTIVES
from ..ir.ops import is_token, terminator
from ..ir.types import Value
from ..ir.unverified import manual_axes
from .replication_rules import collective_masks, leaf_mask

Masks = dict[Value, int]
"""The set of each value as a bit mask; a value that is not there has the empty set."""


@dataclass(frozen=True, eq=False)
class Varying:
    """A solved module. Read what is wanted of it before ops are erased."""

    bits: AxisSet
    masks: Masks

    def of(self, value: Value) -> tuple[str, ...]:
        """The axes along which `value` may differ, in mesh order.

        For a value of a function that is called several times, those of all calls.
        """
        return self.bits.names(self.masks.get(value, 0))


def infer(form: BodyForm, module: ModuleOp, *, trusts_arguments: bool = True) -> Varying:
    """Solves @main, the functions that it calls, and functions without callers.

    Args:
      trusts_arguments: whether all arguments of @main are equal along axes that do not split them.
        A caller may break that: what a program with `check_vma=False` returns may differ. Those
        that `shmap.equal_arguments` lists are equal in any case.
    """
    solver = _Solver(form, module)
    inputs = [
        _of_argument(each, form, solver.bits)
        if trusts_arguments or k in form.equal
        else solver.bits.everything
        for k, each in enumerate(form.inputs)
    ]
    solver.function("main", tuple(inputs), 0)
    called = {name for name, _, _ in solver.solved}
    for name, function in solver.functions.items():
        if name not in called:
            solver.function(name, (solver.bits.everything,) * len(function.type.inputs), 0)
    return Varying(solver.bits, solver.masks)


def _of_argument(boundary: Boundary, form: BodyForm, bits: AxisSet) -> int:
    """An enclosing region may hand in values that vary along any axis of its own."""
    if is_token(boundary.type):
        return 0
    return bits.mask(form.outer) | bits.mask(boundary.varying)


class _Solver:
    def __init__(self, form: BodyForm, module: ModuleOp):
        self.bits = AxisSet(form.mesh.axes)
        self.masks: Masks = {}
        self.functions = {
            op.name.value: op
            for op in module.body.operations
            if isinstance(op, func.FuncOp) and not op.is_external
        }
        self.solved: dict[tuple[str, tuple[int, ...], int], list[int]] = {}

    def function(self, name: str, inputs: tuple[int, ...], control: int) -> list[int]:
        """The sets of the results of a function, given those of its arguments."""
        key = name, inputs, control
        if key not in self.solved:
            function = self.functions[name]
            # What a recursive call would find, which XLA does not take.
            self.solved[key] = [self.bits.everything] * len(function.type.results)
            masks: Masks = {}
            _put(masks, function.entry_block.arguments, inputs)
            self.solved[key] = self.block(function.entry_block, masks, control)
            for value, mask in masks.items():
                self.masks[value] = self.masks.get(value, 0) | mask
        return self.solved[key]

    def block(self, block: ir.Block, masks: Masks, control: int) -> list[int]:
        """Solves the ops of a block, and returns the sets of what its terminator hands on."""
        operands: list[int] = []
        for view in block.operations:
            op = view.operation
            name = op.name
            operands = [masks.get(value, 0) for value in op.operands]
            if name in _HOLDERS:
                found = _HOLDERS[name](self, op, masks, control)
                _put(masks, op.results, [mask | control for mask in found])
            elif name in COLLECTIVES:
                captured = control | _union(self.regions(op, masks, 0))
                found = collective_masks(op, operands, self.bits)
                _put(masks, op.results, [mask | captured for mask in found])
            else:
                mask = control | leaf_mask(op, _union(operands), self.bits)
                if len(op.regions):
                    mask = self.closed(op, masks, mask)
                if mask:
                    for value in op.results:
                        masks[value] = mask
        return operands

    def regions(self, op: ir.Operation, masks: Masks, argument: int) -> list[int]:
        """What the regions of `op` return if each of their arguments has the set `argument`."""
        returned: list[int] = []
        for region in op.regions:
            for block in region.blocks:
                _put(masks, block.arguments, [argument] * len(block.arguments))
                returned += self.block(block, masks, 0)
        return returned

    def closed(self, op: ir.Operation, masks: Masks, mask: int) -> int:
        """The least set that holds `mask` and what the regions of `op` make of it."""
        before = None
        while mask not in (before, self.bits.everything):
            before, mask = mask, mask | _union(self.regions(op, masks, mask))
        return mask

    # ---- ops that hold or call programs ----------------------------------------------------------

    def call(self, op: ir.Operation, masks: Masks, control: int) -> list[int]:
        attribute = "callee" if op.name == "func.call" else "decomposition"
        name = ir.FlatSymbolRefAttr(op.attributes[attribute]).value
        if name not in self.functions:
            return [self.bits.everything] * len(op.results)
        return self.function(name, tuple(masks.get(value, 0) for value in op.operands), control)

    def loop(self, op: ir.Operation, masks: Masks, control: int) -> list[int]:
        test, body = (region.blocks[0] for region in op.regions)
        # A loop around this one solves it again, for sets that have only grown.
        carries = [
            masks.get(value, 0) | masks.get(argument, 0)
            for value, argument in zip(op.operands, body.arguments, strict=True)
        ]
        before = None
        again = control
        while carries != before:
            before = carries
            _put(masks, test.arguments, carries)
            again |= _union(self.block(test, masks, control))
            _put(masks, body.arguments, carries)
            after = self.block(body, masks, again)
            carries = [mask | grown for mask, grown in zip(carries, after, strict=True)]
        handed_on = zip(carries, body.arguments, terminator(body).operands, strict=True)
        return [mask if next_ == this else mask | again for mask, this, next_ in handed_on]

    def branches(self, op: ir.Operation, masks: Masks, control: int) -> list[int]:
        predicate = masks.get(op.operands[0], 0)
        blocks = [region.blocks[0] for region in op.regions]
        returned = [self.block(block, masks, control | predicate) for block in blocks]
        values = [terminator(block).operands for block in blocks]
        return [
            _union(found) | (predicate if len(set(choices)) > 1 else 0)
            for found, choices in zip(
                zip(*returned, strict=True), zip(*values, strict=True), strict=True
            )
        ]

    def manual_computation(self, op: ir.Operation, masks: Masks, control: int) -> list[int]:
        """Inside, arguments also vary along the axes that are manual only there and split them."""
        inner = self.bits.mask(manual_axes(op.attributes["manual_axes"]) or ())
        block = op.regions[0].blocks[0]
        split = [inner & self.bits.mask(axes) for axes in _split_axes(op)]
        if len(split) != len(op.operands):
            split = [inner] * len(op.operands)
        given = [masks.get(value, 0) for value in op.operands]
        _put(masks, block.arguments, [a | b for a, b in zip(given, split, strict=True)])
        return self.block(block, masks, control)


def _split_axes(region: ir.Operation) -> list[set[str]]:
    """The axes along which devices hold different parts of each operand of a region."""
    shardings = sdy.TensorShardingPerValueAttr(region.attributes["in_shardings"]).shardings
    found: list[set[str]] = []
    for sharding in (sdy.TensorShardingAttr(each) for each in shardings):
        dims = [sdy.DimensionShardingAttr(dim) for dim in sharding.dimension_shardings]
        axes = [*(axis for dim in dims for axis in dim.axes), *sharding.unreduced_axes]
        found.append({sdy.AxisRefAttr(axis).name for axis in axes})
    return found


_HOLDERS = {
    "func.call": _Solver.call,
    "sdy.manual_computation": _Solver.manual_computation,
    "stablehlo.case": _Solver.branches,
    "stablehlo.composite": _Solver.call,
    "stablehlo.if": _Solver.branches,
    "stablehlo.while": _Solver.loop,
}


def passes_on(op: ir.Operation) -> bool:
    """Whether the results of `op` vary at least along the axes along which an operand does."""
    return op.name not in COLLECTIVES and op.name not in _HOLDERS


def _put(masks: Masks, values: Iterable[Value], found: Sequence[int]) -> None:
    for value, mask in zip(values, found, strict=True):
        if mask:
            masks[value] = mask


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
