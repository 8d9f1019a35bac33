"""Layer norms and RMS norms of one device, as calls of functions that the source defines.

JAX has no layer norm: programs write it, or take it from a library of networks, as a dozen
operations around an inverse root. Where one device has the whole axis, these are written as a call
of a `layer_norm` or `rms_norm` that is defined above the function, once for all calls of its kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

import numpy as np
from jaxlib.mlir import ir
from shmap_passes.ir.ops import defining_op
from shmap_passes.ir.types import Value

from shmap_compiler.unjit.layout import Code
from shmap_compiler.unjit.normalization_functions import ALIKE, Normalization, alike, formula
from shmap_compiler.unjit.replacing_call import (
    ReplacingCall,
    as_call,
    constants,
)
from shmap_compiler.unjit.types import elements_of, is_float, literal, shape_of
from shmap_compiler.unjit.user_calls import SOURCE

_ROOTS = ("stablehlo.rsqrt", "stablehlo.sqrt")
_ELEMENTWISE = {
    *ALIKE,
    *(f"stablehlo.{n}" for n in ("add", "subtract", "multiply", "divide", "maximum", "negate")),
}
_MOST_OPS = 40
_MOST_AFTER = 12
_MOST_TRIED = 8
_PARAMETERS = ("scale", "bias")
"""What a function may take beside what it normalizes."""


def find_normalizations(block: ir.Block) -> Iterator[tuple[ir.Operation, ReplacingCall]]:
    """The normalizations in a block: the root of each, and the call.

    In a training step the derivative uses the root. There the lines themselves are shown, which a
    call would only repeat.
    """
    order = {each.operation: k for k, each in enumerate(block.operations)}
    for op in list(order):
        if op.name in _ROOTS and is_float(op.results[0]):
            found = next(_calls(op, order), None)
            if found is not None:
                yield op, found


def _calls(root: ir.Operation, order: dict[ir.Operation, int]) -> Iterator[ReplacingCall]:
    for kind, ops, result, parameters in islice(_candidates(root, order), _MOST_TRIED):
        name, definition = kind.definition(result, parameters)
        text = f"{name}({', '.join([SOURCE] * (1 + len(parameters)))})"
        found = as_call(ops, text, definition)
        if found is not None and root in found.replaced():
            yield found


def _candidates(
    root: ir.Operation, order: dict[ir.Operation, int]
) -> Iterator[tuple[Normalization, list[ir.Operation], Code, list[str]]]:
    """What operations may be, the operations, what they return, and the names of parameters."""
    for kind in _kinds(root, order):
        for result in _results(root, kind.x, order):
            cone = _cone(result, kind.x, order)
            if cone is None:
                continue
            ops, parameters = cone
            names: dict[Value, str] = dict.fromkeys(parameters, "")
            written = formula(result, kind, names)
            used = [name for name in _PARAMETERS if name in names.values()]
            if written is not None and len(used) == len(parameters) and _has_one_root(written):
                yield kind, ops, written, used


def _has_one_root(written: Code) -> bool:
    return written.text.count("sqrt(") == 1


def _kinds(root: ir.Operation, order: dict[ir.Operation, int]) -> Iterator[Normalization]:
    """What an operation may be the inverse root of, the most that is normalized first."""
    below = _sum_with_number(root.operands[0])
    if below is None:
        return
    variance, epsilon = below
    behind = _behind(variance, order)
    reductions = [op for op in behind if op.name == "stablehlo.reduce"]
    if not 0 < len(reductions) <= 2:
        return
    axes = [tuple(ir.DenseI64ArrayAttr(op.attributes["dimensions"])) for op in reductions]
    if axes[0] != axes[-1] or not axes[0]:
        return
    for x in _sources(reductions, order):
        yield Normalization(root, x, axes[0], epsilon, _variance(variance, x))


def _sum_with_number(value: Value) -> tuple[Value, str] | None:
    """The value that a small number is added to, and the number."""
    op = alike(value)
    if op is None or op.name != "stablehlo.add":
        return None
    for number, other in (op.operands, reversed(op.operands)):
        source = alike(number)
        if source is not None and source.name == "stablehlo.constant":
            elements = elements_of(source)
            if isinstance(elements, np.number) and 0 < float(elements) < 1:
                return other, literal(elements)
    return None


def _square_of(value: Value) -> Value | None:
    op = alike(value)
    if op is None or op.name != "stablehlo.multiply" or op.operands[0] != op.operands[1]:
        return None
    return op.operands[0]


def _sources(reductions: list[ir.Operation], order: dict[ir.Operation, int]) -> list[Value]:
    """What may be normalized, the first values of the block first."""
    found: list[Value] = []
    for op in reductions:
        value = op.operands[0]
        squared = _square_of(value)
        difference = None if squared is None else alike(squared)
        found += [value] if squared is None else [squared]
        if difference is not None and difference.name == "stablehlo.subtract":
            found.append(difference.operands[0])

    def place(value: Value) -> int:
        op = defining_op(value)
        return -1 if op is None else order.get(op, -1)

    return sorted(dict.fromkeys(found), key=place)


def _variance(value: Value, x: Value) -> str:
    """How what stands below the root is computed."""
    op = alike(value)
    is_clamped = op is not None and op.name == "stablehlo.maximum"
    if is_clamped and op is not None:
        sides = [alike(each) for each in op.operands]
        op = next((s for s in sides if s is not None and s.name == "stablehlo.subtract"), None)
    if op is not None and op.name == "stablehlo.subtract":
        return "at least 0" if is_clamped else "squares minus mean"
    while op is not None and op.name in ("stablehlo.divide", "stablehlo.multiply"):
        op = alike(op.operands[0])
    if op is None or op.name != "stablehlo.reduce":
        return "var"
    squared = _square_of(op.operands[0])
    return "" if squared is not None and squared == x else "var"


def _behind(value: Value, order: dict[ir.Operation, int]) -> list[ir.Operation]:
    """The operations that a value is made of, as far as they are those of a normalization."""
    found: dict[ir.Operation, None] = {}
    todo = [value]
    while todo and len(found) < _MOST_OPS:
        op = defining_op(todo.pop())
        if op is not None and op in order and op not in found and _may_be_inside(op):
            found[op] = None
            todo += list(op.operands)
    return list(found)


def _may_be_inside(op: ir.Operation) -> bool:
    return op.name in _ELEMENTWISE or op.name in _ROOTS or op.name == "stablehlo.reduce"


def _results(root: ir.Operation, x: Value, order: dict[ir.Operation, int]) -> list[Value]:
    """Values of the shape of `x` that an inverse root is used for, the last ones first."""
    found: list[ir.Operation] = []
    todo = [root]
    while todo and len(found) < _MOST_AFTER:
        op = todo.pop(0)
        for use in op.results[0].uses:
            user = use.owner.operation
            if user in order and user.name in _ELEMENTWISE and user not in found:
                found.append(user)
                todo.append(user)
    results = [op.results[0] for op in sorted(found, key=order.__getitem__, reverse=True)]
    return [value for value in results if shape_of(value) == shape_of(x)]


def _cone(
    result: Value, x: Value, order: dict[ir.Operation, int]
) -> tuple[list[ir.Operation], list[Value]] | None:
    """The operations between `x` and a result, and what else they need; None if it is too much."""
    after, known = _made_of(x, order), constants()
    found: dict[ir.Operation, None] = {}
    parameters: dict[Value, None] = {}
    todo = [result]
    while todo:
        value = todo.pop()
        op = defining_op(value)
        if value == x or op in found or (op is not None and op in known):
            continue
        if value in after:
            if op is None or not _may_be_inside(op) or len(found) > _MOST_OPS:
                return None
            found[op] = None
            todo += list(op.operands)
        elif op is not None and op in order and op.name == "stablehlo.broadcast_in_dim":
            found[op] = None
            todo.append(op.operands[0])
        else:
            parameters[value] = None
    size = math.prod(shape_of(x))
    if len(parameters) > len(_PARAMETERS) or any(
        math.prod(shape_of(each)) in (1, size) for each in parameters
    ):
        return None
    return sorted(found, key=order.__getitem__), list(parameters)


def _made_of(x: Value, order: dict[ir.Operation, int]) -> set[Value]:
    """The values of a block that need another one."""
    found = {x}
    for op in order:
        if any(operand in found for operand in op.operands):
            found.update(op.results)
    return found
