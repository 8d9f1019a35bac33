"""Loops and branches as functions of `lax`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from shmap_passes.ir.ops import defining_op, terminator
from shmap_passes.ir.types import Value

from shmap_compiler.unjit.layout import Code, call, display
from shmap_compiler.unjit.scans import Scan, base_name, find_scan, write_scan
from shmap_compiler.unjit.spelling.operation import Op
from shmap_compiler.unjit.writer import Writer


@dataclass(frozen=True)
class Counter:
    """The counter of a loop that counts up by one.

    Attributes:
      position: among what the loop carries.
      end: where it stops: a value around the loop, or in its condition.
    """

    position: int
    end: Value


def write_while(program: Writer, op: ir.Operation) -> None:
    """Writes a loop, as `fori_loop` if it counts, else as `while_loop`."""
    condition, body = (region.blocks[0] for region in op.regions)
    returned = list(terminator(body).operands)
    count = len(op.operands)
    constant = [k for k in range(count) if returned[k] == body.arguments[k]]
    counter = _counter(program, op, constant)
    counters = [] if counter is None else [counter.position, *_twins(program, op, counter)]
    for k in constant:
        _name(program, op.operands[k])
        for value in (condition.arguments[k], body.arguments[k], op.results[k]):
            program.same(value, op.operands[k])
    carried = [k for k in range(count) if k not in constant and k not in counters]
    # Names are those of what the loop begins with.
    wanted = [base_name(program, op.operands[k], "state") for k in carried]
    for k in counters:
        program.leave_out(returned[k])
    scan = _scan(program, op, constant, counter, counters)
    if counter is None:
        _while_loop(program, op, carried, wanted)
    elif scan is not None:
        write_scan(program, op, scan, carried, wanted)
    else:
        _fori_loop(program, op, carried, wanted, counter)
    for k in counters:
        if counter is not None and list(op.results[k].uses):
            program.same(op.results[k], counter.end)


def _twins(program: Writer, op: ir.Operation, counter: Counter) -> list[int]:
    """The positions of what equals the counter of a loop in each of its steps.

    Uses of these become uses of the counter.
    """
    condition, body = (region.blocks[0] for region in op.regions)
    returned = list(terminator(body).operands)
    position = counter.position
    first = program.constant(op.operands[position])
    found = []
    for k, argument in enumerate(body.arguments):
        start = program.constant(op.operands[k])
        if k == position or first is None or start is None or argument.type != counter.end.type:
            continue
        is_used = bool(list(op.results[k].uses))
        is_end = _counts_up(program, op.operands[position], counter.end)
        if start == first and _adds_one(returned[k], argument) and (is_end or not is_used):
            for block in (condition, body):
                block.arguments[k].replace_all_uses_with(block.arguments[position])
            found.append(k)
    return found


def _scan(
    program: Writer,
    op: ir.Operation,
    constant: Sequence[int],
    counter: Counter | None,
    counters: Sequence[int],
) -> Scan | None:
    """What a loop takes and makes row by row; None if it does not."""
    if counter is None:
        return None
    first, end = (program.constant(v) for v in (op.operands[counter.position], counter.end))
    if first is None or end is None or int(first) != 0:
        return None

    def is_filled(value: Value) -> bool:
        return program.is_number(value)

    return find_scan(op, counters, int(end), constant, is_filled)


def _while_loop(
    program: Writer, op: ir.Operation, carried: Sequence[int], wanted: Sequence[str]
) -> None:
    condition, body = (region.blocks[0] for region in op.regions)
    names = []
    for block, name in ((condition, "keep_going"), (body, "step")):
        names.append(_function(program, block, name, [], carried, wanted, condition is block))
    start = _carry(program, [op.operands[k] for k in carried])
    code = call("lax.while_loop", *names, start)
    program.assign_values([op.results[k] for k in carried], code, wanted, op)


def _fori_loop(
    program: Writer,
    op: ir.Operation,
    carried: Sequence[int],
    wanted: Sequence[str],
    counter: Counter,
) -> None:
    body = op.regions[1].blocks[0]
    k = counter.position
    index = program.names.fresh("i")
    program.bind(body.arguments[k], index)
    name = _function(program, body, "step", [index], carried, wanted, False)
    first, end = _bound(program, op.operands[k]), _bound(program, counter.end)
    start = _carry(program, [op.operands[k] for k in carried])
    code = call("lax.fori_loop", first, end, name, start)
    program.assign_values([op.results[k] for k in carried], code, wanted, op)


def _function(
    program: Writer,
    block: ir.Block,
    wanted_name: str,
    parameters: Sequence[str],
    carried: Sequence[int],
    wanted: Sequence[str],
    is_condition: bool,
) -> str:
    """Defines a function of what a loop carries."""
    name = program.names.fresh(wanted_name)
    arguments = [block.arguments[k] for k in carried]
    inner = [program.names.fresh(each) for each in wanted]
    for argument, each in zip(arguments, inner, strict=True):
        program.bind(argument, each)
    one = inner[0] if len(inner) == 1 else program.names.fresh("carry")
    program.open(f"def {name}({', '.join([*parameters, one])}):")
    used = [n if list(a.uses) else "_" for n, a in zip(inner, arguments, strict=True)]
    if len(inner) != 1 and any(each != "_" for each in used):
        _unpack(program, used, one)
    returned = program.block(block)
    if is_condition:
        program.close(program.exact(returned[0]))
    else:
        program.close(program.results([returned[k] for k in carried]))
    return name


def _unpack(program: Writer, names: Sequence[str], whole: str) -> None:
    text = f"{', '.join(names)} = {whole}"
    if program.indent + len(text) <= 88:
        program.line(text)
        return
    for number, name in enumerate(names):
        if name != "_":
            program.line(f"{name} = {whole}[{number}]")


def _carry(program: Writer, values: Sequence[Value]) -> Code:
    codes = [program.exact(value) for value in values]
    return codes[0] if len(codes) == 1 else display("(", codes, ")")


def _name(program: Writer, value: Value) -> None:
    program.name_of(value)


def _bound(program: Writer, value: Value) -> Code:
    known = program.constant(value)
    return program.exact(value) if known is None else Code(str(int(known)))


def _counter(program: Writer, op: ir.Operation, constant: Sequence[int]) -> Counter | None:
    """The counter of a loop: `while k < end`, with `k + 1` as the next `k`."""
    condition, body = (region.blocks[0] for region in op.regions)
    (kept,) = terminator(condition).operands
    compare = defining_op(kept)
    if compare is None or compare.name != "stablehlo.compare":
        return None
    if Op(compare, program).word("comparison_direction") != "LT":
        return None
    left, right = compare.operands
    found = [k for k, argument in enumerate(condition.arguments) if argument == left]
    if not found or str(left.type) != "tensor<i32>":
        return None
    (k,) = found
    end = _outer(condition, right, op, constant)
    if end is None or not _adds_one(terminator(body).operands[k], body.arguments[k]):
        return None
    if program.constant(op.operands[k]) is None and not end[1]:
        return None
    if end[1]:
        program.number_of(end[0])
    if list(op.results[k].uses) and not _counts_up(program, op.operands[k], end[0]):
        return None
    return Counter(k, end[0])


def _counts_up(program: Writer, first: Value, end: Value) -> bool:
    """Whether a loop is known to run at least to its end, which its counter then is."""
    low, high = program.constant(first), program.constant(end)
    return low is not None and high is not None and int(low) <= int(high)


def _outer(
    condition: ir.Block, value: Value, op: ir.Operation, constant: Sequence[int]
) -> tuple[Value, bool] | None:
    """The value outside of the loop that one in its condition is; whether it is a number."""
    for k, argument in enumerate(condition.arguments):
        if argument == value:
            return (op.operands[k], False) if k in constant else None
    source = defining_op(value)
    if source is None:
        return None
    if source.name == "stablehlo.constant":
        return value, True
    return None if source.block == condition else (value, False)


def _adds_one(value: Value, argument: Value) -> bool:
    source = defining_op(value)
    if source is None or source.name != "stablehlo.add":
        return False
    others = [each for each in source.operands if each != argument]
    if len(others) != 1:
        return False
    one = defining_op(others[0])
    if one is None or one.name != "stablehlo.constant":
        return False
    elements = ir.DenseElementsAttr(one.attributes["value"])
    return elements.is_splat and ir.IntegerAttr(elements.get_splat_value()).value == 1


def write_branches(program: Writer, op: ir.Operation) -> None:
    """Writes `if` and `case`, as `cond` and `switch`."""
    words = ("if_true", "if_false") if op.name == "stablehlo.if" else None
    names = []
    for k, region in enumerate(op.regions):
        name = program.names.fresh(words[k] if words else f"case_{k}")
        program.open(f"def {name}():")
        program.close(program.results(program.block(region.blocks[0])))
        names.append(name)
    which = program.exact(op.operands[0])
    if words:
        code = call("lax.cond", which, *names)
    else:
        code = call("lax.switch", which, display("[", names, "]"))
    program.assign_values(list(op.results), code, program.wanted(op), op)


CONTROL: dict[str, Callable[[Writer, ir.Operation], None]] = {
    "stablehlo.while": write_while,
    "stablehlo.if": write_branches,
    "stablehlo.case": write_branches,
}
"""How control flow is written, by the name of the operation."""
