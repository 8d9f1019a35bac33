"""A training step whose loss is an xmap: rows by name over "data", features over "model"."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import xmap

mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def row_error(x, w):
    """Of one row and one hidden feature, summed over both."""
    with jax.named_scope("row_error"):
        return lax.psum(jnp.tanh(x @ w) ** 2, ("rows", "hidden"))


loss = xmap(
    row_error,
    in_axes=(["rows", ...], ["hidden", ...]),
    out_axes=[...],
    axis_resources={"rows": "data", "hidden": "model"},
    mesh=mesh,
)


@jax.jit
def step(w, x):
    return w - 0.1 * jax.grad(lambda w: loss(x, w))(w)


def typed(shape, *spec):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))


step_args = (typed((16, 8), "model"), typed((32, 8), "data"))
