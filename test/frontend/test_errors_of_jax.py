"""Errors that JAX raises about a body name the user's function and argument, as for jax.shard_map.

They come from JAX as they are; only what they say of the traced function is ours to give.
"""

import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

MESH = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])


def branches(params, x):
    return x if params["w"].sum() > 0 else -x


def repeats(x, n):
    return x * len(range(int(n[0])))


def counts(x, n):
    return x + jnp.arange(n[0]).sum()


def to_numpy(params, x):
    return x + np.asarray(params["w"])


def asked_for_twice(x, *rest):
    gradient = jax.grad(lambda v: (x * v).sum())(rest[0])  # traced under JAX's types as well
    return x if gradient.sum() > 0 else -x


X, N = jnp.ones(8), jnp.ones(8, int)
TREE = {"v": X, "w": X}
CASES = {
    "branches": (branches, (TREE, X), (P(), P("i")), jax.errors.TracerBoolConversionError),
    "repeats": (repeats, (X, N), (P("i"), P()), jax.errors.ConcretizationTypeError),
    "counts": (counts, (X, N), (P("i"), P()), jax.errors.ConcretizationTypeError),
    "to_numpy": (to_numpy, (TREE, X), (P(), P("i")), jax.errors.TracerArrayConversionError),
    "asked_for_twice": (asked_for_twice, (X, X), P("i"), jax.errors.TracerBoolConversionError),
}


def told(map_function, fun, args, in_specs, error):
    """The sentence about the traced function, without the folder of its file."""
    mapped = map_function(fun, mesh=MESH, in_specs=in_specs, out_specs=P("i"))
    with pytest.raises(error, match="while tracing the function") as info:
        jax.jit(mapped)(*args)
    return next(line for line in str(info.value).splitlines() if "while tracing" in line)


@pytest.mark.parametrize("name", CASES)
def test_error_says_what_it_says_of_jax(name):
    ours, theirs = (told(f, *CASES[name]) for f in (shard_map, jax.shard_map))
    assert ours == theirs
    line = inspect.getsourcelines(CASES[name][0])[1]
    assert re.search(f"function {name} at .*test_errors_of_jax.py:{line} for shard_map", ours)


def test_arguments_that_are_no_arrays_do_not_shift_the_names():
    def body(mode, x, n):
        return x * int(n[0])

    mapped = shard_map(body, mesh=MESH, in_specs=(None, P("i"), P()), out_specs=P("i"))
    with pytest.raises(jax.errors.ConcretizationTypeError, match="of the argument n"):
        jax.jit(lambda x, n: mapped("fast", x, n))(X, N)


@pytest.mark.parametrize("check_vma", [True, False])
def test_leaked_tracer_names_the_function(check_vma):
    leaked = []

    def leaks(x):
        leaked.append(x)
        return x * 2

    mapped = shard_map(leaks, mesh=MESH, in_specs=P("i"), out_specs=P("i"), check_vma=check_vma)
    jax.jit(mapped)(X).block_until_ready()
    where = r"leaks at .*test_errors_of_jax.py:\d+ traced for shard_map"
    with pytest.raises(jax.errors.UnexpectedTracerError, match=where):
        leaked[0] + 1
