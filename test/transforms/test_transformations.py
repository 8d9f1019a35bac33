"""Bodies of every kind under JAX's transformations.

Each body comes with the same function on full arrays. Values and derivatives are compared with
those of `jax.shard_map(check_vma=False)` in float32, and of the full function in float64.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import fast_jit, run_together
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)

RNG = np.random.default_rng(7)
W = RNG.normal(size=6).astype(np.float32)
X = RNG.normal(size=(8, 6)).astype(np.float32)


ROWS, WHOLE = P("i"), P()


@dataclass(frozen=True)
class Body:
    """A per-device function of weights `f32[6]` and of a block of `f32[8,6]`.

    Attributes:
      full: the same on full arrays.
      x_spec, out_spec: how x and the result are split; the weights are whole.
      forward, reverse: whether JAX has a derivative of that mode for it.
    """

    fun: Callable[..., Any]
    full: Callable[..., Any]
    x_spec: P = ROWS
    out_spec: P = ROWS
    forward: bool = True
    reverse: bool = True


def by_block(fun):
    """The full function that applies `fun(w, block, position)` to four blocks of rows."""

    def full(w, x):
        return jnp.concatenate([fun(w, x[2 * k : 2 * k + 2], k) for k in range(4)])

    return full


# ----------------------------------------------------------------------------------- the bodies


def scan_with_a_collective(w, x):
    def step(carry, row):
        carry = jnp.tanh(carry * w + lax.psum(row, "i"))
        return carry, carry * row

    _, rows = lax.scan(step, jnp.ones(6, x.dtype), x)
    return rows


def scan_without_steps(w, x):
    """Its steps would give no tangent, but there are none."""
    return lax.scan(lambda carry, _: (jnp.zeros_like(carry), None), w, None, length=0)[0] * x


def scan_in_full(w, x):
    carry, rows = jnp.ones(6, x.dtype), []
    for k in range(2):
        carry = jnp.tanh(carry * w + x[k::2].sum(0))
        rows.append(carry * x[k::2])
    return jnp.stack(rows, 1).reshape(8, 6)


def while_loop(w, x):
    def unfinished(state):
        return state[0] < 3

    def step(state):
        count, y = state
        return count + 1, jnp.sin(y) * w + lax.pmean(y, "i")

    return lax.while_loop(unfinished, step, (0, x))[1]


def while_in_full(w, x):
    for _ in range(3):
        mean = x.reshape(4, 2, 6).mean(0)
        x = jnp.sin(x) * w + jnp.tile(mean, (4, 1))
    return x


def fori_ring(w, x):
    def step(k, state):
        total, moving = state
        moving = lax.ppermute(moving, "i", [(d, (d + 1) % 4) for d in range(4)])
        return total + moving * w * (k + 1), moving

    return lax.fori_loop(0, 3, step, (x, x))[0]


def fori_in_full(w, x):
    return x + sum(jnp.roll(x, 2 * k, axis=0) * w * k for k in (1, 2, 3))


def cond_on_a_sum(w, x):
    positive = lax.psum(jnp.sum(x), "i") > 0
    return lax.cond(positive, lambda v: v * w, lambda v: jnp.sin(v) + w, x)


def cond_on_the_block(w, x):
    return lax.cond(jnp.sum(x) > 0, lambda v: v * w, lambda v: jnp.sin(v) + w, x)


def branches(x, w, positive):
    return jnp.where(positive, x * w, jnp.sin(x) + w)


def switch_on_the_position(w, x):
    cases = [lambda v: v * w, jnp.sin, lambda v: v + w, jnp.exp]
    return lax.switch(lax.axis_index("i"), cases, x)


def switch_in_full(w, x, k):
    return (x * w, jnp.sin(x), x + w, jnp.exp(x))[k]


def associative_scan(w, x):
    sums = lax.associative_scan(jnp.add, x * w, axis=1)
    before = lax.all_gather(sums.sum(0), "i")
    return sums + before[lax.axis_index("i")] * lax.axis_index("i")


def associative_in_full(w, x, k):
    sums = jnp.cumsum(x * w, 1)
    return sums + sums.sum(0) * k


def lax_map(w, x):
    return lax.map(lambda row: jnp.dot(row, w) * lax.psum(row, "i"), x)


def map_in_full(w, x):
    return (x @ w)[:, None] * jnp.tile(x.reshape(4, 2, 6).sum(0), (4, 1))


def inner_jit(w, x):
    @jax.jit
    def layer(v):
        return jnp.tanh(v * w) + lax.psum(v, "i")

    return layer(layer(x))


def jit_in_full(w, x):
    for _ in range(2):
        x = jnp.tanh(x * w) + jnp.tile(x.reshape(4, 2, 6).sum(0), (4, 1))
    return x


def inner_vmap(w, x):
    def row(v):
        return v * w - lax.pmean(v, ("rows", "i")) * lax.axis_size(("rows", "i"))

    return jax.vmap(row, axis_name="rows")(x)


def vmap_in_full(w, x):
    return x * w - x.sum(0)


@jax.custom_jvp
def cubed(x):
    return x**3


@cubed.defjvp
def _cubed_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return cubed(x), 3 * x**2 * t


@jax.custom_vjp
def sine(x):
    return jnp.sin(x)


sine.defvjp(lambda x: (jnp.sin(x), jnp.cos(x)), lambda cosine, ct: (ct * cosine,))


def custom_vjp(w, x):
    return sine(x) * w + lax.psum(sine(w * 2), "i") / 4


def custom_vjp_in_full(w, x):
    return jnp.sin(x) * w + jnp.sin(w * 2)


def pitch(w):
    return np.arange(-2, 4).astype(w.dtype)


def pitched(w):
    """By all devices together: a derivative of it is a share of each device's own."""
    rows = lax.all_gather(w * pitch(w), "i")
    return rows[lax.axis_index("i")]


gathers = jax.custom_vjp(pitched)
gathers.defvjp(lambda w: (pitched(w), w), lambda w, ct: jax.vjp(pitched, w)[1](ct))


def custom_vjp_that_gathers(w, x):
    return jnp.sin(gathers(w) * x)


def custom_jvp(w, x):
    return cubed(x) * w + lax.psum(cubed(w * 2), "i") / 4


def custom_jvp_in_full(w, x):
    return x**3 * w + (w * 2) ** 3


def checkpoint_inside(w, x):
    @partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names("kept"))
    def layer(v):
        v = checkpoint_name(jnp.sin(v * w), "kept")
        return jnp.exp(lax.psum(v, "i") / 4) * v

    return layer(x)


def checkpoint_in_full(w, x):
    v = jnp.sin(x * w)
    return jnp.exp(jnp.tile(v.reshape(4, 2, 6).sum(0), (4, 1)) / 4) * v


def exchanges(w, x):
    summed = lax.psum_scatter(x * w, "j", scatter_dimension=0, tiled=True)
    turned = lax.all_to_all(summed, "j", 1, 0, tiled=True)
    return lax.all_gather(turned, "j", axis=1, tiled=True) * lax.axis_size("j")


def exchanges_in_full(w, x, k):
    y = 2 * x * w  # both devices along j hold x
    parts = [jnp.concatenate([y[:1, 3 * d : 3 * d + 3], y[1:, 3 * d : 3 * d + 3]]) for d in (0, 1)]
    return jnp.concatenate(parts, 1) * 2


def asks_for_varying_axes(w, x):
    """As library code does, whatever it is told."""

    def as_varying(v, like):
        missing = jax.typeof(like).manual_axis_type.varying - jax.typeof(v).manual_axis_type.varying
        return lax.pcast(v, tuple(missing), to="varying") if missing else v

    start = as_varying(jnp.zeros(6, x.dtype), x)
    total, _ = lax.scan(lambda c, row: (c + row * w, None), start, x)
    return jnp.sin(x) + lax.pcast(total, ("j",), to="varying")


def asks_in_full(w, x, k):
    return jnp.sin(x) + (x * w).sum(0)


def loss(w, x):
    return lax.pmean(jnp.mean((jnp.tanh(x * w)) ** 2), "i")


BODIES = {
    "scan": Body(scan_with_a_collective, scan_in_full),
    "no_steps": Body(scan_without_steps, lambda w, x: w * x),
    "while": Body(while_loop, while_in_full, reverse=False),
    "fori": Body(fori_ring, fori_in_full),
    "cond_same": Body(cond_on_a_sum, lambda w, x: branches(x, w, x.sum() > 0)),
    "cond_own": Body(cond_on_the_block, by_block(lambda w, x, k: branches(x, w, x.sum() > 0))),
    "switch": Body(switch_on_the_position, by_block(switch_in_full)),
    "associative_scan": Body(associative_scan, by_block(associative_in_full)),
    "map": Body(lax_map, map_in_full),
    "jit": Body(inner_jit, jit_in_full),
    "vmap": Body(inner_vmap, vmap_in_full),
    "custom_jvp": Body(custom_jvp, custom_jvp_in_full),
    "custom_vjp": Body(custom_vjp, custom_vjp_in_full, forward=False),
    "custom_vjp_gathers": Body(
        custom_vjp_that_gathers, lambda w, x: jnp.sin(w * pitch(w) * x), forward=False
    ),
    "checkpoint": Body(checkpoint_inside, checkpoint_in_full),
    "exchanges": Body(exchanges, by_block(exchanges_in_full)),
    "varying": Body(asks_for_varying_axes, by_block(asks_in_full)),
    "loss": Body(loss, lambda w, x: jnp.mean(jnp.tanh(x * w) ** 2), out_spec=WHOLE),
}


def ours(body):
    specs = {"in_specs": (P(), body.x_spec), "out_specs": body.out_spec}
    return shard_map(body.fun, mesh=MESH, **specs)


def theirs(body):
    specs = {"in_specs": (P(), body.x_spec), "out_specs": body.out_spec}
    return jax.shard_map(body.fun, mesh=MESH, check_vma=False, **specs)


# ----------------------------------------------------------------------- the transformations


def scalar(fun):
    return lambda w, x: jnp.sum(jnp.sin(fun(w, x)))


def value(fun):
    return fun


def grad(fun):
    return jax.grad(scalar(fun), (0, 1))


def jvp(fun):
    return lambda w, x: jax.jvp(fun, (w, x), (jnp.flip(w), jnp.flip(x)))


def vjp(fun):
    def pulled_back(w, x):
        out, pull = jax.vjp(fun, w, x)
        return pull(jnp.cos(out))

    return pulled_back


def linearize(fun):
    def pushed(w, x):
        out, push = jax.linearize(fun, w, x)
        return out, push(jnp.flip(w), jnp.flip(x))

    return pushed


def vmap(fun):
    return lambda w, x: jax.vmap(fun, (0, None))(jnp.stack([w, jnp.flip(w)]), x)


def vmap_of_grad(fun):
    return lambda w, x: jax.vmap(grad(fun), (None, 0))(w, jnp.stack([x, jnp.flip(x)]))


def grad_of_vmap(fun):
    return jax.grad(lambda w, x: jnp.sum(jnp.cos(vmap(fun)(w, x))), (0, 1))


def grad_of_checkpoint(fun):
    return grad(jax.checkpoint(fun))


def grad_of_checkpoint_that_saves(fun):
    policy = jax.checkpoint_policies.everything_saveable
    return grad(jax.checkpoint(fun, policy=policy))


def grad_of_scan(fun):
    def steps(w, x):
        return lax.scan(lambda y, _: (y + fun(w, y), None), x, None, length=2)[0]

    return grad(steps)


def second_derivative(fun):
    def slope(w, x):
        return jnp.sum(jnp.cos(jax.grad(scalar(fun))(w, x)))

    return jax.grad(slope, (0, 1))


ALWAYS = (value, vmap)
FORWARD = (jvp, linearize)
REVERSE = (
    grad,
    vjp,
    vmap_of_grad,
    grad_of_vmap,
    grad_of_checkpoint,
    grad_of_checkpoint_that_saves,
    grad_of_scan,
)


def transformations_of(body):
    yield from ALWAYS
    if body.forward:
        yield from FORWARD
    if body.reverse:
        yield from REVERSE
    if body.forward and body.reverse:
        yield second_derivative


def groups_of(body):
    forward = [t for t in transformations_of(body) if t in (*ALWAYS, *FORWARD)]
    reverse = [t for t in transformations_of(body) if t not in forward]
    return {"forward": forward} | ({"reverse": reverse} if reverse else {})


CASES = [
    pytest.param(body, transformations, id=f"{name}-{group}")
    for name, body in BODIES.items()
    for group, transformations in groups_of(body).items()
]


def assert_close(found, expected, tolerance, what=""):
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape, what
        scale = max(1.0, float(np.max(np.abs(b), initial=0)))
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale, err_msg=what)


@pytest.mark.parametrize(("body", "transformations"), CASES)
def test_as_the_full_function(body, transformations):
    with jax.enable_x64():
        args = W.astype(np.float64), X.astype(np.float64)
        found, truth = (
            run_together([transformation(fun) for transformation in transformations], *args)
            for fun in (ours(body), body.full)
        )
        for transformation, mapped, full in zip(transformations, found, truth, strict=True):
            assert_close(mapped, full, 1e-12, transformation.__name__)


@pytest.mark.parametrize("name", BODIES)
def test_as_jax(name):
    """All first transformations of a body at once, in one program each."""
    body = BODIES[name]
    transformations = [t for t in transformations_of(body) if t in (value, jvp, grad)]

    def everything(fun):
        return lambda w, x: [t(fun)(w, x) for t in transformations]

    assert_close(*run_together([everything(ours(body)), everything(theirs(body))], W, X), 2e-6)


def gathers_the_same_in_each_step(w, x):
    total = lax.psum(w * x, "i")
    return lax.scan(lambda c, _: (c, lax.all_gather(total, "i")), 0.0, jnp.arange(3))[1]


def gathers_in_a_branch(w, x):
    total = lax.psum(w * x, "i")
    return lax.cond(w[0] > 0, lambda: lax.all_gather(total, "i"), lambda: jnp.ones((4, 2, 6)))


@pytest.mark.parametrize("fun", [gathers_the_same_in_each_step, gathers_in_a_branch])
def test_gradient_of_a_forward_derivative(fun):
    """JAX may move what is the same in each step of a loop into a call before it."""
    specs = {"mesh": MESH, "in_specs": (P(), ROWS), "out_specs": ROWS}

    def derived(mapped):
        def weighted(w, x):
            value, tangent = jvp(mapped)(w, x)
            weights = jnp.linspace(0, 1, value.size).reshape(value.shape)  # no two devices' alike
            return jnp.sum(weights * (value + tangent))

        return jax.grad(weighted, (0, 1))

    mapped = [shard_map(fun, check_vma=check_vma, **specs) for check_vma in (True, False)]
    by_jax = jax.shard_map(fun, check_vma=False, **specs)
    *found, expected = run_together([derived(f) for f in (*mapped, by_jax)], W, X)
    for gradients in found:
        assert_close(gradients, expected, 1e-5)


# ------------------------------------------------------------------------------- regions in regions


def plain(w, x):
    return jnp.sin(x * w)


def sums_over_the_outer_axis(w, x):
    return jnp.sin(x * w) + lax.psum(x * w, "i")


def sums_over_both_axes(w, x):
    return jnp.sin(x * w) + lax.psum(x * w, ("i", "j"))


def sums_the_weights(w, x):
    return jnp.sin(x * lax.psum(w, ("i", "j")))


def averages_what_is_equal(w, x):
    return jnp.sin(x * w) + lax.pmean(lax.psum(jnp.sum(w), "j"), "j")


def loops_in_steps_of_two(w, x):
    return lax.scan(lambda c, row: (c + row, jnp.sin(c * row)), w, x, unroll=2)[1]


def loop_over_pairs_of_rows(w, x):
    first, second = x[::2], x[1::2]
    return jnp.stack([jnp.sin(w * first), jnp.sin((w + first) * second)], 1).reshape(8, 6)


NESTED = {
    "plain": (plain, plain),
    "outer": (
        sums_over_the_outer_axis,
        lambda w, x: jnp.sin(x * w) + jnp.tile((x * w).reshape(4, 2, 6).sum(0), (4, 1)),
    ),
    "both": (
        sums_over_both_axes,
        lambda w, x: jnp.sin(x * w) + jnp.tile((x * w).reshape(4, 2, 2, 3).sum((0, 2)), (4, 2)),
    ),
    "weights": (
        sums_the_weights,
        lambda w, x: jnp.sin(x * jnp.tile(4 * w.reshape(2, 3).sum(0), 2)),
    ),
    "mean": (averages_what_is_equal, lambda w, x: jnp.sin(x * w) + w.sum()),
    "loop": (loops_in_steps_of_two, loop_over_pairs_of_rows),
}


@pytest.mark.usefixtures("equal_programs_compile_once")
@pytest.mark.parametrize("outer_check", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("inner_check", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize(("inner", "full"), NESTED.values(), ids=NESTED)
def test_gradient_of_nested_regions(inner, full, inner_check, outer_check):
    columns = P(None, "j")

    @shard_map(
        mesh=MESH,
        in_specs=(P(), ROWS),
        out_specs=ROWS,
        axis_names={"i"},
        check_vma=outer_check,
    )
    def outer(w, x):
        specs = {"in_specs": (P("j"), columns), "out_specs": columns}
        return 2 * shard_map(inner, mesh=MESH, check_vma=inner_check, **specs)(w, x)

    with jax.enable_x64():
        w, x = jnp.asarray(W, np.float64), jnp.asarray(X, np.float64)
        expected = jax.jit(grad(lambda w, x: 2 * full(w, x)))(w, x)
        assert_close(jax.jit(grad(outer))(w, x), expected, 1e-12)


@pytest.mark.parametrize("outer_check", [True, False], ids=["checked", "unchecked"])
def test_gradient_where_only_a_nested_region_names_an_axis(outer_check):
    """Devices along it differ, though no spec around and no residual mentions the axis."""

    def inner(x):
        return lax.psum(lax.ppermute(jnp.sin(x), "i", [(0, 1)]), ("i", "j"))

    @shard_map(mesh=MESH, in_specs=P(), out_specs=P(), axis_names={"i"}, check_vma=outer_check)
    def outer(x):
        return shard_map(inner, mesh=MESH, in_specs=P("j"), out_specs=P(), check_vma=False)(x)

    found = jax.jit(jax.grad(lambda x: jnp.sum(outer(x))))(X)
    assert_close(found, jnp.cos(X), 1e-5)


@pytest.mark.parametrize("check_vma", [True, False], ids=["checked", "unchecked"])
def test_gradient_of_branches_of_which_one_is_constant(check_vma):
    """The tangent of its result is known; that of the other branch is not."""

    def body(w, x):
        return lax.cond(x.sum() > 0, lambda x: jnp.sin(x) * w, jnp.ones_like, x)

    mapped = shard_map(body, mesh=MESH, in_specs=(P(), ROWS), out_specs=ROWS, check_vma=check_vma)
    w, x = jnp.float32(2), np.repeat(np.float32([1, -1, 2, -2]), 2)
    loss = jax.grad(lambda w, x: jnp.sum(mapped(w, x)), (0, 1))
    positive = x > 0
    expected = np.sum(np.sin(x), where=positive), np.where(positive, 2 * np.cos(x), 0)
    assert_close(jax.jit(loss)(w, x), expected, 1e-5)


def test_branches_share_what_they_save():
    """Only one of them runs, so four save as much as two."""

    def saved(count):
        def body(w, x):
            cases = [lambda x, k=k: jnp.sin(jnp.cos(w[:count].sum() * x) * k) for k in range(count)]
            return lax.switch(w[0].astype(int), cases, x)

        mapped = shard_map(body, mesh=MESH, in_specs=(P(), ROWS), out_specs=ROWS)
        vjp = jax.eval_shape(lambda w, x: jax.tree.leaves(jax.vjp(mapped, w, x)[1]), W, X)
        return sum(kept.size for kept in vjp)

    assert saved(4) == saved(2)


def loop_of(fun):
    return lambda x, *rest: lax.scan(lambda y, k: (fun(k * y, *rest), None), x, jnp.arange(1.0, 3))[
        0
    ]


PLACES_OF_SWITCHES = {
    "plain": lambda f: f,
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "loop": loop_of,
    "checkpoint in a loop": lambda f: loop_of(jax.checkpoint(f)),
    "loop in a checkpoint": lambda f: jax.checkpoint(loop_of(f)),
    "checkpoints": lambda f: jax.checkpoint(loop_of(jax.checkpoint(f))),
}


@pytest.mark.parametrize("around", PLACES_OF_SWITCHES.values(), ids=PLACES_OF_SWITCHES)
def test_gradient_of_switches_in_branches(around):
    """All devices switch alike in one branch, in which they communicate, and not in the other."""

    def gathered(x):
        everything = lax.all_gather(jnp.sin(x), "i", tiled=True)
        return lax.psum_scatter(jnp.cos(everything), "i", tiled=True)

    def alike(x, w):
        return lax.switch((w[1] * 10).astype(int) % 2, [gathered, jnp.square], jnp.sin(x))

    def differently(x, w):
        return lax.switch(lax.axis_index("i") % 2, [jnp.square, jnp.cos], jnp.sin(x))

    def body(x, w):
        return around(lambda x, w: lax.cond(w[0] > 0, alike, differently, x, w))(x, w)

    w = jnp.float32([0.5, 0.6])
    mapped = [
        of(body, mesh=MESH, in_specs=(P("i"), P()), out_specs=P("i"))
        for of in (shard_map, jax.shard_map)
    ]
    gradients = [jax.grad(lambda x, f=f: jnp.sum(f(x, w) ** 2)) for f in mapped]
    assert_close(*run_together(gradients, X), 1e-5)


# -------------------------------------------------------------------------------- spmd_axis_name


@jax.custom_jvp
def scaled_sine(x):
    return jnp.sin(x)


scaled_sine.defjvp(
    lambda primals, tangents: (
        jnp.sin(primals[0]),
        tangents[0] * np.arange(6, dtype=np.float32),
    )
)


@pytest.mark.parametrize(
    "around", [lambda f: f, jax.jit, jax.checkpoint, lambda f: partial(lax.map, f)]
)
def test_gradient_of_a_branch_whose_rule_uses_an_array(around):
    """JAX closes the program of the branch over the array."""

    def body(x):
        branch = around(lambda v: lax.cond(v.sum() > 0, scaled_sine, jnp.cos, v))
        return branch(x)

    mapped = shard_map(body, mesh=MESH, in_specs=P("i"), out_specs=P("i"))
    oracle = jax.shard_map(body, mesh=MESH, in_specs=P("i"), out_specs=P("i"))
    found, wanted = (jax.grad(lambda x, f=f: jnp.sum(f(x) ** 2)) for f in (mapped, oracle))
    np.testing.assert_allclose(found(X), jax.jit(wanted)(X), rtol=1e-6)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("order", ["vmap_of_grad", "grad_of_vmap"])
def test_vmap_with_spmd_axis_name(order, check_vma):
    """Along the named axis devices work on different examples: no sum may unite them."""

    def body(w, x):
        return lax.psum(jnp.sin(x * w), "j")

    options = {"mesh": MESH, "in_specs": (P(), P("j")), "out_specs": P(), "check_vma": check_vma}
    mapped = shard_map(body, **options)
    stacked = jnp.stack([X, 2 * X, -X, X[::-1]])

    def full(w, x):
        return jnp.sin(x[:4] * w) + jnp.sin(x[4:] * w)

    def derived(fun, **spmd):
        if order == "vmap_of_grad":
            return jax.vmap(grad(fun), (None, 0), **spmd)
        return jax.grad(lambda w, x: jnp.sum(jnp.cos(jax.vmap(fun, (None, 0), **spmd)(w, x))))

    result = jax.jit(derived(mapped, spmd_axis_name="i"))(W, stacked)
    assert_close(result, jax.jit(derived(full))(W, stacked), 2e-6)
    out = jax.jit(jax.vmap(mapped, (None, 0), spmd_axis_name="i"))(W, stacked)
    assert out.sharding.spec == P("i")


@pytest.mark.parametrize("names", [{}, {"axis_names": {"j"}}], ids=["all", "some"])
def test_vmap_over_a_dimension_that_its_type_splits(names):
    mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Explicit,) * 2)
    x = jax.device_put(X, NamedSharding(mesh, P("i", "j")))
    row_sums = shard_map(
        lambda row: lax.psum(row, "j"), mesh=mesh, in_specs=P("j"), out_specs=P(), **names
    )
    result = jax.jit(jax.vmap(row_sums))(x)
    np.testing.assert_allclose(result, X[:, :3] + X[:, 3:], rtol=1e-6)
    assert result.sharding.spec == P("i", None)
    slope = jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(jax.vmap(row_sums)(x)))))(x)
    expected = np.tile(np.cos(X[:, :3] + X[:, 3:]), 2)
    np.testing.assert_allclose(slope, expected, rtol=1e-4)
    assert slope.sharding.spec == P("i", "j")


# ------------------------------------------------------------------------------ the stages of jit


def mean_of_squares(w, x):
    return lax.pmean(jnp.mean((x * w) ** 2), "i"), x * w


def stage_function():
    return shard_map(mean_of_squares, mesh=MESH, in_specs=(P(), ROWS), out_specs=(P(), ROWS))


def test_eval_shape():
    types = jax.eval_shape(stage_function(), W, X)
    assert [(t.shape, t.dtype) for t in types] == [((), np.float32), ((8, 6), np.float32)]


def test_lower_and_compile():
    compiled = jax.jit(stage_function()).lower(W, X).compile()
    mean, product = compiled(W, X)
    np.testing.assert_allclose(mean, np.mean((X * W) ** 2), rtol=1e-6)
    np.testing.assert_array_equal(product, X * W)


def test_donation():
    """The result takes the place of the argument on every device."""
    function = jax.jit(stage_function(), donate_argnums=1)
    x = jax.device_put(X, NamedSharding(MESH, ROWS))
    compiled = function.lower(W, x).compile()
    assert compiled.memory_analysis().alias_size_in_bytes == X.nbytes // 4
    _, product = function(W, x)
    assert x.is_deleted()
    np.testing.assert_array_equal(product, X * W)


@pytest.mark.parametrize("differentiated", [False, True])
def test_export_round_trip(differentiated):
    rows = NamedSharding(MESH, ROWS)
    function = stage_function()
    if differentiated:
        function = jax.grad(lambda w, x: stage_function()(w, x)[0], 1)
    jitted = jax.jit(function, in_shardings=(NamedSharding(MESH, P()), rows))
    exported = jax.export.export(jitted)(
        jax.ShapeDtypeStruct(W.shape, W.dtype), jax.ShapeDtypeStruct(X.shape, X.dtype)
    )
    again = jax.export.deserialize(exported.serialize())
    args = jax.device_put(W, NamedSharding(MESH, P())), jax.device_put(X, rows)
    assert_close(jax.jit(again.call)(*args), jitted(*args), 0)


def test_dead_code_is_eliminated():
    """What nobody uses is neither computed nor sent; nor moved to the devices."""

    def body(w, x, unused):
        return lax.psum(x * w, "i"), lax.all_gather(jnp.sin(x), "i"), lax.pmax(unused, "i")

    mapped = shard_map(body, mesh=MESH, in_specs=(P(), ROWS, ROWS), out_specs=(P(), P(), P()))

    @jax.jit
    def first_only(w, x, unused):
        return mapped(w, x, unused)[0]

    compiled = first_only.lower(W, X, X).compile()
    text = compiled.as_text()
    assert text.count(" all-reduce(") == 1
    assert "all-gather" not in text
    np.testing.assert_allclose(first_only(W, X, X), (X * W).reshape(4, 2, 6).sum(0), rtol=1e-6)


@pytest.mark.parametrize("derivative", [jax.jacfwd, jax.jacrev, jax.hessian])
def test_jacobians(derivative):
    def body(w, x):
        return jnp.sin(x * w).sum(1) + lax.psum(jnp.sum(x), "i")

    mapped = shard_map(body, mesh=MESH, in_specs=(P(), ROWS), out_specs=ROWS)

    def full(w, x):
        return jnp.sin(x * w).sum(1) + jnp.sum(x)

    with jax.enable_x64():
        w, x = jnp.asarray(W, np.float64), jnp.asarray(X, np.float64)
        for argument in (0, 1):
            ours = fast_jit(derivative(mapped, argument))(w, x)
            assert_close(ours, fast_jit(derivative(full, argument))(w, x), 1e-12)


def test_custom_vjp_around():
    mapped = ours(BODIES["exchanges"])

    @jax.custom_vjp
    def halved(w, x):
        return mapped(w, x)

    def forward(w, x):
        return jax.vjp(mapped, w, x)

    def backward(pull, ct):
        return jax.tree.map(lambda v: v / 2, pull(ct))

    halved.defvjp(forward, backward)
    found, plain = run_together([grad(halved), grad(mapped)], W, X)
    assert_close(found, [v / 2 for v in plain], 1e-6)


@jax.custom_jvp
def cubed(x):
    return x**3


@cubed.defjvp
def cubed_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return cubed(x), 3 * x**2 * t


@pytest.mark.parametrize("order", [0, 1, 2])
def test_derivatives_through_a_custom_jvp_function_of_a_gradient_inside(order):
    def body(w, x):
        return jax.grad(lambda w: lax.pmean(jnp.sum(cubed(w * x)), "i"))(w)

    def full(w, x):
        return jax.grad(lambda w: jnp.sum((w * x) ** 3) / MESH.shape["i"])(w)

    found = shard_map(body, mesh=MESH, in_specs=(P(), P("i")), out_specs=P())
    for _ in range(order):
        found, full = (jax.grad(lambda w, x, f=f: jnp.sin(f(w, x)).sum()) for f in (found, full))
    np.testing.assert_allclose(jax.jit(found)(W, X), jax.jit(full)(W, X), rtol=2e-3)


def test_checkpoint_policy_sees_names_inside():
    """What the policy saves by name is not computed again: one sine in value and gradient."""

    def body(w, x):
        kept = checkpoint_name(jnp.sin(x * w), "kept")
        return jnp.exp(lax.psum(kept, "i"))

    mapped = shard_map(body, mesh=MESH, in_specs=(P(), ROWS), out_specs=P())

    def sines(policy):
        fun = jax.checkpoint(mapped, policy=policy)
        jaxpr = jax.make_jaxpr(jax.grad(lambda w, x: jnp.sum(fun(w, x))))(W, X)
        return str(jaxpr).count("= sin ")

    policies = jax.checkpoint_policies
    assert sines(policies.save_only_these_names("kept")) < sines(policies.nothing_saveable)


def test_automatically_sharded_values_around():
    """jit(shard_map) between operations that XLA partitions as it likes."""

    @jax.jit
    def function(w, x):
        x = lax.with_sharding_constraint(jnp.cos(x), NamedSharding(MESH, P("j", "i")))
        y = ours(BODIES["jit"])(w, x * 2)
        return jnp.sum(lax.with_sharding_constraint(y, NamedSharding(MESH, P(None, "j"))) @ w)

    def full(w, x):
        return jnp.sum(jit_in_full(w, 2 * jnp.cos(x)) @ w)

    with jax.enable_x64():
        w, x = jnp.asarray(W, np.float64), jnp.asarray(X, np.float64)
        expected = jax.jit(jax.value_and_grad(full))(w, x)
        assert_close(jax.value_and_grad(function)(w, x), expected, 1e-11)


UNUSED_CALLS = {
    "result": lambda fun, x: (fun(x), jnp.sum(x * 2))[1],
    "grad": lambda fun, x: jax.grad(lambda x: (fun(x), jnp.sum(x * 2))[1])(x),
    "grad_of_checkpoint": lambda fun, x: jax.grad(lambda x: jax.checkpoint(fun)(x).sum())(x),
    "nothing_at_all": lambda fun, x: fun(x) is None or x,
}


@pytest.mark.parametrize("use", UNUSED_CALLS.values(), ids=UNUSED_CALLS)
def test_a_call_of_the_host_that_takes_nothing_where_results_are_unused(use):
    """Once dead code is gone, the body neither takes nor returns anything."""
    calls = []

    def body(x):
        jax.debug.callback(lambda: calls.append(1))
        return x * 2

    fun = shard_map(body, mesh=MESH, in_specs=ROWS, out_specs=ROWS)
    result = jax.jit(lambda x: use(fun, x))(X)
    jax.effects_barrier()
    assert len(calls) in (8, 16)  # on each device, and again for checkpoint
    assert jnp.all(jnp.isfinite(result))


@pytest.mark.parametrize("around", [lambda f: f, jax.jit, jax.checkpoint], ids=["", "jit", "remat"])
def test_gradient_of_a_body_that_computes_nothing(around):
    returned = shard_map(
        lambda w, x: (x, w), mesh=MESH, in_specs=(WHOLE, ROWS), out_specs=(ROWS, WHOLE)
    )

    def loss(w, x):
        first, second = around(returned)(w, x)
        return jnp.sum(first**2) + jnp.sum(second**3)

    of_w, of_x = jax.grad(loss, (0, 1))(W, X)
    np.testing.assert_allclose(of_w, 3 * W**2, rtol=1e-6)
    np.testing.assert_allclose(of_x, 2 * X, rtol=1e-6)
