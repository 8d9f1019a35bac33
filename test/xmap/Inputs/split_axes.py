"""Programs whose axis `i`, of size 8, is split over four devices, two positions on each."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType

from shmap_compiler import SerialLoop, named, xmap

line = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
square = AbstractMesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def over_i(fun, out_axes, resource="x"):
    return xmap(fun, ["i", ...], out_axes, axis_resources={"i": resource}, mesh=line)


rows = (jax.ShapeDtypeStruct((8, 8), jnp.float32),)

total = over_i(lambda row: lax.psum(row, "i"), [...])
gathered = over_i(lambda row: lax.all_gather(row, "i"), [...])
scattered = over_i(lambda row: lax.psum_scatter(row, "i"), ["i", ...])
exchanged = over_i(lambda row: lax.all_to_all(row, "i", 0, 0), ["i", ...])
shifted = over_i(
    lambda row: lax.ppermute(row, "i", [(k, (k + 1) % 8) for k in range(8)]), ["i", ...]
)
index = over_i(lambda row: lax.axis_index("i"), ["i"])
looped = over_i(jnp.sin, ["i", ...], ("x", SerialLoop(2)))
total_args = gathered_args = scattered_args = exchanged_args = rows
shifted_args = index_args = looped_args = rows

product = xmap(
    lambda a, b: named.pdot(a, b, "k"),
    (["n", "k"], ["k", "m"]),
    ["n", "m"],
    axis_resources={"k": ("y", "x")},
    mesh=square,
)
product_args = (
    jax.ShapeDtypeStruct((3, 16), jnp.float32),
    jax.ShapeDtypeStruct((16, 5), jnp.float32),
)
