"""pmap in jit and under derivatives, vmap and checkpoint, and eager where jit is disabled."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

from shmap_compiler import ReplicationError, pmap, shard_map

DEVICES = jax.devices()[:8]
X = np.linspace(-1, 2, 32, dtype=np.float32).reshape(8, 4)
SHIFT = [(i, (i + 1) % 8) for i in range(8)]


def close(found, expected):
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6), found, expected
    )


# ------------------------------------------------------------------------------------ derivatives


GRADIENTS = {
    "sin": (jnp.sin, 0, 0),
    "psum": (lambda x: lax.psum(jnp.sin(x), "i") * x, 0, 0),
    "replicated result": (lambda x: lax.pmean(x**2, "i"), 0, None),
    "all_gather": (lambda x: lax.all_gather(x, "i").sum(0) * x, 0, 1),
    "psum_scatter": (lambda x: lax.psum_scatter(jnp.outer(jnp.arange(8.0), x), "i") ** 2, 0, 0),
    "ppermute": (lambda x: lax.ppermute(x, "i", SHIFT) * x, 0, 0),
}


@pytest.mark.parametrize("case", GRADIENTS)
def test_gradients_are_those_of_jax(case):
    body, in_axes, out_axes = GRADIENTS[case]

    def loss(pmap):
        mapped = pmap(body, "i", in_axes=in_axes, out_axes=out_axes)
        return lambda x: jnp.sum(jnp.cos(mapped(x)))

    close(jax.jit(jax.grad(loss(pmap)))(X), jax.jit(jax.grad(loss(jax.pmap)))(X))


def test_gradients_of_what_all_devices_get_whole():
    def loss(pmap):
        f = pmap(lambda w, x: lax.psum(jnp.tanh(w * x).sum(), "i"), "i", in_axes=(None, 0))
        return lambda w, x: f(w, x)[0]

    expected = jax.jit(jax.grad(loss(jax.pmap), (0, 1)))(X[0], X)
    close(jax.grad(loss(pmap), (0, 1))(X[0], X), expected)


def test_higher_and_forward_derivatives():
    f = pmap(lambda x: lax.psum(jnp.sin(x) * x, "i"), "i")
    check_grads(f, (X,), 2, ["fwd", "rev"], atol=1e-2, rtol=1e-2, eps=1e-2)
    g = jax.pmap(lambda x: lax.psum(jnp.sin(x) * x, "i"), "i")
    expected = jax.jit(lambda x: jax.jvp(g, (x,), (x,)))(X)
    close(jax.jvp(f, (X,), (X,)), expected)
    _, linear = jax.linearize(f, X)
    close(linear(X), expected[1])


INNER = {
    "local": (lambda w, x: lax.pmean(jax.grad(lambda w: jnp.sum(w * x**2))(w), "i")),
    "through psum": (lambda w, x: jax.grad(lambda w: lax.psum(jnp.sum(w**2 * x), "i"))(w)),
    "through pmean": (lambda w, x: jax.grad(lambda w: lax.pmean(jnp.sum(w**2 * x), "i"))(w)),
}


@pytest.mark.parametrize("in_axes", [(None, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("case", INNER)
def test_derivatives_in_the_function_mean_what_they_mean_in_jax(case, in_axes):
    """psum transposes to psum, whether or not the weights are known to be equal."""
    w = X[0] if in_axes[0] is None else X + 1
    found, expected = (p(INNER[case], "i", in_axes=in_axes)(w, X) for p in (pmap, jax.pmap))
    close(found, expected)


def test_a_psum_of_gradients_that_is_differentiated():
    def inner(scale, params):
        grads = jax.grad(lambda p: scale * p[0] * p[1])(params)
        net, _ = lax.psum(grads, "i")
        return params[1] * (params[0] + net)

    def outer(params):
        return jax.grad(inner)(4.0, params)

    params = np.array([2.0], np.float32), np.array([3.0], np.float32)
    f = pmap(outer, "i")
    close(f(params), jax.pmap(outer, "i")(params))
    check_grads(f, (params,), 2, ["fwd", "rev"], 1e-3, 1e-3)


def test_custom_rules_mean_what_they_mean_in_jax():
    @jax.custom_vjp
    def scaled(x):
        return lax.psum(x, "i")

    scaled.defvjp(lambda x: (scaled(x), None), lambda _, t: (lax.pmean(t, "i") * 3,))

    def loss(pmap):
        return lambda x: jnp.sum(jnp.sin(pmap(scaled, "i")(x)))

    close(jax.grad(loss(pmap))(X), jax.jit(jax.grad(loss(jax.pmap)))(X))


def test_derivatives_are_traced_once():
    calls = []

    @pmap
    def f(x):
        calls.append(0)
        return jnp.sin(x)

    for _ in range(3):
        _, pull = jax.vjp(f, X)
        close(pull(X), (np.cos(X) * X,))
    assert len(calls) == 1


@pytest.mark.parametrize("policy", [None, "nothing", "everything"])
def test_checkpoint(policy):
    g = pmap(lambda x: jnp.sin(lax.psum(jnp.sin(x), "i")), "i")
    options = {"policy": getattr(jax.checkpoint_policies, f"{policy}_saveable")} if policy else {}
    f = jax.checkpoint(g, **options)
    close(jax.grad(lambda x: f(x).sum())(X), jax.grad(lambda x: g(x).sum())(X))


# ------------------------------------------------------------------------------------------- vmap


@pytest.mark.parametrize("axes", [(0, 0, 0, 0), (1, 0, 0, 1), (2, 1, 1, 0), (0, 1, -1, -1)])
def test_vmap_of_pmap(axes):
    vmap_in, pmap_in, pmap_out, vmap_out = axes
    shape = [5]
    shape.insert(pmap_in, 8)
    shape.insert(vmap_in, 3)
    x = np.arange(120.0, dtype=np.float32).reshape(shape)

    def both(inner):
        mapped = inner(lambda x: x - lax.psum(x, "i"), "i", in_axes=pmap_in, out_axes=pmap_out)
        return jax.vmap(mapped, in_axes=vmap_in, out_axes=vmap_out)(x)

    vmap = lambda f, name, **axes: jax.vmap(f, axis_name=name, **axes)  # noqa: E731
    close(both(pmap), both(vmap))


@pytest.mark.parametrize("collective", [lax.psum, lax.pmean, lax.pmax, lax.pmin])
def test_collectives_over_axes_of_vmap_and_pmap(collective):
    x = np.arange(4 * 2 * 9, dtype=np.float32).reshape(4, 2, 3, 3)

    def both(outer, inner):
        f = inner(lambda x, y: x + collective(x.dot(y), ("i", "j")), axis_name="j")
        return outer(f, axis_name="i")(x, x)

    expected = both(jax.vmap, jax.vmap)
    close(both(pmap, jax.vmap), expected)
    close(both(jax.vmap, pmap), expected)
    close(both(pmap, pmap), expected)


@pytest.mark.parametrize("collective", [lax.all_gather, lax.psum_scatter])
@pytest.mark.parametrize("tiled", [False, True])
def test_gathering_collectives_under_vmap(collective, tiled):
    x = np.arange(4 * 4 * 8, dtype=np.float32).reshape(4, 4, 8)
    f = functools.partial(collective, axis_name="i", tiled=tiled)
    close(pmap(f, "i")(x), jax.vmap(f, axis_name="i")(x))
    expected = jax.vmap(jax.vmap(f), axis_name="i")(np.stack([x] * 4, 2))
    close(pmap(jax.vmap(f), "i")(np.stack([x] * 4, 2)), expected)


def test_all_to_all_under_vmap():
    x = np.arange(8**4, dtype=np.int32).reshape(8, 8, 8, 8)
    for split, concat in [(1, 0), (0, 2)]:
        f = functools.partial(lax.all_to_all, axis_name="i", split_axis=split, concat_axis=concat)
        close(pmap(f, "i")(x), jax.vmap(f, axis_name="i")(x))


def test_ppermute_under_vmap():
    x = np.arange(3 * 2 * 8.0).reshape(3, 8, 2)
    f = functools.partial(lax.ppermute, axis_name="i", perm=SHIFT)
    close(jax.vmap(pmap(f, "i"))(x), np.roll(x, 1, axis=1))


def test_a_name_that_vmap_has_too():
    f = pmap(lambda x: 2 * lax.psum(x, "i"), "i")
    for count in (1, 2):
        close(jax.vmap(f, axis_name="i")(np.ones((count, 2, 3))), np.full((count, 2, 3), 4.0))


def test_loops_of_pmap():
    f = pmap(lambda x: lax.psum(x, "i"), "i")
    expected = np.stack([f(x) for x in (X, X * 2)])
    close(lax.map(f, np.stack([X, X * 2])), expected)
    close(lax.scan(lambda c, x: (c + 1, f(x)), 0, np.stack([X, X * 2]))[1], expected)
    close(lax.cond(True, f, lambda x: x, X), expected[0])


# -------------------------------------------------------------------------------------------- jit


def test_inside_jit():
    f = pmap(lambda x: lax.psum(x, "i"), "i")
    close(jax.jit(f)(X), np.tile(X.sum(0), (8, 1)))
    close(jax.jit(lambda x: f(f(x) + 1) * 2)(X), 2 * f(f(X) + 1))
    close(pmap(jax.jit(lambda x: x * 2))(X), X * 2)


def test_inside_jit_nothing_is_copied():
    """The program has the rows where they are: it does nothing but double them."""
    x = jax.device_put(X, NamedSharding(Mesh(np.array(DEVICES), "i"), P("i")))
    compiled = jax.jit(pmap(lambda x: x * 2, "i")).lower(x).compile()
    found = {
        line.split("(")[0].split()[-1] for line in compiled.as_text().splitlines() if " = " in line
    }
    assert found.isdisjoint(
        {"all-gather", "all-reduce", "collective-permute", "all-to-all", "copy"}
    )
    (sharding,) = compiled.input_shardings[0]
    assert sharding.is_equivalent_to(x.sharding, 2)


def test_arrays_that_the_function_closes_over():
    sharded = pmap(lambda x: x)(X)
    whole = jnp.arange(4.0)
    close(pmap(lambda x: x + whole + sharded.sum(0))(X), X + np.arange(4.0) + X.sum(0))
    outer = jax.jit(lambda x, y: pmap(lambda x: x * y[0])(x))
    close(outer(X, X), X * X[0])


def test_under_a_mesh_in_scope():
    mesh = Mesh(np.array(DEVICES).reshape(2, 4), ("a", "b"))
    f = pmap(lambda x: lax.psum(x, "i"), "i")
    with jax.set_mesh(mesh):
        close(f(X), np.tile(X.sum(0), (8, 1)))
        close(jax.jit(f)(X), np.tile(X.sum(0), (8, 1)))


# ------------------------------------------------------------------------------------------ eager


def test_where_jit_is_disabled_a_print_shows_all_rows(capsys):
    def body(x):
        print(x)
        if lax.psum(1, "i") > 3:
            x = x * 2
        return x, lax.psum(x, "i")

    with jax.disable_jit():
        rows, total = pmap(body, "i", out_axes=(0, None))(X)
    close((rows, total), (X * 2, 2 * X.sum(0)))
    assert capsys.readouterr().out.count("i=") == 9  # of the mesh, and of eight devices


def test_where_jit_is_disabled_rows_are_compared():
    with jax.disable_jit(), pytest.raises(ReplicationError, match="8 rows f32"):
        pmap(lambda x: x, out_axes=None)(X)


def test_where_jit_is_disabled_rows_may_be_scalars():
    with jax.disable_jit():
        total = pmap(lambda x: lax.psum(x.sum(), "i"), "i", out_axes=None)(X)
    close(total, X.sum())


def test_where_jit_is_disabled_derivatives_and_vmap_work():
    with jax.disable_jit():
        f = pmap(lambda x: lax.psum(jnp.sin(x), "i") * x, "i", out_axes=-1)
        found = jax.grad(lambda x: f(x).sum())(X), jax.vmap(f)(np.stack([X, X]))
    close(found, (jax.grad(lambda x: f(x).sum())(X), jax.vmap(f)(np.stack([X, X]))))


# ----------------------------------------------------------------------------------------- nested


def psum_of_both(x):
    return lax.psum(x, ("i", "j")), lax.axis_index("i") * 10 + lax.axis_index("j")


def test_nested():
    x = np.arange(16.0, dtype=np.float32).reshape(4, 2, 2)
    vmapped = jax.vmap(jax.vmap(psum_of_both, axis_name="j"), axis_name="i")
    f = pmap(pmap(psum_of_both, "j"), "i")
    for _ in range(2):
        total, index = f(x)
        close((total, index), vmapped(x))
        mesh = total.sharding.mesh
        assert dict(mesh.shape) == {"i": 4, "j": 2}
        assert list(mesh.devices.flat) == DEVICES
    assert index.sharding.spec == P("i", "j")
    close(jax.jit(f)(x), vmapped(x))


def test_nested_three_times_and_without_names():
    x = np.arange(8.0, dtype=np.float32).reshape(2, 2, 2)
    close(pmap(pmap(pmap(jnp.sin)))(x), np.sin(x))
    f = lambda x: lax.psum(x, ("i", "k")) + lax.axis_index("j")  # noqa: E731
    vmapped = jax.vmap(jax.vmap(jax.vmap(f, axis_name="k"), axis_name="j"), axis_name="i")
    close(pmap(pmap(pmap(f, "k"), "j"), "i")(x), vmapped(x))


def test_work_around_an_inner_pmap():
    def outer(map_):
        inner = map_(
            lambda x, w: lax.psum(x * w, "j") - lax.pmean(x, "i"), axis_name="j", in_axes=(1, None)
        )

        def body(x, w):
            y = inner(jnp.cumsum(x, 0), w) * 2
            z = inner(x + lax.psum(x, "i"), w)
            return y.sum(0) + z.sum(0) + lax.axis_index("i")

        return map_(body, axis_name="i", in_axes=(0, None))

    x = np.arange(24.0, dtype=np.float32).reshape(4, 3, 2)
    w = np.float32(0.5)
    close(outer(pmap)(x, w), jax.jit(outer(jax.vmap))(x, w))
    loss = lambda f: lambda x, w: jnp.sum(jnp.sin(f(x, w)))  # noqa: E731
    found = jax.jit(jax.grad(loss(outer(pmap)), (0, 1)))(x, w)
    close(found, jax.jit(jax.grad(loss(outer(jax.vmap)), (0, 1)))(x, w))


def test_an_inner_pmap_that_is_used_alone_too():
    inner = pmap(lambda x: lax.psum(x, "j"), "j")
    x = np.arange(8.0, dtype=np.float32).reshape(4, 2)
    close(inner(x), np.tile(x.sum(0), (4, 1)))
    close(pmap(inner, "i")(x), np.tile(x.sum(1, keepdims=True), (1, 2)))
    close(pmap(inner, "k")(x[:2]), np.tile(x[:2].sum(1, keepdims=True), (1, 2)))
    close(inner(x), np.tile(x.sum(0), (4, 1)))


def test_nested_with_booleans_devices_and_moved_arrays():
    x = np.tile([True, False], (4, 1))
    f = pmap(lambda x: pmap(jnp.logical_not, "j")(x), "i", devices=DEVICES[::-1])
    found = f(jax.device_put(x, DEVICES[3]))
    np.testing.assert_array_equal(found, ~x)
    assert list(found.sharding.mesh.devices.flat) == DEVICES[::-1]


def test_nested_with_arrays_moved_after_calls_of_other_kinds():
    """An inner pmap of other sizes has the outermost one run on other devices."""

    def body(x, sign):
        return pmap(lambda row: sign * row, "j")(x)

    f = pmap(body, "i", static_broadcasted_argnums=1)
    x = np.arange(8.0, dtype=np.float32).reshape(2, 4)
    narrow, wide = jax.device_put(x[:, :2], DEVICES[7]), jax.device_put(x, DEVICES[7])
    close(f(x[:, :2], 1), x[:, :2])
    close(f(narrow, 1), x[:, :2])
    close(f(x, 1), x)
    close(f(narrow, 1), x[:, :2])
    close(f(wide, -1), -x)
    close(f(narrow, 1), x[:, :2])


def test_nested_where_jit_is_disabled():
    x = np.arange(8.0, dtype=np.float32).reshape(4, 2)
    with jax.disable_jit():
        found = pmap(pmap(psum_of_both, "j"), "i")(x)
    close(found, jax.vmap(jax.vmap(psum_of_both, axis_name="j"), axis_name="i")(x))


def test_inside_a_shard_map_that_leaves_an_axis():
    mesh = Mesh(np.array(DEVICES).reshape(4, 2), ("i", "j"))
    f = pmap(lambda x: lax.psum(x, ("i", "j")), "j", in_axes=1)
    x = np.arange(8.0, dtype=np.float32).reshape(4, 2)
    g = shard_map(f, mesh=mesh, axis_names="i", in_specs=P("i"), out_specs=P(None, "i"))
    close(jax.jit(g)(x), np.full((2, 4), 28.0))
