"""Two passes of one name, for tests of shmap-opt's --load-pass."""

from dataclasses import dataclass

from shmap_passes import Pass


@dataclass(frozen=True)
class First(Pass):
    """Has the name of the other pass."""

    name = "my-pass"


@dataclass(frozen=True)
class Second(Pass):
    """Has the name of the other pass."""

    name = "my-pass"
