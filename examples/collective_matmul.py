"""Collective matrix product: the communication of `A @ B` hidden behind its arithmetic.

`A` is split by rows over eight devices, and every device needs the whole product. The plain version
gathers `A` first, and all devices wait for it. The ring multiplies the block of rows that a device
already has while it receives the next block: one collective-permute beside each product.

    python examples/collective_matmul.py    what each variant sends
    shmap run examples/collective_matmul.py:plain           all-gather, then one product
    shmap run examples/collective_matmul.py:ring            a ring, every step written out
    shmap run examples/collective_matmul.py:ring_loop       a ring in a lax.fori_loop
    shmap run examples/collective_matmul.py:two_way         half blocks in both directions at once
    shmap run examples/collective_matmul.py:two_way_loop    ... in a lax.fori_loop

Each has a variant for bfloat16: append `_bf16` to its name.

After the ring every device has multiplied every block, so all devices hold the same product. The
compiler cannot infer this, so the function declares it with `assume_replicated`.
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
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from shmap_compiler import assume_replicated, shard_map

M, K, N = 256, 128, 64

mesh = Mesh(np.array(jax.devices()[:8]), ("i",))
by_rows = partial(shard_map, mesh=mesh, in_specs=(P("i", None), P()), out_specs=P())


def unrolled(lower, upper, step, carry):
    """A `lax.fori_loop` that is written out when traced: the steps can then be overlapped."""
    for i in range(lower, upper):
        carry = step(i, carry)
    return carry


def shift(block, by):
    """Sends `block` to the device `by` places further along the ring."""
    size = lax.axis_size("i")
    return lax.ppermute(block, "i", perm=[(j, (j + by) % size) for j in range(size)])


def ring_matmul(a_block, b, loop):
    """Multiplies each block of rows of `A` by `b` as it comes by; blocks are sent to the left.

    In step `i`, device `d` multiplies block `d + i` (modulo the ring's size) of `A`.
    """
    size, me = lax.axis_size("i"), lax.axis_index("i")
    rows = a_block.shape[0]

    def multiply(i, product, block):
        start = (me + i) % size * rows
        return lax.dynamic_update_slice_in_dim(product, block @ b, start, axis=0)

    def step(i, carry):
        product, block = carry
        return multiply(i, product, block), shift(block, -1)

    product = jnp.zeros((rows * size, b.shape[1]), a_block.dtype)
    product, block = loop(0, size - 1, step, (product, a_block))
    product = multiply(size - 1, product, block)  # the last block travels no further
    return assume_replicated(product, "i")


def two_way_matmul(a_block, b, loop):
    """As `ring_matmul`, with the upper half of each block going left and the lower one right.

    Both directions of a ring's links then carry data, each half as much.
    """
    size, me = lax.axis_size("i"), lax.axis_index("i")
    rows = a_block.shape[0]
    half = rows // 2

    def multiply(i, product, upper, lower):
        upper_start = (me + i) % size * rows
        lower_start = (me - i) % size * rows + half
        product = lax.dynamic_update_slice_in_dim(product, upper @ b, upper_start, axis=0)
        return lax.dynamic_update_slice_in_dim(product, lower @ b, lower_start, axis=0)

    def step(i, carry):
        product, upper, lower = carry
        return multiply(i, product, upper, lower), shift(upper, -1), shift(lower, +1)

    product = jnp.zeros((rows * size, b.shape[1]), a_block.dtype)
    carry = (product, a_block[:half], a_block[half:])
    product, upper, lower = loop(0, size - 1, step, carry)
    return assume_replicated(multiply(size - 1, product, upper, lower), "i")


@by_rows
def plain(a_block, b):
    return lax.all_gather(a_block, "i", axis=0, tiled=True) @ b


@by_rows
def ring(a_block, b):
    return ring_matmul(a_block, b, unrolled)


@by_rows
def ring_loop(a_block, b):
    return ring_matmul(a_block, b, lax.fori_loop)


@by_rows
def two_way(a_block, b):
    return two_way_matmul(a_block, b, unrolled)


@by_rows
def two_way_loop(a_block, b):
    return two_way_matmul(a_block, b, lax.fori_loop)


random = np.random.default_rng(0)
a = jnp.asarray(random.standard_normal((M, K)), jnp.float32)
b = jnp.asarray(random.standard_normal((K, N)), jnp.float32)

plain_args = ring_args = ring_loop_args = two_way_args = two_way_loop_args = (a, b)
plain_reference = ring_reference = ring_loop_reference = jnp.matmul
two_way_reference = two_way_loop_reference = jnp.matmul

# The same programs, traced for bfloat16.
ab_bf16 = (a.astype(jnp.bfloat16), b.astype(jnp.bfloat16))

plain_bf16, ring_bf16, ring_loop_bf16 = plain, ring, ring_loop
two_way_bf16, two_way_loop_bf16 = two_way, two_way_loop
plain_bf16_args = ring_bf16_args = ring_loop_bf16_args = ab_bf16
two_way_bf16_args = two_way_loop_bf16_args = ab_bf16
plain_bf16_reference = ring_bf16_reference = ring_loop_bf16_reference = jnp.matmul
two_way_bf16_reference = two_way_loop_bf16_reference = jnp.matmul


def main():
    print(f"A {a.shape} @ B {b.shape} on a ring of {mesh.size} devices; one device sends")
    for name, multiply in [
        ("plain", plain),
        ("ring", ring),
        ("ring_loop", ring_loop),
        ("two_way", two_way),
        ("two_way_loop", two_way_loop),
    ]:
        compiled = multiply.lower(a, b).compile()
        error = jnp.abs(compiled(a, b) - a @ b).max() / jnp.abs(a @ b).max()
        collectives = compiled.explain().collectives
        kinds = " + ".join(f"{c.count} {c.kind}" for c in collectives)
        sent = sum(c.sent_bytes for c in collectives)
        print(f"  {name:13} {sent:8,.0f} bytes in {kinds}; relative error {error:.1e}")


if __name__ == "__main__":
    main()
