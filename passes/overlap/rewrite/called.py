"""Builds what is computed several times as a function, and calls it.

    put = Called("put", lambda whole, piece, start: [put_at(whole, piece, 0, start)])
    (whole,) = put(whole, first, zero)
    (whole,) = put(whole, second, one)          %2 = call @put(%1, %second, %one)

XLA inlines calls before it does anything else, so it compiles what it would compile if all of it
were written out. The module is smaller, and takes less time to build, verify, save and read.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from jaxlib.mlir import ir

from ...ir.ops import free_values, function_around, replace_operands
from ...ir.types import Value

Build = Callable[..., Sequence[Value]]
"""Computes results from values, at the current insertion point."""


KeyT = TypeVar("KeyT")


@dataclass(frozen=True)
class Function:
    """A function of the module.

    Attributes:
      captured: the values that each call passes after its own.
    """

    symbol: ir.Attribute
    results: tuple[ir.Type, ...]
    captured: tuple[Value, ...]


Define = Callable[[str, Build, Sequence[ir.Type]], Function]
"""Makes a function as `define` does: of a name, what builds it, and types."""


class Called:
    """A function of the module around the insertion point, built when it is called first.

    It is built once for each combination of types. It may be built of values from outside, which
    must be there at each call.

    Args:
      by: what defines the function; `define`, unless equal sites share it.
    """

    def __init__(self, name: str, build: Build, by: Define | None = None) -> None:
        self._name, self._build, self._define = name, build, by or define
        self._functions: dict[tuple[ir.Type, ...], Function] = {}

    def __call__(self, *values: Value) -> list[Value]:
        types = tuple([value.type for value in values])
        found = self._functions.get(types)
        if found is None:
            found = self._functions[types] = self._define(self._name, self._build, types)
        return call(found, [*values, *found.captured])


class Alike(Generic[KeyT]):
    """What is computed alike of several sets of values, as a function of the module.

    It is built of the values of the first set, by what they are known as; `build` may add some that
    it needs of other sets, too. Other values from outside must be there at each call.

    Args:
      by: what defines the function; `define`, unless equal sites share it.
    """

    def __init__(
        self,
        name: str,
        build: Callable[[dict[KeyT, Value]], Sequence[Value]],
        by: Define | None = None,
    ):
        self._name, self._build, self._define = name, build, by or define
        self._function: Function | None = None
        self._known_as: dict[Value, KeyT] = {}

    def __call__(self, known: dict[KeyT, Value]) -> list[Value]:
        if self._function is None:
            self._function = self._define(self._name, lambda: self._build(known), ())
            self._known_as = {value: key for key, value in known.items()}
        values = [
            known[self._known_as[value]] if value in self._known_as else value
            for value in self._function.captured
        ]
        return call(self._function, values)


def call(function: Function, values: Sequence[Value]) -> list[Value]:
    """Calls a function of the module around the insertion point; captured values come last."""
    op = ir.Operation.create(
        "func.call",
        results=function.results,
        operands=values,
        attributes={"callee": function.symbol},
    )
    return list(op.results)


def define(name: str, build: Build, types: Sequence[ir.Type]) -> Function:
    """A function of the module around the insertion point, which calls may follow.

    Args:
      name: without a number that makes it unique.
      types: of the values that `build` is called with.
    """
    location = cast("ir.Location", ir.Location.current)
    around, module = _function_around()
    symbol = ir.StringAttr.get(_unused(name, ir.SymbolTable(module)))
    function = ir.Operation.create(
        "func.func",
        attributes={"sym_name": symbol, "sym_visibility": ir.StringAttr.get("private")},
        regions=1,
        ip=ir.InsertionPoint(module.regions[0].blocks[0]),
    )
    function.move_after(around)
    block = ir.Block.create_at_start(function.regions[0], types, [location] * len(types))
    with ir.InsertionPoint(block):
        results = build(*block.arguments)
        captured = _capture(block)
        ir.Operation.create("func.return", operands=results)
    inputs = [*types, *[value.type for value in captured]]
    returned = tuple([result.type for result in results])
    type_ = ir.FunctionType.get(inputs, returned)
    function.attributes["function_type"] = ir.TypeAttr.get(type_)
    return Function(ir.FlatSymbolRefAttr.get(symbol.value), returned, captured)


def _unused(name: str, symbols: ir.SymbolTable) -> str:
    if name not in symbols:
        return name
    # The first of them may be many.
    above = next(2**k for k in itertools.count() if f"{name}_{2**k - 1}" not in symbols)
    used = bisect.bisect_left(range(above), True, key=lambda k: f"{name}_{k}" not in symbols)
    return f"{name}_{used}"


def _function_around() -> tuple[ir.Operation, ir.Operation]:
    """The function in which the insertion point is, and its module."""
    point: object = ir.InsertionPoint.current  # the stubs of jaxlib 0.10 give it no type
    assert isinstance(point, ir.InsertionPoint), "everything is built at an insertion point"
    function = function_around(point.block.owner.operation)
    assert function.parent is not None, "a function is in a module"
    return function, function.parent.operation


def _capture(block: ir.Block) -> tuple[Value, ...]:
    """Makes arguments of the values from outside that the operations of a block use."""
    inside: set[Value] = {*block.arguments}
    captured: dict[Value, Value] = {}
    for each in block.operations:
        op = each.operation
        has_regions = len(op.regions) > 0
        operands = free_values([op]) if has_regions else list(op.operands)
        for number, operand in enumerate(operands):
            if operand in inside:
                continue
            if operand not in captured:
                captured[operand] = block.add_argument(operand.type, op.location)
            if not has_regions:
                op.operands[number] = captured[operand]
        if has_regions:
            replace_operands(op, captured)
        inside.update(op.results)
    return tuple(captured)
