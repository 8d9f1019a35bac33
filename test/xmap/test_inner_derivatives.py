"""Derivatives inside xmap: the original's VjpReduceAxes and VjpReduceAxesCollective.

The original summed a cotangent over the axes that its operand lacks if `reduce_axes` named them,
and gave one for each position otherwise. JAX has removed `reduce_axes`. Ours always sums, as JAX's
types of varying values say; a cast of the operand to a varying type gives one for each position.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import run_together
from jax import lax
from jax.sharding import PartitionSpec as P
from named_programs import SQUARE

from shmap_compiler import BodyError, SerialLoop, SpecError, shard_map, xmap

W = np.arange(12, dtype=np.float32).reshape(3, 4) / 10
X = np.arange(24, dtype=np.float32).reshape(8, 3) / 10
GY = np.arange(32, dtype=np.float32).reshape(8, 4) / 10
everywhere = pytest.mark.parametrize("resources", [{}, {"batch": "x"}, {"batch": ("x", "y")}])


def layer(w, x):
    return jnp.sin(jnp.dot(x, w))


def pull(w, x, gy):
    return jax.vjp(layer, w, x)[1](gy)


def mapped_onto(fun, in_axes, out_axes, resources):
    mesh = SQUARE if resources else None
    return xmap(fun, in_axes, out_axes, axis_resources=resources, mesh=mesh)


def mapped(fun, of_w, resources):
    axes = ([...], ["batch", ...], ["batch", ...]), (of_w, ["batch", ...])
    return mapped_onto(fun, *axes, resources)


def assert_close(found, wanted):
    jax.tree.map(lambda f, w: np.testing.assert_allclose(f, w, rtol=1e-4, atol=1e-5), found, wanted)


@everywhere
def test_cotangents_are_summed_over_what_an_operand_lacks(resources):
    assert_close(mapped(pull, [...], resources)(W, X, GY), pull(W, X, GY))


@everywhere
def test_an_operand_that_varies_has_a_cotangent_at_each_position(resources):
    def pull_each(w, x, gy):
        return pull(lax.pcast(w, "batch", to="varying"), x, gy)

    wanted = jax.vmap(pull, (None, 0, 0))(W, X, GY)
    assert_close(mapped(pull_each, ["batch", ...], resources)(W, X, GY), wanted)
    with pytest.raises(SpecError, match=r"mapped along more axes than .*: 'batch'"):
        mapped(pull_each, [...], resources)(W, X, GY)


@everywhere
def test_without_types_casts_do_nothing(resources):
    def pull_each(w, x, gy):
        return pull(*lax.pcast((w, x, gy), "batch", to="varying"))

    axes = ([...], ["batch", ...], ["batch", ...]), (["batch", ...], ["batch", ...])
    mesh = SQUARE if resources else None
    f = xmap(pull_each, *axes, axis_resources=resources, mesh=mesh, check_vma=False)
    assert_close(f(W, X, GY), jax.vmap(pull, (None, 0, 0))(W, X, GY))


def gradient_of_steps(w, x):
    def loss(w):
        return lax.scan(lambda c, _: (jnp.sin(c * w), None), x, length=2)[0]

    return jax.grad(loss)(w)


@pytest.mark.parametrize(
    "gradient", [jax.grad(lambda w, x: w * x), gradient_of_steps], ids=["plain", "in a scan"]
)
def test_loops_sum_no_gradient(gradient):
    """The user wrote no psum, and so the error is about the gradient."""
    x = jnp.arange(4.0)

    def in_a_loop(fun, out_axes):
        return xmap(fun, ([], ["i"]), out_axes, axis_resources={"i": SerialLoop(2)})

    with pytest.raises(SpecError, match=r"a gradient taken inside .*\n.* its sum over axis 'i'"):
        in_a_loop(gradient, [])(2.0, x)

    def each(w, x):
        return gradient(lax.pcast(w, "i", to="varying"), x)

    wanted = jax.vmap(gradient, (None, 0))(2.0, x)
    np.testing.assert_allclose(in_a_loop(each, ["i"])(2.0, x), wanted, rtol=1e-6)


def named_total(w, x):
    return lax.psum(layer(w, x).sum(), "batch")


def psum_with_rule(backward):
    @functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
    def total(x, name):
        return lax.psum(x, name)

    total.defvjp(lambda x, name: (lax.psum(x, name), None), backward)
    return total


@everywhere
def test_gradients_of_a_total(resources):
    """The original's psum needed a rule for this. Ours does not, and takes a rule with types."""
    axes = ([...], ["batch", ...])
    options = {"axis_resources": resources, "mesh": SQUARE if resources else None}
    wanted = jax.grad(lambda w, x: layer(w, x).sum(), (0, 1))(W, X)
    assert_close(xmap(named_total, axes, [...], **options)(W, X), layer(W, X).sum())

    rule = psum_with_rule(lambda name, _, ct: (lax.pcast(ct, name, to="varying"),))

    def by_rule(w, x):
        return rule(layer(w, x).sum(), "batch")

    for fun in (named_total, by_rule):
        gradient = xmap(jax.grad(fun, (0, 1)), axes, axes, **options)
        assert_close(gradient(W, X), wanted)


@everywhere
@pytest.mark.parametrize("name", ["ldexp", "searchsorted"])
def test_derivatives_of_a_derivative_of_what_jax_calls_as_a_program(name, resources):
    """From JAX 0.12 on, such an operation contains the types of its results."""
    functions = {
        "ldexp": lambda x: jnp.sin(jnp.ldexp(x, 1)).sum(),
        "searchsorted": lambda x: jnp.sin((3 - jnp.searchsorted(X[0], x.sum())) * x).sum(),
    }
    gradient = jax.grad(functions[name])
    of = mapped_onto(gradient, ["batch", ...], ["batch", ...], resources)
    found, wanted = (jax.jit(jax.grad(lambda x, f=f: f(x).sum())) for f in (of, jax.vmap(gradient)))
    assert_close(found(X), wanted(X))


def test_a_rule_whose_cotangent_has_a_wrong_type():
    """That of the original: the cotangent of what varies along "batch" must do so, too."""
    rule = psum_with_rule(lambda name, _, ct: (ct,))
    gradient = jax.grad(lambda w, x: rule(layer(w, x).sum(), "batch"), (0, 1))
    axes = ([...], ["batch", ...])
    with pytest.raises(BodyError, match="manual axis types do not match") as raised:
        xmap(gradient, axes, axes)(W, X)
    (problem,) = raised.value.problems
    assert problem.fix == (
        "take the gradient outside xmap; or mark the value with jax.lax.pcast; or pass "
        "check_vma=False, with which each position gets its own share of a gradient, and sum it"
    )


@everywhere
@pytest.mark.parametrize("backward", ["sum", "identity"])
def test_without_types_a_gradient_is_that_of_nested_vmaps(resources, backward):
    """As code for the former xmap has it; Megatron's g has the identity as its backward rule."""
    rule = psum_with_rule(
        lambda name, _, ct: (ct if backward == "identity" else lax.psum(ct, name),)
    )

    def step(w, x):
        loss, gradient = jax.value_and_grad(lambda w: rule(layer(w, x).sum(), "batch"))(w)
        return loss, gradient, lax.psum(gradient, "batch")

    mesh = SQUARE if resources else None
    f = xmap(
        step,
        ([...], ["batch", ...]),
        ([], ["batch", ...], [...]),
        axis_resources=resources,
        mesh=mesh,
        check_vma=False,
    )
    wanted = jax.vmap(step, (None, 0), (None, 0, None), axis_name="batch")(W, X)
    assert_close(f(W, X), wanted)


@everywhere
def test_without_types_an_xmap_inside_may_differentiate(resources):
    def on_rows(w, x):
        return jax.grad(lambda w: lax.psum(w * x, "row"))(w)

    def through_rows(w, x):
        def total(w):
            return lax.psum(over_rows(lambda w, x: lax.psum(w * x, "row"), [])(w, x), "batch")

        return over_rows(on_rows, ["row"])(w, x), jax.grad(total)(w)

    def over_rows(fun, out_axes):
        return xmap(fun, ([], ["row"]), out_axes, check_vma=False)

    def by_vmap(w, x):
        def total(w):
            each = jax.vmap(lambda w, x: lax.psum(w * x, "row"), (None, 0), None, axis_name="row")
            return lax.psum(each(w, x), "batch")

        return jax.vmap(on_rows, (None, 0), axis_name="row")(w, x), jax.grad(total)(w)

    w, mesh = X[:, 0], SQUARE if resources else None
    axes = (["batch"], ["batch", ...]), (["batch", ...], ["batch"])
    f = xmap(through_rows, *axes, axis_resources=resources, mesh=mesh, check_vma=False)
    assert_close(f(w, X), jax.vmap(by_vmap, axis_name="batch")(w, X))


def test_casts_without_a_derivative():
    f = xmap(lambda x: lax.pcast(lax.psum(x, "i"), "i", to="varying") * x, ["i"], ["i"])
    assert_close(f(X[:, 0]), X[:, 0] * X[:, 0].sum())
    wrong = xmap(lambda x: lax.pcast(x, "i", to="varying") * x, ["i"], ["i"])
    with pytest.raises(BodyError, match="varying"):
        wrong(X[:, 0])


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def total_that_casts(x, axis):
    return lax.psum(x, axis)


total_that_casts.defvjp(
    lambda x, axis: (lax.psum(x, axis), None),
    lambda axis, _, g: (lax.pcast(g, axis, to="varying"),),
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def total(x, axis):
    return lax.psum(x, axis)


total.defvjp(lambda x, axis: (lax.psum(x, axis), None), lambda axis, _, g: (g,))


@jax.custom_jvp
def mean(x):
    return lax.pmean(x, "batch")


@mean.defjvp
def _mean_jvp(primals, tangents):
    return mean(primals[0]), lax.pmean(tangents[0], "batch")


def cast(w):
    return lax.pcast(w, "batch", to="varying")


@everywhere
@pytest.mark.parametrize(
    ("named", "by_position"),
    [
        (
            lambda w, x: total_that_casts(layer(w, x).sum(), "batch"),
            lambda w, x: layer(w, x).sum(),
        ),
        (lambda w, x: total(layer(cast(w), x).sum(), "batch"), lambda w, x: layer(w, x).sum()),
        (lambda w, x: mean(layer(cast(w), x).sum()), lambda w, x: layer(w, x).sum() / 8),
        # Rules of JAX's own, and a derivative inside, for which types are needed.
        (
            lambda w, x: lax.psum(
                jax.grad(lambda w: jax.nn.relu(layer(w, x)).sum())(cast(w)).sum()
                + jnp.linalg.det(w[:, :3] * x + jnp.eye(3)),
                "batch",
            ),
            lambda w, x: jax.vmap(
                lambda x: (
                    jax.grad(lambda w: jax.nn.relu(layer(w, x)).sum())(w).sum()
                    + jnp.linalg.det(w[:, :3] * x + jnp.eye(3))
                )
            )(x).sum(),
        ),
    ],
    ids=["a rule that casts", "a backward rule", "a forward rule", "rules of JAX's"],
)
def test_derivatives_outside_of_functions_that_cast(named, by_position, resources):
    f = xmap(
        named,
        in_axes=([...], ["batch", ...]),
        out_axes=[...],
        axis_resources=resources,
        mesh=SQUARE if resources else None,
    )
    value, gradients = run_together((by_position, jax.grad(by_position, (0, 1))), W, X)
    assert_close(f(W, X), value)
    assert_close(jax.grad(f, (0, 1))(W, X), gradients)


@jax.custom_vjp
def scaled(x):
    return x * 0.7


scaled.defvjp(lambda x: (x * 0.7, None), lambda _, g: (g * 0.7,))


@everywhere
@pytest.mark.parametrize("of_w", [[...], ["batch", ...]], ids=["one", "each"])
def test_a_backward_rule_beside_a_derivative_inside(of_w, resources):
    """Along a mesh axis, cotangents of what varies along the logical one are each device's own."""

    def fun(w, x):
        return x * scaled(w) * jax.grad(jnp.sin)(0.0)

    w = X[0] if of_w == [...] else X + 1
    f = mapped_onto(fun, (of_w, ["batch", ...]), ["batch", ...], resources)
    wanted = jax.vmap(fun, (None if of_w == [...] else 0, 0))
    for arguments in (0, 1):
        gradients = [
            jax.grad(lambda w, x, f=f: jnp.sin(f(w, x)).sum(), arguments) for f in (f, wanted)
        ]
        assert_close(*run_together(gradients, w, X))


@jax.custom_vjp
def wave(x, y):
    return jnp.sin(x) * y


def _wave_backward(kept, ct):
    gx, gy = jax.grad(lambda x, y: (jnp.sin(x) * y * ct).sum(), (0, 1))(*kept)
    return gx, jnp.tanh(gy)


wave.defvjp(lambda x, y: (wave(x, y), (x, y)), _wave_backward)

LOOPING = [{}, {"batch": "x"}, {"batch": ("x", "y")}, {"batch": ("x", SerialLoop(2))}]


@pytest.mark.parametrize("resources", LOOPING)
def test_a_backward_rule_that_computes_with_a_gradient_does_at_each_position(resources):
    def fun(w, x):
        rows = lax.scan(lambda x, scale: (wave(x, w) * scale, None), x, jnp.array([1.0, 2.0]))[0]
        return rows + wave(w, x)

    axes = ["batch", ...]
    f = mapped_onto(fun, ([...], axes), axes, resources)
    wanted = jax.vmap(fun, (None, 0))
    ours, jaxs = (jax.grad(lambda w, x, f=f: jnp.cos(f(w, x)).sum(), (0, 1)) for f in (f, wanted))
    assert_close(ours(W[:, 0], X), jax.jit(jaxs)(W[:, 0], X))


def test_a_backward_rule_that_computes_with_a_gradient_of_a_shard_map_around_is_refused():
    axes = ["batch", ...]
    named = xmap(wave, (axes, [...]), axes, axis_resources={"batch": "y"}, mesh=SQUARE)
    f = shard_map(named, mesh=SQUARE, in_specs=(P("x"), P()), out_specs=P("x"), axis_names={"x"})
    with pytest.raises(BodyError, match=r"a derivative taken in the backward rule of"):
        jax.grad(lambda w: f(X, w).sum())(W[:, 0])


def test_a_backward_rule_of_an_xmap_in_a_shard_map():
    """The types in an xmap do not tell along which axes of the shard_map around it values vary."""

    def fun(w, x):
        return x * scaled(w) * jax.grad(jnp.sin)(0.0)

    axes = ["batch", ...]
    named = xmap(fun, ([...], axes), axes, axis_resources={"batch": "y"}, mesh=SQUARE)
    f = shard_map(named, mesh=SQUARE, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})

    def by_hand(w, x):
        parts = zip(jnp.split(w, 4), jnp.split(x, 4), strict=True)
        return jnp.concatenate([jax.vmap(fun, (None, 0))(*part) for part in parts])

    w, x = GY[0], GY.repeat(2, 0)[:, None] + 1
    wanted = jax.grad(lambda w: jnp.sin(by_hand(w, x)).sum())(w)
    assert_close(jax.jit(jax.grad(lambda w: jnp.sin(f(w, x)).sum()))(w), wanted)


@pytest.mark.parametrize("resources", [{}, {"batch": "x"}, {"batch": "y"}])
def test_rules_that_loops_ask_for_beside_another_mesh_axis(resources):
    """JAX traces the rule of `relu` when it differentiates the loop, with the mesh in scope."""

    def fun(x, mean):
        step = lambda _, v: jax.nn.relu(v) * mean(v)  # noqa: E731
        return lax.fori_loop(0, 2, step, x) + jax.grad(lambda x: (x**3).sum())(x)

    def by_position(x):
        return fun(x, lambda v: v.mean(0))

    def named(x):
        return fun(x, lambda v: lax.pmean(v, "batch"))

    axes = ["batch", ...]
    f = xmap(named, axes, axes, axis_resources=resources, mesh=SQUARE)
    x = X[:4]  # the mesh has eight devices
    found, wanted = (
        run_together((jax.jacrev(each), jax.jacfwd(each)), x) for each in (f, by_position)
    )
    assert_close(found, wanted)
