"""Programs of library calls for `jax.jit`, whose arguments are split in many ways."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from library_programs.generate import Scope, draw_spec, result_kinds_of
from library_programs.program import SHAPES, Body
from library_programs.run import How, mesh_of
from library_programs.transformations import TRANSFORMATIONS

_MESHES = [{"i": 2}, {"i": 4}, {"i": 2, "j": 2}]
# LAPACK's, of which one in a program is enough.
_SLOW = ("solve", "inv", "slogdet", "det", "lu_solve", "eigh", "svd", "qr", "expm", "krylov")


@dataclass(frozen=True)
class JittedProgram:
    """A function of full arrays. The repr makes it again.

    Attributes:
      kinds: of the arguments: "vms".
      out_specs: None leaves a result to the partitioner; None for all if it is transformed.
    """

    axes: dict[str, int]
    kinds: str
    body: Body
    in_specs: tuple[PartitionSpec, ...]
    out_specs: tuple[PartitionSpec | None, ...] | None
    transformation: str

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        return [rng.uniform(-1, 1, SHAPES[kind]) for kind in self.kinds]

    def jitted(self) -> Any:
        mesh = mesh_of(self.axes)

        def placed(specs):
            return tuple(None if s is None else NamedSharding(mesh, s) for s in specs)

        fun = TRANSFORMATIONS[self.transformation](partial(How(self.axes, None).run, self.body))
        outs = None if self.out_specs is None else placed(self.out_specs)
        return jax.jit(fun, in_shardings=placed(self.in_specs), out_shardings=outs)


def draw_jitted(number: int, seed: int = 0) -> JittedProgram:
    rng = np.random.default_rng((seed, number))
    pick = Scope(rng, {}, {}, "", (), 0, False)
    axes = pick.choose(_MESHES)
    kinds = "".join(("v", "m", pick.choose("vm"), "s")[: pick.choose([3, 4])])
    left_out = () if pick.choose([0, 1, 1]) else _SLOW
    scope = Scope(rng, {}, {}, kinds, [frozenset()] * len(kinds), 0, True, left_out)
    body = scope.draw(pick.choose([1, 2, 3, 5, 8]), "".join(pick.choose("vm") for _ in range(2)))
    in_specs = tuple(draw_spec(pick, kind, list(axes)) for kind in kinds)
    transformation = pick.choose(["none", pick.choose(sorted(TRANSFORMATIONS))])
    out_specs = tuple(
        draw_spec(pick, kind, list(axes)) if pick.choose([0, 1]) else None
        for kind in result_kinds_of(body)
    )
    kept = out_specs if transformation == "none" else None
    return JittedProgram(axes, kinds, body, in_specs, kept, transformation)
