"""Collectives in branches and loops of pmap: by rows of arguments, which count as equal, or not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_batching import custom_vmap
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from shmap_compiler import HangError, pmap, shard_map

X = np.linspace(-1, 2, 32, dtype=np.float32).reshape(8, 4)
STEP = np.full(8, 2, np.int32)
DEVICES = jax.devices()[:8]


def close(found, expected):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), found, expected
    )


def average(x):
    return lax.pmean(jnp.sin(x), "i")


def every_second_step(step, x):
    return step + 1, lax.cond(step % 2 == 0, average, jnp.sin, x)


def until_the_tenth_step(step, x):
    return lax.while_loop(lambda s: s[0] < 10, lambda s: (s[0] + 1, average(s[1])), (step, x))


def as_often_as_steps(step, x):
    return lax.fori_loop(0, step, lambda i, x: average(x) + i, x)


def steps_of_a_scan(step, x):
    return lax.scan(lambda c, _: (every_second_step(*c), None), (step, x), length=3)[0]


@jax.custom_vjp
def averaged_backwards(x):
    return jnp.sin(x)


averaged_backwards.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (lax.pmean(ct * x, "i"),))


def a_backward_rule(step, x):
    return lax.cond(step % 2 == 0, averaged_backwards, jnp.cos, x)


@jax.custom_jvp
def with_averaged_tangents(x):
    return jnp.sin(x)


with_averaged_tangents.defjvp(lambda x, t: (jnp.sin(x[0]), lax.pmean(t[0], "i")))


def a_forward_rule(step, x):
    return lax.cond(step % 2 == 0, with_averaged_tangents, jnp.cos, x)


@custom_vmap
def averaged_in_batches(x):
    return jnp.sin(x)


@averaged_in_batches.def_vmap
def _in_batches(size, batched, x):
    return average(x), True


def a_batching_rule(step, x):
    return lax.cond(step % 2 == 0, averaged_in_batches, jnp.cos, x)


def gradient(f):
    return lambda step, x: jax.grad(lambda x: jnp.sum(jnp.cos(f(step, x)[-1])))(x)


ALL_ROWS_REACH = {
    "cond": every_second_step,
    "while_loop": until_the_tenth_step,
    "fori_loop": as_often_as_steps,
    "scan": steps_of_a_scan,
    "gradient in the function": gradient(every_second_step),
}


@pytest.mark.parametrize("case", ALL_ROWS_REACH)
def test_a_counter_in_the_state_may_decide(case):
    f = ALL_ROWS_REACH[case]
    found = pmap(f, "i")(STEP, X)
    close(found, jax.pmap(f, "i")(STEP, X))
    with jax.disable_jit():
        close(pmap(f, "i")(STEP, X), found)


DERIVED = {
    "gradient": lambda pmap: gradient(pmap(every_second_step, "i")),
    "gradient of a backward rule": lambda pmap: gradient(pmap(a_backward_rule, "i")),
    "gradient of a forward rule": lambda pmap: gradient(pmap(a_forward_rule, "i")),
    "jvp": lambda pmap: (
        lambda step, x: jax.jvp(lambda x: pmap(a_forward_rule, "i")(step, x), (x,), (x * x,))
    ),
    "vmap": lambda pmap: (
        lambda step, x: jax.vmap(pmap(a_batching_rule, "i"), (None, 0))(step, jnp.stack([x, -x]))
    ),
}


@pytest.mark.parametrize("case", DERIVED)
def test_a_counter_may_decide_in_what_transformations_make(case):
    derived = DERIVED[case]
    close(derived(pmap)(STEP, X), derived(jax.pmap)(STEP, X))


DEVICES_DECIDE = {
    "axis_index": lambda x: lax.axis_index("i") < 3,
    "psum_scatter": lambda x: lax.psum_scatter(jnp.full(8, x[0]), "i") > 0,
    "ppermute": lambda x: lax.ppermute(x, "i", [(0, 1)])[0] > 0,  # zeros on the others
    "all_to_all": lambda x: lax.all_to_all(jnp.full(8, x[0]), "i", 0, 0)[0] > 0,
}


@pytest.mark.parametrize("case", DEVICES_DECIDE)
def test_what_devices_have_of_their_own_may_not_decide(case):
    def f(x):
        return lax.cond(DEVICES_DECIDE[case](x), average, jnp.sin, x)

    with pytest.raises(HangError, match=r"cond at test/pmap/test_pmap_hangs\.py") as caught:
        pmap(f, "i").lower(X)
    shown = str(caught.value).replace("reduce_scatter", "psum_scatter")
    assert f"varying along 'i' at\n              {case} at test/pmap/test_pmap_hangs" in shown
    assert "check_hangs=False allows it" in shown
    lowered = pmap(f, "i", check_hangs=False).lower(X).as_text()
    assert "stablehlo.case" in lowered
    assert "all_reduce" in lowered


def test_a_backward_rule_may_not_let_devices_decide():
    @jax.custom_vjp
    def sin(x):
        return jnp.sin(x)

    def backward(x, ct):
        return (lax.cond(lax.axis_index("i") < 3, average, jnp.sin, ct * x),)

    sin.defvjp(lambda x: (jnp.sin(x), x), backward)
    with pytest.raises(HangError, match="the gradient of `sin`"):
        jax.jit(jax.grad(lambda x: jnp.sum(pmap(sin, "i")(x)))).lower(X)
    allowed = pmap(sin, "i", check_hangs=False)
    assert "all_reduce" in jax.jit(jax.grad(lambda x: jnp.sum(allowed(x)))).lower(X).as_text()


@pytest.mark.parametrize("axes", ["i", "j", ("i", "j")])
def test_a_counter_may_decide_in_an_inner_pmap(axes):
    def f(step, x):
        return lax.cond(step % 2 == 0, lambda x: lax.psum(x, axes), jnp.sin, x)

    step, x = STEP.reshape(2, 4), X.reshape(2, 4, 4)
    found = pmap(pmap(f, "j"), "i")(step, x)
    close(found, jax.vmap(jax.vmap(lambda x: lax.psum(x, axes), axis_name="j"), axis_name="i")(x))


def test_an_inner_pmap_is_judged_by_what_a_shard_map_hands_in():
    def f(step, x):
        return lax.cond(step % 2 == 0, lambda x: lax.psum(x, "j"), jnp.sin, x)

    def g(step, x):
        return lax.cond(step % 2 == 0, lambda x: lax.psum(x, "i"), jnp.sin, x)

    mesh = Mesh(np.array(DEVICES).reshape(2, 4), ("i", "j"))

    def trace(f):
        specs = {"in_specs": P("i"), "out_specs": P("i"), "axis_names": {"i"}}
        shard_map(pmap(f, "j"), mesh=mesh, **specs).trace(STEP, X)

    trace(f)
    with pytest.raises(HangError, match="psum over 'i'"):
        trace(g)
