"""What JAX does not take, of a jitted function or from one."""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

rows = NamedSharding(jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,)), P("i"))


def f(x):
    return jnp.sin(x)


text = odd = number = parameter = jax.jit(f, in_shardings=rows)
text_args = ("hello",)
odd_args = (jnp.ones(7),)


def times(x, sizes):
    return x * sizes[0]


unhashable = jax.jit(times, static_argnums=1)
unhashable_args = (jnp.ones(8), [2])


def returns_text(x):
    return "hello"


returns_text_args = calls_its_reference_args = number_args = (jnp.ones(8),)
calls_its_reference = f
calls_its_reference_reference = jnp.dot
number_reference = 3


def parameter_args(n):
    return (jnp.ones(n),)


odd_type = f
odd_type_args = (jax.ShapeDtypeStruct((7,), jnp.float32, sharding=rows),)


def plus(x, y):
    return x + y


plus_args = tuple(jax.device_put(jnp.ones(8), device) for device in jax.devices()[:2])
