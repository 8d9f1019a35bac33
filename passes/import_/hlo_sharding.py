"""Reads shardings as XLA writes them, in both of its forms; sharding_text.py writes them.

{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}      "V2": devices as a transposed iota
{devices=[2,1,4]0,2,4,6,1,3,5,7 last_tile_dim_replicate}    "V1": a list of devices
{devices=[1,4,2]<=[8] last_tile_dims={manual, replicated}}  the last dimensions are no tiles
{replicated}, {manual}, {unreduced}, {maximal device=3}
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

import numpy as np

from ..ir.boundary import Unreduced
from ..ir.memoize import memoized
from ..ir.mesh import MOST_LISTED, Mesh
from .digits import Digit, axes_of, digits_of
from .placement import Placement

_TILED = re.compile(
    r"\{devices=\[(?P<tiles>\d+(?:,\d+)*)\]"
    r"(?:<=\[(?P<iota>\d+(?:,\d+)*)\](?:T\((?P<order>\d+(?:,\d+)*)\))?|(?P<list>\d+(?:,\d+)*))"
    r"(?: (?:(?P<copies>last_tile_dim_replicate)|last_tile_dims=\{(?P<kinds>[a-z, ]+)\}))?"
    r"(?: metadata=\{.*\})?\}"
)
_KINDS = ("manual", "replicated", "unreduced")


@dataclass(frozen=True)
class HloSharding:
    """A sharding without the names of axes.

    Attributes:
      kind: "replicated", "manual", "unreduced", or "tiled".
      devices: how many devices it names; 0 if it does not say.
      tiles: for each dimension of the array the digits of the devices among which it is split.
      groups: for each kind of the last dimensions the digits of the devices in it.
    """

    kind: str
    devices: int = 0
    tiles: tuple[tuple[Digit, ...], ...] = ()
    groups: tuple[tuple[str, tuple[Digit, ...]], ...] = ()

    @property
    def is_in_region(self) -> bool:
        """Whether the sharding is that of a value in a manual region."""
        return self.kind == "manual" or any(kind == "manual" for kind, _ in self.groups)

    def digits(self) -> list[Digit]:
        """The digits that must be products of axes. Which devices hold copies does not matter."""
        groups = [digits for kind, digits in self.groups if kind != "replicated"]
        return [digit for digits in (*self.tiles, *groups) for digit in digits]

    def placement(self, rank: int, mesh: Mesh) -> Placement | None:
        """The sharding of an array by axes of a mesh; None if it is no product of axes."""
        if self.kind != "tiled":
            all_axes = mesh.names if self.kind == "unreduced" else ()
            return Placement(((),) * rank, Unreduced(all_axes))
        if len(self.tiles) != rank:
            return None
        dims = [axes_of(digits, mesh) for digits in self.tiles]
        unreduced = self.group("unreduced", mesh)
        if unreduced is None or any(axes is None for axes in dims):
            return None
        return Placement(tuple(axes or () for axes in dims), Unreduced(unreduced))

    def group(self, kind: str, mesh: Mesh) -> tuple[str, ...] | None:
        """The axes of a kind, in mesh order; None if they are no whole axes."""
        digits = [digit for name, found in self.groups if name == kind for digit in found]
        axes = axes_of(digits, mesh)
        return None if axes is None else tuple(name for name in mesh.names if name in axes)


@memoized
def read_hlo_sharding(text: str) -> HloSharding | str:
    """Reads a sharding, or returns why it cannot be read."""
    if text in ("{replicated}", "{manual}", "{unreduced}"):
        return HloSharding(text[1:-1])
    if text.startswith("{maximal"):
        return "puts the array on one device, which no program of all devices does"
    match = _TILED.fullmatch(text)
    if match is None:
        return "is not a form of XLA's shardings that is known here"
    tiles = _numbers(match["tiles"])
    kinds = (
        ("replicated",) if match["copies"] else tuple(re.findall(r"[a-z]+", match["kinds"] or ""))
    )
    if prod(tiles) > MOST_LISTED:
        return f"names more than {MOST_LISTED} devices"
    devices = _devices(match["iota"], match["order"], match["list"])
    if devices is None or sorted(devices) != list(range(prod(tiles))):
        return "does not name each device once"
    if any(kind not in _KINDS for kind in kinds) or len(kinds) >= len(tiles) + 1:
        return f"has last_tile_dims other than {', '.join(_KINDS)}"
    table = np.array(devices).reshape(tiles)
    if kinds and kinds[-1] == "replicated":
        table = np.sort(table, axis=-1)
    along = _digits(table)
    if along is None:
        return "has an order of devices that is no product of axes of a mesh"
    rank = len(tiles) - len(kinds)
    return HloSharding(
        "tiled", len(devices), tuple(along[:rank]), tuple(zip(kinds, along[rank:], strict=True))
    )


def _devices(iota: str | None, order: str | None, listed: str | None) -> list[int] | None:
    if listed is not None:
        return _numbers(listed)
    shape = _numbers(iota or "")
    if prod(shape) > MOST_LISTED:
        return None
    table = np.arange(prod(shape)).reshape(shape)
    if order is not None:
        axes = _numbers(order)
        if sorted(axes) != list(range(len(shape))):
            return None
        table = table.transpose(axes)
    return table.flatten().tolist()


def _digits(table: np.ndarray) -> list[tuple[Digit, ...]] | None:
    """For each dimension the digits that it counts; None if devices are no sum of these."""
    found: list[tuple[Digit, ...]] = []
    total = np.zeros([1] * table.ndim, np.int64)
    for k, size in enumerate(table.shape):
        ids = table[tuple(slice(None) if d == k else 0 for d in range(table.ndim))]
        digits = digits_of(ids.tolist())
        if digits is None:
            return None
        found.append(digits)
        total = total + ids.reshape([size if d == k else 1 for d in range(table.ndim)])
    return found if np.array_equal(total, table) else None


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]
