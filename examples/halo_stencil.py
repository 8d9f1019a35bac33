"""The heat equation on a plate that is split into 4x2 blocks, by finite differences.

In each step a point moves towards the mean of its four neighbours. At the edge of a block, some are
on another device, so before each step every device receives the edges of the neighbouring blocks,
its halo: one ppermute in each direction along each mesh axis.

    python examples/halo_stencil.py    how the plates cool
    shmap run examples/halo_stencil.py:cold_rim       the world around the plate has temperature 0
    shmap run examples/halo_stencil.py:torus          opposite rims of the plate touch
    shmap run examples/halo_stencil.py:until_steady   as many steps as it takes, and how many

The scheme is the textbook's explicit one (forward in time, central in space), for example in
LeVeque, "Finite Difference Methods for Ordinary and Partial Differential Equations", chapter 9.
"""

import os
from functools import partial

# Eight virtual CPU devices, requested before JAX is imported. JAX_PLATFORMS=tpu overrides this.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

SIDE, STEPS = 16, 10
RATE = 0.2  # diffusivity * time step / spacing^2; the scheme is stable up to 1/4
STEADY = 0.05  # a plate is steady when no point changes by more than this in a step

mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
over_plate = partial(shard_map, mesh=mesh, in_specs=P("x", "y"))


def halo(block, dimension, axis_name, wrap):
    """`block`, longer by a neighbour's rim on both sides along `dimension`.

    A ppermute gives zeros to devices that nobody sends to: with no wrap, the plate's cold rim.
    """
    size = lax.axis_size(axis_name)
    to_next = [(i, (i + 1) % size) for i in range(size if wrap else size - 1)]
    to_previous = [(receiver, sender) for sender, receiver in to_next]

    first = lax.slice_in_dim(block, 0, 1, axis=dimension)
    last = lax.slice_in_dim(block, -1, None, axis=dimension)
    before = lax.ppermute(last, axis_name, to_next)
    after = lax.ppermute(first, axis_name, to_previous)
    return jnp.concatenate([before, block, after], axis=dimension)


def difference(longer, dimension):
    """The second difference along `dimension`, which it shortens by one point on both sides."""
    before = lax.slice_in_dim(longer, 0, -2, axis=dimension)
    here = lax.slice_in_dim(longer, 1, -1, axis=dimension)
    after = lax.slice_in_dim(longer, 2, None, axis=dimension)
    return before - 2 * here + after


def step(block, wrap=False):
    """One time step. No stencil reaches a diagonal neighbour, so corners need not travel."""
    along_x = difference(halo(block, 0, "x", wrap), 0)
    along_y = difference(halo(block, 1, "y", wrap), 1)
    return block + RATE * (along_x + along_y)


@partial(over_plate, out_specs=P("x", "y"))
def cold_rim(block):
    return lax.fori_loop(0, STEPS, lambda _, block: step(block), block)


@partial(over_plate, out_specs=P("x", "y"))
def torus(block):
    return lax.fori_loop(0, STEPS, lambda _, block: step(block, wrap=True), block)


@partial(over_plate, out_specs=(P("x", "y"), P()))
def until_steady(block):
    """All devices stop together, as they all know the largest change on the plate."""

    def changes(state):
        _, change, _ = state
        return change > STEADY

    def advance(state):
        block, _, steps = state
        new = step(block)
        return new, lax.pmax(jnp.abs(new - block).max(), ("x", "y")), steps + 1

    block, _, steps = lax.while_loop(changes, advance, (block, jnp.inf, 0))
    return block, steps


def reference_step(plate, pad_mode):
    around = jnp.pad(plate, 1, mode=pad_mode)
    inner = slice(1, -1)
    neighbours = around[:-2, inner] + around[2:, inner] + around[inner, :-2] + around[inner, 2:]
    return plate + RATE * (neighbours - 4 * plate)


def cold_rim_reference(plate):
    for _ in range(STEPS):
        plate = reference_step(plate, "constant")
    return plate


def torus_reference(plate):
    for _ in range(STEPS):
        plate = reference_step(plate, "wrap")
    return plate


def until_steady_reference(plate):
    steps, change = 0, np.inf
    while change > STEADY:
        new = reference_step(plate, "constant")
        change = jnp.abs(new - plate).max()
        plate, steps = new, steps + 1
    return plate, jnp.int32(steps)


plate = jnp.asarray(np.random.default_rng(0).uniform(0, 10, (SIDE, SIDE)), jnp.float32)
cold_rim_args = torus_args = until_steady_args = (plate,)


def main():
    print(f"a {plate.shape} plate on mesh {dict(mesh.shape)}, mean temperature {plate.mean():.3f}")
    print(f"after {STEPS} steps, cold rim:      {jax.jit(cold_rim)(plate).mean():.3f}")
    print(f"after {STEPS} steps, on a torus:    {jax.jit(torus)(plate).mean():.3f}")
    steady, steps = jax.jit(until_steady)(plate)
    print(f"steady after {steps} steps, cold rim: {steady.mean():.3f}")
    error = jnp.abs(steady - until_steady_reference(plate)[0]).max()
    print(f"largest difference to one device: {error:.1e}")


if __name__ == "__main__":
    main()
