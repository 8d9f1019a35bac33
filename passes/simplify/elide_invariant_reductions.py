"""Replaces reductions of replicated values by local arithmetic.

The sum of n equal blocks is n times the block; their maximum or minimum is the block. Library code
often reduces values that are replicated already: the norm of gradients that were summed, the psum
of the result of a psum.

Before:  %1 = "stablehlo.all_reduce"(%0) <{... axes = ["i", "j"]}> ({ add })
         // %0 is computed so that it does not vary along "i", which has size 4
After:   %1 = "stablehlo.all_reduce"(%0) <{... axes = ["j"]}> ({ add })
         %2 = stablehlo.multiply %1, dense<4.0>
Needs:   what shmap-verify accepts.
Leaves:  no max, min, and, or over an axis along which the operand is replicated; no such add
         either, if a multiplication gives a result that some order of additions can give.

The latter holds for integers, and for floats if n has at most two bits set, as in 2, 3, 4, 6, 8:
n*x then rounds like 2^a*x + 2^b*x, where both products are exact. For other n, and for n that the
element type cannot represent, n*x may differ from the sum in every order, and the reduction is
kept. Sums of complex values are kept as well, since a complex n*x contains products with zero.

Replication is inferred (passes/analysis/replication.py) from what @main computes. Its arguments may
differ whatever their shardings say: a program with `check_vma=False` returns arrays whose copies
differ, and a reduction is how the next one makes them equal. What another part of a gradient has
computed equal on all devices is listed in `shmap.equal_arguments`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..analysis.replication import Varying, infer, passes_on
from ..base import Pass
from ..ir.body_form import BodyForm, read_body_form
from ..ir.collective_ops import ALL_REDUCE, name_group_axes, over_whole_axes, reduction
from ..ir.mesh import Mesh
from ..ir.types import Value

_SUM = "stablehlo.add"
_IDEMPOTENT = frozenset({"stablehlo.maximum", "stablehlo.minimum", "stablehlo.and", "stablehlo.or"})


@dataclass(frozen=True)
class ElideInvariantReductions(Pass):
    """Replaces reductions of replicated values by local arithmetic."""

    name = "shmap-elide-invariant-reductions"
    code = "SHM-P04"
    needs_body_form = True

    def run(self, module: ModuleOp) -> bool:
        reductions = over_whole_axes(module, ALL_REDUCE)
        form = read_body_form(module)
        plainly = _PlainlyVarying(form)
        if all(plainly.along(axes, op.operands[0]) for op, axes in reductions):
            return False
        varying = infer(form, module, trusts_arguments=False)
        found = [(op, axes, _equal_axes(op, axes, form.mesh, varying)) for op, axes in reductions]
        work = [(op, axes, equal) for op, axes, equal in found if equal]
        for op, axes, equal in work:
            rest = [axis for axis in axes if axis not in equal]
            _replace(op, rest, form.mesh.product(equal))
        return bool(work)


class _PlainlyVarying:
    """Axes along which values vary by a quick search, without inference: some of them.

    In most programs a few elementwise ops lead from a reduction back to an argument that is split
    along its axes. What one search finds on its way, those after it need not follow.
    """

    def __init__(self, form: BodyForm):
        self._form = form
        self._known: dict[Value, set[str]] = {}

    def along(self, axes: Sequence[str], value: Value) -> bool:
        """Whether a value varies along all of some axes, as far as the search can tell."""
        missing, found = {*axes}, [value]
        read_by: dict[Value, Value | None] = {value: None}
        while missing and found:
            value = found.pop()
            new = missing & (self._known.get(value) or self._of_argument(value))
            missing -= new
            reader = read_by[value] if new else None
            while reader is not None:
                self._known.setdefault(reader, set()).update(new)
                reader = read_by[reader]
            if missing:
                for operand in self._operands(value):
                    if operand not in read_by:
                        read_by[operand] = value
                        found.append(operand)
        return not missing

    def _of_argument(self, value: Value) -> set[str]:
        form = self._form
        if not (isinstance(value, ir.BlockArgument) and value.owner == form.main.entry_block):
            return set()
        number = value.arg_number
        return {*(form.inputs[number].varying if number in form.equal else form.mesh.sizes)}

    def _operands(self, value: Value) -> list[Value]:
        if isinstance(value, ir.BlockArgument):
            return []
        op = ir.OpResult(value).owner.operation
        return list(op.operands) if passes_on(op) else []


def _equal_axes(
    op: ir.Operation, axes: Sequence[str], mesh: Mesh, varying: Varying
) -> tuple[str, ...]:
    """Returns the axes of size two or more along which `op` need not communicate."""
    # The result varies along its own axis only where not all devices along it take part.
    varies = {*varying.of(op.operands[0]), *varying.of(op.results[0])}
    equal = tuple(axis for axis in axes if axis not in varies and mesh.sizes[axis] > 1)
    kind = reduction(op)
    if kind in _IDEMPOTENT or (kind == _SUM and _can_scale(op, mesh.product(equal))):
        return equal
    return ()


def _can_scale(op: ir.Operation, count: int) -> bool:
    """Returns whether count * x equals a sum of `count` copies of x in some order."""
    element = _element(op)
    if isinstance(element, ir.IntegerType):
        return element.width > 1  # add on booleans is "or"
    if isinstance(element, ir.FloatType):
        return count.bit_count() <= 2 and ir.FloatAttr.get(element, count).value == count
    return False


def _element(op: ir.Operation) -> ir.Type:
    return ir.RankedTensorType(op.operands[0].type).element_type


def _replace(op: ir.Operation, axes: Sequence[str], count: int) -> None:
    """Reduces over `axes` only, and multiplies sums by `count`."""
    with ir.InsertionPoint(op), op.location:
        value = op.operands[0]
        if axes:
            remaining = op.clone().operation
            name_group_axes(remaining, axes)
            value = remaining.results[0]
        if reduction(op) == _SUM:
            value = stablehlo.multiply(value, _splat(value.type, _element(op), count))
    op.results[0].replace_all_uses_with(value)
    op.erase()


def _splat(type_: ir.Type, element: ir.Type, count: int) -> Value:
    is_float = isinstance(element, ir.FloatType)
    number = ir.FloatAttr.get(element, count) if is_float else ir.IntegerAttr.get(element, count)
    return stablehlo.constant(ir.DenseElementsAttr.get_splat(type_, number))
