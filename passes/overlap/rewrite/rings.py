"""Rings of devices: where the members of a group are on them, and moving values along them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxlib.mlir import ir

from ...ir import build
from ...ir.body_form import BodyForm
from ...ir.collective_ops import AXIS_INDEX, PERMUTE
from ...ir.find_ops import find_ops
from ...ir.mesh import Mesh
from ...ir.slices import scalar
from ...ir.types import Value, element_of, tensor
from ..find.loops import WHILE, counted_loop

LARGEST_RING = 256
"""The tables of a ring have an entry for each device."""
MOST_PAIRS = 4096
"""So many devices at most does a permutation list."""


@dataclass(frozen=True)
class Ring:
    """The groups along `axes`, each as a ring.

    Attributes:
      members: the number of the member at each place of the ring, in the order of `axes`.
    """

    mesh: Mesh
    axes: tuple[str, ...]
    members: tuple[int, ...]

    @cached_property
    def count(self) -> int:
        return len(self.members)

    def shift(self, value: Value, by: int) -> Value:
        """What the device `by` places further along the ring has; `by` is 1 or -1."""
        pairs = self._forward if by > 0 else self._backward
        attributes = {"source_target_pairs": pairs}
        return ir.Operation.create(PERMUTE, [value.type], [value], attributes).result

    @cached_property
    def _forward(self) -> ir.Attribute:
        return _pairs(self, 1)

    @cached_property
    def _backward(self) -> ir.Attribute:
        return _pairs(self, -1)

    def table(self) -> Value:
        """The members from the device on, in the order of the ring: `count` numbers.

        They are looked up before communication begins: computed beside a product, they keep libtpu
        from starting both permutations of a step at once.
        """
        places = [self.members.index(member) for member in range(self.count)]
        me = axis_index(self.axes)
        if places != list(range(self.count)):
            me = _element(build.dynamic_slice(_table(places), [me], [1]))
        twice = [*self.members, *self.members]
        return build.dynamic_slice(_table(twice), [me], [self.count])

    def number(self, step: Value, way: int = 1) -> Value:
        """That of a member in the table, for a step that is known when the program runs.

        Args:
          step: from 1 to `count`.
          way: 1 for the member `step` places further, -1 for that so many before.
        """
        count = scalar(self.count)
        if way < 0:
            step = build.subtract(count, step)
        return build.remainder(step, count)

    def start(self, table: Value, number: Value, size: int) -> Value:
        """Where the block of a member begins, if blocks have `size` indices.

        Members are multiplied by the size outside of the table, so that libtpu sees that blocks are
        aligned: otherwise it does not fuse a product with the update that puts it in place, and
        starts permutations between the two products of a step.

        Args:
          number: of the member in the table.
        """
        return build.multiply(_element(build.dynamic_slice(table, [number], [1])), scalar(size))


def _pairs(ring: Ring, by: int) -> ir.Attribute:
    """From which device to which each value is moved, as positions in the mesh."""
    members = ring.members
    further = [*members[by:], *members[:by]]
    pairs = [
        (group[source], group[target])
        for group in ring.mesh.groups(ring.axes)
        for source, target in zip(further, members, strict=True)
    ]
    return ir.DenseElementsAttr.get(np.array(sorted(pairs), np.int64).data)


def ring(form: BodyForm, axes: tuple[str, ...], order: Sequence[int]) -> Ring:
    """The ring of a group; `order` has the place of each member, or is empty for their order."""
    count = form.mesh.product(axes)
    places = list(order) if sorted(order) == list(range(count)) else list(range(count))
    return Ring(form.mesh, axes, tuple(places.index(place) for place in range(count)))


def axis_index(axes: Sequence[str]) -> Value:
    """The index of the device along axes, first axis major."""
    names = ir.ArrayAttr.get([ir.StringAttr.get(axis) for axis in axes])
    call = ir.Operation.create(
        "stablehlo.custom_call",
        results=[tensor([], ir.IntegerType.get_signless(32))],
        attributes={
            "call_target_name": ir.StringAttr.get(AXIS_INDEX),
            "api_version": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 4),
            "backend_config": ir.DictAttr.get({"axes": names}),
        },
    )
    return call.results[0]


def place_in(whole: int, index: Value) -> Value:
    """An index of a dimension of size `whole`.

    Negative ones would count from the end, as JAX writes it. There are none, but with an index
    written like this libtpu starts the permutations of a step before its products, and with one
    written as the sum alone between them: program a takes 3.0 ms on v5e, and 3.9.
    """
    is_negative = build.less(index, scalar(0))
    return build.select(is_negative, build.add(index, scalar(whole)), index)


def _table(values: Sequence[int]) -> Value:
    return build.constant(ir.DenseElementsAttr.get(np.array(values, np.int32).data))


def _element(value: Value) -> Value:
    return build.reshape(tensor([], element_of(value)), value)


def can_go_round(op: ir.Operation, form: BodyForm, count: int) -> bool:
    """Whether rings of `count` devices can replace a collective.

    Modules must not become too large. And all devices of the mesh must execute `op`, equally often:
    a permutation is one among all devices, not one of each group.
    """
    return is_small_enough(count, form) and _all_execute(op, form)


def is_small_enough(count: int, form: BodyForm) -> bool:
    """Whether modules with rings of `count` devices do not become too large."""
    return count <= LARGEST_RING and form.mesh.size <= MOST_PAIRS


def _all_execute(op: ir.Operation, form: BodyForm, depth: int = 0) -> bool:
    parent = op.parent.operation if op.parent is not None else None
    if parent is None or parent == form.main.operation or depth > 64:
        return depth <= 64
    if parent.name == "func.func":
        name = ir.StringAttr(parent.attributes["sym_name"]).value
        return all(_all_execute(call, form, depth + 1) for call in _calls(name, form))
    if parent.name == WHILE:
        return counted_loop(parent) is not None and _all_execute(parent, form, depth + 1)
    return False


def _calls(name: str, form: BodyForm) -> list[ir.Operation]:
    """The calls of a function of the module."""
    module = form.main.operation.parent
    assert module is not None, "a function is in a module"
    calls = find_ops(module.operation, ["func.call"])
    return [op for op in calls if ir.FlatSymbolRefAttr(op.attributes["callee"]).value == name]
