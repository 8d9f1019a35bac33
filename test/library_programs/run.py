"""Runs programs beside their references."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from compilers import fast_jit
from jax.sharding import Mesh

from library_programs.generate import OPERATIONS
from library_programs.program import Program, run_body
from library_programs.reference import reference
from library_programs.transformations import TRANSFORMATIONS
from shmap_compiler import BodyError
from shmap_compiler.tracing.vma_typing import refused_by_types

TOLERANCE = {"rtol": 1e-6, "atol": 1e-7}

REFUSED_BY_TYPES = refused_by_types(ValueError("")).found
"""How a refusal by types begins, whatever its reason."""


@dataclass(frozen=True)
class How:
    """How a body runs the bodies of its steps, and regions over other axes."""

    axes: dict[str, int]
    shard_map: Any  # None in the reference

    def run(self, body, *values):
        return run_body(OPERATIONS, self, body, values)

    def region(self, function, axis, in_specs, out_spec):
        if self.shard_map is None:
            return reference(function, {axis: self.axes[axis]}, in_specs, out_spec)
        return self.shard_map(
            function, in_specs=in_specs, out_specs=out_spec, axis_names=frozenset({axis})
        )


def mesh_of(axes: Mapping[str, int]) -> Mesh:
    """The first devices, as a mesh of axes with these sizes."""
    shape = tuple(axes.values())
    devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
    return Mesh(devices, tuple(axes))


def mapped(program: Program, shard_map: Any, **options: Any):
    """The program's function of full arrays, by a `shard_map` and transformed."""
    how = How(program.axes, shard_map)
    function = shard_map(
        partial(how.run, program.body),
        mesh=mesh_of(program.axes),
        in_specs=program.in_specs,
        out_specs=program.out_specs,
        axis_names=frozenset(program.manual),
        **options,
    )
    return TRANSFORMATIONS[program.transformation](function)


def referenced(program: Program):
    how = How(program.axes, None)
    manual = {a: n for a, n in program.axes.items() if a in program.manual}
    function = reference(
        partial(how.run, program.body), manual, program.in_specs, program.out_specs
    )
    return TRANSFORMATIONS[program.transformation](function)


def difference(program: Program, shard_map: Any, **options: Any) -> str | None:
    """What differs between a program and its reference; None if nothing does."""
    functions = mapped(program, shard_map, **options), referenced(program)

    def both(arrays):
        return [function(*arrays) for function in functions]

    # One compilation for both takes less time than two.
    with jax.enable_x64(True):
        results = jax.block_until_ready(fast_jit(both)(program.arrays()))
    return difference_of(*results)


def difference_directly(program: Program, shard_map: Any) -> str | None:
    """The same for a program that is called outside of `jax.jit`."""
    with jax.enable_x64(True):
        arrays = [jnp.asarray(array) for array in program.arrays()]
        wanted = jax.block_until_ready(fast_jit(referenced(program))(*arrays))
        ours = jax.block_until_ready(mapped(program, shard_map)(*arrays))
    return difference_of(ours, wanted)


def difference_of(ours: Any, wanted: Any) -> str | None:
    """What differs between two trees of arrays of float64."""
    try:
        for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(wanted), strict=True):
            assert (x.shape, x.dtype) == (y.shape, np.float64)
            assert np.isfinite(np.asarray(y)).all(), "the reference is not finite"
            np.testing.assert_allclose(np.asarray(x), np.asarray(y), **TOLERANCE)
            for shards in copies(x):
                for shard in shards[1:]:
                    np.testing.assert_array_equal(shard, shards[0], "copies that differ")
    except AssertionError as error:
        return str(error)
    return None


def copies(x: jax.Array) -> list[list[np.ndarray]]:
    """The shards of an array, those that should be equal together."""
    groups: dict[str, list[np.ndarray]] = {}
    for shard in x.addressable_shards:
        groups.setdefault(str(shard.index), []).append(np.asarray(shard.data))
    return list(groups.values())


def runs_nowhere(program: Program, error: Exception) -> bool:
    """Whether the refusal has a reason that is not ours.

    XLA's CPU compiler cannot take all layouts of an FFT, with or without shard_map. Whatever else
    it refuses it must refuse in the program of `jax.shard_map`, too. A derivative inside the
    function needs JAX's types of varying values, which refuse loops that `jax.shard_map` refuses,
    too (README, "Limits").
    """
    if isinstance(error, jax.errors.JaxRuntimeError):
        return "fft_thunk" in str(error) or _fails_with_jax(program, str(error))
    if not isinstance(error, BodyError) or REFUSED_BY_TYPES not in str(error):
        return False
    try:
        difference(program, jax.shard_map)
    except (TypeError, ValueError, AssertionError):
        return any(step.name == "inner_gradient" for step in program.body.walk())
    return False


def _fails_with_jax(program: Program, message: str) -> bool:
    """Whether XLA refuses the program of `jax.shard_map` in the same words, before it names ops."""
    try:
        difference(program, jax.shard_map)
    except jax.errors.JaxRuntimeError as error:
        return str(error)[:80] == message[:80]
    return False
