"""Passes of a user, for tests of shmap-opt's --load-pass."""

from dataclasses import dataclass

from shmap_passes import Pass, PassRefused, Violation, find_ops


@dataclass(frozen=True)
class CountReturns(Pass):
    """Refuses modules with more returns than it is told."""

    name = "my-count-returns"

    most: int = 1
    loudly: bool = False

    def run(self, module):
        returns = find_ops(module.operation, ["func.return"])
        if len(returns) > self.most:
            mark = "!" if self.loudly else ""
            raise PassRefused(
                [Violation(returns[-1].location, f"return number {len(returns)}{mark}")]
            )


@dataclass(frozen=True)
class Stumble(Pass):
    """Raises an exception that is no refusal."""

    name = "my-stumble"

    def run(self, module):
        raise KeyError("stumbled")
