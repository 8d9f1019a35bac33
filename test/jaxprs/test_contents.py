"""What a program contains, read once."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from shmap_compiler.jaxprs import contents

X = jnp.arange(4.0)


def nested(x):
    return lax.cond(x[0] > 0, jax.jit(jnp.sin), jnp.cos, x) * 2


def test_holders():
    jaxpr = jax.make_jaxpr(nested)(X)
    held = contents.holders(jaxpr)
    assert [jaxpr.eqns[k].primitive.name for k in held] == ["cond"]
    assert [len(programs) for programs in held.values()] == [2]
    assert contents.holders(jaxpr) is held


def test_primitives_are_those_of_all_equations():
    jaxpr = jax.make_jaxpr(nested)(X)
    found = contents.primitives(jaxpr)
    assert found == {eqn.primitive for eqn in contents.equations(jaxpr)}
    assert {"cond", "sin", "cos", "mul"} <= {p.name for p in found}
    assert contents.names_any(jaxpr, ["sin"])
    assert not contents.names_any(jaxpr, ["tan"])


def test_a_program_that_several_equations_hold_is_visited_once():
    """A tower in which each function calls the one below twice."""
    fun, depth = jnp.sin, 40
    for _ in range(depth):
        fun = jax.jit(lambda x, below=fun: below(below(x)))
    names = [eqn.primitive.name for eqn in contents.equations(jax.make_jaxpr(fun)(X))]
    assert (len(names), names[-1], names.count("sin")) == (1 + 2 * depth, "jit", 2)


@pytest.mark.parametrize(
    ("fun", "alive"),
    [
        (lambda x, y: x * y + 1, True),
        (lambda x, y: (x * y, x), True),
        (lambda x, y: (jnp.sin(jnp.cos(x)), x * y)[1], False),
        (lambda x, y: x * 2, False),
        (lambda x, y: jax.jit(jnp.sin)(x) * y, False),  # it may hold something dead
    ],
    ids=["all_used", "input_returned", "dead_chain", "input_unused", "holds_a_program"],
)
def test_is_all_alive(fun, alive):
    assert contents.is_all_alive(jax.make_jaxpr(fun)(X, X)) == alive
