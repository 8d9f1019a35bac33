"""Operations that call Python: they run device after device, in the order of the mesh.

An operation with callbacks and without collectives needs no program of its own. JAX runs it on one
block at a time, just as it runs outside of any shard_map: prints and ordered effects come in the
order of the program and, within one operation, in the order of the devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from shmap_compiler.base.jax_compat import forget_failed_effects
from shmap_compiler.base.untyped import AnyValue
from shmap_compiler.eager.layout import Layout, Operand, Operation


def run_on_each_device(
    layout: Layout, operation: Operation, operands: Sequence[Operand], arrays: Sequence[AnyValue]
) -> list[jax.Array]:
    """Rows of the results of an operation, applied to one block after the other."""
    columns = [
        itertools.repeat(x) if o.whole else (block for _, block in layout.local_blocks(x))
        for x, o in zip(arrays, operands, strict=True)
    ]
    results = []
    forget_failed_effects()  # an error of an earlier program is not one of this operation
    for _, *blocks in zip(range(layout.count), *columns, strict=False):
        results.append(operation.fun(*blocks))
        jax.effects_barrier()
    return [
        jax.device_put(jnp.stack(blocks), layout.rows_sharding())
        for blocks in zip(*results, strict=True)
    ]


@dataclass
class Once:
    """What the operations of a body that call Python gave, so that a second run calls no Python.

    Both runs apply the same operations in the same order.
    """

    results: list[list[AnyValue]] = field(default_factory=list)
    position: int = 0

    def restart(self) -> None:
        self.position = 0

    def get(self, run: Callable[[], list[AnyValue]]) -> list[AnyValue]:
        """The results of the next operation, which `run` carries out if no run came so far."""
        if self.position == len(self.results):
            self.results.append(run())
        self.position += 1
        return self.results[self.position - 1]
