"""What a body may hold: effects, keys, kernels, types of few bits, and values of outer traces."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.experimental import pallas as pl
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
X = np.arange(8 * 6, dtype=np.float32).reshape(8, 6)


ON_I = P("i")


def mapped(fun, in_specs=ON_I, out_specs=ON_I, **options):
    return shard_map(fun, mesh=MESH, in_specs=in_specs, out_specs=out_specs, **options)


# ------------------------------------------------------------- casts, without anything that asks


@pytest.mark.parametrize("call", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_a_number_that_is_cast_is_an_array(call):
    body = mapped(lambda x: x * lax.pcast(2.0, "i", to="varying")[None])
    np.testing.assert_array_equal(call(body)(X), 2 * X)


@pytest.mark.parametrize("call", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_the_gradient_of_a_cast_is_a_sum(call):
    body = mapped(jax.grad(lambda w: lax.pcast(w, "i", to="varying")), P(), P())
    assert call(body)(np.float32(3)) == 4


# --------------------------------------------------------------------------------------- effects


def test_debug_print_runs_on_every_device(capfd):
    def body(x):
        jax.debug.print("at {} {}: {}", lax.axis_index("i"), lax.axis_index("j"), x[0, 0])
        return 2 * x

    np.testing.assert_array_equal(jax.jit(mapped(body))(X), 2 * X)
    jax.effects_barrier()
    lines = sorted(capfd.readouterr().out.split("\n"))
    expected = [f"at {i} {j}: {12.0 * i}" for i in range(4) for j in range(2)]
    assert lines == ["", *expected]


def test_ordered_effects_keep_their_order():
    """JAX knows no order between devices; so a mesh of one."""
    seen = []
    mesh = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Auto,))

    def body(x):
        for k in range(5):
            io_callback(lambda v, k=k: seen.append((k, float(v))), None, x[0, 0] + k, ordered=True)
        return x

    jax.jit(shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P("i")))(X)
    jax.effects_barrier()
    assert seen == [(k, float(k)) for k in range(5)]


def test_unordered_io_callback_and_debug_callback():
    written, noted = [], []

    def body(x):
        io_callback(lambda v: written.append(float(v[0, 0])), None, x)
        jax.debug.callback(lambda v: noted.append(float(v)), x.sum())
        return x

    jax.jit(mapped(body))(X)
    jax.effects_barrier()
    assert sorted(written) == sorted([0.0, 12.0, 24.0, 36.0] * 2)
    assert sorted(noted) == sorted(X.reshape(4, -1).sum(1).tolist() * 2)


@pytest.mark.parametrize("transform", [lambda f: f, jax.vmap], ids=["plain", "vmap"])
def test_pure_callback(transform):
    def host(x):
        return np.asarray(x) * 3

    def body(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(host, shape, x, vmap_method="expand_dims") + lax.psum(x, "i")

    function = mapped(body, check_vma=False)
    x = X if transform is not jax.vmap else np.stack([X, -X])
    sums = x.reshape(*x.shape[:-2], 4, 2, 6).sum(-3)
    expected = 3 * x + np.concatenate([sums] * 4, axis=-2)
    np.testing.assert_array_equal(jax.jit(transform(function))(x), expected)


# ------------------------------------------------------------------------------------------ keys


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_keys_as_inputs_outputs_and_closure(impl):
    keys = jax.random.split(jax.random.key(3, impl=impl), 8)
    constant = jax.random.key(5, impl=impl)

    def body(keys):
        moved = lax.ppermute(jax.random.key_data(keys), "i", [(d, (d + 1) % 4) for d in range(4)])
        mine = jax.random.fold_in(constant, lax.axis_index("i"))
        return (
            jax.random.wrap_key_data(moved, impl=impl),
            mine[None],
            jax.random.bits(keys[0], (2,)),
        )

    moved, mine, drawn = jax.jit(mapped(body))(keys)
    assert moved.dtype == mine.dtype == keys.dtype
    data = jax.random.key_data
    np.testing.assert_array_equal(data(moved), np.roll(data(keys), 2, axis=0))
    for k in range(4):
        np.testing.assert_array_equal(data(mine[k]), data(jax.random.fold_in(constant, k)))
        np.testing.assert_array_equal(drawn[2 * k : 2 * k + 2], jax.random.bits(keys[2 * k], (2,)))


# --------------------------------------------------------------------------------------- kernels


def test_pallas_kernel_in_interpret_mode():
    def kernel(x_ref, w_ref, out_ref):
        out_ref[...] = jnp.sin(x_ref[...]) * w_ref[...]

    def body(x, w):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        y = pl.pallas_call(kernel, out_shape=shape, interpret=True)(x, jnp.broadcast_to(w, x.shape))
        return lax.psum(y, "i")

    result = jax.jit(mapped(body, (P("i"), P()), P()))(X, X[0])
    np.testing.assert_allclose(result, (np.sin(X) * X[0]).reshape(4, 2, 6).sum(0), atol=1e-4)


# ----------------------------------------------------------------------------------------- types


TYPES = ["bool", "int4", "uint4", "int8", "uint64", "float8_e4m3fn", "float8_e5m2", "bfloat16"]
TYPES += ["float16", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("dtype", TYPES)
def test_types(dtype):
    with jax.enable_x64():
        x = jnp.asarray((np.arange(8) % 3), jnp.dtype(dtype))

        def body(x, scalar):
            pairs = [(d, (d + 1) % 4) for d in range(4)]
            return (
                lax.ppermute(x, "i", pairs),
                lax.all_gather(x, "i", tiled=True),
                lax.psum(jnp.real(x).astype(jnp.float32), "i"),
                scalar,
                x[:0],
            )

        out_specs = (P("i"), P(), P(), P(), P("i"))
        results = jax.jit(mapped(body, (P("i"), P()), out_specs))(x, x[1])
        shifted, gathered, total, scalar, empty = results
        assert {r.dtype for r in (shifted, gathered, scalar, empty)} == {x.dtype}
        np.testing.assert_array_equal(shifted, np.roll(np.asarray(x), 2))
        np.testing.assert_array_equal(gathered, x)
        np.testing.assert_array_equal(
            total, np.asarray(x).astype(complex).real.reshape(4, 2).sum(0)
        )
        assert scalar == x[1]
        assert (scalar.shape, empty.shape) == ((), (0,))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "complex64"])
def test_gradients_of_types(dtype):
    x = jnp.asarray(np.arange(8) / 8, jnp.dtype(dtype))

    def loss(x):
        return jnp.real(lax.psum(jnp.sum(x.astype(jnp.complex64) ** 2), "i"))

    slope = jax.jit(jax.grad(mapped(loss, P("i"), P())))(x)
    assert slope.dtype == x.dtype
    expected = jax.grad(lambda x: jnp.real(jnp.sum(x.astype(jnp.complex64) ** 2)))(x)
    np.testing.assert_array_equal(slope, expected)


def test_gradients_of_integers_are_float0():
    def body(x, n):
        return x * n, n + 1

    def loss(x, n):
        y, m = mapped(body, (P("i"), P("i")))(x, n)
        return jnp.sum(y) + jnp.sum(m)

    n = np.arange(8, dtype=np.int32)[:, None]
    x_bar, n_bar = jax.jit(jax.grad(loss, (0, 1), allow_int=True))(X, n)
    np.testing.assert_array_equal(x_bar, np.broadcast_to(n, X.shape))
    assert (n_bar.dtype, n_bar.shape) == (jax.dtypes.float0, n.shape)
    _, (y_dot, m_dot) = jax.jvp(
        lambda x: mapped(body, (P("i"), P("i")))(x, n), (X,), (np.ones_like(X),)
    )
    np.testing.assert_array_equal(y_dot, np.broadcast_to(n, X.shape))
    assert m_dot.dtype == jax.dtypes.float0


# --------------------------------------------------------------------------- values of outer traces


def scaled_by(w):
    """A mapped function that closes over `w`."""
    return mapped(lambda x: jnp.sin(x * w) + lax.psum(w, "i"))


def full(w, x):
    return jnp.sin(x * w) + 4 * w


W = np.linspace(0.5, 1, 6, dtype=np.float32)


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: f,
        jax.jit,
        lambda f: jax.grad(lambda w: jnp.sum(f(w))),
        lambda f: jax.jit(jax.grad(lambda w: jnp.sum(jnp.cos(f(w))))),
        lambda f: lambda w: jax.jvp(f, (w,), (w,)),
        lambda f: lambda w: jax.vmap(f)(jnp.stack([w, -w])),
        lambda f: jax.jit(jax.hessian(lambda w: jnp.sum(f(w)))),
        lambda f: lambda w: jax.linearize(f, w)[1](w),
        lambda f: lambda w: lax.scan(lambda c, _: (jnp.sum(f(c), 0) / 50, None), w, None, 3)[0],
    ],
    ids=["none", "jit", "grad", "jit_grad", "jvp", "vmap", "hessian", "linearize", "scan"],
)
def test_closure_over_traced_values(transform):
    ours = transform(lambda w: scaled_by(w)(X))(W)
    expected = transform(lambda w: full(w, X))(W)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


# ------------------------------------------------------------------------------- partial manual


def test_constraints_inside_partial_manual():
    by_columns = NamedSharding(MESH, P(None, "j"))

    def body(x):
        y = lax.with_sharding_constraint(x * 2, P(None, "j"))
        return lax.with_sharding_constraint(y @ jnp.ones((6, 4)), by_columns)

    def around(x):
        x = lax.with_sharding_constraint(x, NamedSharding(MESH, P("i", "j")))
        y = mapped(body, axis_names={"i"})(jnp.sin(x))
        return lax.with_sharding_constraint(y, NamedSharding(MESH, P(("i", "j"))))

    function = jax.jit(around)
    expected = 2 * np.sin(X) @ np.ones((6, 4))
    np.testing.assert_allclose(function(X), expected, rtol=1e-5)
    slope = jax.jit(jax.grad(lambda x: jnp.sum(around(x))))(X)
    np.testing.assert_allclose(slope, 8 * np.cos(X), rtol=1e-5)
    assert function(X).sharding.is_equivalent_to(NamedSharding(MESH, P(("i", "j"))), 2)


# ------------------------------------------------------------- what is computed only where needed


def test_replication_is_inferred_where_it_matters():
    """Not if each result is split over all axes, and no equation holds a program."""
    inferred = {
        "split": mapped(lambda x: x * lax.axis_index("i"), P(("i", "j")), P(("i", "j"))),
        "replicated": mapped(lambda x: lax.psum(x, ("i", "j")), P("i"), P()),
        "loop": mapped(
            lambda x: lax.fori_loop(0, 3, lambda _, y: y + 1, x), P(("i", "j")), P(("i", "j"))
        ),
    }
    found = {name: "replication" in vars(f.trace(X)) for name, f in inferred.items()}
    assert found == {"split": False, "replicated": True, "loop": True}
