"""xmap under transformations, inside itself and in shard_map, and its stages.

The oracle is the same computation by position. Each is done without resources, on one mesh axis
with several positions on each device, and on several mesh axes.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import run_together
from jax import lax
from jax.experimental import io_callback
from jax.sharding import PartitionSpec as P
from named_programs import LINE, SQUARE

import shmap_compiler
from shmap_compiler import BodyError, SerialLoop, SpecError, named, shard_map, xmap

X = np.random.default_rng(3).uniform(0.5, 1, size=(16, 3)).astype(np.float32)
KEY = jax.random.key(1)
PLACES = {
    "nowhere": ({}, None),
    "on one mesh axis": ({"i": "x"}, LINE),
    "on two mesh axes": ({"i": ("y", "x")}, SQUARE),
}
everywhere = pytest.mark.parametrize("place", PLACES)


def shares(place, fun=lambda x: jnp.sin(x) / lax.psum(x, "i"), out_axes=("i", ...), **options):
    resources, mesh = PLACES[place]
    return xmap(fun, ["i", ...], out_axes, axis_resources=resources, mesh=mesh, **options)


def by_position(x):
    return jnp.sin(x) / x.sum(0)


def assert_close(found, wanted):
    jax.tree.map(lambda f, w: np.testing.assert_allclose(f, w, rtol=2e-5, atol=1e-6), found, wanted)


@everywhere
def test_transformations(place):
    f = shares(place)

    def transformed(f):
        def all_of_them(x):
            once = jax.checkpoint(f)
            loop = lax.scan(lambda c, _: (f(c) + x, None), x, length=2)[0]
            policy = jax.checkpoint_policies.dots_saveable
            return (
                jax.vmap(f)(jnp.stack([x, 2 * x])),
                jax.vmap(f, 1, 2)(jnp.stack([x, 2 * x], 1)),
                jax.jvp(f, (x,), (jnp.cos(x),)),
                jax.grad(lambda x: (once(x) ** 2).sum())(x),
                jax.grad(lambda x: jax.checkpoint(f, policy=policy)(x)[0].sum())(x),
                jax.linearize(f, x)[1](x),
                jax.jvp(jax.grad(lambda x: f(x)[1].sum()), (x,), (x,))[1],
                loop,
            )

        return all_of_them

    assert_close(*run_together(map(transformed, (f, by_position)), X))
    if place != "on two mesh axes":
        assert_close(
            jax.grad(lambda x: f(x)[0].sum())(X), jax.grad(lambda x: by_position(x)[0].sum())(X)
        )


@everywhere
def test_derivatives_inside(place):
    """That with respect to what has no axis is summed over the axis."""

    def fun(x):
        def loss(w):
            return jnp.sum(lax.pmean((w * x - 1) ** 2, "i"))

        return jax.grad(loss)(jnp.ones(3)), jax.grad(lambda x: jnp.sum(x**3))(x)

    gradient, own = shares(place, fun, ([...], ["i", ...]))(X)
    want = jax.grad(lambda w: ((w * X - 1) ** 2).mean(0).sum())(jnp.ones(3))
    assert_close((gradient, own), (want, 3 * X**2))


@pytest.mark.parametrize("inner", [{}, {"j": "y"}])
@pytest.mark.parametrize("outer", [{}, {"i": "x"}])
def test_in_another_xmap(outer, inner):
    def row(x):
        within = xmap(
            lambda y: (
                jnp.sin(y) * lax.axis_index("j") - lax.pmean(y, ("i", "j")) + lax.psum(y, "i")
            ),
            ["j", ...],
            ["j", ...],
            axis_resources=inner,
            mesh=SQUARE if inner else None,
        )
        return within(x) * 2

    f = xmap(row, ["i", ...], {1: "i"}, axis_resources=outer, mesh=SQUARE if outer else None)
    x = np.random.default_rng(0).normal(size=(8, 4, 2)).astype(np.float32)

    def want(x):
        mean = x.mean((0, 1))
        return 2 * jnp.moveaxis(jnp.sin(x) * np.arange(4)[:, None] - mean + x.sum(0), 0, 1)

    def gradient(f):
        return jax.grad(lambda x: jnp.sum(f(x) ** 2))

    def of_one(x):
        return jax.vmap(f)(x[None])

    programs = of_one, gradient(f), want, gradient(want)
    mapped, slope, value, expected = run_together(programs, x)
    assert_close(f(x), value)
    assert_close(mapped, value[None])
    assert_close(slope, expected)


@pytest.mark.parametrize("outer", [(), "x", ("x", "y")], ids=str)
def test_in_another_xmap_whose_values_it_closes_over(outer):
    x, y = X[:4], X[4:6]

    def row(x):
        def total(y):
            whole = jnp.where(x > 0, jax.nn.relu(x), 0.0) * y
            return lax.psum(whole, ("j", "i")), lax.psum(doubled_with_a_total_cotangent(whole), "j")

        return xmap(total, ["j", ...], [...], axis_resources={"j": "z"})(y)

    f = xmap(row, ["i", ...], ([...], ["i", ...]), axis_resources={"i": outer})
    want = x.sum(0) * y.sum(0), 2 * x * y.sum(0)
    with shmap_compiler.mesh(np.array(jax.devices()).reshape(2, 2, 2), ("x", "y", "z")):
        for call in f, jax.jit(f):
            assert_close(call(x), want)
        first = jax.grad(lambda x: (f(x)[0] ** 2).sum())(x)
        second = jax.grad(lambda x: f(x)[1].sum())(x)
    assert_close(first, jax.grad(lambda x: ((x.sum(0) * y.sum(0)) ** 2).sum())(x))
    assert_close(second, np.broadcast_to(4 * y.sum(0), x.shape))


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ({}, {}),
        ({}, {"k": "y"}),
        ({}, {"k": ("y", "x")}),
        ({"i": "x"}, {}),
        ({"i": "x"}, {"k": "y"}),
    ],
)
def test_backward_rules_in_another_xmap_take_whole_cotangents(outer, inner):
    """As in one that is not nested: the result of a psum has the same cotangent everywhere."""

    @jax.custom_vjp
    def total(x):
        return lax.psum(2 * x, ("i", "k"))

    total.defvjp(lambda x: (total(x), None), lambda _, ct: (2 * ct,))

    def fun(x):
        f = xmap(lambda w, x: total(w * x), (["k"], []), [], axis_resources=inner, mesh=SQUARE)
        return f(jnp.arange(8.0), x)

    f = xmap(fun, ["i"], ["i"], axis_resources=outer, mesh=SQUARE)
    gradient = jax.jit(jax.grad(lambda x: (f(x) ** 2).sum()))(X[:, 0])
    wanted = jax.grad(lambda x: 16 * (56 * x.sum()) ** 2)(X[:, 0])
    assert_close(gradient, wanted)


def test_shadowed_names_and_derivatives_of_inner_mesh_axes_are_rejected():
    def same(x):
        return xmap(lambda y: y, ["i", ...], ["i", ...])(x)

    with pytest.raises(SpecError, match="an enclosing xmap has given to an axis"):
        xmap(same, ["i", ...], ["i", ...])(X)

    def differentiated(x):
        inner = xmap(jnp.sin, ["j"], ["j"], axis_resources={"j": "y"})
        return jax.grad(lambda x: inner(x).sum())(x)

    with shmap_compiler.mesh(SQUARE), pytest.raises(BodyError, match="derivative") as raised:
        xmap(differentiated, ["i", ...], ["i", ...], axis_resources={"i": "x"})(X[:, :2])
    assert all(part for p in raised.value.problems for part in (p.where, p.found, p.needed, p.fix))


@pytest.mark.parametrize("resources", [{}, {"i": "y"}])
def test_in_shard_map(resources):
    def body(block):
        f = xmap(by_name, ["i", ...], ["i", ...], axis_resources=resources)
        return lax.psum(f(block), "x")

    def by_name(row):
        return row / lax.psum(row, "i")

    mapped = shard_map(body, mesh=SQUARE, in_specs=P("x"), out_specs=P(), axis_names={"x"})
    want = sum(part / part.sum(0) for part in X.reshape(4, 4, 3))
    assert_close(jax.jit(mapped)(X), want)


@jax.custom_vjp
def doubled_with_a_total_cotangent(x):
    return 2 * x


doubled_with_a_total_cotangent.defvjp(
    lambda x: (2 * x, None), lambda _, cotangent: (lax.psum(cotangent, "i"),)
)


@pytest.mark.parametrize("resources", [(), "x", ("x", "y")], ids=str)
def test_a_shard_map_inside_names_logical_axes(resources):
    def body(x):
        return lax.psum(x, ("i", "z")), lax.pmax(x, "i"), doubled_with_a_total_cotangent(x)

    def row(x):
        return shard_map(body, in_specs=P(), out_specs=P(), axis_names={"z"})(x)

    out_axes = ([...], [...], ["i", ...])
    f = xmap(row, ["i", ...], out_axes, axis_resources={"i": resources})
    x = X[:4]
    with jax.set_mesh(jax.make_mesh((2, 2, 2), ("x", "y", "z"))):
        assert_close(f(x), (2 * x.sum(0), x.max(0), 2 * x))
        gradient = jax.grad(lambda x: (f(x)[2] * X[4:8]).sum())(x)
    assert_close(gradient, np.broadcast_to(X[4:8].sum(0), x.shape))


def test_the_mesh_is_that_of_the_call():
    f = xmap(lambda x: lax.psum(x, "i"), ["i", ...], [...], axis_resources={"i": "x"})
    jitted = jax.jit(f)
    for mesh in (LINE, SQUARE):
        with shmap_compiler.mesh(mesh):
            assert_close(f(X), X.sum(0))
            assert_close(jitted(X), X.sum(0))
            assert set(f.lower(X).graph.mesh.axis_names) == set(mesh.axis_names)
        with jax.set_mesh(mesh):
            assert_close(jitted(X), X.sum(0))
    with pytest.raises(SpecError, match="there is no mesh in scope\n"):
        f(X)


@pytest.mark.filterwarnings("ignore:.*with mesh")
def test_the_mesh_of_jaxs_own_with_statement_is_not_read():
    f = xmap(lambda x: lax.psum(x, "i"), ["i", ...], [...], axis_resources={"i": "x"})
    for called in (f, jax.jit(f)):
        with LINE, pytest.raises(SpecError, match="no mesh in scope; JAX's own `with mesh:` aro"):
            called(X)


@everywhere
def test_donated_arguments(place):
    f = shares(place, lambda x: x * 2, donate_argnums=0)
    x = (
        jnp.asarray(X)
        if place == "nowhere"
        else jax.device_put(X, f.lower(X).call.signature.in_shardings[0])
    )
    assert_close(f(x), 2 * X)
    assert x.is_deleted()


def test_stages():
    f = shares("on two mesh axes")
    lowered = f.lower(X)
    assert [c.kind for c in lowered.compile().explain().collectives] == ["all-reduce"]
    assert lowered.validate(X, xla=False).holds
    for partitioner in ("gspmd", "shardy"):
        for groups in ("axes", "ids"):
            found = f.lower(X, partitioner=partitioner, groups=groups).compile()(X)
            assert_close(found, by_position(X))
    portable = lowered.portable("cpu")
    assert "all_reduce" in str(portable.signature.mesh) or portable.signature.mesh == SQUARE
    assert "{i:16}" in lowered.as_text("named")
    assert shares("nowhere").lower(X).compile()(X).shape == X.shape


def samples(x):
    key, random = jax.random.key(0), named.random
    shape = named.NamedShape(2, i=16)
    inits = [
        random.variance_scaling(1.0, "fan_in", kind, ("i",), ())
        for kind in ("normal", "truncated_normal", "uniform")
    ]
    return (
        random.normal(key, shape),
        random.uniform(key, shape, jnp.float32, -1, 1),
        random.randint(key, shape, 0, 10),
        random.bernoulli(key, 0.3, shape),
        random.gamma(key, 2.0, shape),
        random.truncated_normal(key, -1, 1, shape=shape),
        random.normal(key, (2,)) + x[0] * 0,
        *(init(key, shape) for init in inits),
    )


@functools.cache
def samples_without_resources():
    return shares("nowhere", samples, ["i", ...])(X)


@everywhere
def test_samples_do_not_depend_on_resources(place):
    found = shares(place, samples, ["i", ...])(X)
    assert_close(found, samples_without_resources())
    assert len(np.unique(found[0])) == 32


def draw(key):
    return (
        jax.random.normal(key, (2,)),
        jax.random.uniform(jax.random.split(key)[1]),
        jax.random.gamma(key, 2.0),
        lax.rng_bit_generator(jax.random.key_data(key), (2,))[1],
    )


@functools.cache
def drawn_one_by_one(impl):
    """A key, 16 others, and what is drawn of each of these and of those folded into the one."""
    key = jax.random.key(0, impl=impl)
    keys = jax.random.wrap_key_data(jnp.arange(64, dtype=jnp.uint32).reshape(16, 4), impl=impl)
    once = jax.jit(lambda row, k: (draw(row), draw(jax.random.fold_in(key, k))))
    drawn = [once(keys[k], k) for k in range(16)]
    return key, keys, jax.tree.map(lambda *rows: np.stack(rows), *drawn)


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
@pytest.mark.parametrize("resource", [(), "x", ("x", "y"), ("y", "x"), SerialLoop(4)], ids=repr)
def test_generators_of_batches_draw_for_each_key(impl, resource):
    """JAX's vmap draws all numbers from the first key."""
    key, keys, wanted = drawn_one_by_one(impl)

    def fun(key_of_row, k):
        return draw(key_of_row), draw(jax.random.fold_in(key, k))

    f = xmap(fun, ["i"], ["i", ...], axis_resources={"i": resource}, mesh=SQUARE)
    assert_close(f(keys, np.arange(16)), wanted)


def test_equal_shapes_have_equal_samples():
    def fun(x):
        shapes = named.NamedShape(i=16, j=3), named.NamedShape(j=3, i=16)
        assert shapes[0] == shapes[1]
        return [named.random.normal(KEY, shape) for shape in shapes]

    np.testing.assert_array_equal(*xmap(fun, ["i", "j"], ["i", "j"])(X))


@pytest.mark.parametrize("distribution", ["normal", "truncated_normal", "uniform"])
@pytest.mark.parametrize("mode", ["fan_in", "fan_out", "fan_avg"])
def test_weights_have_the_variance_of_jax(mode, distribution):
    """Both fans named, or one of them; the window of 7 counts for both."""

    def drawn(shape, *axes):
        return named.random.variance_scaling(100, mode, distribution, *axes)(KEY, shape)

    def weights():
        return (
            drawn(named.NamedShape(7, i=80, o=50), "i", ("o",)),
            drawn(named.NamedShape(50, 7, i=80), "i", 0),
            drawn(named.NamedShape(80, 7, o=50), -2, "o"),
        )

    def weights_of_jax():
        init = jax.nn.initializers.variance_scaling(100, mode, distribution, 0, 1)
        return init(KEY, (80, 50, 7))

    out_axes = ["i", "o", ...], ["i", ...], [None, "o", ...]
    ours = xmap(weights, (), out_axes, axis_sizes={"i": 80, "o": 50})
    found, expected = run_together((ours, weights_of_jax))
    variances = [np.var(each) for each in found]
    np.testing.assert_allclose(variances, [np.var(expected)] * 3, rtol=2e-2)


def test_initializers_that_do_not_exist():
    with pytest.raises(SpecError, match=r"(?s)'bad'.*one of 'fan_in', .*'worse'.*'uniform'"):
        named.random.variance_scaling(1, "bad", "worse")
    init = named.random.variance_scaling(1, "fan_in", "normal", "rows", 0)
    with pytest.raises(SpecError, match=r"(?s)'rows'.*an axis of the shape: 0, 'i'"):
        xmap(lambda: init(KEY, named.NamedShape(3, i=4)), (), ["i", ...], axis_sizes={"i": 4})()


@everywhere
def test_results_that_do_not_vary_are_repeated(place):
    total = shares(place, lambda x: lax.psum(x, "i"), {1: "i"})(X)
    assert_close(total, np.repeat(X.sum(0)[:, None], 16, 1))
    first = shares(place, lambda x: lax.psum(x, "i"), ["i", ...])(X)
    assert_close(first, np.repeat(X.sum(0)[None], 16, 0))


@everywhere
def test_products_of_what_does_not_vary_are_summed(place):
    w = jnp.asarray(X[:3])

    def fun(x):
        matrices = ((1,), (0,))
        return named.pdot(w, w, "i", matrices), named.pdot(x[None], w, "i", matrices)

    found = shares(place, fun, [...])(X)
    assert_close(found, (16 * w @ w, X.sum(0)[None] @ w))


def test_several_loops_are_refused():
    loops = {"i": SerialLoop(2), "j": SerialLoop(4)}
    f = xmap(lambda x: x, ["i", "j"], ["i", "j"], axis_resources=loops)
    with pytest.raises(SpecError, match=r"several loops: SerialLoop\(2\) for 'i', SerialLoop\(4\)"):
        f(jnp.ones((8, 8)))


@everywhere
def test_python_numbers_are_results(place):
    def fun(x):
        return 1.0, True, lax.psum(1, "i")

    found = shares(place, fun, ["i", ...])(X)
    for each, wanted in zip(found, (1.0, True, 16), strict=True):
        np.testing.assert_array_equal(each, [wanted] * 16)
    assert [each.dtype for each in found] == [jnp.float32, jnp.bool, jnp.int32]


@everywhere
def test_positions_along_names(place):
    k = np.array([[5, 0], [47, 13]])

    def fun(x):
        return (
            named.pgather(x, k % 16, "i"),
            named.pgather(x, k, ("i", 0)),
            named.pgather(x, k, (0, "i")),
            named.one_hot(jnp.int32(3), 16, axis="i"),
            jax.nn.one_hot(jnp.int32(3), 16, axis="i"),
            named.argmax(x, "i"),
            named.argmin(x, "i"),
            named.axis_size("i"),
        )

    outs = ([...], [...], [...], ["i"], ["i"], [...], [...], [...])
    found = shares(place, fun, outs)(X)
    eye = np.eye(16, dtype=np.float32)[3]
    rows, columns = X.reshape(-1), X.T.reshape(-1)
    want = X[k % 16], rows[k], columns[k], eye, eye, X.argmax(0), X.argmin(0), 16
    assert_close(found, tuple(map(np.asarray, want)))


def test_sizes_that_are_not_those_of_axes():
    with pytest.raises(SpecError, match="16, the size of axis 'i'"):
        shares("nowhere", lambda x: named.one_hot(0, 5, axis="i"), ["i"])(X)


def test_samples_of_a_wrong_size():
    key, shape = jax.random.key(0), named.NamedShape(i=5)
    with pytest.raises(SpecError, match="16, the size of the axis"):
        shares("nowhere", lambda x: named.random.normal(key, shape), ["i"])(X)


def doubled_in_python(x):
    return jax.pure_callback(
        lambda x: 2 * np.asarray(x),
        jax.ShapeDtypeStruct(x.shape, x.dtype),
        x,
        vmap_method="sequential",
    )


@pytest.mark.parametrize("place", [place for place in PLACES if place != "nowhere"])
def test_calls_back_on_a_mesh_with_other_axes(place):
    """XLA supports this only if all axes are manual."""
    resources, _ = PLACES[place]

    def body(x):
        inner = xmap(lambda x: doubled_in_python(x) + x, ["j"], ["j"], axis_resources={"j": "z"})
        y = doubled_in_python(x)
        return y, lax.psum(y, "i"), inner(jnp.tile(x, 2))

    f = xmap(body, ["i", ...], (["i", ...], [...], ["i", ...]), axis_resources=resources)
    with shmap_compiler.mesh(np.array(jax.devices()).reshape(2, 2, 2), ("x", "y", "z")):
        for call in f, jax.jit(f), lambda x: f.lower(x).compile()(x):
            assert_close(call(X), (2 * X, 2 * X.sum(0), 3 * np.tile(X, 2)))


@everywhere
def test_callbacks_with_effects_are_called_once_for_each_position(place):
    resources, _ = PLACES[place]
    seen, shown = [], []

    def tripled(x):
        seen.append(float(x))
        return 3 * np.asarray(x)

    def body(x):
        jax.debug.callback(lambda x: shown.append(float(x)), x)
        jax.debug.print("{}", x)
        return io_callback(tripled, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    f = xmap(body, ["i"], ["i"], axis_resources=resources)
    with shmap_compiler.mesh(np.array(jax.devices()).reshape(2, 2, 2), ("x", "y", "z")):
        assert_close(f(X[:, 0]), 3 * X[:, 0])
    jax.effects_barrier()
    assert sorted(seen) == sorted(shown) == sorted(X[:, 0].tolist())
