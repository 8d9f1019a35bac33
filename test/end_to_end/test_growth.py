"""The work of lowering grows with the size of a program, and no faster.

What is counted is calls of this project's functions, which are the same in each run. To the
innermost of programs that hold others twice there are 2**n ways.
"""

import functools
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shmap_passes
from jax import lax
from jax.sharding import PartitionSpec as P
from overlap_programs import mesh

import shmap_compiler
from shmap_compiler import shard_map

OURS = tuple(str(Path(each.__file__).parent) for each in (shmap_compiler, shmap_passes))
X = np.ones((8, 8), np.float32)
W = np.full((8, 8), 0.01, np.float32)
ROWS = P("i")


def layers(count):
    def f(x, w):
        for _ in range(count):
            x = x + lax.psum(jnp.tanh(x @ w), "i")
        return x

    return f, (X, W), (P("i"), P()), P("i")


def gradients(count):
    f, args, specs, _ = layers(count)
    return jax.grad(lambda x, w: (f(x, w) ** 2).sum(), 1), args, specs, P("i")


def results(count):
    def f(x):
        y = lax.psum(x, "i")
        return tuple(y * float(k) for k in range(count))

    return f, (X,), (P("i"),), (P(),) * count


def arguments(count):
    def f(*xs):
        return tuple(x * 2 + 1 for x in xs)

    return f, (X,) * count, (P("i"),) * count, (P("i"),) * count


def counted(function):
    """How many functions of this project a function calls."""
    count = 0

    def profile(frame, event, arg):
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(OURS)

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def lowered(f, args=(X,), in_specs=ROWS, out_specs=ROWS):
    mapped = shard_map(f, mesh=mesh(i=4), in_specs=in_specs, out_specs=out_specs)
    return mapped.lower(*args).as_text()


@pytest.mark.parametrize("program", [layers, gradients, results, arguments])
def test_work_grows_with_the_program(program):
    lowered(*program(2))  # imports, and what is kept for good
    few, more, most = (counted(partial(lowered, *program(count))) for count in (8, 24, 40))
    assert most - more < 1.1 * (more - few)


def jitted(f):
    return lambda x: f(f(x))


def branches(f):
    return lambda x: lax.cond(lax.psum(x.sum(), "i") > 0, f, lambda x: f(x * 2), x)


def loop(f):
    return lambda x: lax.scan(lambda c, _: (f(f(c)), None), x, None, length=2)[0]


def with_rule(f):
    ruled = jax.custom_jvp(lambda x: f(f(x)))
    ruled.defjvp(lambda primals, tangents: (ruled(*primals), tangents[0] * primals[0]))
    return ruled


def tower(level, depth):
    f = jax.jit(lambda x: x + lax.psum(jnp.sin(x), "i"))
    for _ in range(depth):
        f = jax.jit(level(f))
    return f


@pytest.mark.parametrize("level", [jitted, branches, loop, with_rule])
def test_a_program_that_several_equations_hold_is_looked_at_once(level):
    lowered(tower(level, 2))
    few, more, most = (counted(partial(lowered, tower(level, depth))) for depth in (4, 8, 12))
    assert most - more < 1.5 * (more - few)


def delayed(f):
    """A loop in which what varies needs several steps to become a result."""

    def loop(x):
        zeros = jnp.zeros_like(x)
        step = lambda c, _: ((f(c[1]) * 0 + x, c[0], c[1]), None)  # noqa: E731
        return lax.scan(step, (zeros,) * 3, None, length=2)[0][2]

    return loop


def nested(level, depth):
    f = lambda x: x + lax.psum(jnp.sin(x), "i")  # noqa: E731
    for _ in range(depth):
        f = level(f)
    return f


def test_loops_in_loops_are_solved_once():
    lowered(nested(delayed, 2))
    few, more, most = (counted(partial(lowered, nested(delayed, n))) for n in (3, 6, 9))
    assert most - more < 1.5 * (more - few)


def differentiated(f):
    """The module of the gradient of a mapped function, from outside."""
    mapped = shard_map(f, mesh=mesh(i=4), in_specs=ROWS, out_specs=ROWS)
    return jax.jit(jax.grad(lambda x: mapped(x).sum())).lower(X).as_text()


def test_gradients_of_branches_in_branches_are_typed_once():
    def branch(f):
        return lambda x: lax.cond(lax.psum(x.sum(), "i") > 0, f, jnp.sin, x)

    differentiated(nested(branch, 2))
    few, more, most = (counted(partial(differentiated, nested(branch, n))) for n in (3, 7, 11))
    assert most - more < 1.8 * (more - few)


def test_all_calls_of_a_function_share_its_gradient():
    layer = jax.jit(lambda x: x + lax.psum(jnp.sin(x), "i"))

    def called(count):
        return differentiated(lambda x: functools.reduce(lambda x, _: layer(x), range(count), x))

    assert called(8).count("func.func") == called(4).count("func.func")


def test_loops_in_loops_are_looked_at_once_by_the_simulator():
    def simulated(depth):
        step = lambda f: lambda x: lax.fori_loop(0, 1, lambda _, x: f(x), x)  # noqa: E731
        f = jnp.sin
        for _ in range(depth):
            f = step(f)
        mapped = shard_map(f, mesh=mesh(i=4), in_specs=ROWS, out_specs=ROWS)
        return mapped.lower(X).simulate(X)

    simulated(2)
    few, more, most = (counted(partial(simulated, depth)) for depth in (3, 7, 11))
    assert most - more < 1.8 * (more - few)
