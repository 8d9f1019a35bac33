"""Where two computations of a result begin to differ: a record."""

from __future__ import annotations

from dataclasses import dataclass

from shmap_compiler.simulate.places import SourcePlace


@dataclass(frozen=True)
class FirstDifference:
    """Where two computations of a result begin to differ.

    Attributes:
      place: the operation; None if none was found.
      device: the first device where it differs; None if that is not known.
      note: what else is known, or why nothing is; "" if nothing is to be said.
    """

    place: SourcePlace | None
    device: int | None
    note: str = ""
