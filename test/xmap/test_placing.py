"""Where axes are placed never changes results: every use of a named axis, over every assignment.

The oracle is the same program without resources, and that is compared with positional NumPy.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import run_together
from jax import lax
from jax.sharding import AxisType, Mesh
from named_programs import LINE, SQUARE

from shmap_compiler import BodyError, SerialLoop, SpecError, named, serial_loop, xmap

N = 16
X = np.random.default_rng(1).normal(size=(N, 4, N)).astype(np.float32)
ASSIGNMENTS = {
    "one mesh axis": ({"i": "x"}, LINE),
    "minor axis first": ({"i": ("y", "x")}, SQUARE),
}
REVERSED = [(k, N - 1 - k) for k in range(N)]

ONE_AXIS = {
    "psum": (lambda x: lax.psum(x, "i"), [...], lambda x: x.sum(0)),
    "pmax": (lambda x: lax.pmax(x, "i"), [...], lambda x: x.max(0)),
    "pmin": (lambda x: lax.pmin(x, "i"), [...], lambda x: x.min(0)),
    "pmean": (lambda x: lax.pmean(x, "i"), [...], lambda x: x.mean(0)),
    "psum of one": (lambda x: x * lax.psum(1, "i"), ["i", ...], lambda x: x * N),
    "axis_index": (
        lambda x: x * lax.axis_index("i"),
        ["i", ...],
        lambda x: x * np.arange(N)[:, None, None],
    ),
    "all_gather": (lambda x: lax.all_gather(x, "i"), [...], lambda x: x),
    "all_gather tiled": (
        lambda x: lax.all_gather(x, "i", axis=1, tiled=True),
        [...],
        lambda x: np.concatenate(list(x), 1),
    ),
    "psum_scatter": (
        lambda x: lax.psum_scatter(x, "i", scatter_dimension=1),
        ["i", ...],
        lambda x: np.moveaxis(x.sum(0), 1, 0),
    ),
    "psum_scatter tiled": (
        lambda x: lax.psum_scatter(x, "i", scatter_dimension=1, tiled=True),
        ["i", ...],
        lambda x: np.moveaxis(x.sum(0), 1, 0)[..., None],
    ),
    "all_to_all": (
        lambda x: lax.all_to_all(x, "i", 1, 0),
        ["i", ...],
        lambda x: np.moveaxis(x, 2, 0),
    ),
    "all_to_all tiled": (
        lambda x: lax.all_to_all(x, "i", 1, 0, tiled=True),
        ["i", ...],
        lambda x: np.moveaxis(x, 2, 0).reshape(N, N * 4, 1),
    ),
    "all_to_all of what is the same": (
        lambda x: lax.all_to_all(lax.psum(x, "i"), "i", 1, 0),
        ["i", ...],
        lambda x: np.broadcast_to(x.sum(0).T[:, None], (N, N, 4)),
    ),
    "ppermute": (lambda x: lax.ppermute(x, "i", REVERSED), ["i", ...], lambda x: x[::-1]),
    "ppermute of some": (
        lambda x: lax.ppermute(x, "i", [(0, 5), (3, 1)]),
        ["i", ...],
        lambda x: np.stack([x[0] if k == 5 else x[3] if k == 1 else 0 * x[0] for k in range(N)]),
    ),
    "pshuffle": (
        lambda x: lax.pshuffle(x, "i", [(k + 3) % N for k in range(N)]),
        ["i", ...],
        lambda x: np.roll(x, -3, 0),
    ),
    "pbroadcast": (lambda x: lax.pbroadcast(x, "i", 5), [...], lambda x: x[5]),
    "pswapaxes": (lambda x: lax.pswapaxes(x, "i", 1), ["i", ...], lambda x: x.swapaxes(0, 2)),
    "scan": (
        lambda x: lax.scan(lambda c, _: (lax.psum(c, "i") / N + x, None), x, length=3)[0],
        ["i", ...],
        lambda x: x + 3 * 0 + 2 * x.mean(0) + (x.mean(0)),
    ),
    "cond": (
        lambda x: lax.cond(lax.psum(x[0, 0], "i") > 0, jnp.sin, lambda x: lax.psum(x, "i"), x),
        ["i", ...],
        None,
    ),
    "jit": (
        lambda x: jax.jit(lambda x: x - lax.pmax(x, "i"))(x),
        ["i", ...],
        lambda x: x - x.max(0),
    ),
    "product": (
        lambda x: lax.psum(lax.dot(x, x.T), "i"),
        [...],
        lambda x: np.einsum("iab,icb->ac", x, x),
    ),
}


def all_at_once(cases, in_axes, chosen):
    """One xmap that computes all cases, so that each assignment is compiled once."""

    def fun(*args):
        return tuple(case(*args) for case, *_ in cases.values())

    resources, mesh = chosen
    out_axes = [out_axes for _, out_axes, *_ in cases.values()]
    return xmap(fun, in_axes, tuple(out_axes), axis_resources=resources, mesh=mesh)


def close(cases, found, wanted, message=""):
    for case, got, want in zip(cases, found, wanted, strict=True):
        if want is not None:
            text = f"{case} {message}"
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5, err_msg=text)


def test_one_axis():
    plain = all_at_once(ONE_AXIS, ["i", ...], ({}, None))(X)
    close(ONE_AXIS, plain, [want and want(X) for *_, want in ONE_AXIS.values()])
    for name in ("one mesh axis", "minor axis first"):
        close(ONE_AXIS, all_at_once(ONE_AXIS, ["i", ...], ASSIGNMENTS[name])(X), plain, name)


TWO_AXES = {
    "psum": (lambda x, y: lax.psum(x * y, ("i", "j")), [...]),
    "psum of each": (lambda x, y: lax.psum(x, "i") + lax.psum(y, "j"), [...]),
    "all_gather": (lambda x, y: lax.all_gather(x + y, ("j", "i")), [...]),
    "axis_index": (lambda x, y: lax.axis_index(("j", "i")), ["i", "j"]),
    "psum_scatter": (
        lambda x, y: lax.psum_scatter(
            lax.all_gather(x * y, ("i", "j")), ("j", "i"), scatter_dimension=0
        ),
        ["i", "j", ...],
    ),
    "ppermute": (
        lambda x, y: lax.ppermute(x - y, ("i", "j"), [(k, (5 * k + 2) % 64) for k in range(64)]),
        ["i", "j", ...],
    ),
    "broadcast": (lambda x, y: x, ["j", "i", ...]),
    "product": (lambda x, y: lax.psum(lax.dot_general(x, y, (((0,), (0,)), ((), ()))), "i"), ["j"]),
}


def test_two_axes():
    args, axes = (X[:, :, 0], X[:4, :, 1]), (["i", ...], ["j", ...])
    plain = all_at_once(TWO_AXES, axes, ({}, None))(*args)
    for resources in ({"i": "x", "j": "y"}, {"i": ("y", "x")}, {"j": "x"}):
        found = all_at_once(TWO_AXES, axes, (resources, SQUARE))(*args)
        close(TWO_AXES, found, plain, str(resources))


def schedules(rng, loops=True):
    """A random assignment of resources to the axes i, j and k of sizes 8, 4 and 2."""
    free = [["x"], ["y"]] if rng.random() < 0.7 else [["x", "y"]]
    rng.shuffle(free)
    names = rng.permutation(["i", "j", "k"]).tolist()
    assigned = {}
    sizes = {"i": 8, "j": 4, "k": 2}
    for axes, name in zip(free, names, strict=False):
        if sizes[name] % np.prod([dict(SQUARE.shape)[a] for a in axes]) == 0:
            assigned[name] = tuple(axes)
    if loops and rng.random() < 0.4:
        rest = [n for n in ("i", "j") if n not in assigned]
        assigned.update({rest[0]: SerialLoop(2)} if rest else {})
    return assigned


def test_random_schedules_never_change_results():
    def fun(x, y):  # {i, j} and {j, k}
        z = jnp.tanh(x[0] * y + x[1])
        total = lax.psum(jnp.sin(z), "k") * lax.pmax(y, "k")
        return z + total, lax.pmean(z, "k").sum()

    rng = np.random.default_rng(5)
    x = rng.normal(size=(8, 4, 2)).astype(np.float32)
    y = rng.normal(size=(4, 2, 3)).astype(np.float32)
    axes = (["i", "j", ...], ["j", "k", ...]), (["k", "j", "i", ...], ["i", "j"])
    weights = rng.normal(size=(2, 4, 8, 3)), rng.normal(size=(8, 4))

    def values_and_gradients(f):
        def loss(x, y):
            return sum(jnp.vdot(w, v) for w, v in zip(weights, f(x, y), strict=True))

        return *f(x, y), *jax.jit(jax.grad(loss, (0, 1)))(x, y)

    want = values_and_gradients(xmap(fun, *axes))
    seen = set()
    for _ in range(12):
        assigned = schedules(rng)
        if ("k" in assigned and isinstance(assigned["k"], SerialLoop)) or str(assigned) in seen:
            continue
        seen.add(str(assigned))
        f = xmap(fun, *axes, axis_resources=assigned, mesh=SQUARE)
        for g, w in zip(values_and_gradients(f), want, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5, err_msg=str(assigned))
    assert len(seen) > 5


def test_a_mesh_axis_may_have_the_name_of_another_logical_axis():
    f = xmap(
        lambda a, b: (lax.psum(a, "x") * b, lax.axis_index("y")),
        (["x", ...], ["y", ...]),
        (["y", ...], ["y"]),
        axis_resources={"y": "x"},
        mesh=SQUARE,
    )
    total, index = f(jnp.arange(3.0), jnp.arange(8.0))
    np.testing.assert_allclose(total, 3 * np.arange(8))
    np.testing.assert_array_equal(index, np.arange(8))


@pytest.mark.parametrize("extremum", [lax.pmax, lax.pmin, named.max, named.min])
@pytest.mark.parametrize("resources", [(), "x", ("x", "y")], ids=str)
def test_extrema_propagate_nan_wherever_positions_are(extremum, resources):
    """XLA's all-reduce on CPU drops a NaN, and its reduction on a device does not."""
    x = np.array([1, 9, 99, np.nan, 3, 4, 5, 0.5], np.float32)
    f = xmap(lambda x: extremum(x, "i"), ["i"], [], axis_resources={"i": resources}, mesh=SQUARE)
    assert np.isnan(f(x))
    assert np.isnan(jax.grad(f)(x)).all()
    assert f(np.where(np.isnan(x), np.float32(7), x)) == (0.5 if "min" in extremum.__name__ else 99)


def test_loops():
    x = jnp.arange(32.0).reshape(16, 2)

    def both(x):
        return x * 2, jnp.float32(3)

    for resource in (SerialLoop(4), ("x", SerialLoop(2)), "steps", ("x", "steps")):
        f = xmap(both, ["i", ...], (["i", ...], [...]), axis_resources={"i": resource}, mesh=LINE)
        with serial_loop("steps", 2):
            doubled, three = f(x)
        np.testing.assert_allclose(doubled, x * 2)
        assert three == 3
        with serial_loop("steps", 2):
            grad = jax.jit(jax.grad(lambda x, f=f: jnp.sum(f(x)[0] ** 2)))(x)
        np.testing.assert_allclose(grad, 8 * x)


def test_the_loop_has_as_many_steps_as_it_says():
    f = xmap(jnp.sin, ["i", ...], ["i", ...], axis_resources={"i": SerialLoop(4)})
    jaxpr = str(jax.make_jaxpr(f)(jnp.zeros((16, 2))))
    assert "length=4" in jaxpr
    assert "f32[4,2] = sin" in jaxpr


def by_a_rule_for_vmap(x):
    doubled = jax.custom_batching.custom_vmap(lambda x: 2 * x)
    doubled.def_vmap(lambda size, are_batched, x: (lax.psum_scatter(2 * x, "i", tiled=True), True))
    return doubled(x)


@pytest.mark.parametrize(
    ("fun", "resource", "error", "found"),
    [
        (lambda x: lax.psum_scatter(x, "i"), SerialLoop(2), SpecError, "whose chunks SerialLoop"),
        (by_a_rule_for_vmap, (), BodyError, "a rule for vmap that names axis 'i'"),
    ],
    ids=["loop", "rule"],
)
def test_errors_name_functions_of_jax(fun, resource, error, found):
    """Whose primitive has another name, reduce_scatter."""
    f = xmap(fun, ["i", ...], ["i", ...], axis_resources={"i": resource})
    with pytest.raises(error, match=rf"psum_scatter over 'i' at .*\n +found: +.*{found}"):
        f(jnp.ones((8, 8)))


def test_explicit_meshes_and_set_mesh():
    x = jnp.arange(16.0)
    explicit = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    f = xmap(lambda x: x / lax.psum(x, "i"), ["i"], ["i"], axis_resources={"i": "x"})
    with jax.set_mesh(explicit):
        np.testing.assert_allclose(f(x), x / x.sum(), rtol=1e-6)
        np.testing.assert_allclose(jax.jit(f)(x), x / x.sum(), rtol=1e-6)


@pytest.mark.parametrize("resources", [{}, {"i": "x"}])
def test_reductions_of_products_beside_explicit_axes(resources):
    x, y = X[..., :3], X[0, :, :3]

    def fun(x, y):
        return lax.psum(x * y, "i"), lax.pmax(x * y, "i")

    in_axes = (["i", "j", ...], ["j", ...])
    f = xmap(fun, in_axes, ["j", ...], axis_resources=resources)
    with jax.set_mesh(jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)):
        total, largest = f(x, y)
    np.testing.assert_allclose(total, (x * y).sum(0), rtol=1e-5)
    np.testing.assert_allclose(largest, (x * y).max(0), rtol=1e-5)


def test_rules_of_the_users_that_name_axes():
    """JAX traces them when it differentiates, when logical axes are placed already."""

    @jax.custom_vjp
    def mean(x):
        return lax.pmean(x, "i")

    mean.defvjp(
        lambda x: (lax.pmean(x, "i"), None),
        lambda _, ct: (3 * ct * lax.axis_index("i") / lax.psum(1, "i"),),
    )

    @jax.custom_vjp
    def same(x):
        return x * 1

    same.defvjp(lambda x: (x, None), lambda _, ct: (lax.pmean(ct * lax.axis_index("i"), "i"),))

    @jax.custom_jvp
    def total(x, k):
        return lax.psum(x * k, "i")

    @total.defjvp
    def _(primals, tangents):
        (x, k), (t, _) = primals, tangents
        return total(x, k), lax.psum(5 * t * k, "i")

    def fun(x):
        return mean(x) + total(x, 2), lax.scan(
            lambda c, _: (mean(c) + same(x) * c, None), x, length=2
        )[0]

    x = jnp.arange(16.0)
    found = []
    for resources in ({}, {"i": "x"}, {"i": ("y", "x")}):
        f = xmap(fun, ["i"], ([], ["i"]), axis_resources=resources, mesh=SQUARE)
        found.append(jax.jit(jax.jacrev(lambda x, f=f: f(x)[1].sum() + f(x)[0]))(x))
        forward = xmap(lambda x: total(x, 2), ["i"], [], axis_resources=resources, mesh=SQUARE)
        _, tangent = jax.jit(lambda x, t, f=forward: jax.jvp(f, (x,), (t,)))(x, jnp.ones(16))
        assert tangent == 160
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-5)


SMALL = Mesh(SQUARE.devices[:2], ("x", "y"), axis_types=(AxisType.Auto,) * 2)
of_batches = pytest.mark.parametrize(
    "resources",
    [{}, {"i": "x"}, {"j": "x"}, {"i": "x", "j": "y"}, {"i": ("y", "x")}, {"j": SerialLoop(2)}],
)


def with_rule(fun, rule):
    function = jax.custom_batching.custom_vmap(fun)
    function.def_vmap(rule)
    return function


@of_batches
def test_functions_with_rules_for_vmap_may_name_axes(resources):
    """JAX calls the rules when it vmaps, when logical axes are placed already."""

    def centered(v):
        return v - lax.pmean(v, "i")

    def by_itself(size, is_batched, v):
        return jax.vmap(centered, in_axes=0 if is_batched[0] else None, axis_size=size)(v), True

    ruled = with_rule(centered, by_itself)
    nested = with_rule(lambda v: ruled(v) * 2, lambda _, __, v: (ruled(v) * 2, True))
    # The rule names an axis, and the function does not.
    doubled = with_rule(
        lambda v: v * 2, lambda _, __, v: (v * lax.psum(jnp.ones(()), "i") / 2, True)
    )

    def fun(centered, nested, doubled):
        def values(v):
            twice = lax.scan(lambda c, _: (centered(c) + v, None), v, length=2)[0]
            branch = lax.cond(v > 0, centered, jnp.sin, v)
            tangent = jax.jvp(centered, (v,), (v * v,))[1]
            of_a_sum = centered(lax.psum(v, "i"))
            return centered(v) * twice + branch * tangent + nested(v) + doubled(v) + of_a_sum

        return values

    f = xmap(
        fun(ruled, nested, doubled),
        ["i", "j"],
        ["i", "j"],
        axis_resources=resources,
        mesh=SMALL,
    )
    plain = fun(centered, lambda v: centered(v) * 2, lambda v: v * 2)
    wanted = jax.vmap(jax.vmap(plain, axis_name="j"), axis_name="i")

    def transformed(f):
        def all_of_them(x):
            gradient = jax.grad(lambda x: (f(x) ** 2).sum())(x)
            return f(x), gradient, jax.vmap(f)(jnp.stack([x, 2 * x]))

        return all_of_them

    both = run_together(map(transformed, (f, wanted)), X[:4, 0, :4])
    for found, right in zip(*both, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)


@of_batches
def test_rules_for_vmap_are_called_for_each_axis_wherever_it_is_placed(resources):
    numbered = with_rule(lambda v: v, lambda _, __, v: (numbered(v) + 1, True))
    f = xmap(numbered, ["i", "j"], ["i", "j"], axis_resources=resources, mesh=SMALL)
    np.testing.assert_allclose(f(X[:4, 0, :4]), X[:4, 0, :4] + 2, rtol=1e-6)


@pytest.mark.parametrize("inner", [{}, {"k": "y"}, {"k": SerialLoop(4)}])
@pytest.mark.parametrize("outer", [{}, {"i": "x"}, {"i": ("x",), "j": SerialLoop(2)}])
def test_rules_for_vmap_in_an_xmap_inside_another(outer, inner):
    numbered = with_rule(lambda v: v, lambda _, __, v: (numbered(v) + 1, True))

    def fun(v):
        f = xmap(numbered, ["k"], ["k"], axis_resources=inner, mesh=SMALL)
        return f(v * jnp.arange(4))[3]

    f = xmap(fun, ["i", "j"], ["i", "j"], axis_resources=outer, mesh=SMALL)
    x = X[:2, 0, :2]
    np.testing.assert_allclose(f(x), 3 * x + 3, rtol=1e-6)


@pytest.mark.parametrize("resources", [{}, {"i": "x"}])
def test_rules_for_vmap_that_name_the_vmapped_axis_are_rejected(resources):
    summed = with_rule(lambda v: v, lambda _, __, v: (lax.psum(v, "i"), True))
    f = xmap(lambda v: summed(v), ["i"], ["i"], axis_resources=resources, mesh=SMALL)
    with pytest.raises(BodyError, match="whose positions it is given as a batch"):
        f(X[0, 0])


LINEAR = {
    # By residuals: the function, its transpose, and whether residuals and operands have the axis.
    "elementwise": (lambda r, v: r * v, lambda r, ct: r * ct, True, True),
    "sum, of whole cotangents": (
        lambda r, v: lax.psum(r * v, "i"),
        lambda r, ct: r * ct,
        True,
        True,
    ),
    "sum, of shares": (
        lambda r, v: lax.psum(r * v, "i"),
        lambda r, ct: lax.psum(r * ct, "i"),
        False,
        True,
    ),
    "sum of what is equal": (
        lambda r, v: lax.psum(r * v, "i"),
        lambda r, ct: lax.psum(r * ct, "i"),
        True,
        False,
    ),
    "shares of what is equal": (
        lambda r, v: r * v,
        lambda r, ct: r * lax.psum(ct, "i"),
        False,
        False,
    ),
}


def around_linear(case, linear):
    *_, residual_has_axis, operand_has_axis = LINEAR[case]

    def values(x):
        everywhere = lax.pmean(x, "i")
        residual = lax.stop_gradient(jnp.cos(x if residual_has_axis else everywhere))
        return linear(residual, jnp.sin(x if operand_has_axis else everywhere)) + x

    return values


def with_derivatives(f):
    def all_of_them(x):
        return f(x), jax.grad(lambda x: (f(x) ** 2).sum())(x), jax.jvp(f, (x,), (x,))[1]

    return jax.jit(all_of_them)(X[:4, 0, :4])


@functools.cache
def linear_by_vmap(case):
    mapped = jax.vmap(around_linear(case, LINEAR[case][0]), axis_name="j")
    return with_derivatives(jax.vmap(mapped, axis_name="i"))


@of_batches
@pytest.mark.parametrize("case", LINEAR)
def test_linear_calls(case, resources):
    """JAX has no rule to vmap them, and traces their transposes when it transposes."""
    function, transpose, *_ = LINEAR[case]

    def linear(residual, operand):
        return jax.custom_derivatives.linear_call(function, transpose, residual, operand)

    fun = around_linear(case, linear)
    f = xmap(fun, ["i", "j"], ["i", "j"], axis_resources=resources, mesh=SMALL)
    for found, right in zip(with_derivatives(f), linear_by_vmap(case), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)


def test_only_small_functions_are_inlined():
    @jax.jit
    def large(x):
        for _ in range(9):
            x = jnp.sin(x)
        return x

    @jax.jit
    def same(x):  # which returns what it takes
        return x, x

    def fun(x):
        with jax.named_scope("outer"):
            y = jax.nn.relu(x)
        return large(y) + sum(same(x)) + jnp.clip(x, 0, 1)

    f = xmap(fun, ["i", ...], ["i", ...], axis_resources={"i": "x"}, mesh=LINE)
    text = str(f.lower(X).graph)
    assert "name=large" in text
    assert "name=clip" not in text
    assert "outer" in f.lower(X).compile().as_text()
    np.testing.assert_allclose(f(X), xmap(fun, ["i", ...], ["i", ...])(X), rtol=1e-6)


def test_derivative_rules_of_jax_are_left_to_it():
    """They name no axes, and so vmap them as they are."""
    f = xmap(jax.nn.relu, ["i", ...], ["i", ...], axis_resources={"i": "x"}, mesh=LINE)
    jaxpr = jax.make_jaxpr(jax.grad(lambda x: f(x).sum()))(X)
    assert "transpose" not in str(jaxpr)
    want = jax.grad(lambda x: jax.nn.softmax(jax.nn.relu(x), 0)[0].sum())(X)

    def by_name(x):  # the rule of jax.nn.softmax names an axis
        return jax.nn.softmax(jax.nn.relu(x), ("i",))

    g = xmap(by_name, ["i", ...], ["i", ...], axis_resources={"i": "x"}, mesh=LINE)
    np.testing.assert_allclose(jax.grad(lambda x: g(x)[0].sum())(X), want, atol=1e-6)


WEIGHTS = jnp.arange(1.0, 17.0)


def weighted_by_vjp(w, x):
    """Closes over an array, with respect to which JAX does not differentiate a `custom_vjp`."""
    call = jax.custom_vjp(lambda w, x: w * x * WEIGHTS.mean())
    call.defvjp(
        lambda w, x: (w * x * WEIGHTS.mean(), (w, x)),
        lambda residuals, ct: (
            lax.psum((ct * residuals[1] * WEIGHTS.mean()).sum(), "i"),
            ct * residuals[0] * WEIGHTS.mean(),
        ),
    )
    return call(w, x)


def weighted_by_jvp(w, x):
    call = jax.custom_jvp(lambda w, x: w * x * WEIGHTS.mean())

    @call.defjvp
    def _(primals, tangents):
        (w, x), (dw, dx) = primals, tangents
        return call(w, x), (dw * x + w * dx) * WEIGHTS.mean()

    return call(w, x)


def looped(fun):
    return lambda w, x: lax.scan(lambda c, _: (fun(w, c), None), x, length=2)[0]


@pytest.mark.parametrize("around", [lambda f: f, looped, jax.jit, jax.checkpoint])
@pytest.mark.parametrize("fun", [weighted_by_vjp, weighted_by_jvp])
@pytest.mark.parametrize("resources", [{}, {"i": "x"}], ids=["vmapped", "placed"])
def test_function_with_a_rule_that_closes_over_an_array(resources, fun, around):
    def gradient(f):
        return jax.grad(lambda w, x: (f(w, x) ** 2).sum(), (0, 1))

    body = around(fun)
    f = xmap(body, [[], ["i"]], ["i"], axis_resources=resources, mesh=SQUARE)
    plain = around(lambda w, x: w * x * WEIGHTS.mean())
    x = np.arange(16, dtype=np.float32) / 100
    found, expected = run_together(map(gradient, (f, plain)), 0.5, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


def test_derivatives_of_one_call_taken_in_turns():
    """With respect to different arguments, so that different operands have tangents."""
    f = xmap(weighted_by_vjp, [[], ["i"]], ["i"], axis_resources={"i": "x"}, mesh=SQUARE)
    x = jnp.arange(16.0)

    @jax.jit
    def both(w, x):
        out, of_w = jax.vjp(lambda w: f(w, x), w)
        out, of_x = jax.vjp(lambda x: f(w, x), x)
        return *of_w(out), *of_x(out), *of_w(2 * out)

    mean = WEIGHTS.mean()
    out = 2 * x * mean
    expected = (out * x * mean).sum(), out * 2 * mean, 2 * (out * x * mean).sum()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), both(2.0, x), expected)


def test_rule_that_closes_over_a_value_that_is_traced_by_an_outer_derivative():
    """JAX rejects it, because the rule says nothing of such a value."""

    def body(w, x):
        call = jax.custom_vjp(lambda x: w * x)
        call.defvjp(lambda x: (w * x, None), lambda _, ct: (ct,))
        return call(x)

    f = xmap(body, [[], ["i"]], ["i"], axis_resources={"i": "x"}, mesh=SQUARE)
    with pytest.raises(Exception, match="closed-over value"):
        jax.grad(lambda w: f(w, jnp.arange(16.0)).sum())(2.0)


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
@pytest.mark.parametrize("tiled", [False, True])
def test_a_split_axis_without_positions_is_gathered(assignment, tiled):
    resources, mesh = ASSIGNMENTS[assignment]

    def total(x):
        gathered = lax.all_gather(x, "i", tiled=tiled)
        return gathered, gathered.sum()

    options = {"axis_resources": resources, "mesh": mesh}
    f = xmap(total, ["i", ...], ([...], []), **options)
    gathered, found = f(jnp.zeros((0, 3)))
    assert gathered.shape == ((0,) if tiled else (0, 3))
    assert found == 0
    assert jax.grad(lambda x: f(x)[1])(jnp.zeros((0, 3))).shape == (0, 3)
