"""A matrix product on a 4x2 mesh, with its result replicated or scattered over one axis.

The left matrix is split into 4x2 blocks, the right one into 2 blocks of rows that match the left
one's columns. So each device multiplies two blocks, and the product of the full matrices is the
sum of these partial products over the axis `j`.

    python examples/matmul.py    the two products, and what each device holds
    shmap run examples/matmul.py:matmul_basic
    shmap run examples/matmul.py:matmul_reduce_scatter
    shmap run examples/matmul.py:matmul_basic_bf16
    shmap run examples/matmul.py:matmul_reduce_scatter_bf16
"""

import os
from functools import partial

# Eight virtual CPU devices, requested before JAX is imported. JAX_PLATFORMS=tpu overrides this.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)

a = jnp.arange(8 * 16.0).reshape(8, 16)
b = jnp.arange(16 * 32.0).reshape(16, 32)


@partial(shard_map, mesh=mesh, in_specs=(P("i", "j"), P("j", None)), out_specs=P("i", None))
def matmul_basic(a_block, b_block):
    """Each device gets full rows of the result: the sum over `j` is an all-reduce."""
    # a_block: f32[2,8]   b_block: f32[8,32]
    partial_sum = jnp.dot(a_block, b_block)
    return lax.psum(partial_sum, "j")  # f32[2,32]


@partial(shard_map, mesh=mesh, in_specs=(P("i", "j"), P("j", None)), out_specs=P("i", "j"))
def matmul_reduce_scatter(a_block, b_block):
    """Each device gets one block of the result: the sum over `j` is a reduce-scatter."""
    partial_sum = jnp.matmul(a_block, b_block)  # f32[2,32]
    return lax.psum_scatter(partial_sum, "j", scatter_dimension=1, tiled=True)  # f32[2,16]


matmul_basic_args = matmul_reduce_scatter_args = (a, b)
matmul_basic_reference = matmul_reduce_scatter_reference = jnp.matmul

# The same two programs, traced for bfloat16. The numbers are scaled to lie in [0, 1).
a_bf16 = (a / a.size).astype(jnp.bfloat16)
b_bf16 = (b / b.size).astype(jnp.bfloat16)

matmul_basic_bf16 = matmul_basic
matmul_reduce_scatter_bf16 = matmul_reduce_scatter
matmul_basic_bf16_args = matmul_reduce_scatter_bf16_args = (a_bf16, b_bf16)
matmul_basic_bf16_reference = matmul_reduce_scatter_bf16_reference = jnp.matmul


def main():
    print(f"a {a.shape} times b {b.shape} on mesh {dict(mesh.shape)}")
    for name, multiply in [
        ("matmul_basic", matmul_basic),
        ("matmul_reduce_scatter", matmul_reduce_scatter),
    ]:
        c = jax.jit(multiply)(a, b)
        print(f"\n{name}")
        print(f"  equals a @ b     {bool(jnp.array_equal(c, a @ b))}")
        print(f"  result           {c.shape}, {c.sharding.spec}")
        print(f"  on each device   {c.addressable_shards[0].data.shape}")
    print("\nmatmul_basic as StableHLO, before the passes:")
    print(matmul_basic.lower(a, b).as_text("body"))


if __name__ == "__main__":
    main()
