"""`jax.checkpoint` in bodies: what gradients save and compute again, beside `jax.shard_map`."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoint_programs import POLICIES, STRUCTURES, arguments, cost, gradient
from compilers import fast_jit, run_together
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from jax import lax
from jax.experimental import io_callback
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map
from shmap_compiler.graph.primitive import shmap_p
from shmap_compiler.jaxprs.contents import equations
from shmap_compiler.transforms.split import split

SEED = int(os.environ["SHMAP_PROPERTY_SEED"])


def checkpoint(policy, prevent_cse=True):
    return functools.partial(jax.checkpoint, policy=POLICIES[policy], prevent_cse=prevent_cse)


def no_checkpoint(fun):
    return fun


def check(structure, inner, where="outside", around=no_checkpoint):
    """Compares the gradient of a structure with that of `jax.shard_map`."""
    args = arguments()
    found = {}
    for which in ("ours", "jax"):
        body = STRUCTURES[structure](inner)
        program = fast_jit(gradient(body, which, where, around))
        compiled = program.lower(*args).compile()
        found[which] = cost(compiled), jax.block_until_ready(compiled(*args))
    (ours, gradients), (jaxs, expected) = found["ours"], found["jax"]
    assert ours.operations == jaxs.operations
    assert ours.temporaries <= 1.1 * jaxs.temporaries
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), gradients, expected
    )


@pytest.mark.parametrize(
    ("structure", "policy"),
    list(
        zip(
            sorted(STRUCTURES),
            sorted(POLICIES, reverse=True),
            strict=True,
        )
    ),
)
def test_structure(structure, policy):
    check(structure, checkpoint(policy))


def test_gradient_inside():
    check("scan", checkpoint("None"), "inside")


def test_without_optimization_barriers():
    check("scan", checkpoint("dots_saveable", prevent_cse=False))


@pytest.mark.parametrize("policy", ["None", "everything_saveable"])
@pytest.mark.parametrize("structure", ["scan", "branch"])
def test_around_the_shard_map(structure, policy):
    check(structure, no_checkpoint, around=checkpoint(policy))


def test_inside_and_around():
    check("scan", checkpoint("None"), around=checkpoint("None"))


PLACES = {
    "none": lambda shard_map, body: shard_map(body),
    "inside": lambda shard_map, body: shard_map(jax.checkpoint(body)),
    "around": lambda shard_map, body: jax.checkpoint(shard_map(body)),
    "inside_and_around": lambda shard_map, body: jax.checkpoint(shard_map(jax.checkpoint(body))),
    "around_and_saved": lambda shard_map, body: jax.checkpoint(
        shard_map(body), policy=jax.checkpoint_policies.everything_saveable
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_callbacks_without_used_results_run_as_often_as_in_jax(place):
    def runs(shard_map):
        calls = []

        def body(x):
            jax.debug.callback(lambda total: calls.append(total), x.sum())
            return jnp.sin(x)

        mesh = jax.make_mesh((2,), ("t",), axis_types=(jax.sharding.AxisType.Auto,))
        mapped = functools.partial(shard_map, mesh=mesh, in_specs=P("t"), out_specs=P("t"))
        fun = PLACES[place](mapped, body)
        jax.block_until_ready(jax.jit(jax.grad(lambda x: fun(x).sum()))(np.arange(4.0)))
        jax.effects_barrier()
        return len(calls)

    assert runs(shard_map) == runs(jax.shard_map) > 0


def test_no_policy_repeats_an_effect():
    def fun(x):
        return jnp.sin(x * io_callback(np.ones, jax.ShapeDtypeStruct((), np.float32), ()))

    closed = jax.make_jaxpr(fun)(np.float32(1))
    parts = split(closed, [True], [True], jax.checkpoint_policies.nothing_saveable)
    known, staged = ([e.primitive.name for e in equations(p)] for p in (parts.known, parts.staged))
    assert (known.count("io_callback"), staged.count("io_callback")) == (1, 0)


def test_what_is_an_argument_already_is_not_saved_again():
    mesh = jax.make_mesh((2,), ("t",), axis_types=(jax.sharding.AxisType.Auto,))
    mapped = shard_map(lambda w, x: w * x, mesh=mesh, in_specs=(P(), P("t")), out_specs=P("t"))
    program = jax.make_jaxpr(lambda w, x: jax.vjp(mapped, w, x)[0])(
        np.float32(1), np.ones(4, np.float32)
    )
    (known,) = (eqn for eqn in program.eqns if eqn.primitive is shmap_p)
    assert len(known.outvars) == 1


def twice(below):
    return jax.checkpoint(lambda x: below(below(x)))


def in_both_branches(below):
    return lambda x: lax.cond(lax.psum(x.sum(), "i") > 0, below, lambda x: below(2 * x), x)


def in_a_region_of_a_branch(below):
    return lambda x: lax.cond(lax.psum(x.sum(), "i") > 0, twice(below), jnp.sin, x)


@pytest.mark.parametrize(
    ("around", "depth"), [(twice, 20), (in_both_branches, 20), (in_a_region_of_a_branch, 12)]
)
def test_gradients_of_functions_that_share_functions(around, depth):
    """The number of calls grows exponentially with the depth, the gradient's program does not."""
    mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))
    x = np.linspace(-1, 1, 8, dtype=np.float32)

    def gradient_of(depth, mapper):
        fun = jax.jit(lambda x: jnp.sin(x) + lax.pmean(x, "i"))
        for _ in range(depth):
            fun = jax.jit(around(fun))
        mapped = mapper(fun, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
        return jax.jit(jax.grad(lambda x: mapped(x).sum()))

    ours, jaxs = run_together([gradient_of(3, mapper) for mapper in (shard_map, jax.shard_map)], x)
    np.testing.assert_allclose(ours, jaxs, rtol=1e-5)
    assert gradient_of(depth, shard_map).lower(x).as_text().count("all_reduce") < 1000


def examples(count):
    chosen = settings(max_examples=count, database=None, deadline=None)
    return lambda test: seed(SEED)(chosen(test))


ANY = {
    "structure": st.sampled_from(sorted(STRUCTURES)),
    "policy": st.sampled_from(sorted(POLICIES)),
    "prevent_cse": st.booleans(),
    "where": st.sampled_from(["outside", "inside"]),
}


@examples(3)
@given(**ANY)
def test_any_checkpoint(structure, policy, prevent_cse, where):
    check(structure, checkpoint(policy, prevent_cse), where)


@pytest.mark.long
@examples(150)
@given(**ANY)
def test_any_checkpoint_in_a_long_run(structure, policy, prevent_cse, where):
    check(structure, checkpoint(policy, prevent_cse), where)
