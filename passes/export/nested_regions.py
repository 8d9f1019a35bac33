"""Regions inside of the body, which XLA reads only if they are written for its partitioner.

Before:  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"j"}]>]
                  out_shardings=[<@mesh, [{"j"}]>] manual_axes={"j"} (%b) { body }
After:   %1 = custom_call @Sharding(%x)
         %2 = custom_call @SPMDFullToShardShape(%1)
         body, with %2 for %b
         %3 = custom_call @Sharding(...)
         %0 = custom_call @SPMDShardToFullShape(%3)

JAX emits nested regions for the partitioner that it lowers for. A module that was imported may be
exported for GSPMD instead. The other way is refused: of GSPMD's form nothing says which operations
are inside of a nested region.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..base import PassRefused, Violation
from ..ir.body_form import BodyForm
from ..ir.boundary import Boundary, read_sharding
from ..ir.collective_ops import COLLECTIVES, axis_index_calls, call_target
from ..ir.find_ops import find_ops
from ..ir.inline_calls import callee, erase_uncalled, functions_of, inline_calls, reaches
from ..ir.ops import terminator
from ..ir.sharding_text import FULLY_MANUAL
from ..ir.shardy_notes import inline_region
from ..ir.types import Value
from ..ir.unverified import manual_axes
from .full_main import empty_constant
from .manual_custom_calls import block_to_full, full_to_block

REGION = "sdy.manual_computation"
CONSTRAINT = "sdy.sharding_constraint"
_PARTITION_ID = "stablehlo.partition_id"
_BOUNDARIES = ("SPMDFullToShardShape", "SPMDShardToFullShape")
_DEPENDS_ON_REGION = (REGION, CONSTRAINT, _PARTITION_ID, *sorted(COLLECTIVES))


@dataclass(frozen=True)
class NestedRegion:
    """A region of Shardy's inside of the body, with the body form that its own body would have."""

    op: ir.Operation
    form: BodyForm

    def ops(self, names: Sequence[str]) -> list[ir.Operation]:
        """The ops with one of `names` that are in this region, and in no region inside of it."""
        return [op for op in find_ops(self.op, names) if _enclosing(op) == self.op]


def refuse_gspmds(module: ModuleOp) -> None:
    """Raises `PassRefused` if a region inside of the body is written for GSPMD."""
    calls = find_ops(module.operation, ["stablehlo.custom_call"])
    violations = [
        Violation(
            op.location,
            "a region inside of the body is written for gspmd, and this pass for shardy: which "
            "operations are inside of it is not written down, and XLA reads one form in a module; "
            "use partitioner=gspmd",
        )
        for op in calls
        if call_target(op) in _BOUNDARIES
    ]
    if violations:
        raise PassRefused(violations)


def nested_regions(module: ModuleOp, form: BodyForm) -> list[NestedRegion]:
    """Shardy's regions inside of the body, inner before outer.

    Calls of functions that hold regions are inlined, and in regions those of functions that depend
    on which axes are manual.

    Raises:
      PassRefused: a region is split in a way that GSPMD's form cannot express.
    """
    found = find_ops(module.operation, [REGION])
    if not found:
        return []
    if violations := [each for op in found for each in _refused_for_gspmd(op, form)]:
        raise PassRefused(violations)
    have_regions = _that_reach(module, lambda root: find_ops(root, [REGION]))
    depend = _that_reach(module, _that_depend_on_region)

    def must_inline(call: ir.Operation) -> bool:
        return callee(call) in (depend if _enclosing(call) else have_regions)

    inline_calls(module, form.main, must_inline)
    erase_uncalled(module)
    found = find_ops(form.main.operation, [REGION])
    return [NestedRegion(op, _form_in(op, form)) for op in found]


def regions_around_indices(module: ModuleOp, form: BodyForm) -> list[NestedRegion]:
    """Shardy's regions inside of the body, in which an axis index depends on all axes around it.

    Calls in regions of functions that need an axis index are inlined.
    """
    if not find_ops(module.operation, [REGION]):
        return []
    need_index = _that_reach(module, axis_index_calls)

    def must_inline(call: ir.Operation) -> bool:
        return callee(call) in need_index and _enclosing(call) is not None

    if need_index:
        for function in functions_of(module).values():
            inline_calls(module, function, must_inline)
        erase_uncalled(module)
    return [NestedRegion(op, _form_in(op, form)) for op in find_ops(module.operation, [REGION])]


def write_for_gspmd(region: NestedRegion) -> None:
    """Inlines a region between custom calls. Regions inside of it have to be inlined before."""
    op, form = region.op, region.form
    if not form.automatic:
        for device in region.ops([_PARTITION_ID]):
            device.attributes["mhlo.sharding"] = ir.StringAttr.get(FULLY_MANUAL)
    block = op.regions[0].blocks[0]
    end = terminator(block)
    arguments, results = list(block.arguments), list(op.results)
    with op.location:
        enters = _boundaries(op, "in_shardings", [a.type for a in arguments], form)
        at = ir.InsertionPoint(op)
        for number, boundary in enumerate(enters):
            with at:
                operand = op.operands[number]
                op.operands[number] = (
                    full_to_block(form, boundary, operand)
                    if boundary.has_elements
                    else empty_constant(boundary.type, at)
                )
        leaves = _boundaries(op, "out_shardings", [v.type for v in end.operands], form)
        at = ir.InsertionPoint(end)
        fulls: list[Value] = []
        for boundary, value in zip(leaves, list(end.operands), strict=True):
            with at:
                fulls.append(
                    block_to_full(form, boundary, value)
                    if boundary.has_elements
                    else empty_constant(boundary.full_type(form.mesh), at)
                )
    for number, full in enumerate(fulls):
        end.operands[number] = full
    inline_region(op)
    assert not any(list(result.uses) for result in results)
    op.erase()


def _that_depend_on_region(root: ir.Operation) -> list[ir.Operation]:
    return [*find_ops(root, _DEPENDS_ON_REGION), *axis_index_calls(root)]


def _that_reach(
    module: ModuleOp, find: Callable[[ir.Operation], Sequence[ir.Operation]]
) -> set[str]:
    """The functions but @main in which some ops are found, or that call functions that do."""
    functions = functions_of(module).items()
    holders = {name for name, function in functions if find(function.operation)}
    return reaches(module, holders - {"main"}) - {"main"}


def _refused_for_gspmd(op: ir.Operation, form: BodyForm) -> Iterator[Violation]:
    for shardings in ("in_shardings", "out_shardings"):
        for sharding in sdy.TensorShardingPerValueAttr(op.attributes[shardings]).shardings:
            _, unreduced, complaint = read_sharding(sharding, form.mesh)
            if complaint is None and unreduced.axes and not unreduced.is_sum:
                complaint = "it is unreduced, to be combined by another operation than a sum"
            if complaint is not None:
                where = f"{shardings} of a region inside of the body"
                yield Violation(op.location, f"{where}: {complaint}; or use partitioner=shardy")


def _boundaries(
    op: ir.Operation, which: str, types: Sequence[ir.Type], form: BodyForm
) -> list[Boundary]:
    """How a region's arguments or results are split along its axes."""
    found: list[Boundary] = []
    shardings = sdy.TensorShardingPerValueAttr(op.attributes[which]).shardings
    for number, (type_, sharding) in enumerate(zip(types, shardings, strict=True)):
        dims, unreduced, _ = read_sharding(sharding, form.mesh)
        own = tuple(tuple(axis for axis in dim if axis in form.manual) for dim in dims)
        found.append(Boundary(f"{which} {number}", type_, own, unreduced))
    return found


def _form_in(op: ir.Operation, form: BodyForm) -> BodyForm:
    outer = list(form.region)
    around = _enclosing(op)
    while around is not None:
        outer += manual_axes(around.attributes["manual_axes"]) or ()
        around = _enclosing(around)
    own = manual_axes(op.attributes["manual_axes"]) or ()
    return BodyForm(form.main, form.mesh, own, tuple(outer))


def _enclosing(op: ir.Operation) -> ir.Operation | None:
    """The nearest region of Shardy's around an op."""
    parent = op.parent
    while parent is not None and parent.operation.name != REGION:
        parent = parent.operation.parent
    return None if parent is None else parent.operation
