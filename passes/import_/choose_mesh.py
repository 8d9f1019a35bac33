"""Chooses the mesh of a module whose shardings list devices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from jaxlib.mlir import ir

from ..base import PassRefused, Violation
from ..ir.constants import elements, integers
from ..ir.mesh import MOST_LISTED, Mesh
from ..ir.ops import defining_op
from ..ir.types import Value
from .digits import Cuts, Digit, axes_of, digits_of_groups
from .hlo_sharding import HloSharding
from .name_groups import listed_groups, named_mesh

Wanted = tuple[HloSharding, ir.Location]
"""A sharding, and the op that has it."""


def mesh_of_text(text: str) -> Mesh | None:
    """The mesh that an option names: "i=4,j=2"; None if it is not of this form."""
    if re.fullmatch(r"[^\s=,\"]+=[1-9]\d{0,8}(,[^\s=,\"]+=[1-9]\d{0,8})*", text) is None:
        return None
    axes = [axis.split("=") for axis in text.split(",")]
    mesh = Mesh("mesh", tuple((name, int(size)) for name, size in axes))
    return mesh if len(mesh.sizes) == len(mesh.axes) and mesh.size <= MOST_LISTED else None


def choose_mesh(
    option: str,
    partitions: int,
    wanted: Sequence[Wanted],
    collectives: Sequence[ir.Operation],
    positions: Iterable[ir.Operation],
    location: ir.Location,
) -> Mesh:
    """The mesh whose axes make each sharding a product of axes, and each group if it can.

    Args:
      option: the mesh that the user wants, as text; "" for any.
      partitions: the number of devices of the executable; 0 if the module does not say.
      wanted: the shardings.
      collectives: those of the region.
      positions: its `partition_id`s.
      location: that of @main.

    Raises:
      PassRefused: no mesh makes the shardings products of axes.
    """
    counts = [(each.devices, where) for each, where in wanted if each.devices]
    grouped = [groups for op in collectives if (groups := listed_groups(op))]
    devices = max((count for count, _ in counts), default=0) or partitions
    devices = devices or max((sum(map(len, groups)) for groups in grouped), default=0)
    named = [mesh for op in collectives if (mesh := named_mesh(op)) is not None]
    asked = mesh_of_text(option)
    if asked is not None:
        _require(asked, counts, wanted, location, devices)
        return asked
    for mesh in named:
        if (devices in (0, mesh.size)) and _expresses(mesh, wanted):
            return mesh
    if not devices or devices > MOST_LISTED:
        text = (
            "nothing in the module says on how many devices it runs; name the mesh, as in "
            "--shmap-import-custom-calls=mesh=i=4,j=2"
        )
        raise PassRefused([Violation(location, text)])
    others = [(count, where) for count, where in counts if count != devices]
    if others:
        text = "the sharding names {} devices, and another {}; all must name every device"
        raise PassRefused(Violation(where, text.format(count, devices)) for count, where in others)
    return _from_cuts(devices, wanted, grouped, positions)


def _require(
    mesh: Mesh,
    counts: Sequence[tuple[int, ir.Location]],
    wanted: Sequence[Wanted],
    location: ir.Location,
    devices: int,
) -> None:
    violations = [
        Violation(where, f"the sharding names {count} devices, and {mesh} has {mesh.size}")
        for count, where in counts
        if count != mesh.size
    ]
    if not violations and devices not in (0, mesh.size):
        text = f"the module runs on {devices} devices, and {mesh} has {mesh.size}"
        violations.append(Violation(location, text))
    if not violations:
        violations = [
            Violation(where, f"the sharding is no product of axes of {mesh}; leave the option out")
            for sharding, where in wanted
            if not _expresses(mesh, [(sharding, where)])
        ]
    if violations:
        raise PassRefused(violations)


def _expresses(mesh: Mesh, wanted: Sequence[Wanted]) -> bool:
    return all(axes_of([digit], mesh) for each, _ in wanted for digit in each.digits())


def _from_cuts(
    devices: int,
    wanted: Sequence[Wanted],
    grouped: Iterable[Sequence[Sequence[int]]],
    positions: Iterable[ir.Operation],
) -> Mesh:
    cuts = Cuts(devices)
    violations = []
    for sharding, where in wanted:
        way = cuts.add(sharding.digits())
        if way is not None:
            text = (
                f"no mesh has axes of which this sharding and those before it are products: "
                f"blocks of {way} devices are split across; partition the module with XLA first"
            )
            violations.append(Violation(where, text))
    if violations:
        raise PassRefused(violations)
    for groups in grouped:
        cuts.add(digits_of_groups(groups) or ())
    for cut in _cuts_of_positions(positions, devices):
        cuts.add([Digit(cut, 1)])
    return cuts.mesh()


def _cuts_of_positions(positions: Iterable[ir.Operation], devices: int) -> Iterator[int]:
    """The strides with which `partition_id` is divided, and those of tables."""
    for op in positions:
        for user in _users(op.results[0]):
            if user.name == "stablehlo.dynamic_slice" and user.operands[0] != op.results[0]:
                yield from _cuts_of_table(user.operands[0], devices)
            divisor = _divisor(user)
            if user.name == "stablehlo.remainder":
                yield from _dividing(divisor, devices)
            elif user.name == "stablehlo.divide":
                yield from _dividing(divisor, devices)
                for digit in _users(user.results[0]):
                    if digit.name == "stablehlo.remainder":
                        yield from _dividing(divisor * _divisor(digit), devices)


def _users(value: Value) -> list[ir.Operation]:
    return [use.owner.operation for use in value.uses]


def _dividing(cut: int, devices: int) -> Iterator[int]:
    if 1 < cut < devices and devices % cut == 0:
        yield cut


def _divisor(op: ir.Operation) -> int:
    """The constant by which `op` divides; 0 if it is something else."""
    source = defining_op(op.operands[1]) if len(op.operands) == 2 else None
    if source is None or source.name != "stablehlo.constant":
        return 0
    element = ir.RankedTensorType(source.results[0].type).element_type
    found = elements(source)
    if found is None or not found.is_splat or not isinstance(element, ir.IntegerType):
        return 0
    return ir.IntegerAttr(found.get_splat_value()).value


def _cuts_of_table(table: Value, devices: int) -> Iterator[int]:
    """How long a table repeats its first number, and after how many numbers it begins again."""
    source = defining_op(table)
    if source is None or source.name != "stablehlo.constant":
        return
    if list(ir.RankedTensorType(table.type).shape) != [devices]:
        return
    numbers = integers(source)
    if numbers is None:
        return
    changes = np.flatnonzero(numbers != numbers[0])
    if len(changes):
        yield from _dividing(int(changes[0]), devices)
    for period in range(2, devices):
        if devices % period == 0 and np.array_equal(
            numbers, np.tile(numbers[:period], devices // period)
        ):
            yield period
            return
