"""The vmapped layout: all blocks on one device, each operation vmapped over them.

The devices of a CPU mesh share the cores and the memory of one host. One program that works on all
blocks at once needs no synchronization of threads and no launch per device: it is much faster than
one program per device. An operation keeps its own Graph, as in the per-device layout; only the
Graph's collectives become arithmetic on rows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jax.typing import ArrayLike

from shmap_compiler.base import specs
from shmap_compiler.base.jax_compat import ahead_of_time, axis_of_effect, is_key_type, no_mesh
from shmap_compiler.base.untyped import AnyValue, Device, Eqn
from shmap_compiler.collectives import COLLECTIVES, POINT_TO_POINT, RECORDS, record_of
from shmap_compiler.collectives.rows import DeviceAxis
from shmap_compiler.eager.batching_rules import has_foreign_rule
from shmap_compiler.eager.layout import EagerProgram, Layout, Operand, Operation
from shmap_compiler.eager.per_device import PerDevice
from shmap_compiler.eager.placing import resharded
from shmap_compiler.eager.vmapped_collectives import RULES
from shmap_compiler.graph.callbacks import is_callback
from shmap_compiler.graph.graph import Graph
from shmap_compiler.jaxprs.contents import equations, primitives
from shmap_compiler.jaxprs.held_programs import CUSTOM_VMAP


class Vmapped(Layout):
    def rows_sharding(self) -> SingleDeviceSharding:
        return SingleDeviceSharding(self.mesh.devices.flat[0])

    def whole_sharding(self) -> SingleDeviceSharding:
        return self.rows_sharding()

    def enter(self, array: ArrayLike, spec: PartitionSpec) -> jax.Array:
        if is_key_type(jax.typeof(array)):
            rows = self.enter(jax.random.key_data(array), spec)
            return jax.random.wrap_key_data(rows, impl=jax.random.key_impl(array))
        array = resharded(array, NamedSharding(self.mesh, spec))
        if self._has_blocks(array, spec):
            shards = {s.device: s.data for s in array.addressable_shards}
            blocks = [shards[d] for d in self._first_devices()]
            return _stacked(*jax.device_put(blocks, self.rows_sharding()))
        array = jax.device_put(array, self.rows_sharding())
        return _cut(array, spec, self.mesh, self.axes)

    def leave(self, rows: jax.Array, spec: PartitionSpec) -> jax.Array:
        if is_key_type(rows):
            data = self.leave(jax.random.key_data(rows), spec)
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(rows))
        sharding = NamedSharding(self.mesh, spec)
        shape = specs.global_shape(rows.shape[1:], spec, self.mesh)
        if not rows.size:
            return jax.device_put(rows.reshape(shape), sharding)
        blocks = jax.device_put(_blocks(rows, self._positions()), list(self.mesh.devices.flat))
        return jax.make_array_from_single_device_arrays(shape, sharding, blocks)

    def _has_blocks(self, array: ArrayLike, spec: PartitionSpec) -> TypeGuard[jax.Array]:
        """Whether each device has its block of an array already: the host needs no copy of it."""
        return (
            isinstance(array, jax.Array)
            and array.sharding.is_equivalent_to(NamedSharding(self.mesh, spec), array.ndim)
            and bool(array.size)
        )

    def _positions(self) -> tuple[int, ...]:
        """For each device of the mesh the row that it has."""
        sizes = [self.mesh.shape[a] ** (a in self.axes) for a in self.mesh.axis_names]
        rows = np.arange(self.count).reshape(sizes)
        return tuple(map(int, np.broadcast_to(rows, self.mesh.devices.shape).flat))

    def _first_devices(self) -> list[Device]:
        """For each row the first device that has it."""
        names = self.mesh.axis_names
        manual = tuple(slice(None) if a in self.axes else 0 for a in names)
        return list(self.mesh.devices[manual].flat)

    def compile(self, operation: Operation, operands: Sequence[Operand]) -> EagerProgram:
        anywhere = [PartitionSpec()] * len(operands)
        traced = self.trace(operation, [o.type for o in operands], anywhere, PartitionSpec())
        if _needs_devices(traced.graph):
            return self._compile_over_devices(operation, operands)
        constants = [self.whole(c) for c in traced.constants]
        dims = [None] * len(constants) + [None if o.whole else 0 for o in operands]
        try:
            compiled = self._compiled(traced.graph, dims)
        except NotImplementedError:  # some primitive has no batching rule
            return self._compile_over_devices(operation, operands)
        run = functools.partial(compiled, *constants) if constants else compiled
        return EagerProgram(run, traced.graph.body_out_types)

    def _compiled(self, graph: Graph, dims: Sequence[int | None]) -> AnyValue:
        program = jax.vmap(
            graph.fun,
            in_axes=tuple(dims),
            axis_name=DeviceAxis(AbstractMesh(self.sizes, self.axes)),
            axis_size=self.count,
        )
        types = [
            jax.ShapeDtypeStruct(
                t.shape if d is None else (self.count, *t.shape),
                t.dtype,
                sharding=self.rows_sharding(),
                weak_type=t.weak_type,
            )
            for t, d in zip(graph.body_in_types, dims, strict=True)
        ]
        return ahead_of_time(jax.jit(program), types)

    def _compile_over_devices(
        self, operation: Operation, operands: Sequence[Operand]
    ) -> EagerProgram:
        """The operation in the per-device layout, between moves of its operands and results."""
        layout = PerDevice(self.mesh, self.axes)
        program = layout.compile(operation, operands)
        places = [layout.whole_sharding() if o.whole else layout.rows_sharding() for o in operands]

        def run(*arrays):
            with no_mesh():  # the types of `arrays` may be split over axes that are Manual here
                results = program.run(*jax.device_put(arrays, tuple(places)))
                return jax.device_put(results, self.rows_sharding())

        return EagerProgram(run, program.types)


# Operations whose meaning depends on the devices, or changes under vmap.
_OF_DEVICES = {"reshard", "sharding_constraint", "shard_map", "layout_constraint", "mesh_cast"}
_OF_DEVICES |= {"rng_bit_generator", CUSTOM_VMAP, *POINT_TO_POINT}
_OF_DEVICES |= {f.name for record in RECORDS if record.on_rows is None for f in record.forms}


def _needs_devices(graph: Graph) -> bool:
    """Whether an operation cannot be computed on rows.

    Callbacks in a branch would run for rows that do not take it. Generators other than threefry
    draw other numbers for several keys at once. Kernels may communicate with other devices. A rule
    for `jax.vmap` that is not JAX's may combine rows.
    """
    types = [v.aval for eqn in equations(graph.jaxpr) for v in (*eqn.invars, *eqn.outvars)]
    return (
        bool(graph.effects)
        or any(map(has_foreign_rule, primitives(graph.jaxpr)))
        or any(
            eqn.primitive.name in _OF_DEVICES
            or is_callback(eqn.primitive)
            or (eqn.primitive in COLLECTIVES and eqn.primitive not in RULES)
            or _is_refused(eqn)
            or any(axis_of_effect(e) is not None for e in eqn.effects)
            or eqn.primitive.name.startswith(("dma_", "semaphore_"))
            for eqn in equations(graph.jaxpr)
        )
        or any(is_key_type(t) and "fry" not in str(t.dtype) for t in types)
    )


def _is_refused(eqn: Eqn) -> bool:
    """Whether XLA rejects a collective that rows could compute; then it is rejected here, too."""
    record = record_of(eqn.primitive)
    if record is None or eqn.primitive is not record.primitive:
        return False
    return record.xla_rejects(eqn.outvars[0].aval)


# ------------------------------------------------------------------- full arrays to rows and back


@jax.jit
def _stacked(*blocks: jax.Array) -> jax.Array:
    return jnp.stack(blocks)


@functools.partial(jax.jit, static_argnums=1)
def _blocks(rows: jax.Array, positions: tuple[int, ...]) -> list[jax.Array]:
    return [rows[k] for k in positions]


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _cut(array: AnyValue, spec: PartitionSpec, mesh: Mesh, axes: tuple[str, ...]) -> AnyValue:
    """The rows of an array: split every dimension by its axes, bring the axes to the front."""
    block = specs.shard_shape(array.shape, spec, mesh)
    split, order = _split_dimensions(block, spec, mesh, axes)
    mentioned = specs.mentioned(spec)
    front = [mesh.shape[a] if a in mentioned else 1 for a in axes]
    rows = array.reshape(split).transpose(order).reshape(*front, *block)
    sizes = [mesh.shape[a] for a in axes]
    return jnp.broadcast_to(rows, (*sizes, *block)).reshape(math.prod(sizes), *block)


def _split_dimensions(
    block: tuple[int, ...], spec: PartitionSpec, mesh: Mesh, axes: tuple[str, ...]
) -> tuple[list[int], list[int]]:
    """Shape of a full array with one dimension per mesh axis in its spec, before each own one.

    Also the order of dimensions that brings those of the mesh axes to the front, in mesh order.
    """
    shape, place, own = [], {}, []
    for names, size in zip(specs.dim_axes(spec, len(block)), block, strict=True):
        for name in names:
            place[name] = len(shape)
            shape.append(mesh.shape[name])
        own.append(len(shape))
        shape.append(size)
    return shape, [*(place[a] for a in axes if a in place), *own]
