"""Beside which collectives libtpu 0.0.50.1 computes, by chip and slice: from its schedules."""

from __future__ import annotations

from collections.abc import Iterable

from .machine import Machine
from .networks import Torus
from .work import Work, is_integer

GATHERS_BY_ITSELF = "TPU v5e"
"""Only libtpu for this chip sends an all-gather while it computes without being told to."""


def rings(work: Work, machine: Machine) -> int | None:
    """Over how many rings, each in one direction, something is sent; None for all links.

    A SparseCore scatters round one ring, both ways, though a v5p has more links. So do all gathers
    in slices of v5p that do not wrap around, as 2x2x2 and 2x4x4; that of 4x4x4 does not tell.
    """
    if work.pattern == "product-scatter":
        return 2
    if work.pattern in ("product-sum", "all-to-all") or machine.chip.name != "TPU v5p":
        return None
    network = machine.network
    return 2 if isinstance(network, Torus) and not any(network.wraps) else None


def starts_gathers(machine: Machine) -> bool:
    return machine.chip.name == GATHERS_BY_ITSELF or machine.compiler_options


def gathers_alone(work: Work, machine: Machine) -> bool:
    """Whether nothing is computed while a group gathers.

    libtpu for v5p leaves a gather to the SparseCore where the group extends along one dimension of
    the slice, and on 2x2x2. Its schedules for 2x2x1, 2x2x4 and 2x4x4 compute beside no other one.
    """
    is_v5p = machine.chip.name == "TPU v5p"
    is_cube = _extents(range(len(machine.places)), machine) == [2, 2, 2]
    return is_v5p and _dimensions(work, machine) > 1 and not is_cube


def adds_meanwhile(machine: Machine) -> bool:
    """Whether reduce-scatters and all-reduces run on the SparseCore, beside products.

    With its options libtpu leaves them to it on all slices that were tried: v5p 2x2x1, 2x2x2 and
    2x2x4, v6e 2x4 and 4x4.
    """
    return machine.chip.name in ("TPU v5p", "TPU v6e") and machine.compiler_options


def _dimensions(work: Work, machine: Machine) -> int:
    """Along how many dimensions of the slice a group extends."""
    return sum(size > 1 for size in _extents(work.groups[0], machine))


def is_all_reduced(work: Work, machine: Machine) -> bool:
    """Whether libtpu scatters sums by an all-reduce and a slice.

    It does on v5p if the group extends along all dimensions, and on v5e and v6e if it is a square
    of at least 4x4; and integers in all groups, also those of chunks that are summed meanwhile.
    """
    if is_integer(work.element):
        return True
    if machine.chip.name in ("TPU v5e", "TPU v6e"):
        rows, columns = _extents(work.groups[0], machine)
        return rows == columns >= 4 and rows * columns == work.count
    return machine.chip.name == "TPU v5p" and _dimensions(work, machine) == 3


def _extents(devices: Iterable[int], machine: Machine) -> list[int]:
    """The number of different coordinates along each dimension."""
    places = (machine.places[device] for device in devices)
    return [len(set(along)) for along in zip(*places, strict=True)]
