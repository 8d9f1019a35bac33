"""The per-device layout: each block on its own device, each operation a program for the whole mesh.

The layout of accelerators, and of the few operations that the vmapped layout cannot run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from shmap_compiler.base.jax_compat import ahead_of_time
from shmap_compiler.base.untyped import Aval
from shmap_compiler.eager.layout import EagerProgram, Layout, Operand, Operation, stacked_type
from shmap_compiler.eager.placing import place, splitting_empty
from shmap_compiler.graph.graph import Graph
from shmap_compiler.graph.primitive import bind


class PerDevice(Layout):
    def rows_sharding(self) -> NamedSharding:
        return NamedSharding(self.mesh, self._rows_spec)

    def whole_sharding(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    def enter(self, array: ArrayLike, spec: PartitionSpec) -> jax.Array:
        array = place(array, NamedSharding(self.mesh, spec))
        return _relabelled(self, array.aval, spec, self._rows_spec, _add_row)(array)

    def leave(self, rows: jax.Array, spec: PartitionSpec) -> jax.Array:
        return _relabelled(self, rows.aval, self._rows_spec, spec, _drop_row)(rows)

    def compile(self, operation: Operation, operands: Sequence[Operand]) -> EagerProgram:
        def fun(*blocks):
            blocks = [b if o.whole else b[0] for b, o in zip(blocks, operands, strict=True)]
            return [_add_row(b) for b in operation.fun(*blocks)]

        traced = self.trace(
            replace(operation, fun=fun),
            [o.type if o.whole else stacked_type(o.type, self.count) for o in operands],
            [PartitionSpec() if o.whole else self._rows_spec for o in operands],
            self._rows_spec,
        )
        compiled = _compiled(traced.graph)
        constants = [self.whole(c) for c in traced.constants]
        on_cpu = self.mesh.devices.flat[0].platform == "cpu"

        def run(*arrays):
            results = compiled(*constants, *arrays)
            # Programs that wait for each other's collectives would fill XLA's CPU threads.
            return jax.block_until_ready(results) if on_cpu else results

        types = [t.update(shape=t.shape[1:], sharding=None) for t in traced.graph.body_out_types]
        return EagerProgram(run, types)

    @property
    def _rows_spec(self) -> PartitionSpec:
        return PartitionSpec(self.axes)


def _add_row(block: jax.Array) -> jax.Array:
    return block.reshape(1, *block.shape)


def _drop_row(row: jax.Array) -> jax.Array:
    return row[0]


@functools.lru_cache(maxsize=1024)
def _relabelled(
    layout: PerDevice, aval: Aval, in_spec: PartitionSpec, out_spec: PartitionSpec, fun: Callable
) -> Callable[[jax.Array], jax.Array]:
    """`fun` of each device's block, between arrays with these specs."""
    operation = Operation("relabel", "an eager call", lambda block: [fun(block)])
    traced = layout.trace(operation, [aval], [in_spec], out_spec)
    compiled = _compiled(traced.graph)

    def run(array):
        with jax.disable_jit(False):  # what is compiled ahead of time cannot run without it
            return compiled(array)[0]

    return run


def _compiled(graph: Graph) -> Callable[..., Sequence[jax.Array]]:
    types = [
        jax.ShapeDtypeStruct(
            t.shape, t.dtype, sharding=NamedSharding(graph.mesh, s), weak_type=t.weak_type
        )
        for t, s in zip(graph.in_types, graph.in_specs, strict=True)
    ]
    shardings = [NamedSharding(graph.mesh, s) for s in graph.out_specs]
    program = jax.jit(functools.partial(bind, graph), out_shardings=shardings)
    return splitting_empty(ahead_of_time(program, types), graph.out_types, shardings)
