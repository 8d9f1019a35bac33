"""The program of `shmap demo`: a matrix product on a 4x2 mesh."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)


@partial(shard_map, mesh=mesh, in_specs=(P("i", "j"), P("j", None)), out_specs=P("i", None))
def matmul(a_block: jax.Array, b_block: jax.Array) -> jax.Array:
    partial_product = jnp.dot(a_block, b_block)  # f32[2,8] @ f32[8,32] on each device
    return jax.lax.psum(partial_product, "j")


matmul_args = (jnp.arange(8 * 16.0).reshape(8, 16), jnp.arange(16 * 32.0).reshape(16, 32))
matmul_reference = jnp.matmul
