from functools import partial

import jax
import jax.numpy as jnp
from jax.export import symbolic_shape
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)


def jitted(fun, *specs):
    return jax.jit(fun, in_shardings=tuple(NamedSharding(mesh, spec) for spec in specs))


def mlp(x, w):
    return jnp.tanh(x @ w)


def prints(x):
    jax.debug.print("{}", x.sum())
    return x * 2


step = jitted(mlp, P("i", "j"), P("j"))
step_args = (jax.ShapeDtypeStruct((8, 16), jnp.float32), jax.ShapeDtypeStruct((16, 4), jnp.float32))
rows = jitted(mlp, P("i"), P())
rows_args = step_args
printing = jitted(prints, P("i"))
printing_args = step_args[:1]
alone = jax.jit(jnp.sin)
alone_args = step_args[:1]
mlp_alone = mlp
mlp_alone_args = step_args
few = step
few_args = step_args[:1]
symbolic = rows
symbolic_args = (jax.ShapeDtypeStruct(symbolic_shape("b, 16"), jnp.float32), step_args[1])


def row_sums(x):
    return x @ x.T


sums = jax.jit(
    row_sums,
    in_shardings=NamedSharding(mesh, P(None, "i")),
    out_shardings=NamedSharding(mesh, P("i")),
)
sums_args = step_args[:1]


@partial(jax.jit, donate_argnums=0)
def donates(x, y):
    return x + y


donates_args = (jnp.arange(8.0), jnp.ones(8))


def donates_reference(x, y):
    return x + y


without_results = jitted(lambda x: None, P("i"))
without_results_args = step_args[:1]


def gated(x, w):
    return jax.lax.stop_gradient(x) * x @ w


gates = jitted(gated, P("i"), P())
gates_args = step_args
