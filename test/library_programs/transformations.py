"""What is done to a program before it runs: each takes a function of arrays to another one.

Everything is compared entry by entry, gradients included: both sides are differentiated by JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Function = Callable[..., Any]


def scalar(f: Function) -> Function:
    def loss(*args):
        return sum(jnp.sum(jnp.sin(3.0 * x + k)) for k, x in enumerate(jax.tree.leaves(f(*args))))

    return loss


def directions(args):
    return [jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape) for x in args]


def grad(f: Function) -> Function:
    return lambda *args: jax.grad(scalar(f), tuple(range(len(args))))(*args)


def jvp(f: Function) -> Function:
    return lambda *args: jax.jvp(f, args, tuple(directions(args)))


def stacked(args):
    return [jnp.stack([x, -x * 0.5, x + 0.1]) for x in args]


def vmap(f: Function) -> Function:
    return lambda *args: jax.vmap(f)(*stacked(args))


def grad_of_vmap(f: Function) -> Function:
    return grad(
        lambda first, *rest: jax.vmap(f, (0, *[None] * len(rest)))(stacked([first])[0], *rest)
    )


def vmap_of_grad(f: Function) -> Function:
    return lambda *args: jax.vmap(grad(f))(*stacked(args))


def second(f: Function) -> Function:
    """A product of the Hessian with a vector, forward over reverse."""
    return lambda *args: jax.jvp(grad(f), args, tuple(directions(args)))[1]


def linearized(f: Function) -> Function:
    def run(*args):
        out, push = jax.linearize(f, *args)
        return out, push(*directions(args))

    return run


TRANSFORMATIONS: dict[str, Callable[[Function], Function]] = {
    "none": lambda f: f,
    "grad": grad,
    "grad_of_jit": lambda f: grad(jax.jit(f)),
    "grad_of_checkpoint": lambda f: grad(jax.checkpoint(f)),
    "grad_of_dots_saved": lambda f: grad(
        jax.checkpoint(f, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
    ),
    "jvp": jvp,
    "vmap": vmap,
    "grad_of_vmap": grad_of_vmap,
    "vmap_of_grad": vmap_of_grad,
    "second": second,
    "linearized": linearized,
}
