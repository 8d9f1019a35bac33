"""Arrays on axes of type Explicit that a function closes over. JAX rejects all these programs."""

import functools
import sys

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import BodyError, pmap, shard_map, xmap

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Explicit,) * 2)
X = np.arange(8.0, dtype=np.float32).reshape(8, 1) / 8
W = np.array([[1, -2, 3]], np.float32)

with jax.set_mesh(MESH):
    GLOBAL = jnp.asarray(W) * 1
    HELD = {"w": GLOBAL}


@pytest.fixture(autouse=True)
def mesh():
    with jax.set_mesh(MESH):
        yield


def on(spec, x=X):
    return jax.device_put(x, spec)


def mapped(body, **options):
    return shard_map(body, in_specs=P("i"), out_specs=P("i"), **options)


def whole(w):
    return on(P(), w)


def product(w, x):
    return jnp.sin(x @ w)


def names_a_global(w):
    return lambda x: jnp.sin(x @ GLOBAL)


def names_a_global_in_a_dict(w):
    return lambda x: jnp.sin(x @ HELD["w"])


def _calls_one_that_names_a_global(x):
    return names_a_global(None)(x)


def helper(w):
    def inner(x):
        return product(w, x)

    return lambda x: inner(x)


def recursive(w):
    def body(x, depth=2):
        return body(x, depth - 1) if depth else product(w, x)

    return body


class Layer:
    def __init__(self, w):
        self.w = w

    def __call__(self, x):
        return product(self.w, x)

    def apply(self, x):
        return product(self.w, x)


jax.tree_util.register_pytree_node(Layer, lambda x: ((x.w,), None), lambda _, held: Layer(*held))


class Opaque(Layer):
    """Not a pytree."""


BODIES = {
    "variable": lambda w: lambda x: product(w, x),
    "function": helper,
    "pytree": lambda w: (lambda params: lambda x: product(params[0]["w"], x))([{"w": w}]),
    "partial": lambda w: functools.partial(product, w),
    "keyword_of_partial": lambda w: functools.partial(lambda x, w: product(w, x), w=w),
    "default": lambda w: lambda x, w=w: product(w, x),
    "keyword_default": lambda w: lambda x, *, w=w: product(w, x),
    "method": lambda w: Layer(w).apply,
    "object": lambda w: (lambda layer: lambda x: layer(x))(Layer(w)),
    "jit": lambda w: jax.jit(lambda x: product(w, x)),
    "function_with_jit": lambda w: (lambda f: lambda x: f(x))(jax.jit(lambda x: product(w, x))),
    "vmap": lambda w: jax.vmap(lambda row: product(w, row)),
    "checkpoint": lambda w: jax.checkpoint(lambda x: product(w, x)),
    "scan": lambda w: lambda x: lax.map(lambda row: product(w, row), x),
    "condition": lambda w: (
        lambda x: lax.cond(x.sum() > -1, lambda: product(w, x), lambda: 0 * x @ w)
    ),
    "recursion": recursive,
    "global": names_a_global,
    "global_dict": names_a_global_in_a_dict,
    "function_of_the_module": lambda w: _calls_one_that_names_a_global,
    "twice": lambda w: (lambda v: lambda x: product(w, x) + 0 * x @ v)(w),
}


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("name", BODIES)
def test_what_a_function_closes_over(name, jit):
    got = jit(lambda w, x: mapped(BODIES[name](w))(x))(whole(W), on(P("i")))
    np.testing.assert_allclose(got, np.sin(X @ W), rtol=1e-6)
    assert jax.typeof(got).sharding.spec == P("i", None)


WITHOUT_GLOBALS = sorted(name for name in BODIES if "global" not in name and "module" not in name)


@pytest.mark.usefixtures("equal_programs_compile_once")
@pytest.mark.parametrize("name", WITHOUT_GLOBALS)
def test_derivatives(name):
    def loss(run):
        return lambda w, x: (run(w)(x) ** 2).sum()

    got = jax.jit(jax.grad(loss(lambda w: mapped(BODIES[name](w))), argnums=(0, 1)))(
        whole(W), on(P("i"))
    )
    want = jax.grad(loss(lambda w: lambda x: jnp.sin(x @ w)), argnums=(0, 1))(W, X)
    for ours, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5)


def test_vmap_and_the_function_itself_is_left_alone():
    body = BODIES["function"](whole(W))
    cells = body.__closure__
    mapped(body)(on(P("i")))
    assert body.__closure__ is cells

    ws = np.stack([W, 2 * W, 3 * W])
    run = jax.vmap(lambda w, x: mapped(lambda x: product(w, x))(x), in_axes=(0, None))
    got = jax.jit(run)(whole(ws), on(P("i")))
    np.testing.assert_allclose(got, np.sin(X @ ws), rtol=1e-6)


def test_inferred_specs_collectives_and_checks():
    w = whole(W)
    f = shard_map(lambda x: lax.psum(x @ w, "i"), out_specs=P())
    for run in (f, jax.jit(f)):
        np.testing.assert_allclose(run(on(P("i"))), X.reshape(4, 2, 1).sum(0) @ W, rtol=1e-6)
    lowered = f.lower(on(P("i")))
    np.testing.assert_allclose(lowered.compile()(on(P("i"))), f(on(P("i"))), rtol=1e-6)
    # The array is known to be equal on all devices.
    assert shard_map(lambda x: w + 0 * lax.psum(x[0, 0], "i"), out_specs=P())(on(P("i"))).shape


def test_over_some_axes():
    """The array stays split over the axis that is not manual."""
    w = on(P(None, "j"), np.concatenate([W, W], 1))
    f = jax.jit(lambda w, x: mapped(lambda x: jnp.sin(x @ w), axis_names={"i"})(x))
    got = f(w, on(P("i")))
    np.testing.assert_allclose(got, np.sin(X @ np.concatenate([W, W], 1)), rtol=1e-6)
    assert jax.typeof(got).sharding.spec == P("i", "j")


def test_from_an_enclosing_body():
    def outer(x, w):
        total = x.sum()

        def inner(row):
            return row + total + lax.axis_index("j")

        return shard_map(inner, in_specs=P(None, "j"), out_specs=P(None, "j"), axis_names={"j"})(w)

    f = shard_map(outer, in_specs=(P("i"), P()), out_specs=P("i"), axis_names={"i"})
    w = np.concatenate([W, W], 1)
    got = jax.jit(f)(on(P("i")), on(P(None, "j"), w))
    totals = X.reshape(4, 2).sum(1, keepdims=True)
    np.testing.assert_allclose(got, w + totals + [0, 0, 0, 1, 1, 1], rtol=1e-6)


def test_models_of_libraries():
    x = on(P("i"), np.ones((8, 4), np.float32))

    linear = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(jax.jit(mapped(lambda x: linear(x)))(x), linear(x), rtol=1e-5)

    def loss(model, x):
        def body(x):
            return lax.pmean(jnp.mean(jax.vmap(model)(x) ** 2), "i")

        return shard_map(body, in_specs=P("i"), out_specs=P())(x)

    model = equinox.nn.MLP(4, 3, 8, 2, key=jax.random.key(0))
    got = equinox.filter_jit(equinox.filter_grad(loss))(model, x)
    want = equinox.filter_grad(lambda model, x: jnp.mean(jax.vmap(model)(x) ** 2))(model, x)
    for ours, expected in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_eager_calls_show_values(capsys):
    w = whole(W)

    def body(x):
        print(w * 2)
        return x @ w if w[0, 1] < 0 else x

    np.testing.assert_allclose(mapped(body)(on(P("i"))), X @ W, rtol=1e-6)
    assert "[[ 2. -4.  6.]]" in capsys.readouterr().out


def test_errors_of_jax_name_the_argument():
    w = whole(W)

    def body(first, second):
        return first @ w if second[0, 0] > 0 else first

    f = shard_map(body, in_specs=P("i"), out_specs=P("i"))
    with pytest.raises(jax.errors.TracerBoolConversionError, match="value of the argument second"):
        jax.jit(f)(on(P("i")), on(P("i")))


def test_unused_arrays_are_no_inputs():
    """A body may close over arrays that are split, if it does not use them."""
    held = {"whole": whole(W), "split": on(P("j"), np.concatenate([W, W])), "used": whole(2 * W)}
    f = mapped(lambda x: x @ held["used"])
    for run in (f, jax.jit(f)):
        np.testing.assert_allclose(run(on(P("i"))), X @ (2 * W))
    assert len(f.trace(on(P("i"))).in_specs) == 2
    idle = mapped(lambda x: (held, 2 * x)[1])
    idle(on(P("i")))
    assert len(idle.trace(on(P("i"))).in_specs) == 1


COUNT = 0


def _count():
    global COUNT
    COUNT += 1


def _counts_in_a_global(w):
    def body(x):
        global COUNT
        _count()
        COUNT += 10
        return x @ GLOBAL

    return body, lambda: COUNT


def _counts_in_a_list(w):
    log = [w]

    def body(x):
        log.append("called")
        return x @ log[0]

    return body, lambda: 11 * (len(log) - 1) if log[0] is w else None


def _counts_in_a_dict(w):
    state = {2: 0, "w": {"w": w}, "old": None}

    def body(x):
        state[2] += 11
        state.pop("old", None)
        state["same"] = state["w"]
        return x @ state["same"]["w"]

    return body, lambda: state[2] if state["same"]["w"] is w and "old" not in state else None


def _counts_in_a_variable(w):
    count = 0
    held = w

    def body(x):
        nonlocal count, held
        count += 11
        y = x @ held
        held = count
        return y

    def read():
        nonlocal held
        held, kept = w, held
        return kept

    return body, read


def _counts_in_an_attribute(w):
    def body(x):
        body.count += 11
        return x @ w

    body.count = 0
    return body, lambda: body.count


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    "counting",
    [
        _counts_in_a_global,
        _counts_in_a_list,
        _counts_in_a_dict,
        _counts_in_a_variable,
        _counts_in_an_attribute,
    ],
)
def test_what_a_function_changes_is_changed(counting, run, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "COUNT", 0)
    body, count = counting(whole(W))
    for called in (11, 22):
        np.testing.assert_allclose(run(mapped(body))(on(P("i"))), X @ W, rtol=1e-6)
        assert count() == called


def test_what_a_function_changed_before_it_failed_is_changed():
    log = [whole(W)]

    def body(x):
        log.append("called")
        raise KeyError(log[0].shape)

    with pytest.raises(KeyError, match="1, 3"):
        mapped(body)(on(P("i")))
    assert log[1:] == ["called"]


# ------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    "body",
    [
        lambda: BODIES["function"](on(P("j"), np.concatenate([W, W]))),
        lambda: (lambda layer: lambda x: layer(x))(Opaque(whole(W))),
    ],
    ids=["split", "held by an object"],
)
def test_others_are_refused(body):
    f = mapped(body())
    for run in (f, jax.jit(f), f.trace):
        with pytest.raises(BodyError, match="an array from outside of the function") as raised:
            run(on(P("i")))
        assert "pass it as an argument" in raised.value.problems[0].fix
        assert isinstance(raised.value.__cause__, NotImplementedError)


@pytest.mark.parametrize("kind", ["pmap", "xmap"])
def test_other_front_ends(kind):
    w = whole(W)
    f = {
        "pmap": pmap(lambda x: x @ w),
        "xmap": xmap(
            lambda x: x @ w,
            in_axes=["rows", ...],
            out_axes=["rows", ...],
            axis_resources={"rows": "i"},
            mesh=MESH,
        ),
    }[kind]
    with pytest.raises(BodyError, match=f"^{kind} of .*\n.*an array from outside") as raised:
        f(X[:, None] if kind == "pmap" else X)
    assert raised.value.problems[0].fix.startswith("pass it as an argument")
