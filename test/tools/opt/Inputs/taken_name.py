"""A pass with a name that is taken, for tests of shmap-opt's --load-pass."""

from dataclasses import dataclass

from shmap_passes import Pass


@dataclass(frozen=True)
class Verify(Pass):
    """Has the name of another pass."""

    name = "shmap-verify"
