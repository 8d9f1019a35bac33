"""The axes along which results of branches vary, which decide which residuals may share a place.

As a result of a `cond`, a residual of one branch varies along all axes along which those of other
branches do that have the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar, cast

from shmap_compiler.base.jax_compat import open_jaxpr
from shmap_compiler.base.meshes import ManualRegion
from shmap_compiler.base.untyped import Eqn, Jaxpr
from shmap_compiler.jaxprs.building import where
from shmap_compiler.replication.frames import Replication
from shmap_compiler.replication.inference import infer_program

T = TypeVar("T")


class BranchAxes:
    """The axes along which results of branches vary, of programs of which that is not known."""

    def __init__(self) -> None:
        self._rewriters: dict[Callable[[BranchAxes], Any], Any] = {}

    def of_results(
        self, cond: Eqn, branch: Jaxpr, taken: Sequence[bool]
    ) -> list[tuple[int, ...]] | None:
        """The sets of axes along which results of a branch vary as results of the equation.

        There is one for each call of the program that contains the equation.

        Args:
          branch: the branch, or a part of it.
          taken: which operands it takes.

        Returns:
          None if the equation is not one of the program.
        """
        return None

    def rewriter(self, kind: Callable[[BranchAxes], T]) -> T:
        """The rewriter of a kind that knows these axes. There is one, which keeps what it made."""
        if kind not in self._rewriters:
            self._rewriters[kind] = kind(self)
        return cast("T", self._rewriters[kind])


UNKNOWN_AXES = BranchAxes()


class AxesOfProgram(BranchAxes):
    """Of the branches of a program.

    Args:
      region: where the program runs.
      replication: of the program.
    """

    def __init__(self, region: ManualRegion, replication: Replication):
        super().__init__()
        self._region = region
        self._replication = replication  # keeps the programs, and so their ids
        self._operands: dict[Hashable, set[tuple[int, ...]]] = {}
        for frame in replication.frame.walk():
            for position in frame.nested:
                eqn = frame.jaxpr.eqns[position]
                if eqn.primitive.name == "cond":
                    masks = tuple(frame.mask(v) for v in eqn.invars)
                    self._operands.setdefault(_key(eqn), set()).add(masks)

    def of_results(
        self, cond: Eqn, branch: Jaxpr, taken: Sequence[bool]
    ) -> list[tuple[int, ...]] | None:
        if _key(cond) not in self._operands:
            return None
        names = self._replication.axes.names
        rows: list[list[int]] = []
        for predicate, *operands in sorted(self._operands[_key(cond)]):
            varying = [names(mask) for mask in where(taken, operands)]
            found = infer_program(self._region, branch, varying).frame.outputs
            rows.append([mask | predicate for mask in found])
        return list(zip(*rows, strict=True))


def _key(cond: Eqn) -> Hashable:
    return tuple(id(open_jaxpr(b)) for b in cond.params["branches"])
