import jax.numpy as jnp


def product():
    return jnp.zeros((2, 3)) @ jnp.zeros((2, 3))


x = product()
