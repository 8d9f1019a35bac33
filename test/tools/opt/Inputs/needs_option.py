from dataclasses import dataclass

from shmap_passes import Pass


@dataclass(frozen=True)
class Needs(Pass):
    """Has an option without a default."""

    name = "my-needs"

    most: int

    def run(self, module):
        return False
