"""Derivatives through `custom_vjp` functions whose rules talk to other devices.

Rules mean what they mean in JAX with check_vma: cotangents are each device's own along axes along
which a value varies, and whole along others. Those that JAX refuses, since they return shares of
what should be whole, are summed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import fast_jit, run_together
from jax import lax
from jax.experimental.ode import odeint
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map
from shmap_compiler.base.errors import BodyError

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
X = np.linspace(-1, 1, 48, dtype=np.float32).reshape(8, 6)
W = np.linspace(1, 2, 6, dtype=np.float32)


def with_rule(fun, backward):
    """`fun(w, x)` whose derivative is `backward(w, x, ct)`."""
    wrapped = jax.custom_vjp(fun)
    wrapped.defvjp(lambda w, x: (fun(w, x), (w, x)), lambda kept, ct: backward(*kept, ct))
    return wrapped


def product(w, x):
    return w * x


def summed(w, x):
    return lax.psum((w * x).sum(), "i")


# w is equal on all devices along "i", x is not.
product_rule = with_rule(product, lambda w, x, ct: (lax.psum((ct * x).sum(0), "i"), ct * w))
share_rule = with_rule(product, lambda w, x, ct: ((ct * x).sum(0), ct * w))
half_rule = with_rule(product, lambda w, x, ct: (lax.psum(ct * x, "i").sum(0), jnp.zeros_like(x)))
sum_rule = with_rule(summed, lambda w, x, ct: (lax.psum((ct * x).sum(0), "i"), ct * w + 0 * x))
local_rule = with_rule(
    lambda w, x: jnp.sin(w * x), lambda w, x, ct: jax.vjp(lambda w, x: jnp.sin(w * x), w, x)[1](ct)
)
recomputing_rule = with_rule(summed, lambda w, x, ct: jax.vjp(summed, w, x)[1](ct))
gathering_rule = with_rule(
    lambda w, x: lax.all_gather(w * x, "i", tiled=True),
    lambda w, x, ct: (
        lax.psum((lax.psum_scatter(ct, "i", tiled=True) * x).sum(0), "i"),
        lax.psum_scatter(ct, "i", tiled=True) * w,
    ),
)


def gradient(shard_map, body, **options):
    of = shard_map(body, mesh=MESH, in_specs=(P(), P("i")), out_specs=P(), **options)
    return jax.grad(of, argnums=(0, 1))


def gradients(shard_map, body, **options):
    return fast_jit(gradient(shard_map, body, **options))(W, X)


def same_as_jax(*bodies):
    functions = [gradient(mapper, body) for mapper in (shard_map, jax.shard_map) for body in bodies]
    found = run_together(functions, W, X)
    for both in zip(found[: len(bodies)], found[len(bodies) :], strict=True):
        for ours, jaxs in zip(*both, strict=True):
            np.testing.assert_allclose(ours, jaxs, rtol=1e-5, atol=1e-5)


def total(y):
    """The sum of all that devices have."""
    return lax.psum(jnp.sum(jnp.cos(y)), "i")


def scattered(w, x):
    # The scattered value is equal on all devices, and JAX's types take it for each device's own.
    return lax.psum_scatter(jnp.tile(w, 4), "i", tiled=True) * x


scattering_rule = with_rule(scattered, lambda w, x, ct: jax.vjp(scattered, w, x)[1](ct))

RULES = {
    "scattering": (scattering_rule, total),
    "product": (product_rule, total),
    "half": (half_rule, total),
    "sum": (sum_rule, jnp.cos),
    "local": (local_rule, total),
    "recomputing": (recomputing_rule, jnp.cos),
    "gathering": (gathering_rule, total),
}
for_each_rule = pytest.mark.parametrize(("rule", "finish"), RULES.values(), ids=RULES)


@for_each_rule
def test_a_rule(rule, finish):
    same_as_jax(lambda w, x: finish(rule(w, x)))


@for_each_rule
def test_a_rule_in_a_call_that_uses_its_operands_elsewhere(rule, finish):
    @jax.jit
    def inner(w, x):
        return finish(rule(w, x)) + total(w * x) + lax.psum((w * x).sum(), "i")

    same_as_jax(lambda w, x: inner(w, x) + inner(2 * w, x))


@for_each_rule
def test_a_rule_in_a_loop(rule, finish):
    def body(w, x):
        def step(carry, k):
            w, out = carry
            return (w * 1.1, out + finish(rule(w, k * x))), finish(rule(w, x))

        (w, out), rest = lax.scan(step, (w, jnp.float32(0)), jnp.arange(3, dtype=np.float32))
        return out + rest.sum() + w.sum()

    same_as_jax(body)


@for_each_rule
def test_a_rule_in_a_branch(rule, finish):
    same_as_jax(lambda w, x: lax.cond(w[0] > 0, lambda: finish(rule(w, x)), lambda: w.sum()))


def test_a_rule_that_only_some_devices_call():
    """No sum over devices may stand beside it: the others would not come."""

    def of(product):
        def body(w, x):
            first = lax.axis_index("i") < 2
            return total(x * lax.cond(first, lambda: product(w, 2 * w), lambda: w))

        return body

    rule = with_rule(product, lambda w, x, ct: (ct * x, ct * w))
    expected = gradients(shard_map, of(product))
    for ruled, plain in zip(gradients(shard_map, of(rule)), expected, strict=True):
        np.testing.assert_allclose(ruled, plain, rtol=1e-5, atol=1e-5)


@for_each_rule
def test_a_rule_in_a_checkpoint(rule, finish):
    same_as_jax(jax.checkpoint(lambda w, x: finish(rule(w, x))))


@for_each_rule
def test_a_rule_in_vmap(rule, finish):
    def body(w, x):
        return jax.vmap(lambda s: finish(rule(s * w, x)))(jnp.arange(1, 3, dtype=np.float32)).sum()

    same_as_jax(body)


@for_each_rule
def test_a_rule_called_directly(rule, finish):
    def body(w, x):
        return finish(rule(w, x))

    of = shard_map(body, mesh=MESH, in_specs=(P(), P("i")), out_specs=P())
    for ours, jaxs in zip(
        jax.grad(of, argnums=(0, 1))(W, X), gradients(jax.shard_map, body), strict=True
    ):
        np.testing.assert_allclose(ours, jaxs, rtol=1e-5, atol=1e-5)


def with_sine(w, x):
    return w * x, jnp.sin(w)


with_sine_rule = jax.custom_vjp(with_sine)


def sine_forward(w, x):
    sine = jnp.sin(w)
    return (w * x, sine), (w, x, sine)


def sine_backward(kept, cts):
    w, x, sine = kept
    return lax.psum((cts[0] * x).reshape(-1, 6).sum(0), "i") + jnp.cos(w) * cts[1] + 0 * sine, cts[
        0
    ] * w


with_sine_rule.defvjp(sine_forward, sine_backward)

REGIONS = {
    "plain": lambda f: f,
    "checkpoint": lambda f: jax.checkpoint(f, policy=jax.checkpoint_policies.everything_saveable),
}


@pytest.mark.parametrize("around", REGIONS.values(), ids=REGIONS)
@pytest.mark.parametrize("inside", REGIONS.values(), ids=REGIONS)
@pytest.mark.parametrize("spec", [P(), P("i"), P(("i", "j"))], ids=str)
def test_an_equal_residual_that_is_a_result(spec, inside, around):
    """Its copies on all devices are equal, even if out_specs make them blocks of an array."""

    def gradient(shard_map):
        of = shard_map(
            inside(with_sine_rule), mesh=MESH, in_specs=(P(), P("i")), out_specs=(P("i"), spec)
        )

        def loss(w, x):
            y, sine = around(of)(w, x)
            return jnp.cos(y).sum() + sine[:6].sum()

        return fast_jit(jax.grad(loss, argnums=(0, 1)))(W, X)

    for ours, jaxs in zip(gradient(shard_map), gradient(jax.shard_map), strict=True):
        np.testing.assert_allclose(ours, jaxs, rtol=1e-5, atol=1e-5)


def in_branches(w, row):
    def first(w, row):
        return with_sine_rule(w, row)[0]

    def second(w, row):
        return jnp.sin(with_sine_rule(w, jnp.sin(row))[0])

    return lax.cond(w.sum() > 0, first, second, w, row)


def in_branches_of_a_loop(w, row):
    def step(y, k):
        return y + in_branches(w, k * row), None

    return lax.scan(step, row, jnp.arange(1, 3, dtype=row.dtype))[0]


def in_branches_that_are_moved_out_of_a_loop(w, row):
    """JAX's rule of the loop computes both sines before it."""

    def first(v, y):
        return with_sine_rule(v, y)[0], v * jnp.sin(w)

    def second(v, y):
        return y * jnp.sin(row), v

    def step(carry, _):
        y, v = lax.cond(w.sum() > 0, first, second, *carry)
        return (v, y), None

    return lax.scan(step, (w, row), length=3)[0][1]


IN_BRANCHES = [in_branches, in_branches_of_a_loop, in_branches_that_are_moved_out_of_a_loop]


@pytest.mark.parametrize("around", [lambda f: f, jax.checkpoint], ids=["plain", "checkpoint"])
@pytest.mark.parametrize("places", IN_BRANCHES)
def test_an_equal_residual_beside_a_varying_one_of_another_branch(places, around):
    same_as_jax(lambda w, x: total(around(places)(w, x[0])))


def test_shares_that_a_rule_returns_are_summed():
    body = lambda w, x: total(share_rule(w, x))  # noqa: E731
    with pytest.raises(ValueError, match="must produce an output with the same type"):
        gradients(jax.shard_map, body)
    expected = gradients(jax.shard_map, lambda w, x: total(product_rule(w, x)))
    for ours, jaxs in zip(gradients(shard_map, body), expected, strict=True):
        np.testing.assert_allclose(ours, jaxs, rtol=1e-5, atol=1e-5)


def test_an_operand_that_is_gathered_to_equal_values():
    """Its type says that it is equal on all devices, and so the rule sums."""

    def body(w, x):
        gathered = lax.all_gather(jnp.sin(x), "i", to="invarying").sum((0, 1))
        return total(product_rule(jnp.tanh(gathered) + w, x))

    same_as_jax(body)


def test_an_operand_that_is_equal_for_another_reason_than_its_type():
    """`all_gather` gives equal values, which JAX's types take for each device's own."""

    def body(w, x):
        gathered = lax.all_gather(x, "i", tiled=True)
        rule = with_rule(
            lambda w, x: (w * x).sum(),
            lambda w, x, ct: (lax.psum((ct * x).sum(0), "i"), ct * w * jnp.ones_like(x)),
        )
        return lax.psum(jnp.cos(rule(w, gathered)), "i")

    same_as_jax(body)


def test_a_rule_sums_once():
    of = shard_map(
        lambda w, x: total(product_rule(w, x)), mesh=MESH, in_specs=(P(), P("i")), out_specs=P()
    )
    text = jax.jit(jax.grad(of)).lower(W, X).compile().as_text()
    assert text.count(" all-reduce(") == 1


def mixed(fun):
    """The derivative along `x` by `jax.vjp`, the other by hand."""

    def backward(w, x, ct):
        return lax.psum((ct * x).sum(0), "i"), jax.vjp(lambda x: fun(w, x), x)[1](ct)[0]

    return with_rule(fun, backward)


def test_a_rule_that_sums_whole_cotangents_beside_a_derivative():
    same_as_jax(lambda w, x: jnp.cos(mixed(summed)(w, x)))


def test_a_rule_that_sums_shares_in_two_ways_is_refused():
    def fun(w, x):
        return w * x + lax.psum(x, "i")

    with pytest.raises(
        BodyError,
        match=r"(?s)the backward rule of the custom_vjp function called at .*test_backward_rules"
        r".*found:  psum of a cotangent over 'i', and a derivative by jax.vjp of a function with "
        r"psum\n    needed: .*\n    fix:    remove the psum from",
    ):
        gradients(shard_map, lambda w, x: total(mixed(fun)(w, x)))


@pytest.mark.parametrize("is_inside", [True, False])
def test_a_rule_in_a_nested_shard_map_whose_sum_is_scaled_by_what_it_saved(is_inside):
    """What it saved is equal along the axis of the sum, and so is what it returns."""
    rule = with_rule(product, lambda w, x, ct: (lax.psum((ct * x).sum(0), "i") * w, ct * w))

    def of(shard_map):
        def body(w, x):
            specs = {"in_specs": (P("j"), P(None, "j")), "out_specs": P(None, "j")}
            return total(shard_map(rule, axis_names={"j"}, **specs)(w, x))

        body = jax.grad(body) if is_inside else body
        specs = {"in_specs": (P(), P("i")), "out_specs": P(), "axis_names": {"i"}}
        outer = shard_map(body, mesh=MESH, **specs)
        return fast_jit(outer if is_inside else jax.grad(outer))(W, X)

    np.testing.assert_allclose(of(shard_map), of(jax.shard_map), rtol=1e-5, atol=1e-5)


# ------------------------------------------------- results that vary though no operand does

FROM_WHOLE = {
    "scattered": lambda w: lax.psum_scatter(w, "i", tiled=True),
    "scattered in another order": lambda w: lax.psum_scatter(
        w, "i", axis_index_groups=[[3, 1, 0, 2]], tiled=True
    ),
    "scattered, of each device's own multiple": lambda w: lax.psum_scatter(
        w * (1.0 + lax.axis_index("i")), "i", tiled=True
    ),
    "summed, then a part of each device's own": lambda w: lax.dynamic_slice(
        lax.psum(w, "i"), (2 * lax.axis_index("i"),), (2,)
    ),
}


@pytest.mark.parametrize("function", FROM_WHOLE.values(), ids=FROM_WHOLE)
def test_rule_made_by_vjp_where_only_the_result_varies(function):
    ruled = jax.custom_vjp(function)
    ruled.defvjp(lambda w: (function(w), w), lambda w, ct: jax.vjp(function, w)[1](ct))
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    def gradient(f):
        mapped = shard_map(f, mesh=mesh, in_specs=P(), out_specs=P("i"))
        weights = jnp.arange(1.0, 9.0)
        return jax.jit(jax.grad(lambda w: jnp.sum(weights * mapped(w))))(jnp.ones(8))

    np.testing.assert_allclose(gradient(ruled), gradient(function), rtol=1e-6)


@pytest.mark.parametrize("check_vma", [True, False])
def test_rule_beside_a_linear_solve(check_vma):
    """A solve holds its programs in a named tuple, which rewritings have to keep."""
    halved = jax.custom_vjp(lambda x: jnp.sin(x) / 2)
    halved.defvjp(lambda x: (jnp.sin(x) / 2, jnp.cos(x)), lambda c, ct: (ct * c / 2,))

    def body(a, b, half):
        return jnp.linalg.solve(half(a) + 4 * jnp.eye(6), b[0])[None]

    def gradient(half, mapped):
        a, b = jnp.outer(W, W), jnp.asarray(X[:4])
        return jax.grad(lambda a, b: jnp.sum(mapped(half)(a, b) ** 2), (0, 1))(a, b)

    ours = gradient(
        halved,
        lambda half: shard_map(
            lambda a, b: body(a, b, half),
            mesh=MESH,
            in_specs=(P(), P("i")),
            out_specs=P("i"),
            check_vma=check_vma,
        ),
    )
    expected = gradient(
        lambda x: jnp.sin(x) / 2,
        lambda half: lambda a, b: jnp.concatenate([body(a, r[None], half) for r in b]),
    )
    for found, wanted in zip(ours, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def by_flags(backward):
    """The product, whose rule asks which operands are differentiated, as those of libraries do."""
    flagged = jax.custom_vjp(product)
    flagged.defvjp(
        lambda w, x: (product(w.value, x.value), (w.value, x.value, w.perturbed, x.perturbed)),
        backward,
        symbolic_zeros=True,
    )
    return flagged


flag_rule = by_flags(
    lambda kept, ct: (ct * kept[1] if kept[2] else None, ct * kept[0] if kept[3] else None)
)
# On the way it sums cotangents, so the line of a collective of the rule is looked for.
refused_flag_rule = by_flags(
    lambda kept, ct: (lax.psum(ct, "i") * kept[1] if kept[2] else None, ct * kept[0])
)
LOOKED_AT = {
    "in_a_call": lambda w, x: flag_rule(w, x),
    "of_a_constant": lambda w, x: flag_rule(2.0 + 0 * w, jnp.ones_like(x)) + x,
    "in_a_loop": lambda w, x: lax.scan(lambda y, _: (flag_rule(w, y), None), x, length=2)[0],
    "in_a_branch": lambda w, x: lax.cond(
        jnp.sum(w) > 0, lambda: flag_rule(w, x), lambda: product(w, x)
    ),
    "in_a_checkpoint": lambda w, x: jax.checkpoint(flag_rule)(w, x),
}


@pytest.mark.parametrize("body", LOOKED_AT.values(), ids=LOOKED_AT)
def test_rule_looks_at_residuals_that_are_constants(body):
    same_as_jax(lambda w, x: total(body(lax.pcast(w, "i", to="varying") + 0 * x, x)))


def test_line_of_a_sum_in_a_rule_that_looks_at_constants():
    def body(w, x):
        return total(refused_flag_rule(lax.psum(w * x, "i"), lax.psum(x, "i")))

    with pytest.raises(BodyError, match=r"test_backward_rules\.py:\d+"):
        gradients(shard_map, body)


@pytest.mark.parametrize("used", [True, False])
def test_rule_of_a_function_with_a_result_that_has_no_tangent(used):
    ranked = with_rule(
        lambda w, x: (w * x, jnp.argmax(x, 0), x > 0),
        lambda w, x, cts: (cts[0] * x, cts[0] * w),
    )

    def body(w, x):
        y, rank, positive = ranked(lax.pcast(w, "i", to="varying") + 0 * x, x)
        return total(jnp.where(positive, y, y / 2) + rank if used else y)

    same_as_jax(body)


@pytest.mark.parametrize(("error", "raised"), [(RuntimeError, True), (ValueError, False)])
def test_casts_are_ignored_only_where_types_refuse_them(error, raised):
    """A body with a rule and a cast is traced once more, with types; other errors are raised."""
    traced = []

    def body(w, x):
        traced.append(1)
        if len(traced) == 2:
            raise error("in the second tracing")
        return local_rule(lax.pcast(w, "i", to="varying"), x)

    call = shard_map(body, mesh=MESH, in_specs=(P(), P("i")), out_specs=P("i"))
    if raised:
        with pytest.raises(error, match="in the second tracing"):
            jax.jit(call)(W, X)
    else:
        np.testing.assert_allclose(jax.jit(call)(W, X), np.sin(W * X), rtol=1e-5, atol=1e-6)
    assert len(traced) == 2


@pytest.mark.parametrize(
    "backward",
    [
        lambda ct: jnp.where(lax.axis_index("j") == 1, ct, 0),
        lambda ct: lax.ppermute(ct, "j", [(0, 1)]),
        lambda ct: ct * lax.axis_size("j"),
    ],
)
def test_axes_that_only_a_rule_uses_without_check_vma(backward):
    """Cotangents are shares along all axes, as in JAX."""
    doubled = with_rule(lambda w, x: 2 * w, lambda w, x, ct: (backward(ct), jnp.zeros_like(x)))

    def body(w, x):
        return lax.psum((doubled(w, x) * x).sum(), "i")

    found = gradients(shard_map, body, check_vma=False)
    for ours, theirs in zip(found, gradients(jax.shard_map, body, check_vma=False), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


# ------------------------------------------------------------- derivatives in rules of the user's


def by_jvp(fun):
    """`fun`, whose derivative is its own, by a rule."""
    wrapped = jax.custom_jvp(fun)
    wrapped.defjvp(lambda primals, tangents: jax.jvp(fun, primals, tangents))
    return wrapped


whole_rule = with_rule(summed, lambda w, x, ct: (ct * lax.psum(x.sum(0), "i"), ct * w + 0 * x))
product_by_jvp, summed_by_jvp = by_jvp(product_rule), by_jvp(whole_rule)


def root_of_product(w, x):
    return lax.custom_root(
        lambda y: y - product_rule(w, x),
        jnp.ones_like(x),
        lambda f, y: y - f(y),
        lambda g, y: y / g(jnp.ones_like(y)),
    )


# Each uses the gradient of the weight as a number, so that it has to be whole.
bounding_rule = with_rule(
    product,
    lambda w, x, ct: (lambda gw, gx: (jnp.tanh(gw / 4), gx))(*jax.vjp(product, w, x)[1](ct)),
)
jitted_bounding_rule = with_rule(
    product,
    jax.jit(
        lambda w, x, ct: (lambda gw, gx: (jnp.tanh(gw / 4), gx))(*jax.vjp(product, w, x)[1](ct))
    ),
)


@jax.custom_jvp
def steered(w, x):
    return w * x


@steered.defjvp
def _steered_jvp(primals, tangents):
    w, x = primals
    slope = jax.grad(lambda w: (w * x).sum())(w)
    return w * x, tangents[0] * jnp.tanh(slope / 4) * jnp.ones_like(x) + tangents[1] * w


@jax.custom_vjp
def weighed(w, x):
    return summed(w, x)


weighed.defvjp(
    lambda w, x: (summed(w, x), (jax.grad(lambda w: jnp.cos(w * x).sum())(w), w, x)),
    lambda kept, ct: (ct * jnp.tanh(kept[0] / 4), ct * kept[1] * jnp.ones_like(kept[2])),
)


def by_place(w):
    return lax.psum(jnp.sin(w * (1 + lax.axis_index("i"))).sum(), "i")


def made_forward(w, x):
    @jax.custom_vjp
    def fun(w):
        return by_place(w)

    def forward(w):
        slope = jax.grad(by_place)(w)
        return by_place(w), jnp.tanh(slope / 4)

    fun.defvjp(forward, lambda slope, ct: (ct * slope,))
    return fun(w) + total(x)


@jax.custom_jvp
def by_place_and_rule(w, x):
    return by_place(w)


@by_place_and_rule.defjvp
def _by_place_jvp(primals, tangents):
    slope = jax.grad(by_place)(primals[0])
    return by_place(primals[0]), (tangents[0] * jnp.tanh(slope / 4)).sum()


def saving(differentiate, backward):
    """A product and a sum whose forward rules save what `jax.vjp` or `jax.linearize` returns."""

    def ruled(fun):
        wrapped = jax.custom_vjp(fun)
        wrapped.defvjp(lambda w, x: differentiate(fun, w, x), backward)
        return wrapped

    return ruled(product), ruled(summed)


def linearized(fun, w, x):
    result, linear = jax.linearize(fun, w, x)
    return result, (linear, w, x)


def bounded(gw, gx):
    return jnp.tanh(gw / 4), gx


SAVING = {
    "a vjp": saving(jax.vjp, lambda pull, ct: pull(ct)),
    "a bounded vjp": saving(jax.vjp, lambda pull, ct: bounded(*pull(ct))),
    "a linearization": saving(linearized, lambda kept, ct: tuple(jax.linear_transpose(*kept)(ct))),
    "a bounded linearization": saving(
        linearized, lambda kept, ct: bounded(*jax.linear_transpose(*kept)(ct))
    ),
}


@pytest.mark.parametrize("functions", SAVING.values(), ids=SAVING)
def test_a_rule_that_calls_what_its_forward_rule_saved(functions):
    """With types or without, as the body is traced: what is saved takes values of these types."""
    each, one = functions
    slope = lambda w, x: jax.grad(lambda w: lax.pmean((w * x).sum(), "i"))(w)  # noqa: E731
    bodies = [
        lambda w, x: total(each(w, x)) + jnp.sin(one(w, x)),
        lambda w, x: total(each(w - slope(w, x), x)) + jnp.sin(one(w - slope(w, x), x)),
        lambda w, x: total(each(lax.pcast(w, "i", to="varying"), x)),
        lambda w, x: total(jax.grad(lambda w: jnp.cos(each(w, x)).sum())(w)),
        lambda w, x: total(lax.scan(lambda y, _: (each(w, jnp.sin(y)), None), x, length=2)[0]),
    ]
    same_as_jax(*bodies)


@pytest.mark.parametrize("kind", ["a vjp", "a linearization"])
@pytest.mark.parametrize("sizes", [(1, 1), (1, 4), (2, 1)])
def test_what_a_forward_rule_saved_has_types_along_axes_of_size_one(sizes, kind):
    devices = jax.devices()[: np.prod(sizes)]
    mesh = jax.make_mesh(sizes, ("i", "j"), axis_types=(AxisType.Auto,) * 2, devices=devices)
    each, one = SAVING[kind]

    def body(w, x):
        y, _ = lax.scan(lambda y, _: (each(w, jnp.sin(y)), None), x, length=2)
        return lax.psum(total(y) + jnp.sin(one(w, x)), "j")

    def gradient(shard_map):
        of = shard_map(body, mesh=mesh, in_specs=(P(), P(("i", "j"))), out_specs=P())
        return jax.grad(of, argnums=(0, 1))

    both = run_together([gradient(shard_map), gradient(jax.shard_map)], W, X)
    for ours, jaxs in zip(*both, strict=True):
        np.testing.assert_allclose(ours, jaxs, rtol=1e-5, atol=1e-5)


def test_a_saved_vjp_of_a_sum_of_casts():
    """The psum of its transpose sums shares that are equal, because the body casts."""

    def cast_sum(w, x):
        return lax.psum(jnp.sin(lax.pcast(w, ("i", "j"), to="varying") * x).sum(), ("i", "j"))

    fun = jax.custom_vjp(cast_sum)
    fun.defvjp(lambda w, x: jax.vjp(cast_sum, w, x), lambda pull, ct: pull(ct))
    same_as_jax(fun)


def test_a_mistake_in_a_rule_is_raised_as_it_is():
    def backward(pull, ct):
        gw, gx = pull(ct)
        return gw + jnp.ones(5), gx

    fun = jax.custom_vjp(product)
    fun.defvjp(lambda w, x: jax.vjp(product, w, x), backward)
    with pytest.raises(TypeError, match="incompatible shapes for broadcasting"):
        gradients(shard_map, lambda w, x: total(fun(w, x)))


def test_a_forward_rule_that_types_reject_is_traced_without_them():
    def rowwise_sum(w, x):
        return lax.scan(lambda sums, row: (sums + w * row, None), jnp.zeros_like(w), x)[0]

    fun = jax.custom_vjp(lambda w, x: (w * x).sum(0))
    fun.defvjp(lambda w, x: jax.vjp(rowwise_sum, w, x), lambda pull, ct: pull(ct))
    found = gradients(shard_map, lambda w, x: total(fun(w, x)))
    same = gradients(jax.shard_map, lambda w, x: total((w * x).sum(0)))
    for ours, expected in zip(found, same, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5)


def by_vjp(w, x):
    result, pull = jax.vjp(lambda w: jnp.cos(w * x).sum(), w)
    return pull(jnp.ones_like(result))[0]


def by_transpose(w, x):
    result, linear = jax.linearize(lambda w: jnp.cos(w * x).sum(), w)
    return jax.linear_transpose(linear, w)(jnp.ones_like(result))[0]


def weighed_by(slope):
    fun = jax.custom_vjp(summed)
    fun.defvjp(
        lambda w, x: (summed(w, x), (slope(w, x), w, x)),
        lambda kept, ct: (ct * jnp.tanh(kept[0] / 4), ct * kept[1] * jnp.ones_like(kept[2])),
    )
    return fun


weighed_by_vjp, weighed_by_transpose = map(weighed_by, (by_vjp, by_transpose))

DIFFERENTIATING = {
    "a function with a rule, in a jvp rule": lambda w, x: total(product_by_jvp(w, x)),
    "one with a whole result": lambda w, x: jnp.cos(summed_by_jvp(w, x)),
    "made in the body": lambda w, x: total(by_jvp(product_rule)(w, x)),
    "in a solver": lambda w, x: total(root_of_product(w, x)),
    "in a backward rule": lambda w, x: total(bounding_rule(w, x)),
    "in a jitted backward rule": lambda w, x: total(jitted_bounding_rule(w, x)),
    "in a backward rule in a loop": lambda w, x: total(
        lax.scan(lambda y, _: (bounding_rule(w, y), None), x, length=2)[0]
    ),
    "in a jvp rule": lambda w, x: total(steered(w, x)),
    "in a forward rule": lambda w, x: jnp.cos(weighed(w, x)),
    "in a forward rule, by vjp": lambda w, x: jnp.cos(weighed_by_vjp(w, x)),
    "in a forward rule, by transposition": lambda w, x: jnp.cos(weighed_by_transpose(w, x)),
    "in a forward rule made in the body": made_forward,
    "of values that a rule makes": by_place_and_rule,
}


@pytest.mark.parametrize("body", DIFFERENTIATING.values(), ids=DIFFERENTIATING)
def test_a_derivative_in_a_rule(body):
    same_as_jax(body)


def test_a_derivative_in_a_rule_of_a_static_argument():
    of = shard_map(
        lambda fun, w, x: jnp.cos(fun(w, x)),
        mesh=MESH,
        in_specs=(None, P(), P("i")),
        out_specs=P(),
    )
    jaxs = gradients(jax.shard_map, lambda w, x: jnp.cos(weighed(w, x)))
    for run in (fast_jit, lambda fun: fun):
        ours = run(jax.grad(lambda w, x: of(weighed, w, x), (0, 1)))(W, X)
        for mine, other in zip(ours, jaxs, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)


def test_a_derivative_in_a_jvp_rule_in_forward_mode():
    def tangent(mapped):
        of = mapped(steered, mesh=MESH, in_specs=(P(), P("i")), out_specs=P("i"))
        return jax.jit(lambda w, x: jax.jvp(of, (w, x), (w, x))[1])(W, X)

    np.testing.assert_allclose(tangent(shard_map), tangent(jax.shard_map), rtol=1e-5)


class Hidden:
    """A function that reading the code of others does not find."""

    __slots__ = ("fun",)

    def __init__(self, fun):
        self.fun = fun


@pytest.mark.parametrize(
    ("fun", "where"),
    [
        (product_by_jvp, r"the custom_vjp function called at .*, in a derivative rule"),
        (steered, r"a derivative taken in a rule of the function called at"),
        (weighed, r"a derivative taken in a rule of the function called at"),
    ],
)
def test_a_derivative_in_a_rule_whose_types_are_unknown_is_refused(fun, where):
    hidden = Hidden(fun)
    with pytest.raises(BodyError, match=where):
        gradients(shard_map, lambda w, x: total(hidden.fun(w, x)))


def test_a_derivative_of_values_that_a_rule_without_types_makes_is_refused():
    """The operand is equal on all devices, and the axis index in the rule is each device's own."""
    hidden = Hidden(by_place_and_rule)
    with pytest.raises(BodyError, match=r"a derivative taken in a rule of the function called at"):
        gradients(shard_map, lambda w, x: hidden.fun(w, w))


def test_a_derivative_of_what_is_each_devices_own_needs_no_types():
    hidden = Hidden(steered)
    same_as_jax(lambda w, x: total(hidden.fun(w * x, x)))


def test_a_derivative_in_a_backward_rule_that_types_reject_is_refused():
    def backward(w, x, ct):
        gw, gx = jax.vjp(product, w, x)[1](ct)
        mean = lax.scan(lambda m, row: (m + row, None), jnp.zeros_like(w), x)[0]
        return jnp.tanh(gw) * mean, gx

    with pytest.raises(BodyError, match=r"a derivative taken in the backward rule of"):
        gradients(shard_map, lambda w, x: total(with_rule(product, backward)(w, x)))


def test_a_derivative_in_a_rule_of_jaxs_own():
    """JAX's types reject the program of this one, which is linear in what it differentiates."""
    times = np.array([0.0, 0.5], np.float32)
    decayed = lambda w, x: odeint(lambda y, t, w: -w * y, x, times, w)[-1]  # noqa: E731
    found = gradients(shard_map, lambda w, x: total(decayed(w, x)))
    exact = jax.grad(lambda w, x: jnp.sum(jnp.cos(jnp.exp(-w / 2) * x)), argnums=(0, 1))(W, X)
    for ours, expected in zip(found, exact, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-3, atol=1e-4)


@jax.custom_batching.custom_vmap
def rowwise(w, x):
    return w * x


@rowwise.def_vmap
def _rows(size, batched, w, x):
    slope = jax.grad(lambda w: (w * x).sum())(w)
    return jnp.tanh(slope) * x, True


def test_a_derivative_in_a_rule_for_vmap_is_refused():
    of = shard_map(rowwise, mesh=MESH, in_specs=(P(), P("i")), out_specs=P("i"))
    with pytest.raises(BodyError, match=r"a derivative taken in a rule of the function called at"):
        jax.vmap(of, in_axes=(None, 0))(W, jnp.stack([X, X]))
