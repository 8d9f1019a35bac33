"""Arithmetic on `partition_id`, and tables that are looked up with it, as `@shmap.axis_index`.

    %p = stablehlo.partition_id                          // on a mesh of i=4, j=2
    %q = stablehlo.divide %p, 2                          ->   axis_index over "i"
    %t = dynamic_slice dense<[0, 8, 0, 8, ...]>, %p      ->   8 * axis_index over "j"

Values are computed for every device, so it does not matter how a producer writes the arithmetic. In
regions that are manual over some axes, `partition_id` differs between devices that share a value,
and is hidden in a region that is manual over all: such regions are recognized as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxlib.mlir import ir

from ..analysis.per_device_constants import DYNAMIC_SLICE, evaluate
from ..base import Violation
from ..ir import build
from ..ir.collective_ops import AXIS_INDEX, call_target
from ..ir.mesh import MOST_LISTED, Mesh
from ..ir.ops import defining_op
from ..ir.types import Value, element_of, tensor

PARTITION_ID = "stablehlo.partition_id"
_ARITHMETIC = frozenset(
    {
        PARTITION_ID,
        DYNAMIC_SLICE,
        *(f"stablehlo.{name}" for name in ("add", "convert", "divide", "multiply", "remainder")),
        *(f"stablehlo.{name}" for name in ("reshape", "subtract")),
    }
)
_MADE_MANUAL = ("Sharding", "SPMDShardToFullShape")


@dataclass(frozen=True)
class Position:
    """`factor` * the row-major index along `axes` + `offset`."""

    axes: tuple[str, ...]
    factor: int
    offset: int


def name_positions(
    seeds: Mapping[ir.Operation, np.ndarray | None], mesh: Mesh, manual: Sequence[str]
) -> list[Violation]:
    """Replaces what depends on the positions of devices alone by axis indices.

    Args:
      seeds: the `partition_id`s of the region. Also calls and nested regions that return a
        position, each with its value on every device.
      mesh: the mesh of the region.
      manual: its manual axes.

    Returns:
      A violation for each seed that remains.
    """
    if mesh.size > MOST_LISTED:
        text = f"positions on {mesh} are not read: it has more than {MOST_LISTED} devices"
        return [Violation(op.location, text) for op in seeds]
    positions = _Positions(mesh)
    for op, value in seeds.items():
        positions.add(op, value)
    violations = []
    for op in positions.users_first:
        value = op.results[0]
        if list(value.uses):
            position = position_of(positions.known[value], mesh, manual)
            if position is not None and positions.should_name(op, position):
                _replace(op, value, position, mesh)
        if not list(value.uses):
            _erase_with_constants(op)
        elif op in seeds:
            others = ", ".join(f'"{axis}"' for axis in mesh.without(manual))
            text = (
                f"{op.name} depends on the position of the device along {others}, which the region "
                "does not make manual; use positions along manual axes only"
            )
            violations.append(Violation(op.location, text))
    return violations


class _Positions:
    """The ops that compute integers from positions.

    Attributes:
      known: the integers on every device.
      users_first: the ops, each after those that use it.
    """

    def __init__(self, mesh: Mesh):
        self.mesh = mesh
        self.known: dict[Value, np.ndarray | None] = {}
        self.users_first: list[ir.Operation] = []
        self._seen: set[ir.Operation] = set()

    def add(self, seed: ir.Operation, value: np.ndarray | None) -> None:
        """Adds a seed and what is computed from it."""
        if value is not None:
            self.known[seed.results[0]] = value
        if seed in self._seen or self._value(seed) is None:
            return
        self._seen.add(seed)
        stack = [(seed, self._users(seed))]
        while stack:
            op, users = stack[-1]
            user = next(users, None)
            if user is None:
                self.users_first.append(op)
                stack.pop()
            else:
                self._seen.add(user)
                stack.append((user, self._users(user)))

    def should_name(self, op: ir.Operation, position: Position) -> bool:
        """A multiple of an index is named where it is looked up; other arithmetic stays."""
        if position.factor != 1 or position.offset:
            return _is_looked_up(op)
        if op.name == "stablehlo.custom_call":
            return True
        # What only adds zero to an index, or converts it, stays: the index itself is named.
        return not any(
            source in self._seen and _is_i32(source) and self._are_equal(source, op)
            for source in map(defining_op, op.operands)
            if source is not None
        )

    def _are_equal(self, one: ir.Operation, other: ir.Operation) -> bool:
        values = [self.known[op.results[0]] for op in (one, other)]
        return all(np.array_equal(np.asarray(each), np.asarray(values[0])) for each in values)

    def _users(self, op: ir.Operation) -> Iterator[ir.Operation]:
        for use in list(op.results[0].uses):
            user = use.owner.operation
            if user not in self._seen and _is_arithmetic(user) and self._value(user) is not None:
                yield user

    def _value(self, op: ir.Operation) -> np.ndarray | None:
        """The value of the one result of `op` on every device."""
        result = op.results[0]
        if op.name == "stablehlo.custom_call":
            self.known[result] = self.known.get(op.operands[0])
        return evaluate(result, self.mesh, self.known)


def position_of(values: np.ndarray | None, mesh: Mesh, manual: Sequence[str]) -> Position | None:
    """What an integer on every device is, if it is the multiple of an index along manual axes."""
    if values is None or values.dtype == bool:
        return None
    values = np.broadcast_to(values, mesh.shape).astype(np.int64)
    offset = int(values.flat[0])
    steps: list[tuple[int, str]] = []
    rest = values - offset
    for k, (name, size) in enumerate(mesh.axes):
        if size > 1:
            step = int(rest[tuple(1 if d == k else 0 for d in range(len(mesh.axes)))])
            shape = [size if d == k else 1 for d in range(len(mesh.axes))]
            rest = rest - step * np.arange(size).reshape(shape)
            if step:
                steps.append((step, name))
    if np.any(rest) or not steps or any(name not in manual for _, name in steps):
        return None
    steps.sort(reverse=True)
    factor = expected = steps[-1][0]
    for step, name in reversed(steps):
        if step != expected:
            return None
        expected *= mesh.sizes[name]
    return Position(tuple(name for _, name in steps), factor, offset) if factor > 0 else None


def _is_arithmetic(op: ir.Operation) -> bool:
    if op.name == "stablehlo.convert":
        return op.operands[0].type != op.results[0].type
    if op.name == "stablehlo.custom_call":
        return call_target(op) in _MADE_MANUAL and len(op.operands) == len(op.results) == 1
    return op.name in _ARITHMETIC


def _is_i32(op: ir.Operation) -> bool:
    return str(ir.RankedTensorType(op.results[0].type).element_type) == "i32"


def _is_looked_up(op: ir.Operation | None) -> bool:
    if op is not None and op.name in ("stablehlo.reshape", "stablehlo.convert"):
        op = defining_op(op.operands[0])
    return op is not None and op.name == DYNAMIC_SLICE


def _replace(op: ir.Operation, value: Value, position: Position, mesh: Mesh) -> None:
    with ir.InsertionPoint(op), op.location:
        type_ = ir.RankedTensorType(value.type)
        made: Value = axis_index(position.axes)
        if not _fits_i32(position, mesh):
            made = build.convert(made, type_.element_type)
        if position.factor != 1:
            made = build.multiply(made, _number(position.factor, ir.IntegerType(element_of(made))))
        if position.offset:
            made = build.add(made, _number(position.offset, ir.IntegerType(element_of(made))))
        made = build.convert(made, type_.element_type)
        if type_.rank:
            made = build.reshape(type_, made)
    value.replace_all_uses_with(made)


def _fits_i32(position: Position, mesh: Mesh) -> bool:
    """Whether no step of the arithmetic wraps around in 32 bits."""
    largest = position.factor * (mesh.product(position.axes) - 1)
    return all(abs(n) < 2**31 for n in (largest, position.offset, largest + position.offset))


def _number(number: int, element: ir.IntegerType) -> Value:
    """A scalar of an integer type, in which the number may wrap around."""
    dtype = np.dtype(f"{'u' if element.is_unsigned else ''}int{element.width}")
    bits = np.array(number, np.int64).astype(dtype)
    return build.constant(ir.DenseElementsAttr.get(bits.data, type=tensor([], element)))


def axis_index(axes: Sequence[str]) -> Value:
    """The call that body form has for the index of a device."""
    names = ir.ArrayAttr.get([ir.StringAttr.get(axis) for axis in axes])
    call = ir.Operation.create(
        "stablehlo.custom_call",
        results=[ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))],
        operands=[],
        attributes={
            "api_version": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 4),
            "backend_config": ir.DictAttr.get({"axes": names}),
            "call_target_name": ir.StringAttr.get(AXIS_INDEX),
        },
    )
    return call.results[0]


def _erase_with_constants(op: ir.Operation) -> None:
    """Erases an op, and the constants that only it uses."""
    sources = [source for value in op.operands if (source := defining_op(value)) is not None]
    op.erase()
    for source in dict.fromkeys(sources):
        if source.name == "stablehlo.constant" and not list(source.results[0].uses):
            source.erase()
