"""Backward rules written for every convention: the gradient is right, or the rule is refused.

A rule may be written for cotangents that are shares of each device's own, as with
`check_vma=False`, or for cotangents of JAX's types. People write both, and a rule called under the
other convention is wrong by the number of devices. Each rule here is right under one of them; the
truth is the derivative of the function without its rule.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import fast_jit, run_together
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import BodyError, shard_map

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
N = MESH.shape["i"]
W = np.linspace(1, 2, 4, dtype=np.float32)
X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(16, 4)


def varying(x):
    return lax.pcast(x, "i", to="varying")


def with_rule(fun, backward):
    wrapped = jax.custom_vjp(fun)
    wrapped.defvjp(lambda *args: (fun(*args), args), lambda args, ct: backward(*args, ct))
    return wrapped


def own_part(y):
    rows = y.shape[0] // N
    return lax.dynamic_slice_in_dim(y, lax.axis_index("i") * rows, rows)


# ------------------------------------------------------- functions, and how a loss is made of them
# Each takes `w`, which is equal on all devices, and `x`, which is not.


def identity(w, x):
    return w


def cast(w, x):
    return varying(w)


def summed(w, x):
    return lax.psum(w * x, "i")


def averaged(w, x):
    return lax.pmean(w * x, "i")


def product(w, x):
    return w * x


def gathered(w, x):
    return lax.all_gather(w * x, "i", tiled=True)


def gathered_equal(w, x):
    return lax.all_gather(w * x, "i", tiled=True, to="invarying")


def scattered(w, x):
    return lax.psum_scatter(w * x, "i", tiled=True)


def shifted(w, x):
    return lax.ppermute(w * x, "i", [(k, (k + 1) % N) for k in range(N)])


def unshift(ct):
    return lax.ppermute(ct, "i", [((k + 1) % N, k) for k in range(N)])


def exchanged(w, x):
    return lax.all_to_all(w * x, "i", 1, 0, tiled=True)


def regather(ct):
    return lax.all_to_all(ct, "i", 0, 1, tiled=True)


def by_w_and_x(ct, w, x, whole):
    """From the cotangent of `w * x`; `whole` sums that of w."""
    return whole((ct * x).sum(0)), ct * w


def sum_of(x):
    return lax.psum(x, "i")


def same(x):
    return x


def by_vjp(fun):
    return lambda w, x, ct: jax.vjp(fun, w, x)[1](ct)


def zero(x):
    return jnp.zeros_like(x)


def weighted(w, x):
    """It closes over an array, for which JAX puts a function around the rule."""
    return np.arange(4, dtype=np.float32) * w * x


@dataclass(frozen=True)
class Rule:
    """A function with its rule, and whether the rule combines what is whole already."""

    fun: Any
    backward: Any
    refused: bool = False


RULES = {
    "identity": Rule(identity, lambda w, x, ct: (ct, zero(x))),
    "identity_psum": Rule(identity, lambda w, x, ct: (sum_of(ct), zero(x)), refused=True),
    "identity_pmean": Rule(identity, lambda w, x, ct: (lax.pmean(ct, "i"), zero(x))),
    "identity_psum_of_mean": Rule(identity, lambda w, x, ct: (sum_of(ct / N), zero(x))),
    "identity_psum_by_n": Rule(identity, lambda w, x, ct: (sum_of(ct) * (1 / N), zero(x))),
    "identity_psum_in_jit": Rule(
        identity, lambda w, x, ct: (jax.jit(sum_of)(ct), zero(x)), refused=True
    ),
    "identity_gather_sum": Rule(
        identity, lambda w, x, ct: (lax.all_gather(ct, "i").sum(0), zero(x)), refused=True
    ),
    "identity_scatter_gather": Rule(
        identity,
        lambda w, x, ct: (
            lax.all_gather(lax.psum_scatter(ct, "i", tiled=True), "i", tiled=True),
            zero(x),
        ),
        refused=True,
    ),
    "identity_both_axes": Rule(
        identity, lambda w, x, ct: (lax.psum(ct, ("i", "j")), zero(x)), refused=True
    ),
    "identity_vjp": Rule(identity, by_vjp(identity)),
    "cast_psum": Rule(cast, lambda w, x, ct: (sum_of(ct), zero(x))),
    "cast_share": Rule(cast, lambda w, x, ct: (ct, zero(x))),
    "psum_whole": Rule(summed, lambda w, x, ct: by_w_and_x(ct, w, x, sum_of)),
    "psum_whole_cast": Rule(summed, lambda w, x, ct: by_w_and_x(varying(ct), w, x, sum_of)),
    "psum_share": Rule(summed, lambda w, x, ct: by_w_and_x(ct, w, x, same)),
    "psum_psum": Rule(summed, lambda w, x, ct: by_w_and_x(sum_of(ct), w, x, sum_of), refused=True),
    "psum_psum_share": Rule(
        summed, lambda w, x, ct: by_w_and_x(sum_of(ct), w, x, same), refused=True
    ),
    "psum_vjp": Rule(summed, by_vjp(summed)),
    "pmean_whole": Rule(averaged, lambda w, x, ct: by_w_and_x(ct / N, w, x, sum_of)),
    "pmean_pmean": Rule(
        averaged, lambda w, x, ct: by_w_and_x(lax.pmean(ct, "i"), w, x, sum_of), refused=True
    ),
    "pmean_vjp": Rule(averaged, by_vjp(averaged)),
    "product_whole": Rule(product, lambda w, x, ct: by_w_and_x(ct, w, x, sum_of)),
    "product_share": Rule(product, lambda w, x, ct: by_w_and_x(ct, w, x, same)),
    "product_vjp": Rule(product, by_vjp(product)),
    "weighted_vjp": Rule(weighted, by_vjp(weighted)),
    "gather_scatter": Rule(
        gathered,
        lambda w, x, ct: by_w_and_x(lax.psum_scatter(ct, "i", tiled=True), w, x, sum_of),
    ),
    "gather_slice_of_sum": Rule(
        gathered, lambda w, x, ct: by_w_and_x(own_part(sum_of(ct)), w, x, sum_of)
    ),
    "gather_vjp": Rule(gathered, by_vjp(gathered)),
    "equal_slice": Rule(gathered_equal, lambda w, x, ct: by_w_and_x(own_part(ct), w, x, sum_of)),
    "equal_scatter": Rule(
        gathered_equal,
        lambda w, x, ct: by_w_and_x(lax.psum_scatter(ct, "i", tiled=True), w, x, sum_of),
        refused=True,
    ),
    "equal_scatter_of_mean": Rule(
        gathered_equal,
        lambda w, x, ct: by_w_and_x(lax.psum_scatter(ct, "i", tiled=True) / N, w, x, sum_of),
    ),
    "scatter_gather": Rule(
        scattered,
        lambda w, x, ct: by_w_and_x(lax.all_gather(ct, "i", tiled=True), w, x, sum_of),
    ),
    "scatter_vjp": Rule(scattered, by_vjp(scattered)),
    "shift": Rule(shifted, lambda w, x, ct: by_w_and_x(unshift(ct), w, x, sum_of)),
    "shift_vjp": Rule(shifted, by_vjp(shifted)),
    "exchange": Rule(exchanged, lambda w, x, ct: by_w_and_x(regather(ct), w, x, sum_of)),
    "exchange_vjp": Rule(exchanged, by_vjp(exchanged)),
}


def loss(y, x):
    """Of whatever a function gives: each device uses it with data of its own."""
    return lax.psum(jnp.sum(jnp.sin(y * x[0])), "i")


def plain(fun, w, x):
    return loss(fun(w, x), x)


def in_scan(fun, w, x):
    def step(carry, k):
        return carry + loss(fun(k * w, x), x), None

    return lax.scan(step, jnp.float32(0), jnp.arange(1.0, 3.0, dtype=np.float32))[0]


def in_jit(fun, w, x):
    layer = jax.jit(lambda w, x: loss(fun(w, x), x))
    return layer(w, x) + layer(2 * w, x)


def in_cond(fun, w, x):
    return lax.cond(w[0] > 0, lambda: loss(fun(w, x), x), lambda: w.sum())


def in_checkpoint(fun, w, x):
    return jax.checkpoint(plain, static_argnums=0)(fun, w, x)


def in_vmap(fun, w, x):
    return jax.vmap(lambda k: loss(fun(k * w, x), x))(jnp.arange(1.0, 3.0, dtype=np.float32)).sum()


PLACES = {f.__name__: f for f in (plain, in_scan, in_jit, in_cond, in_checkpoint, in_vmap)}


RIGHT = {name: rule for name, rule in RULES.items() if not rule.refused}
REFUSED = {name: rule for name, rule in RULES.items() if rule.refused}
ANYWHERE = (
    "cast_psum",
    "equal_slice",
    "psum_whole_cast",
    "product_whole",
    "psum_share",
    "pmean_vjp",
)
"""Rules of each kind, which are called in every place."""


def gradient(shard_map, fun, place, **options):
    def body(w, x):
        return place(fun, w, x)

    of = shard_map(body, mesh=MESH, in_specs=(P(), P("i")), out_specs=P(), **options)
    return jax.grad(of, argnums=(0, 1))


def assert_right(names, place):
    """In one program, which compiles faster than many."""
    ruled = {n: with_rule(RULES[n].fun, RULES[n].backward) for n in names}

    @jax.jit
    def found(w, x):
        return {n: gradient(shard_map, fun, place)(w, x) for n, fun in ruled.items()}

    @jax.jit
    def wanted(w, x):
        funs = dict.fromkeys(RULES[n].fun for n in names)
        return [gradient(jax.shard_map, fun, place)(w, x) for fun in funs]

    truth = dict(zip(dict.fromkeys(RULES[n].fun for n in names), wanted(W, X), strict=True))
    for name, gradients in found(W, X).items():
        for ours, expected in zip(gradients, truth[RULES[name].fun], strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_rules_of_every_convention_give_the_gradient():
    assert_right(RIGHT, plain)


@pytest.mark.parametrize("place", [in_scan, in_jit, in_cond, in_checkpoint, in_vmap])
def test_rules_of_every_convention_give_the_gradient_anywhere(place):
    assert_right(ANYWHERE, place)


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("name", REFUSED)
def test_a_rule_that_combines_whole_cotangents_is_refused(name, place):
    rule = with_rule(RULES[name].fun, RULES[name].backward)
    with pytest.raises(BodyError, match=r"a cotangent that is equal on all \d devices along 'i'"):
        jax.make_jaxpr(gradient(shard_map, rule, place))(W, X)


@pytest.mark.parametrize("name", REFUSED)
def test_without_check_vma_it_means_what_it_means_in_jax(name):
    rule = with_rule(RULES[name].fun, RULES[name].backward)
    functions = [gradient(f, rule, plain, check_vma=False) for f in (shard_map, jax.shard_map)]
    for a, b in zip(*run_together(functions, W, X), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def megatron(fix=lambda v: v, sums=sum_of):
    """Megatron's pair: f copies to all devices and sums cotangents, g sums and copies them."""
    f, g = jax.custom_vjp(fix), jax.custom_vjp(lambda v: lax.psum(v, "i"))
    f.defvjp(lambda v: (fix(v), None), lambda _, ct: (sums(ct),))
    g.defvjp(lambda v: (lax.psum(v, "i"), None), lambda _, ct: (ct,))
    return lambda w, x: g(jnp.tanh(f(w) * x).sum())


MEGATRON = jax.grad(lambda w, x: jnp.tanh(w * x).sum(), (0, 1))


def derived(body):
    of = shard_map(body, mesh=MESH, in_specs=(P(), P("i")), out_specs=P())
    return fast_jit(jax.grad(of, (0, 1)))(W, X)


def test_megatrons_pair_is_refused_outside_of_its_convention():
    with pytest.raises(
        BodyError,
        match=r"psum over 'i' at .*conventions.py:\d+ \(test_megatrons_pair.*lambda>\), in the"
        r" backward rule of the custom_vjp function called at .*conventions.py:\d+ \(megatron.*\)"
        r"\n    found:  a cotangent that is equal on all 4 devices along 'i', .*"
        r"\n    needed: a rule that uses .*\n    fix:    drop this psum; or ",
    ):
        derived(megatron(sums=lambda ct: lax.psum(ct, "i")))


def test_jax_accepts_megatrons_pair_if_its_types_are_right():
    """The second function returns the cotangent of a value that varies as one that does."""
    f, g = jax.custom_vjp(lambda v: v), jax.custom_vjp(lambda v: lax.psum(v, "i"))
    f.defvjp(lambda v: (v, None), lambda _, ct: (lax.psum(ct, "i"),))
    g.defvjp(lambda v: (lax.psum(v, "i"), None), lambda _, ct: (varying(ct),))

    def gradient_by(map_):
        specs = {"in_specs": (P(), P("i")), "out_specs": P()}
        mapped = map_(lambda w, x: g((f(w) * x).sum()), mesh=MESH, **specs)
        return jax.grad(mapped)

    whole = jax.grad(lambda w, x: (w * x).sum())(W, X)
    np.testing.assert_allclose(jax.jit(gradient_by(jax.shard_map))(W, X), 4 * whole, rtol=1e-5)
    with pytest.raises(BodyError, match="a cotangent that is equal on all 4 devices along 'i'"):
        jax.make_jaxpr(gradient_by(shard_map))(W, X)


@pytest.mark.parametrize(
    "repaired", [megatron(sums=lambda ct: ct), megatron(fix=varying)], ids=["dropped", "cast"]
)
def test_both_repairs_of_megatrons_pair(repaired):
    for ours, expected in zip(derived(repaired), MEGATRON(W, X), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5)


def test_a_cast_in_a_function_that_a_container_holds():
    kept = {"rule": with_rule(cast, RULES["cast_psum"].backward)}
    gradients = fast_jit(gradient(shard_map, lambda w, x: kept["rule"](w, x), plain))(W, X)
    expected = fast_jit(gradient(shard_map, cast, plain))(W, X)
    np.testing.assert_allclose(gradients[0], expected[0], rtol=1e-5)


def test_a_cast_under_vmap_along_a_mesh_axis():
    def losses(fun, ws, **spmd):
        of = shard_map(
            lambda w, x: loss(fun(w, x), x), mesh=MESH, in_specs=(P(), P("i")), out_specs=P()
        )
        return jnp.sum(jax.vmap(of, (0, None), **spmd)(ws, X))

    stacked = jnp.stack([W, 2 * W, -W, W / 2])
    rule = with_rule(cast, RULES["cast_psum"].backward)
    found = jax.jit(jax.grad(lambda ws: losses(rule, ws, spmd_axis_name="j")))(stacked)
    expected = jax.jit(jax.grad(lambda ws: losses(cast, ws)))(stacked)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


# ------------------------------------------------------------------ rules in a nested shard_map


def product(w, x):
    return w * x


nested_product = with_rule(
    product, lambda w, x, ct: (lax.psum(jnp.sum(ct * x, 0), ("i", "j")), ct * w)
)
"""As JAX's types ask for where x varies along both axes, and w along none."""


ROWS = P("i")


def nesting(rule, inner=shard_map, rows=ROWS, use=lambda nested, w, x: nested(w, x)):
    """A function that is mapped over i, and in it one that is mapped over j."""

    def body(w, x):
        specs = {"in_specs": (P(), P("j")), "out_specs": P("j")}
        return use(inner(rule, axis_names={"j"}, **specs), w, x)

    specs = {"in_specs": (P(), rows), "out_specs": rows}
    return jax.jit(shard_map(body, mesh=MESH, axis_names={"i"}, **specs))


def at_two_sites(nested, w, x):
    return nested(w, x) + lax.fori_loop(0, 2, lambda _, y: y + nested(w, x), 0 * x)


@pytest.mark.parametrize("inner", [shard_map, jax.shard_map])
def test_a_nested_rule_that_sums_over_the_axes_around_it_sums_once(inner):
    def loss(w, x):
        return jnp.sum(jnp.sin(nesting(nested_product, inner)(w, x)))

    expected = jax.grad(lambda w: jnp.sum(jnp.sin(w * X)))(W)
    np.testing.assert_allclose(fast_jit(jax.grad(loss))(W, X), expected, rtol=1e-4)


def test_a_nested_rule_called_twice():
    def loss(w):
        return jnp.sum(nesting(nested_product, use=at_two_sites)(w, X))

    np.testing.assert_allclose(fast_jit(jax.grad(loss))(W), 3 * X.sum(0), rtol=1e-4)


def test_a_nested_rule_in_a_gradient_inside_the_body_around_it():
    def of_losses(nested, w, x):
        return jax.grad(lambda w: jnp.sum(nested(w, x)))(w) + 0 * x

    found = nesting(nested_product, use=of_losses)(W, X)
    np.testing.assert_allclose(found, np.broadcast_to(X.sum(0), X.shape), rtol=1e-4)


def test_a_nested_rule_whose_operand_varies_along_the_axes_around_it():
    rule = with_rule(product, lambda w, x, ct: (lax.psum(jnp.sum(ct * x, 0), "j"), ct * w))

    def loss(w):
        return jnp.sum(nesting(rule, use=lambda nested, w, x: nested(varying(w), x))(w, X))

    np.testing.assert_allclose(fast_jit(jax.grad(loss))(W), X.sum(0), rtol=1e-4)


def test_a_nested_rule_that_sums_what_is_whole_along_the_axes_around_it():
    def loss(w):
        return jnp.sum(nesting(nested_product, rows=P())(w, X))

    with pytest.raises(BodyError, match="psum"):
        jax.jit(jax.grad(loss)).trace(W)
