"""How often a loop of an HLO program runs, where its counter says so.

XLA writes the number into the text on some backends only. Elsewhere it is found as XLA finds it:
from where the counter starts, the step by which the body moves it, and the bound it is held
against.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shmap_compiler.explain.hlo import Computation, Instruction, Module, array_types, shape

Carried = Mapping[int, int]
"""Values a loop carries that are the same on every trip, by position."""

_TRANSPARENT = {"copy", "bitcast", "convert", "reshape", "copy-done"}
_COMPUTED = _TRANSPARENT | {"copy-start", "fusion", "add", "compare"}
"""Operations of which the result is known if the operands are."""
_SWAPPED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}


@dataclass(frozen=True)
class _Carry:
    """The value at a position of the tuple that a loop carries, at the start of a trip."""

    position: int


@dataclass(frozen=True)
class _Step:
    """A carried value plus a number."""

    carry: _Carry
    by: int


@dataclass(frozen=True)
class _Compare:
    direction: str
    left: _Value
    right: _Value


_Value = int | _Carry | _Step | _Compare | None
"""What is known of a value; None is nothing."""


@dataclass(frozen=True)
class Trips:
    """How often a loop runs, None if that is not known, and what each trip finds carried."""

    count: int | None
    carried: Carried


def trips(module: Module, parent: Computation, loop: Instruction, carried: Carried) -> Trips:
    """Trips of `loop`, an instruction of `parent`.

    Args:
      carried: if `parent` is itself the body of a loop, what that loop carries.
    """
    body, condition = (
        module.computations[str(loop.attribute(rf"\b{role}=%([\w.\-]+)"))]
        for role in ("body", "condition")
    )
    start = _elements(module, parent, loop.operands[0], carried)
    kept = _elements(module, body, body.root, {})
    constant = {
        position: value
        for position, value in start.items()
        if isinstance(value, int) and kept.get(position) == _Carry(position)
    }
    known = loop.attribute(r'"known_trip_count":\{"n":"(\d+)"')
    if known is not None:
        return Trips(int(known), constant)
    test = _value(module, condition, condition.root, constant)
    after = _elements(module, body, body.root, constant)
    return Trips(_count(test, start, after), constant)


def _count(test: _Value, start: Mapping[int, _Value], after: Mapping[int, _Value]) -> int | None:
    """Trips of a loop that runs while `test` holds."""
    if not isinstance(test, _Compare):
        return None
    direction, counter, bound = test.direction, test.left, test.right
    if isinstance(bound, _Carry):
        direction, counter, bound = _SWAPPED.get(direction, ""), bound, counter
    if not isinstance(counter, _Carry) or not isinstance(bound, int):
        return None
    first, moved = start.get(counter.position), after.get(counter.position)
    if not isinstance(first, int) or not isinstance(moved, _Step) or moved.carry != counter:
        return None
    distance, step = bound - first, moved.by
    if direction in ("GT", "GE") or (direction == "NE" and step < 0):
        distance, step = -distance, -step
    if direction in ("LE", "GE"):
        distance += 1
    if step <= 0 or direction not in _SWAPPED:
        return None
    if direction == "NE" and (distance < 0 or distance % step):
        return None  # it passes the bound, and ends when the counter overflows
    return max(0, math.ceil(distance / step))


def _elements(
    module: Module, computation: Computation, name: str, carried: Carried
) -> dict[int, _Value]:
    """What is known of each element of a tuple."""
    tuple_ = computation[name]
    if tuple_.opcode != "tuple":
        return {}
    known = _values(module, computation, tuple_.operands, carried)
    return {position: known[operand] for position, operand in enumerate(tuple_.operands)}


def _value(module: Module, computation: Computation, name: str, carried: Carried) -> _Value:
    """What is known of a value of a computation."""
    return _values(module, computation, [name], carried)[name]


def _values(
    module: Module,
    computation: Computation,
    names: Sequence[str],
    carried: Carried,
    arguments: tuple[_Value, ...] | None = None,
) -> dict[str, _Value]:
    """What is known of values of a computation, and of those that they are computed of.

    Args:
      carried: what the loop carries whose body or condition `computation` is.
      arguments: what is known of the arguments of a fused computation; None for one of a loop.
    """
    needed: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            if _is_number(computation[name]) and computation[name].opcode in _COMPUTED:
                waiting += computation[name].operands
    known: dict[str, _Value] = {}
    for instruction in computation:  # operands are before their users
        if instruction.name in needed:
            operands = [known.get(name) for name in instruction.operands]
            known[instruction.name] = _evaluate(
                module, computation, instruction, operands, carried, arguments
            )
    return known


def _is_number(instruction: Instruction) -> bool:
    """Whether it can be a counter; whole arrays may be computed in many ways."""
    return not (array_types(instruction.type) and shape(instruction.type))


def _evaluate(
    module: Module,
    computation: Computation,
    instruction: Instruction,
    operands: Sequence[_Value],
    carried: Carried,
    arguments: tuple[_Value, ...] | None,
) -> _Value:
    """What is known of the result of an instruction, of which `operands` are known."""
    opcode = instruction.opcode
    if not _is_number(instruction):
        return None
    if opcode == "constant":
        return int(instruction.text) if instruction.text.lstrip("-").isdecimal() else None
    if opcode == "copy-start" or (opcode in _TRANSPARENT and len(operands) == 1):
        return operands[0]
    if opcode == "parameter" and arguments is not None:
        return arguments[int(instruction.text)]
    if opcode == "get-tuple-element":
        source = computation[instruction.operands[0]]
        if source.opcode != "parameter" or arguments is not None:
            return None
        position = int(instruction.attribute(r"\bindex=(\d+)") or 0)
        return carried.get(position, _Carry(position))
    if opcode == "fusion":
        called = module.computations[instruction.called[0]]
        return _values(module, called, [called.root], {}, tuple(operands))[called.root]
    if opcode == "add":
        return _add(operands[0], operands[1])
    if opcode == "compare":
        direction = instruction.attribute(r"\bdirection=(\w+)") or ""
        return _Compare(direction, operands[0], operands[1])
    return None


def _add(left: _Value, right: _Value) -> _Value:
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    if isinstance(left, int):
        left, right = right, left
    if not isinstance(right, int):
        return None
    if isinstance(left, _Carry):
        return _Step(left, right)
    if isinstance(left, _Step):
        return _Step(left.carry, left.by + right)
    return None
