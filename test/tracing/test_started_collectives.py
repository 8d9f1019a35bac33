"""Collectives that a body starts, and whose results it takes later (from JAX 0.12 on)."""

import importlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import needs_tpu_compiler
from jax import lax
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

if not hasattr(lax, "psum_scatter_start"):
    pytest.skip("this JAX has none", allow_module_level=True)
# JAX has not made the others public yet.
started = importlib.import_module("jax._src.lax.parallel")

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
X = jnp.cos(jnp.arange(64.0)).reshape(16, 4)
RING = [(k, (k + 1) % 4) for k in range(4)]


def scatter(start):
    function = lax.psum_scatter_start if start else lax.psum_scatter
    return lambda b: function(b, "i", scatter_dimension=0, tiled=True)


def gather(start):
    function = started.all_gather_start if start else lax.all_gather
    return lambda b: function(b, "i", tiled=True)


def exchange(start):
    function = started.all_to_all_start if start else lax.all_to_all
    return lambda b: function(b, "i", 0, 0, tiled=True)


def permute(start):
    function = started.ppermute_start if start else lax.ppermute
    return lambda b: function(b, "i", RING)


def total(start):
    function = started.psum_start if start else lax.psum
    return lambda b: function(b, "i")


MAKERS = {each.__name__: each for each in (scatter, gather, exchange, permute, total)}


def mapped(body, **options):
    return shard_map(body, mesh=MESH, in_specs=P("i"), out_specs=P("i"), **options)


def both(make):
    """The same body with a collective that is started, and with the usual one."""

    def beside(b):
        future = make(True)(b)
        return jnp.tanh(b) * future.done()[:1]

    return mapped(beside), mapped(lambda b: jnp.tanh(b) * make(False)(b)[:1])


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_it_is_the_program_of_the_usual_one(make):
    ours, usual = both(make)
    primitives = [sorted(e.primitive.name for e in f.trace(X).jaxpr.eqns) for f in (ours, usual)]
    assert primitives[0] == primitives[1]
    np.testing.assert_array_equal(jax.jit(ours)(X), jax.jit(usual)(X))
    np.testing.assert_array_equal(ours(X), usual(X))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_its_derivative(make):
    ours, usual = (jax.grad(lambda x, f=f: (f(x) ** 2).sum()) for f in both(make))
    np.testing.assert_array_equal(jax.jit(ours)(X), jax.jit(usual)(X))
    np.testing.assert_array_equal(ours(X), usual(X))


def test_loops_and_branches_may_carry_what_is_started():
    def body(b):
        def step(future, _):
            return permute(True)(2 * future.done()), None

        future, _ = lax.scan(step, permute(True)(b), length=3)
        last = lax.cond(lax.psum(b.sum(), ("i", "j")) > 0, permute(True), permute(True), b)
        return future.done() + last.done()

    ours = jax.jit(mapped(body))
    np.testing.assert_array_equal(
        ours(X), 8 * jnp.roll(X.reshape(4, 4, 4), 4, 0).reshape(16, 4) + jnp.roll(X, 4, 0)
    )


def test_outside_of_jit_its_value_has_the_type_of_the_usual_one():
    types = []

    def body(b):
        types.extend(map(jax.typeof, (permute(True)(b).done(), permute(False)(b))))
        return b

    mapped(body)(X)
    assert types[0] == types[1]


def test_in_a_rule_of_the_users():
    @jax.custom_vjp
    def f(b):
        return permute(True)(b).done()

    f.defvjp(lambda b: (f(b), None), lambda _, ct: (3 * permute(True)(ct).done(),))
    gradient = jax.jit(jax.grad(lambda x: (mapped(f)(x) * X).sum()))(X)
    np.testing.assert_allclose(gradient, 3 * jnp.roll(X, 4, 0), rtol=1e-6)


def test_without_types_a_sum_that_is_started_is_refused_as_by_jax():
    ours = mapped(lambda b: b * total(True)(b).done(), check_vma=False)
    for call in (jax.jit(ours), ours):
        with pytest.raises(AttributeError, match="no attribute done"):
            call(X)


@needs_tpu_compiler
@pytest.mark.parametrize("make", [gather, permute], ids=["gather", "permute"])
def test_libtpu_runs_it_beside_the_same_products_as_in_jaxs_form(make):
    """Beside both, although the body ends it before the second."""

    def body(b):
        future = make(True)(b)
        first = jnp.tanh(b @ b)
        ended = future.done()[:256]
        return (first + jnp.tanh(b.T @ b))[:256] + ended

    devices = topologies.get_topology_desc("v5e:2x2", platform="tpu").devices
    mesh = Mesh(devices, ("i",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct((8192, 2048), jnp.bfloat16, sharding=NamedSharding(mesh, P("i")))
    schedules = []
    for library in (shard_map, jax.shard_map):
        mapped = library(body, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
        hlo = jax.jit(mapped).lower(x).compile().as_text()
        schedules.append(re.findall(r" ([\w-]+)\(", hlo.partition("\nENTRY ")[2]))
    assert schedules[0] == schedules[1]
