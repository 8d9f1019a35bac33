"""Types of cotangents through everything that holds programs, one in another.

Each body's gradient is that of a function that shares nothing with it: a sum over devices, written
as a loop over their positions.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import fast_jit
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map
from shmap_compiler.collectives import psum_p
from shmap_compiler.graph.primitive import shmap_p
from shmap_compiler.jaxprs.contents import equations

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
W = np.linspace(1, 2, 3, dtype=np.float32)
V = np.linspace(-1, 1, 3, dtype=np.float32)
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
"""One row for each device."""


def devices():
    return [(i, j, X[2 * i + j]) for i in range(4) for j in range(2)]


def gradients(body):
    of = shard_map(body, mesh=MESH, in_specs=(P(), P(), P(("i", "j"))), out_specs=P())
    return fast_jit(jax.grad(of, (0, 1)))(W, V, X)


def assert_gradients(body, full):
    for ours, expected in zip(gradients(body), jax.grad(full, (0, 1))(W, V), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


def by_rule(w, v):
    return w * v


ruled = jax.custom_vjp(by_rule)
ruled.defvjp(lambda w, v: (w * v, (w, v)), lambda kept, ct: (ct * kept[1], ct * kept[0]))

# ------------------------------------------------------------------------ sums of what is equal


def test_a_sum_of_what_is_equal_along_all_or_some_axes_multiplies():
    def body(w, v, x):
        of_some = lax.psum(w * lax.axis_index("j"), ("i", "j"))
        return jnp.sum(jnp.sin(lax.psum(w, "i")) + v * of_some)

    assert_gradients(body, lambda w, v: jnp.sum(jnp.sin(4 * w) + v * 4 * w))


# ------------------------------------------------------------ rules that only some devices call


def in_jit(fun):
    return jax.jit(fun)


def in_scan(fun):
    return lambda w, v: lax.scan(lambda c, _: (fun(c, v), None), w, None, length=1)[0]


def in_scan_in_jit(fun):
    return jax.jit(in_scan(fun))


def in_checkpoint(fun):
    return jax.checkpoint(fun)


def in_other_branch(fun):
    return lambda w, v: lax.cond(lax.axis_index("j") < 1, fun, lambda w, v: w + v, w, v)


@pytest.mark.parametrize("place", [in_jit, in_scan, in_scan_in_jit, in_checkpoint, in_other_branch])
def test_a_rule_within_a_branch_that_some_devices_take(place):
    """What the rule takes and returns is each device's own, however deep it is in the branch."""

    def body(w, v, x):
        y = lax.cond(lax.axis_index("i") < 2, place(ruled), lambda w, v: w - v, w, v)
        return lax.psum(jnp.sum(jnp.sin(y * x)), ("i", "j"))

    def full(w, v):
        total = 0.0
        for i, j, x in devices():
            inside = w * v if place is not in_other_branch or j < 1 else w + v
            total += jnp.sum(jnp.sin((inside if i < 2 else w - v) * x))
        return total

    assert_gradients(body, full)


def test_a_rule_within_a_branch_whose_result_does_not_depend_on_its_cotangent():
    """What it returns for `v` is equal everywhere, but each device that runs it owes it in full."""
    ruled = jax.custom_vjp(by_rule)
    ruled.defvjp(lambda w, v: (w * v, v), lambda v, ct: (ct * v, 3 * jnp.ones_like(v)))

    def body(w, v, x):
        y = lax.cond(lax.axis_index("i") < 2, ruled, lambda w, v: w - v, w, v)
        return lax.psum(jnp.sum(jnp.sin(y * x)), ("i", "j"))

    def full(w, v):
        rows = [ruled(w, v) if i < 2 else w - v for i in range(4)]  # not once for each j
        return sum(jnp.sum(jnp.sin(rows[i] * x)) for i, _, x in devices())

    assert_gradients(body, full)


# ------------------------------------------------------------------ values that become varying


def test_a_branch_that_decides_by_the_device_and_returns_what_is_equal():
    def body(w, v, x):
        y = lax.cond(x[0, 0] > 0, lambda: 2 * w, lambda: v)
        return lax.psum(jnp.sum(y), ("i", "j")) + jnp.sum(w * v)

    def full(w, v):
        return sum(jnp.sum(2 * w if x[0] > 0 else v) for _, _, x in devices()) + jnp.sum(w * v)

    assert_gradients(body, full)


def test_a_scan_in_a_jit_whose_carries_become_varying_one_after_the_other():
    """The type of the last carry is known after three steps."""

    @jax.jit
    def inner(w, v, x):
        def step(carry, _):
            a, b, c = carry
            return (a + x[0], b * a, c + b), b

        return lax.scan(step, (w, v, w * v), None, length=3)

    def body(w, v, x):
        (a, b, c), rows = inner(w, v, x)
        return lax.psum(jnp.sum(jnp.sin(c)) + jnp.sum(a * b) + jnp.sum(rows), ("i", "j"))

    def full(w, v):
        total = 0.0
        for _, _, x in devices():
            a, b, c = w, v, w * v
            for _ in range(3):
                total += jnp.sum(b)
                a, b, c = a + x, b * a, c + b
            total += jnp.sum(jnp.sin(c)) + jnp.sum(a * b)
        return total

    assert_gradients(body, full)


def test_a_region_in_a_region_takes_what_is_equal_outside():
    """Its operands do not vary along "i", and it adds up over both axes."""

    def body(w, v, x):
        def inside(w, v, x):
            return lax.psum(jnp.sin(w * x[0]) * v, "j") + lax.psum(w * v, "i")

        y = shard_map(inside, in_specs=(P(), P(), P("j")), out_specs=P(), axis_names={"j"})(w, v, x)
        return lax.psum(jnp.sum(y * y), "i")

    def full(w, v):
        total = 0.0
        for i in range(4):
            y = sum(jnp.sin(w * X[2 * i + j]) * v for j in range(2)) + 4 * w * v
            total += jnp.sum(y * y)
        return total

    of = shard_map(body, mesh=MESH, in_specs=(P(), P(), P("i")), out_specs=P(), axis_names={"i"})
    found = fast_jit(jax.grad(of, (0, 1)))(W, V, X)
    for ours, expected in zip(found, jax.grad(full, (0, 1))(W, V), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4)


def test_a_region_in_a_region_returns_a_sum_along_the_axis_around_it():
    """Each device along "i" uses the sum in its own way."""

    def body(w, v, x):
        def inside(w, x):
            return lax.psum(jnp.sin(w * x[0]), ("i", "j"))

        y = shard_map(inside, in_specs=(P(), P("j")), out_specs=P(), axis_names={"j"})(w, x)
        return lax.psum(jnp.sum(y * v * (1.0 + lax.axis_index("i"))), "i")

    def full(w, v):
        return 10 * jnp.sum(sum(jnp.sin(w * x) for _, _, x in devices()) * v)

    of = shard_map(body, mesh=MESH, in_specs=(P(), P(), P("i")), out_specs=P(), axis_names={"i"})
    found = fast_jit(jax.grad(of, (0, 1)))(W, V, X)
    for ours, expected in zip(found, jax.grad(full, (0, 1))(W, V), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


# --------------------------------------------------------------------------- rules made by jax.vjp

TURN = [(k, (k + 3) % 8) for k in range(8)]


def turned(w, v):
    own = lax.axis_index("i") + 1.0
    return lax.psum(w * own, "i") + lax.ppermute(v, ("i", "j"), TURN)


def test_a_rule_whose_cotangents_vary_along_one_axis_after_the_other():
    """What it owes w varies along "i"; taken for that, what it owes v varies along "j", too."""
    rule = jax.custom_vjp(turned)
    rule.defvjp(lambda w, v: (turned(w, v), (w, v)), lambda kept, ct: jax.vjp(turned, *kept)[1](ct))

    def body(w, v, x):
        return lax.psum(jnp.sum(jnp.sin(rule(w, v) * x)), ("i", "j"))

    def full(w, v):
        return sum(jnp.sum(jnp.sin((10 * w + v) * x)) for _, _, x in devices())

    assert_gradients(body, full)


def test_a_region_in_a_region_that_makes_what_is_equal_outside_vary():
    """Neither its operands nor its residuals vary along "i"; its results do."""

    def inside(w, v):
        return lax.psum_scatter(jnp.concatenate([w, 2 * w, 3 * w, v]), "i", tiled=True)

    def body(w, v, x):
        y = shard_map(inside, in_specs=(P(), P()), out_specs=P(), axis_names={"j"})(w, v)
        return lax.psum(jnp.sum(jnp.sin(y * x[0])), "i")

    def full(w, v):
        parts = [4 * w, 8 * w, 12 * w, 4 * v]
        return sum(jnp.sum(jnp.sin(part * X[2 * i])) for i, part in enumerate(parts))

    of = shard_map(body, mesh=MESH, in_specs=(P(), P(), P("i")), out_specs=P(), axis_names={"i"})
    found = fast_jit(jax.grad(of, (0, 1)))(W, V, X)
    for ours, expected in zip(found, jax.grad(full, (0, 1))(W, V), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------ where shares are summed

LONG = np.linspace(1, 2, 1000, dtype=np.float32)


def backward_of(body):
    """The program of the gradient of a body of (LONG, V, X)."""
    of = shard_map(body, mesh=MESH, in_specs=(P(), P(), P(("i", "j"))), out_specs=P())
    program = jax.make_jaxpr(jax.grad(of, (0, 1)))(LONG, V, X)
    *_, backward = (e.params["graph"] for e in equations(program) if e.primitive is shmap_p)
    return backward.jaxpr


def sizes_summed(program):
    """The size of each value that a program sums over devices."""
    return sorted(e.invars[0].aval.size for e in equations(program) if e.primitive is psum_p)


def test_a_loop_that_uses_one_number_of_a_long_array_sums_that_number():
    """Once after the loop would be fewer sums, but of the whole array."""

    def body(w, v, x):
        def step(total, _):
            return total + jnp.sum(jnp.sin(w[0] * x)), None

        return lax.psum(lax.scan(step, jnp.sum(v * x), None, length=2)[0], ("i", "j"))

    assert sizes_summed(backward_of(body)) == [1, 3]


def test_a_loop_that_uses_a_whole_array_sums_once_after_the_loop():
    def body(w, v, x):
        def step(total, _):
            return total + jnp.sum(jnp.sin(w * x[0, 0])), None

        return lax.psum(lax.scan(step, jnp.sum(v * x), None, length=2)[0], ("i", "j"))

    backward = backward_of(body)
    (loop,) = (e for e in equations(backward) if e.primitive.name == "scan")
    assert sizes_summed(loop.params["jaxpr"]) == []
    assert sizes_summed(backward) == [3, 1000]


def test_a_loop_does_not_make_results_vary_to_sum_less():
    """One sum after the loop would be cheaper, but `v` would need another one."""

    def body(w, v, x):
        few = w[:3]

        def step(total, _):
            return total + jnp.sum(jnp.sin(few * x)), 2 * few

        total, rows = lax.scan(step, 0.0, None, length=2)
        return lax.psum(total, ("i", "j")) + jnp.sum(rows * v)

    backward = backward_of(body)
    (loop,) = (e for e in equations(backward) if e.primitive.name == "scan")
    assert sizes_summed(loop.params["jaxpr"]) == sizes_summed(backward) == [3]


def test_a_call_that_spreads_two_numbers_sums_once():
    """Once for each number would be fewer bytes, but more sums."""

    @jax.jit
    def inner(a, b, x):
        both = jnp.broadcast_to(a, (100,)) + jnp.broadcast_to(b, (100,))
        return jnp.sum(jnp.sin(both * x[0, 0]))

    def body(w, v, x):
        return lax.psum(inner(v[0], v[1], x), ("i", "j")) + jnp.sum(w)

    assert sizes_summed(backward_of(body)) == [100]


# --------------------------------------------------------------------- gathered arrays, and slices


def gathered(x, **options):
    return lax.all_gather(x, "i", tiled=True, **options)


def combined_again(x, w):
    """Only the first array is needed whole by no device."""
    return jnp.sum(jnp.sin(gathered(x))), gathered(w)[:2] * x


GATHERING = {
    "result": (lambda x, w: jnp.sin(gathered(x)), P("i"), P(), 0),
    "two axes": (lambda x, w: lax.all_gather(x, ("j", "i"), tiled=True), P(("j", "i")), P(), 0),
    "columns": (lambda x, w: lax.all_gather(x, "i", axis=1), P("i"), P(), 0),
    "call": (lambda x, w: jax.jit(gathered)(x) * 2, P("i"), P(), 0),
    "loop": (lambda x, w: lax.map(lambda k: gathered(k * x), jnp.arange(3.0)), P("i"), P(), 0),
    "checkpoint": (lambda x, w: jax.checkpoint(gathered)(jnp.sin(x)), P("i"), P(), 0),
    "sum": (lambda x, w: lax.psum(gathered(x), "i"), P("i"), P(), 0),
    "beside a scattered one": (combined_again, P("i"), (P(), P("i")), 1),
    "used by each device": (lambda x, w: gathered(x)[:2] * w, P("i"), P("i"), 1),
}


@pytest.mark.parametrize(("body", "spec", "out_specs", "sums"), GATHERING.values(), ids=GATHERING)
def test_the_gradient_of_a_gathered_array_is_summed_only_for_devices_that_use_it(
    body, spec, out_specs, sums
):
    def loss(of, x, w):
        return sum(jnp.sum(jnp.cos(y) * y) for y in jax.tree.leaves(of(x, w)))

    def gradient(of):
        return jax.grad(lambda x, w: loss(of, x, w), (0, 1))

    of = shard_map(body, mesh=MESH, in_specs=(spec, spec), out_specs=out_specs)
    unchecked = jax.shard_map(
        body, mesh=MESH, in_specs=(spec, spec), out_specs=out_specs, check_vma=False
    )
    args = np.float32(np.split(np.sin(np.arange(48)).reshape(16, 3), 2))
    text = jax.jit(gradient(of)).lower(*args).as_text()
    scattered = re.findall("stablehlo.(reduce_scatter|all_reduce|all_to_all)", text)
    assert len(scattered) == sums, scattered
    expected = fast_jit(gradient(unchecked))(*args)
    for ours, jaxs in zip(fast_jit(gradient(of))(*args), expected, strict=True):
        np.testing.assert_allclose(ours, jaxs, rtol=1e-4, atol=1e-5)
