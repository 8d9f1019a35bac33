"""pmap on devices of several processes: each passes its own rows, and gets back its own rows.

The program runs on the rows of all processes. A process' rows are on its devices already, or are
put there; the array of all rows is made of them without communication, and the results are taken
apart in the same way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding

from shmap_compiler.base.descriptions import describe
from shmap_compiler.base.errors import Problem, SpecError, errors_of
from shmap_compiler.base.jax_compat import is_tracing
from shmap_compiler.base.untyped import AnyValue, Aval, PyTree
from shmap_compiler.base.values import as_weak, type_of
from shmap_compiler.pmap import nesting
from shmap_compiler.pmap.arguments import Rows
from shmap_compiler.pmap.program import Program
from shmap_compiler.pmap.results import axis_spec, map_results


def call(program: Program, *args: PyTree, **kwargs: PyTree) -> PyTree:
    """A call with the rows of this process; the result has its rows."""
    leaves = program.leaves(args, kwargs)
    if nesting.is_inside_manual():
        return program.jitted(*args, **kwargs)
    count = program.process_count
    if is_tracing() or any(isinstance(x, Tracer) for x in leaves):
        with errors_of("pmap"):
            raise SpecError(describe(program.fun), [_inside_transformation(count)])
    rows = _own_rows(program, args, kwargs)
    of_all = dataclasses.replace(rows, count=rows.count * count)
    kind = program.kind(*_types_of_all(program, rows, args, kwargs))
    mesh = program.meshes.get(kind) or program.mesh(of_all)

    def on(mesh: Mesh) -> PyTree:
        joined = [_join(x, axis, mesh, count) for x, axis in zip(leaves, rows.axes, strict=True)]
        all_args, all_kwargs = program.with_leaves(joined, args, kwargs)
        with jax.disable_jit(False):
            return program.jitted(*all_args, **all_kwargs)

    try:
        results = on(mesh)
    except ValueError:
        found = program.meshes.get(kind, mesh)
        if found is mesh:
            raise
        results = on(found)  # inner pmaps need more devices, which are known since it was traced
    mesh = program.meshes.get(kind, mesh)
    return map_results(lambda x, axis: _split(x, axis, mesh, count), program.out_axes, results)


def types_of_all_rows(
    program: Program, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
) -> tuple[tuple[PyTree, ...], dict[str, PyTree]]:
    """The types of the arrays of all processes' rows, of which the arguments are this process'."""
    return _types_of_all(program, _own_rows(program, args, kwargs), args, kwargs)


def types_of_own_rows(program: Program, results: PyTree) -> PyTree:
    """The converse, for results."""
    count = program.process_count
    return map_results(lambda x, axis: _scaled_type(x, axis, 1, count), program.out_axes, results)


def _own_rows(program: Program, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> Rows:
    rows = program.rows(args, kwargs, program.process_count)
    leaves = program.leaves(args, kwargs)
    if any(isinstance(x, jax.Array) and not x.is_fully_addressable for x in leaves):
        with errors_of("pmap"):
            raise SpecError(describe(program.fun), [_of_all_processes()])
    return rows


def _types_of_all(
    program: Program, rows: Rows, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
) -> tuple[tuple[PyTree, ...], dict[str, PyTree]]:
    leaves = zip(program.leaves(args, kwargs), rows.axes, strict=True)
    types = [_scaled_type(type_of(x), axis, program.process_count) for x, axis in leaves]
    return program.with_leaves(types, args, kwargs)


def _join(x: AnyValue, axis: int | None, mesh: Mesh, processes: int) -> AnyValue:
    """The array of all rows, of which `x` are those of this process."""
    if getattr(x, "dtype", None) == jax.dtypes.float0:
        return np.zeros(_scaled(np.shape(x), axis, processes), jax.dtypes.float0)
    spec = axis_spec(axis, mesh.axis_names[0])
    own = jax.device_put(x, NamedSharding(_own_mesh(mesh), spec))
    shape = _scaled(own.shape, axis, processes)
    joined = jax.make_array_from_single_device_arrays(
        shape, NamedSharding(mesh, spec), _blocks(own)
    )
    return as_weak(joined, jax.typeof(x).weak_type)


def _split(x: AnyValue, axis: int | None, mesh: Mesh, processes: int) -> AnyValue:
    """The rows of this process, of an array of all rows."""
    if x.dtype == jax.dtypes.float0:
        return np.zeros(_scaled(x.shape, axis, 1, processes), jax.dtypes.float0)
    spec = axis_spec(axis, mesh.axis_names[0])
    sharding = NamedSharding(mesh, spec)
    if x.size and not x.sharding.is_equivalent_to(sharding, x.ndim):
        x = jax.device_put(x, sharding)
    blocks = _blocks(x)
    if not x.size and axis is not None:  # XLA replicates them
        blocks = [lax.slice_in_dim(block, 0, 1, axis=axis) for block in blocks]
    shape = _scaled(x.shape, axis, 1, processes)
    own = jax.make_array_from_single_device_arrays(
        shape, NamedSharding(_own_mesh(mesh), spec), blocks
    )
    return as_weak(own, jax.typeof(x).weak_type)


def _own_mesh(mesh: Mesh) -> Mesh:
    """The part of the mesh that has the rows of this process."""
    here = jax.process_index(mesh.devices.flat[0].client)
    own = [d for d in mesh.devices.flat if d.process_index == here]
    inner = mesh.devices.shape[1:]
    return Mesh(np.array(own).reshape(-1, *inner), mesh.axis_names)


def _scaled(
    shape: Sequence[int], axis: int | None, factor: int, divisor: int = 1
) -> tuple[int, ...]:
    return tuple(n * factor // divisor if d == axis else n for d, n in enumerate(shape))


def _scaled_type(type_: Aval, axis: int | None, factor: int, divisor: int = 1) -> Aval:
    shape = _scaled(type_.shape, axis, factor, divisor)
    return jax.ShapeDtypeStruct(shape, type_.dtype, weak_type=type_.weak_type)


def _blocks(x: jax.Array) -> list[jax.Array]:
    """Those on the devices of this process."""
    return [shard.data for shard in x.addressable_shards]


# ------------------------------------------------------------------------------------- mistakes


def _inside_transformation(processes: int) -> Problem:
    return Problem(
        "the arguments",
        f"values that a transformation traces, in a pmap on devices of {processes} processes",
        "arrays: jit, grad and vmap see the rows of one process, and the program those of all",
        "call pmap outermost, with the transformation inside; or pass devices=jax.local_devices(); "
        "or use shard_map on arrays of all processes",
    )


def _of_all_processes() -> Problem:
    return Problem(
        "the arguments",
        "an array on devices of several processes",
        "arrays of this process: each passes the rows of its own devices",
        "pass the rows of this process, or use shard_map on arrays of all processes",
    )
