"""Loops that take one row of their inputs, or make one row of their outputs, in each step.

XLA has no scan: it cuts the rows out of arrays, and puts them into others, at the place of a
counter. Such a loop is written as `lax.scan` again, forward or in reverse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from shmap_passes.ir.ops import defining_op, terminator
from shmap_passes.ir.types import Value

from shmap_compiler.base.untyped import Unchecked
from shmap_compiler.unjit.layout import ATOM, Code, call, display
from shmap_compiler.unjit.types import shape_of
from shmap_compiler.unjit.writer import Writer

_COMPUTED: dict[str, Callable[..., Any]] = {
    "stablehlo.add": np.add,
    "stablehlo.subtract": np.subtract,
    "stablehlo.select": np.where,
}


@dataclass
class Scan:
    """The rows of a loop.

    Attributes:
      length: how many steps it has.
      is_reverse: whether the first step is that of the last row.
      inputs: of what the loop carries without change, the positions of what rows are taken from.
      outputs: of what it carries, the positions of what rows are put into.
      rows: of each of `inputs`, the values in the body that are one row.
      made: of each of `outputs`, the row.
      replaced: the operations of the body that a scan does not need.
    """

    length: int
    is_reverse: bool = False
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    rows: list[list[Value]] = field(default_factory=list)
    made: list[Value] = field(default_factory=list)
    replaced: set[ir.Operation] = field(default_factory=set)


def find_scan(
    op: ir.Operation,
    counters: Sequence[int],
    length: int,
    constant: Sequence[int],
    is_filled: Callable[[Value], bool],
) -> Scan | None:
    """The rows of a loop that counts from 0; None if it is better written as another loop.

    Args:
      counters: the positions of its counter, and of those that equal it.
      constant: the positions of what it does not change.
      is_filled: whether a value is one number in all places, which nobody computed.
    """
    for is_reverse in (False, True):
        scan = Scan(length, is_reverse)
        body = op.regions[1].blocks[0]
        index = body.arguments[counters[0]]
        for k, argument in enumerate(body.arguments):
            if k in constant:
                _add_input(scan, k, argument, index)
            elif k not in counters and is_filled(op.operands[k]):
                _add_output(scan, k, argument, terminator(body).operands[k], index)
        if (scan.inputs or scan.outputs) and _is_free(scan, index, terminator(body), counters):
            return scan
    return None


def _add_input(scan: Scan, k: int, argument: Value, index: Value) -> None:
    """Notes an array of which the body uses one row."""
    users = [use.owner.operation for use in argument.uses if not _is_returned(use)]
    shape = _shape(argument)
    if not users or not shape or shape[0] != scan.length:
        return
    for user in users:
        is_slice = user.name == "stablehlo.dynamic_slice" and user.operands[0] == argument
        if not is_slice or not _is_row(scan, user, list(user.operands)[1:], user.results[0], index):
            return
    scan.inputs.append(k)
    scan.rows.append([user.results[0] for user in users])
    scan.replaced.update(users)


def _add_output(scan: Scan, k: int, argument: Value, returned: Value, index: Value) -> None:
    """Notes an array of which the body makes one row."""
    update = defining_op(returned)
    shape = _shape(argument)
    if update is None or update.name != "stablehlo.dynamic_update_slice":
        return
    if not shape or shape[0] != scan.length or update.operands[0] != argument:
        return
    if len(list(argument.uses)) != 1 or len(list(returned.uses)) != 1:
        return
    if _is_row(scan, update, list(update.operands)[2:], update.operands[1], index):
        scan.outputs.append(k)
        scan.made.append(update.operands[1])
        scan.replaced.add(update)


def _is_row(scan: Scan, op: ir.Operation, starts: list[Value], row: Value, index: Value) -> bool:
    """Whether an operation takes or puts the whole row of a step."""
    whole, part = shape_of(op.operands[0]), shape_of(row)
    if part != (1, *whole[1:]):
        return False
    steps = np.arange(scan.length)
    found = _over_steps(starts[0], index, scan.length)
    expected = steps[::-1] if scan.is_reverse else steps
    return found is not None and np.array_equal(found, expected)


def _over_steps(value: Value, index: Value, length: int) -> np.ndarray | None:
    """What an integer is in each step; None if that is not known."""
    if value == index:
        return np.arange(length)
    op = defining_op(value)
    if op is None:
        return None
    if op.name == "stablehlo.constant":
        elements = ir.DenseElementsAttr(op.attributes["value"])
        if not elements.is_splat or shape_of(value) != ():
            return None
        scalar: Any = elements.get_splat_value()
        return np.full(length, ir.IntegerAttr(scalar).value)
    is_less = "comparison_direction" in op.attributes and "LT" in str(
        op.attributes["comparison_direction"]
    )
    compute = np.less if is_less else _COMPUTED.get(op.name)
    if compute is None:
        return None
    operands = []
    for operand in op.operands:
        found = _over_steps(operand, index, length)
        if found is None:
            return None
        operands.append(found)
    return compute(*operands)


def _is_free(scan: Scan, index: Value, end: ir.Operation, counters: Sequence[int]) -> bool:
    """Whether nothing but rows depends on the counter; notes what computes their places."""
    pending = [use.owner.operation for use in index.uses]
    while pending:
        op = pending.pop()
        if op in scan.replaced or op == end:
            continue
        if op.name.partition(".")[2] not in ("add", "subtract", "select", "compare"):
            return False
        users = [use.owner.operation for result in op.results for use in result.uses]
        is_next = op.results[0] in [end.operands[k] for k in counters]
        if not is_next and end in users:
            return False
        scan.replaced.add(op)
        pending += users
    return True


def _is_returned(use: Unchecked) -> bool:
    return use.owner.operation.name == "stablehlo.return"


def _shape(value: Value) -> tuple[int, ...]:
    return shape_of(value) if isinstance(value.type, ir.RankedTensorType) else ()


def write_scan(
    program: Writer, op: ir.Operation, scan: Scan, carried: Sequence[int], wanted: Sequence[str]
) -> None:
    """Writes a loop as `lax.scan`.

    Args:
      carried: the positions of what it carries, without the counter and what it does not change.
      wanted: names for these.
    """
    body = op.regions[1].blocks[0]
    returned = list(terminator(body).operands)
    kept = [(k, name) for k, name in zip(carried, wanted, strict=True) if k not in scan.outputs]
    name = program.names.fresh("step")
    inner = [program.names.fresh(each) for _, each in kept]
    rows = [
        program.names.fresh(f"{base_name(program, op.operands[k], 'rows')}_row")
        for k in scan.inputs
    ]
    for (k, _), each in zip(kept, inner, strict=True):
        program.bind(body.arguments[k], each)
    one, row = _parameter(program, inner, "carry"), _parameter(program, rows, "rows")
    program.open(f"def {name}({one}, {row}):")
    for names, whole in ((inner, one), (rows, row)):
        if len(names) > 1:
            program.line(f"{', '.join(names)} = {whole}")
    for values, each in zip(scan.rows, rows, strict=True):
        for value in values:
            _bind_row(program, scan, value, each)
    made = [_made(program, scan, value) for value in scan.made]
    for each in scan.replaced:
        program.skip(each)
    program.block(body)
    ends = [program.exact(returned[k]) for k, _ in kept]
    program.close(_pair(_together(ends), _together([read() for read in made])))
    start = _together([program.exact(op.operands[k]) for k, _ in kept])
    given = _together([program.exact(op.operands[k]) for k in scan.inputs])
    more: dict[str, Code | str] = {} if scan.inputs else {"length": str(scan.length)}
    if scan.is_reverse:
        more["reverse"] = "True"
    code = call("lax.scan", name, start, given, **more)
    program.assign_groups(
        [[op.results[k] for k, _ in kept], [op.results[k] for k in scan.outputs]],
        code,
        [
            [each for _, each in kept],
            [base_name(program, op.operands[k], "rows") for k in scan.outputs],
        ],
        op,
    )


def _bind_row(program: Writer, scan: Scan, value: Value, name: str) -> None:
    """Says that a value of the body, with a dimension of size one before it, is a row."""
    program.bind(value, f"{name}[None]")
    for use in list(value.uses):
        user = use.owner.operation
        if user.name == "stablehlo.reshape" and shape_of(user.results[0]) == shape_of(value)[1:]:
            program.bind(user.results[0], name)
            scan.replaced.add(user)


def _made(program: Writer, scan: Scan, value: Value) -> Callable[[], Code]:
    """What reads, at the end of the body, the row that it makes."""
    op = defining_op(value)
    source = None if op is None or not len(op.operands) else op.operands[0]
    if (
        op is not None
        and source is not None
        and len(list(value.uses)) == 1
        and op.name in ("stablehlo.reshape", "stablehlo.broadcast_in_dim")
        and shape_of(source) == shape_of(value)[1:]
        and (op.name == "stablehlo.reshape" or _keeps_order(op, len(shape_of(source))))
    ):
        scan.replaced.add(op)
        return lambda: program.exact(source)
    return lambda: Code(f"{program.exact(value).at(ATOM)}[0]")


def _keeps_order(op: ir.Operation, rank: int) -> bool:
    dims = list(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))
    return dims == list(range(1, rank + 1))


def _parameter(program: Writer, names: Sequence[str], several: str) -> str:
    if len(names) == 1:
        return names[0]
    return program.names.fresh(several) if names else program.names.fresh("_")


def _together(codes: Sequence[Code]) -> Code:
    if not codes:
        return Code("None")
    return codes[0] if len(codes) == 1 else display("(", codes, ")")


def _pair(carry: Code, row: Code) -> Code:
    text = f"{carry.text}, {row.text}"
    whole = display("(", [carry, row], ")")
    return Code(text) if len(text) < 60 else whole


def base_name(program: Writer, value: Value, otherwise: str) -> str:
    """The name of what a loop begins with, without its number; `otherwise` if it has none."""
    code = program.loose(value)[0].text
    if not code.isidentifier():
        return otherwise
    stem, _, number = code.rpartition("_")
    return stem if number.isdigit() and stem else code
