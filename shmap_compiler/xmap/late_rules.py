"""What rules of the user's have in common that JAX asks for after a program was placed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core

from shmap_compiler.base.untyped import AnyValue, Jaxpr
from shmap_compiler.transforms.batching import leave_p
from shmap_compiler.xmap.placement import Placement

AxisEnv = tuple[tuple[str, int], ...]
"""Names of axes in scope, with their sizes."""


@dataclass(frozen=True)
class RuleScope:
    """Where such a rule is traced, with the logical names in scope, and how it is placed.

    Attributes:
      who: describes the function of the user's.
      placements: of all logical axes in scope.
      manual: the mesh axes that xmaps have made manual.
      run: evaluates a closed named program where mesh axes and vmaps are in scope.
    """

    who: str
    placements: Mapping[str, Placement]
    manual: frozenset[str]
    run: Callable[[Jaxpr, Sequence[AnyValue]], Sequence[AnyValue]]

    @property
    def logical(self) -> AxisEnv:
        return tuple((name, p.size) for name, p in self.placements.items())

    @property
    def vmapped(self) -> AxisEnv:
        return tuple((p.vmapped, p.local) for p in self.placements.values() if p.vmapped)


class Vmapped:
    """A closed program as JAX vmaps it, whose vmapped results are stacked.

    Attributes:
      mapped: which results are vmapped, after a call.
    """

    def __init__(self, program: Jaxpr, axis, dims, *, stacks_all: bool = False):
        self.axis, self.stacks_all, self.mapped = axis, stacks_all, list[bool]()
        run = jex_core.jaxpr_as_fun(program)

        def leaving(*args):
            self.mapped.clear()
            return [leave_p.bind(x, mapped=self.mapped) for x in run(*args)]

        self.run = jax.vmap(leaving, tuple(dims), None, axis_name=axis.name, axis_size=axis.size)

    def __call__(self, *args: AnyValue) -> list[AnyValue]:
        results = self.run(*args)
        if not self.stacks_all:
            return results
        rows = zip(results, self.mapped, strict=True)
        return [x if mapped else stacked(self.axis, x, None) for x, mapped in rows]

    @property
    def dims(self) -> list[int | None]:
        """The dimensions of results along the axis."""
        return [0 if mapped or self.stacks_all else None for mapped in self.mapped]


def stacked(axis, x: AnyValue, d: int | None) -> AnyValue:
    """A value that is vmapped at `d`, or not, with an element for each position, in front."""
    return jnp.broadcast_to(x, (axis.size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
