"""Eager calls: the body runs primitive by primitive, can be looked at, and gives the same results.

`same(f, ...)` compares an eager call with the same call inside `jax.jit`.
"""

import dataclasses
import functools
import gc
import os
import re
import threading
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import HealthCheck, given, seed, settings
from jax import lax
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from programs import programs

from shmap_compiler import shard_map
from shmap_compiler.base.caches import Cache
from shmap_compiler.base.errors import BodyError, HangError, ReplicationError, VaryingValueError
from shmap_compiler.eager import PROGRAMS, EagerValue
from shmap_compiler.eager.batching_rules import has_foreign_rule
from shmap_compiler.eager.per_device import PerDevice
from shmap_compiler.eager.vmapped import Vmapped
from shmap_compiler.graph.structural_keys import jaxpr_key, key

DEVICES = np.array(jax.devices()[:8])
MESH = Mesh(DEVICES.reshape(4, 2), ("i", "j"))
X = np.arange(64, dtype=np.float32).reshape(8, 8)


BLOCKS = P("i", "j")


def mapped(f, in_specs=BLOCKS, out_specs=BLOCKS, **options):
    return shard_map(f, mesh=MESH, in_specs=in_specs, out_specs=out_specs, **options)


def same(f, *args, rtol=1e-6, compiled=None):
    eager = f(*args)
    compiled = jax.jit(f)(*args) if compiled is None else compiled
    assert jax.tree.structure(eager) == jax.tree.structure(compiled)
    for a, b in zip(jax.tree.leaves(eager), jax.tree.leaves(compiled), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert jax.typeof(a).weak_type == jax.typeof(b).weak_type
        if a.size:  # jit forgets how an array without elements is sharded
            assert a.sharding.is_equivalent_to(b.sharding, a.ndim)
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol)


@pytest.fixture
def spread(monkeypatch):
    """Runs eager calls in the form of accelerators, on the CPU."""
    for module in ("shmap_compiler.eager.run", "shmap_compiler.frontend.call_eagerly"):
        monkeypatch.setattr(f"{module}.layout_for", lambda r, _: PerDevice(r.mesh, r.manual_axes))


@pytest.fixture(params=["stacked", "spread"])
def layout(request):
    if request.param == "spread":
        request.getfixturevalue("spread")
    return request.param


# ------------------------------------------------------------------------------ looking at values


def test_print_shows_the_block_of_every_device(capsys, layout):
    mapped(lambda x: print(x) or x)(X[:, :4])
    assert capsys.readouterr().out == (
        "f32[2,2] on mesh(i=4, j=2), one block on each device\n"
        + "".join(
            f"  i={i}, j={j} ({MESH.devices[i, j]}):\n"
            + "".join(
                f"    {line}\n"
                for line in str(X[2 * i : 2 * i + 2, 2 * j : 2 * j + 2]).splitlines()
            )
            for i in range(4)
            for j in range(2)
        )
    )


def test_repr_is_what_print_shows():
    """A debugger shows the repr."""
    seen = []
    mapped(lambda x: seen.append((repr(x), str(x), f"{x}")) or x)(X)
    assert len(set(seen[0])) == 1


def test_what_comes_from_constants_alone_looks_like_an_array(capsys):
    def body(x):
        steps = jnp.arange(3) * 2
        print(steps, f"{steps[1]:.1f}", steps[2].item(), "abc"[steps[1]])
        np.testing.assert_array_equal(steps, [0, 2, 4])
        return x

    mapped(body)(X)
    assert capsys.readouterr().out == "[0 2 4] 2.0 4 c\n"


def test_keys_are_no_numpy_arrays(layout):
    def body(keys):
        for value in (keys, jax.random.key(0)):
            with pytest.raises(TypeError, match=r"jax\.random\.key_data"):
                np.asarray(value)
        return keys

    mapped(body, P("i"), P("i"))(jax.random.split(jax.random.key(0), 4))


def test_print_of_scalars_keys_and_values_of_partial_meshes(capsys):
    def body(x):
        print(jnp.sum(x))
        print(jax.random.fold_in(jax.random.key(0), lax.axis_index("i")))
        return x

    mapped(body, P("i"), P("i"), axis_names={"i"})(X)
    out = capsys.readouterr().out
    assert "  i=0 (2 devices): 120." in out
    key_1 = jax.random.key_data(jax.random.fold_in(jax.random.key(0), 1))
    assert f"  i=1 (2 devices): key<fry> {np.asarray(key_1)}" in out


def test_print_of_large_arrays_is_short(capsys):
    mapped(lambda x: print(x) or x, P("i"), P("i"))(np.zeros((4000, 100), np.float32))
    assert len(capsys.readouterr().out) < 10_000


def test_prints_happen_in_program_order(capfd, layout):
    def body(x):
        print("first")
        jax.debug.print("second {}", x[0, 0], ordered=layout == "stacked")
        print("third")
        return x

    mapped(body)(X)
    lines = [line.split()[0] for line in capfd.readouterr().out.splitlines()]
    assert lines == ["first", *["second"] * 8, "third"]


def test_exceptions_point_at_the_users_line():
    def body(x):
        y = x @ x
        return y + jnp.ones(3)  # the mistake

    with pytest.raises((TypeError, ValueError), match="ncompatible shapes") as raised:
        mapped(body)(X[:, :4])
    frames = traceback.extract_tb(raised.value.__traceback__)
    assert [f.line for f in frames if f.name == "body"] == ["return y + jnp.ones(3)  # the mistake"]


def test_the_users_own_exceptions_pass_through():
    class UsersOwnError(Exception):
        pass

    def body(x):
        if float(lax.psum(jnp.sum(x), ("i", "j"))) > 0:
            raise UsersOwnError("of the user")
        return x

    with pytest.raises(UsersOwnError, match="of the user"):
        mapped(body)(X)


# ----------------------------------------------------------------- values that are equal everywhere


def test_python_control_flow_on_equal_values(layout):
    def body(x):
        total = lax.psum(jnp.sum(x), ("i", "j"))
        steps = 0
        while total > 100:
            total = total / 2
            steps += 1
        assert float(total) == total.item() == float(np.asarray(total)) == X.sum() / 2**steps
        assert int(lax.axis_size("i")) == 4
        assert [10, 20, 30][lax.psum(1, "j")] == 30
        assert f"{total:.1f}" == f"{X.sum() / 2**steps:.1f}"
        assert round(total) == round(float(total))
        assert complex(total) == float(total)
        assert np.asarray(lax.pmax(x, ("i", "j"))).shape == (2, 4)
        return x * steps if total > 50 else x

    np.testing.assert_array_equal(mapped(body)(X), X * 5)


def test_round_rounds_each_element_on_each_device(layout):
    same(mapped(lambda x: round(x / 7, 1)), X)
    same(mapped(lambda x: x * round(x[0, 0] / 7)), X)
    same(mapped(lambda x: x.astype(jnp.int8) * round(lax.pmax(x[0, 0], ("i", "j")))), X)
    same(mapped(lambda x: x * round(jnp.arange(4) / 7, 1)), X)
    assert mapped(lambda x: x * len(range(round(lax.psum(1.4, "i")))))(X)[0, 1] == 6


def test_values_equal_by_chance_count_as_equal():
    def body(x):
        return x + 1 if jnp.all(x >= 0) else x

    np.testing.assert_array_equal(mapped(body)(X), X + 1)


def test_nan_equals_nan():
    def body(x):
        assert np.isnan(float(jnp.sum(x)))
        assert np.isnan(np.asarray(x, np.float32)).all()
        return x

    mapped(body)(np.full((8, 8), np.nan, jnp.bfloat16))


@pytest.mark.parametrize(
    ("use", "what"),
    [
        (lambda x: bool(x > 30), "bool()"),
        (lambda x: float(x), "float()"),
        (lambda x: int(x), "int()"),
        (lambda x: complex(x), "complex()"),
        (lambda x: [0] * 99 + [1] if [0][x.astype(int)] else 0, "an index"),
        (lambda x: np.asarray(x), "a NumPy array"),
        (lambda x: x.item(), "item()"),
        (lambda x: x.tolist(), "tolist()"),
        (lambda x: f"{x:.2f}", "formatting"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_unequal_values_are_refused_with_the_axes_and_the_blocks(use, what):
    def body(x):
        use(x[0, 0])
        return x

    text = (
        rf"shard_map of `body` \(test/eager/test_eager.py:\d+\):\n"
        rf"  {re.escape(what)} at test/eager/test_eager.py:\d+ \(.*lambda>\)\n"
        r"    found:  a value that differs along axis 'i':\n"
        r"(      i=\d, j=\d \(.*\): (0.*|16.*|32.*|48.*|False|True)\n){8}"
        r"    needed: the same value on all devices: Python runs once for all of them\n"
        r"    fix:    make it equal first, for example by jax.lax.pmax\(x, 'i'\); or let each "
        r"device decide for itself, by jnp.where or jax.lax.cond; or only look at it, by print\(x\)"
    )
    with pytest.raises(VaryingValueError, match=text):
        mapped(body, P("i"), P("i"))(X)


def test_error_names_all_axes_along_which_a_value_differs():
    with pytest.raises(
        VaryingValueError, match=r"(?s)differs along axes 'i', 'j'.*pmax\(x, \('i', "
    ):
        mapped(lambda x: x if x[0, 0] > 3 else -x)(X)


def test_only_scalars_become_python_numbers():
    with pytest.raises(VaryingValueError, match=r"(?s)a block of shape \(2, 4\).*needed: a scalar"):
        mapped(lambda x: float(x) * x)(X)


# -------------------------------------------------------------------------- checks of the result


def test_hidden_variation_is_refused_with_the_blocks():
    with pytest.raises(ReplicationError, match=r"result with out_specs=P\('i'\)") as raised:
        mapped(lambda x: x * 2, out_specs=P("i"))(X)
    assert "varies along axis 'j':\n      i=0, j=0" in str(raised.value)
    result = mapped(lambda x: x * 2, out_specs=P("i"), check_vma=False)(X)
    np.testing.assert_array_equal(result, X[:, :4] * 2)


def test_collective_in_a_varying_branch_is_refused():
    def body(x):
        return lax.cond(x[0, 0] > 30, lambda x: lax.psum(x, "i"), lambda x: x, x)

    with pytest.raises(HangError, match="psum"):
        mapped(body)(X)


# ------------------------------------------------------------------- everything a body may contain

ON_MESH = jax.device_put(X[0, :4], NamedSharding(MESH, P("i")))
ON_HOST = np.float32([[1], [2]])
RING = [(k, (k + 1) % 4) for k in range(4)]


@jax.custom_jvp
def doubled(x):
    return 2 * x


doubled.defjvp(lambda primals, tangents: (doubled(*primals), 3 * tangents[0]))


@jax.custom_vjp
def tripled(x):
    return 3 * x


tripled.defvjp(lambda x: (3 * x, x), lambda x, ct: (ct * x,))


def gradient_of_a_shared_weight(x):
    w = jnp.float32(2)
    loss = lambda w: lax.psum(jnp.sum((w * x) ** 2), ("i", "j"))  # noqa: E731
    return x + jax.grad(loss)(w) + jax.jit(jax.grad(loss))(w)


def nested(x):
    specs = {"in_specs": P(None, "j"), "out_specs": P(None, None), "axis_names": {"j"}}
    return shard_map(lambda x: lax.psum(x, "j"), mesh=MESH, **specs)(x)


def random_normal(x, impl):
    place = lax.axis_index("i") * 2 + lax.axis_index("j")
    return x + jax.random.normal(jax.random.fold_in(jax.random.key(0, impl=impl), place), x.shape)


BODIES = {
    "arithmetic": lambda x: jnp.sin(x) * 2 - x / (x.T @ x + 1)[:2],
    "constants": lambda x: x + jnp.arange(4) * np.float32(2) + jnp.ones((2, 1)),
    "sum of a constant over unequal groups": lambda x: (
        x + lax.psum(jnp.float32(3), "i", axis_index_groups=[[0], [1, 2, 3]])
    ),
    "indexing": lambda x: x.at[0].set(x[1]) + x[:, ::-1] + x[lax.axis_index("j"), 0],
    "scan": lambda x: lax.scan(lambda c, r: (c + r, c * 2), jnp.zeros(4), x)[1],
    "while": lambda x: lax.while_loop(lambda c: jnp.sum(c) < 100, lambda c: c + 1, x),
    "cond": lambda x: lax.cond(jnp.sum(x) > 300, jnp.sin, jnp.cos, x),
    "switch": lambda x: lax.switch(lax.axis_index("i"), [jnp.sin, jnp.cos, jnp.abs, jnp.exp2], x),
    "ring loop": lambda x: lax.fori_loop(0, 3, lambda k, c: lax.ppermute(c, "i", RING) + k, x),
    "jit": lambda x: jax.jit(lambda x: lax.pmax(jnp.cos(x), "i") * lax.axis_index("j"))(x),
    "vmap": lambda x: jax.vmap(lambda r: lax.psum(r, "j") + lax.axis_index("i"))(x),
    "vmapped axis": lambda x: jax.vmap(lambda r: lax.psum(r, ("v", "j")), axis_name="v")(x),
    "jvp": lambda x: jax.jvp(lambda x: lax.psum(x * x, "i"), (x,), (x,))[1],
    "grad": lambda x: jax.grad(lambda x: jnp.sum(jnp.tanh(x / 64) ** 2))(x),
    "grad through psum": lambda x: jax.grad(lambda x: lax.psum(jnp.sum(x * x), ("i", "j")))(x),
    "grad of a shared weight": gradient_of_a_shared_weight,
    "vmap of grad": lambda x: jax.vmap(jax.grad(lambda r: jnp.sum(r**3)))(x),
    "checkpoint": lambda x: jax.grad(jax.checkpoint(lambda x: jnp.sum(jnp.sin(jnp.sin(x)))))(x),
    "custom_jvp": lambda x: doubled(x) + jax.jvp(doubled, (x,), (x,))[1],
    "custom_vjp": lambda x: tripled(x) + jax.grad(lambda x: jnp.sum(tripled(x)))(x),
    "random": functools.partial(random_normal, impl="threefry2x32"),
    "random rbg": functools.partial(random_normal, impl="rbg"),
    "pure_callback": lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
    "all_gather": lambda x: lax.all_gather(x, ("j", "i"), tiled=True)[:2],
    "psum_scatter": lambda x: lax.psum_scatter(x, "j", scatter_dimension=1, tiled=True),
    "all_to_all": lambda x: lax.all_to_all(x, "j", 1, 0, tiled=True),
    "groups": lambda x: lax.psum(x, "i", axis_index_groups=[[0, 2], [1, 3]]),
    "closure": lambda x: x + ON_MESH + ON_HOST,
    "dtypes": lambda x: (x.astype(jnp.int8) + jnp.int8(1), x > 3, x.astype(jnp.bfloat16), 1j * x),
}


@functools.cache
def compiled_body(name):
    return jax.jit(mapped(BODIES[name]))(X)


@pytest.mark.parametrize("name", BODIES)
def test_body_equals_the_compiled_one(name, layout):
    same(mapped(BODIES[name]), X, compiled=compiled_body(name))


def test_nested_shard_map(layout):
    same(mapped(nested, P("i"), P("i"), axis_names={"i"}), X)


def test_automatic_axes(layout):
    same(mapped(lambda x: lax.psum(x, "i") * 2, P("i"), P(), axis_names={"i"}), X)


def test_shapes_without_elements_and_dimensions(layout):
    same(mapped(lambda x: x * 2, P("i"), P("i")), np.zeros((4, 0), np.float32))
    same(
        mapped(lambda x, s: lax.psum(s, "i") + jnp.sum(x), (P("i"), P()), P(), check_vma=False),
        X,
        2.0,
    )


def test_keys_go_in_and_out(layout):
    keys = jax.random.split(jax.random.key(0), 4)
    same(mapped(lambda k: jax.vmap(jax.random.split)(k)[:, 0], P("i"), P("i")), keys)


def test_pytrees_static_arguments_and_constant_results():
    def body(tree, mode):
        assert mode == "sum"
        return {
            "total": lax.psum(tree["a"] + tree["b"][0], ("i", "j")),
            "one": 1,
            "zeros": np.zeros(2),
        }

    result = mapped(body, (P("i", "j"), None), P())({"a": X, "b": [X]}, "sum")
    np.testing.assert_array_equal(result["total"], 2 * X.reshape(4, 2, 2, 4).sum((0, 2)))
    assert (int(result["one"]), result["zeros"].shape) == (1, (2,))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_mesh_in_scope_and_explicit_axes(kind):
    mesh = Mesh(DEVICES.reshape(4, 2), ("i", "j"), axis_types=(kind,) * 2)
    x = jax.device_put(X, NamedSharding(mesh, P("i", "j")))
    function = shard_map(
        lambda x: jnp.sin(x) @ jnp.ones((4, 4)) + jnp.zeros(4) + lax.psum(x, "i"),
        mesh=mesh,
        in_specs=P("i", "j"),
        out_specs=P("i", "j"),
    )
    same(function, x)
    with jax.set_mesh(mesh):
        same(function, x)


def test_disable_jit_runs_loops_in_python(layout, capsys):
    function = mapped(lambda x: lax.fori_loop(0, 3, lambda k, x: print("step") or x + k, x))
    with jax.disable_jit():
        result = function(X)
    np.testing.assert_array_equal(result, X + 3)
    assert capsys.readouterr().out == "step\n" * 3


CORNERS = [float(v) for v in X[::2, ::4].ravel()]
"""The first element of each block, in the order of the mesh."""


def test_callbacks_run_in_the_order_of_the_mesh():
    seen = []

    def body(x):
        io_callback(lambda v: seen.append(float(v)), None, x[0, 0], ordered=True)
        return x

    mapped(body)(X)
    assert seen == CORNERS


def test_callback_in_a_branch_runs_where_the_branch_is_taken():
    seen = []

    def body(x):
        def big():
            jax.debug.callback(lambda v: seen.append(float(v)), x[0, 0])

        lax.cond(x[0, 0] > 30, big, lambda: None)
        return x

    mapped(body)(X)
    assert seen == [v for v in CORNERS if v > 30]


def test_callbacks_do_not_raise_the_errors_of_other_programs():
    def fails(value):
        raise KeyError("of another program")

    def failing(x):
        jax.debug.callback(fails, x[0, 0])
        return jax.pure_callback(fails, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def raises(value):
        raise KeyError("of this program")

    def body(x, callback):
        io_callback(callback, None, x[0, 0])
        return x

    with pytest.raises(jax.errors.JaxRuntimeError, match="of another program"):
        jax.block_until_ready(jax.jit(mapped(failing))(X))
    seen = []
    for count in (8, 16):
        np.testing.assert_array_equal(mapped(functools.partial(body, callback=seen.append))(X), X)
        assert len(seen) == count
    with pytest.raises(jax.errors.JaxRuntimeError, match="of this program"):
        mapped(functools.partial(body, callback=raises))(X)
    np.testing.assert_array_equal(mapped(functools.partial(body, callback=seen.append))(X), X)


@pytest.mark.usefixtures("spread")
def test_callback_next_to_a_collective_runs_on_the_devices():
    seen = []

    @jax.jit
    def step(x):
        jax.debug.callback(lambda v: seen.append(float(v)), x[0, 0])
        return lax.psum(x, "i")

    mapped(step, out_specs=P(None, "j"))(X)
    jax.effects_barrier()
    assert sorted(seen) == CORNERS


@pytest.mark.slow
@seed(int(os.environ["SHMAP_PROPERTY_SEED"]))
@settings(
    max_examples=int(os.environ.get("SHMAP_EAGER_EXAMPLES", "12")),  # `make test-random`: 50
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(program=programs())
def test_random_programs(program):
    specs = {"in_specs": program.in_specs, "out_specs": program.out_specs}
    function = shard_map(program, mesh=program.jax_mesh(), **specs)
    rtol = 0 if not any(program.rounded()) else 2**-7
    arrays = program.arrays()
    for a, b in zip(function(*arrays), jax.jit(function)(*arrays), strict=True):
        a, b = np.asarray(a).astype(np.complex128), np.asarray(b).astype(np.complex128)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


def test_optimizer_in_the_body():
    """The gradient of a weight that all devices share is summed over them, as when compiled."""

    def train(w, x):
        optimizer = optax.adam(1e-2)
        state = optimizer.init(w)
        for _ in range(3):
            gradient = jax.grad(lambda w: lax.pmean(jnp.mean((x @ w) ** 2), ("i", "j")))(w)
            updates, state = optimizer.update(gradient, state)
            w = optax.apply_updates(w, updates)
        return w

    same(mapped(train, (P(), BLOCKS), P()), np.ones(4, np.float32), X, rtol=1e-5)


def test_first_derivative_of_a_body_runs_it_again_and_later_ones_do_not():
    runs = []

    def body(x):
        runs.append(None)
        return jax.grad(lambda x: jnp.sum(x * x))(x)

    for _ in range(3):
        np.testing.assert_array_equal(mapped(body)(X), 2 * X)
    assert len(runs) == 4


def test_a_body_that_runs_again_calls_python_once(capfd):
    written = []

    def body(x):
        jax.debug.print("at {}", lax.axis_index("i"))
        total = jax.pure_callback(
            lambda v: (written.append(1), v.sum())[1], jax.ShapeDtypeStruct((), x.dtype), x
        )
        return total * jax.grad(lambda x: jnp.sum(x * x))(x)

    # A body of its own code is not known to differentiate.
    result = mapped(body)(X)
    jax.effects_barrier()
    assert sorted(capfd.readouterr().out.split()) == sorted([*["at"] * 8, *"00112233"])
    assert len(written) == 8
    sums = np.kron(X.reshape(4, 2, 2, 4).sum((1, 3)), np.ones((2, 4)))
    np.testing.assert_allclose(result, 2 * X * sums, rtol=1e-6)


def test_derivative_that_the_types_refuse():
    def body(x):
        def loss(x):
            return jnp.sum(lax.scan(lambda c, r: (c + r, None), jnp.zeros(4), x)[0])

        return jax.grad(loss)(x)

    with pytest.raises(BodyError, match="a derivative taken inside the function"):
        mapped(body)(X)
    np.testing.assert_array_equal(mapped(body, check_vma=False)(X), np.ones_like(X))


@pytest.mark.parametrize("axis_names", [{"i"}, {"i", "j"}], ids=["some axes", "all axes"])
def test_assertions_of_types_refuse_a_derivative_only(axis_names):
    """Of JAX's functions beside an automatic axis, and of collectives along an axis of a vmap."""

    def make(differentiates):
        def body(x):
            rows = jax.vmap(lambda r: r - lax.psum(r, "rows"), axis_name="rows")(x)
            slope = jax.grad(lambda r: jnp.sum(r * r))(x[0]) if differentiates else x[0]
            return jnp.interp(rows, jnp.arange(4.0), slope)

        return mapped(body, P("i"), P("i"), axis_names=axis_names)

    before = np.asarray(make(False)(X[:, :4]))
    for call in (jax.jit, lambda f: f):
        with pytest.raises(BodyError, match=r"(?s)a derivative taken inside.*psum over 'rows'"):
            call(make(True))(X[:, :4])
    np.testing.assert_array_equal(make(False)(X[:, :4]), before)


@pytest.mark.parametrize("loop", ["scan", "while_loop"])
def test_carries_that_become_constant_are_refused_beside_a_derivative_only(loop):
    def make(differentiates):
        def body(x):
            ones = jnp.ones((2, 4))
            if differentiates:
                x = x * jax.grad(lambda r: jnp.sum(r * r))(x)
            if loop == "scan":
                return lax.scan(lambda c, _: (ones, c), x, length=2)[1].sum(0)
            return lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, ones), (0, x))[1]

        return mapped(body)

    for run in (jax.jit, lambda f: f):
        for _ in range(2):  # the second time, the code is known to differentiate
            with pytest.raises(BodyError, match="a derivative taken inside the function"):
                run(make(True))(X)
    same(make(False), X)


def test_assertions_of_the_users_are_raised_as_they_are():
    def body(x):
        slope = jax.grad(lambda x: jnp.sum(x * x))(x)
        assert x.shape == (4, 4), "the user's own"
        return slope

    for _ in range(2):  # the second time, the code is known to differentiate
        with pytest.raises(AssertionError, match="the user's own"):
            mapped(body)(X)


def test_closures_of_one_code_do_not_depend_on_each_other():
    """Types refuse the body that does not differentiate, and needs none."""

    def make(differentiates):
        def body(x):
            if differentiates:
                return jax.grad(lambda x: jnp.sum(x * x))(x)
            return x * lax.scan(lambda c, r: (c + r, None), jnp.zeros(4), x)[0]

        return mapped(body)

    before = np.asarray(make(False)(X))
    np.testing.assert_array_equal(make(True)(X), 2 * X)
    np.testing.assert_array_equal(make(False)(X), before)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["plain", "jitted"])
@pytest.mark.parametrize("log", [lax.log, jnp.log, jax.jit(jnp.log)], ids=["lax", "jnp", "jit"])
def test_debug_nans_points_at_the_users_line(log, wrap):
    """Also if JAX jits the function that is called: its own operations have no such line."""

    def body(x):
        y = x - 100
        return log(y)

    place = rf"log at test/eager/test_eager.py:{body.__code__.co_firstlineno + 2} "
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match=place):
        mapped(wrap(body))(X)


TRANSFORMED = {
    "grad": lambda f, x: jax.grad(lambda x: jnp.sum(f(x)))(x),
    "jvp": lambda f, x: jax.jvp(f, (x,), (x,)),
    "vmap": lambda f, x: jax.vmap(f)(jnp.stack([x, x])),
    "vjp of checkpoint": lambda f, x: jax.vjp(jax.checkpoint(f), x)[1](x),
    "jit of grad": lambda f, x: jax.jit(jax.grad(lambda x: jnp.sum(f(x))))(x),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformations_without_jit_or_nans(name):
    function = mapped(lambda x: lax.psum(jnp.sin(x), "j") * x)
    expected = TRANSFORMED[name](function, jnp.asarray(X))
    for context in (jax.disable_jit(), jax.debug_nans(True), jax.debug_infs(True)):
        with context:
            found = TRANSFORMED[name](function, jnp.asarray(X))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["plain", "jitted"])
@pytest.mark.parametrize("name", ["grad", "jvp", "vmap"])
def test_debug_nans_points_at_the_users_line_under_a_transformation(name, wrap):
    def body(x):
        y = x - 100
        return lax.psum(lax.log(y), "j") * x

    place = rf"log at test/eager/test_eager.py:{body.__code__.co_firstlineno + 2} "
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match=place):
        TRANSFORMED[name](mapped(wrap(body)), jnp.asarray(X))


@pytest.mark.parametrize("setting", [jax.checking_leaks, jax.enable_checks, jax.enable_x64])
def test_under_settings_of_jax(setting):
    with setting(*[True] * (setting is not jax.checking_leaks)):
        same(mapped(lambda x: lax.scan(lambda c, r: (c, lax.psum(r, "i")), 0.0, x)[1] + 1), X)


def constraint(x):
    return lax.with_sharding_constraint(x, P())


CONSTRAINED = {
    "array": lambda: constraint(jnp.ones(4)),
    "NumPy array": lambda: constraint(np.ones(4, np.float32)),
    "number": lambda: constraint(2.0),
    "inside jit": lambda: jax.jit(lambda: constraint(jnp.ones(4)))(),
    "inside cond": lambda: lax.cond(True, lambda: constraint(jnp.ones(4)), lambda: jnp.ones(4)),
}


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("name", CONSTRAINED)
def test_sharding_constraints_of_constants(name, axis_type):
    mesh = Mesh(MESH.devices, MESH.axis_names, axis_types=(axis_type,) * 2)
    make = CONSTRAINED[name]
    for axes in ({"i", "j"}, {"i"}):
        options = {"mesh": mesh, "in_specs": P("i"), "out_specs": P("i"), "axis_names": axes}
        x = jax.device_put(X[:, :4], NamedSharding(mesh, P("i")))
        f = shard_map(lambda x: x + make(), **options)
        same(f, x)
        expected = jax.shard_map(lambda x: x + make(), **options)(x)
        np.testing.assert_array_equal(f(x), expected)


# ------------------------------------------------------------------------------- transformations


def test_gradient_of_an_eager_call():
    function = mapped(lambda x: jnp.sin(x) * lax.psum(x, "i"))
    loss = lambda x: jnp.sum(function(x))  # noqa: E731
    np.testing.assert_allclose(jax.grad(loss)(X), jax.jit(jax.grad(loss))(X), rtol=1e-5)


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("w_spec", [P(None, "j"), P(), P(None, None)])
def test_derivatives_are_split_by_the_specs_as_written(axis_type, w_spec):
    """With the entries None that they end with, or without, as by `jax.shard_map`."""
    mesh = Mesh(MESH.devices, MESH.axis_names, axis_types=(axis_type,) * 2)
    x = jax.device_put(jnp.ones((8, 4, 6)), NamedSharding(mesh, P("i", None, None)))
    w = jax.device_put(jnp.ones((6, 4)), NamedSharding(mesh, w_spec))

    def specs_of(shard_map):
        columns = tuple(w_spec)[1:] if "j" in w_spec else ()
        options = {"in_specs": (P("i", None, None), w_spec), "out_specs": P("i", None, *columns)}
        f = shard_map(lambda x, w: jnp.tanh(x @ w), mesh=mesh, **options)
        y, transposed = jax.vjp(f, x, w)
        found = y, transposed(y), jax.jvp(f, (x, w), (x, w))
        return [array.sharding.spec for array in jax.tree.leaves(found)]

    assert specs_of(shard_map) == specs_of(jax.shard_map)


def test_transformed_calls_on_arrays_without_elements():
    """On JAX up to 0.11 those of `jax.shard_map` cannot be read."""
    f = mapped(lambda x: 2 * lax.ppermute(x, "i", [(0, 1), (1, 0)]), P("i", "j"), P("j", "i"))
    x = jnp.zeros((2, 8, 0))
    found = [
        jax.vmap(f)(x),
        jax.grad(lambda x: jnp.sum(f(x)))(x[0]),
        jax.grad(lambda x: jnp.sum(jax.vmap(f)(x)))(x),
        jax.linearize(f, x[0])[1](x[0]),
    ]
    rows = MESH.shape["j"] * 8 // MESH.shape["i"]
    assert [np.asarray(a).shape for a in found] == [(2, rows, 0), (8, 0), (2, 8, 0), (rows, 0)]
    assert [a.sharding.spec for a in found] == [
        P(None, "j", "i"), P("i", "j"), P(None, "i", "j"), P("j", "i"),
    ]  # fmt: skip


def transformed(name, call):
    """Runs `call`, whose arguments are concrete, inside a transformation."""
    {
        "jit": lambda: jax.jit(call)(),
        "grad": lambda: jax.grad(lambda w: w * jnp.sum(call()))(1.0),
        "vmap": lambda: jax.vmap(lambda w: w * jnp.sum(call()))(jnp.ones(2)),
        "scan": lambda: lax.scan(lambda c, _: (c + jnp.sum(call()), None), 0.0, length=2),
    }[name]()


@pytest.mark.parametrize("name", ["jit", "grad", "vmap", "scan"])
def test_concrete_arguments_inside_a_transformation_are_traced(name):
    seen = []
    function = mapped(lambda x: seen.append(isinstance(x, EagerValue)) or x + 1)
    transformed(name, lambda: function(X))
    assert seen == [False]
    function(X)
    assert seen == [False, True]


# --------------------------------------------------------------------------- the cache of programs


def misses(function, *args):
    before = PROGRAMS.misses
    jax.block_until_ready(function(*args))
    return PROGRAMS.misses - before


def test_second_call_compiles_nothing(caplog):
    def call():
        # Everything is built anew, and closes over new objects.
        scale = 2.5

        def step(c, r):
            return c + scale * r, jnp.tanh(doubled(r))

        def body(x):
            _, rows = lax.scan(step, jnp.zeros(4), tripled(x))
            return rows + jax.vmap(lambda r: jnp.where(r > 1, r, 0))(x)

        return mapped(body)(X)

    def compiled():
        caplog.clear()
        with jax.log_compiles():
            jax.block_until_ready(call())
        return [r.getMessage() for r in caplog.records if "Compiling" in r.getMessage()]

    assert compiled()
    assert misses(call) == 0
    assert not compiled()


def test_types_and_meshes_get_programs_of_their_own():
    body = lambda x: lax.sinh(x)  # noqa: E731
    jax.block_until_ready(mapped(body)(X))
    assert misses(mapped(body), X[:4]) == 1
    assert misses(mapped(body), X.astype(jnp.bfloat16)) == 1
    transposed = shard_map(
        body,
        mesh=Mesh(DEVICES.reshape(2, 4), ("i", "j")),
        in_specs=P("j", "i"),
        out_specs=P("j", "i"),
    )
    assert misses(transposed, X) == 1


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (lambda c: lambda x: jax.jit(lambda x: x * c)(x), [2.0, 3.0, jnp.float32(2.5)]),
        (lambda c: lambda x: jax.jit(lambda x: x + c)(x), [np.arange(4.0), np.arange(4.0) + 1]),
        (
            lambda c: lambda x: lax.scan(lambda s, r: (s, r * c), 0.0, x)[1],
            [jnp.ones(4), 2 * jnp.ones(4)],
        ),
        (lambda p: lambda x: x**p, [2, 3]),
        (lambda d: lambda x: lax.rev(x, (d,)), [0, 1]),
        (lambda f: lambda x: lax.cond(x[0, 0] >= 0, f, f, x), [jnp.sin, jnp.cos]),
        (
            lambda f: lambda x: jax.pure_callback(f, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
            [np.sin, np.cos],
        ),
        (lambda z: lambda x: jax.jit(lambda x: jnp.copysign(x, z))(x), [-0.0, 0.0]),
        (lambda r: lambda x: lax.ppermute(x, "i", r), [RING, [(t, s) for s, t in RING]]),
    ],
    ids=["scalar", "numpy", "array", "power", "axis", "branch", "callback", "zero", "ring"],
)
def test_programs_that_differ_in_one_value_give_different_results(make, values):
    """Twice, so that each program is also taken from the cache."""
    for _ in range(2):
        results = [np.asarray(mapped(make(v))(X)).tobytes() for v in values]
        assert len(set(results)) == len(values)
        assert results == [np.asarray(jax.jit(mapped(make(v)))(X)).tobytes() for v in values]


@pytest.mark.parametrize("number", [1, 2.5])
def test_a_number_put_on_devices_keeps_its_weak_type(number):
    def body(x):
        assert jax.device_put(number).weak_type
        return x + jax.device_put(number)

    x = np.arange(8, dtype=np.float32)
    with jax.numpy_dtype_promotion("strict"):
        result = shard_map(body, mesh=MESH, in_specs=P("i"), out_specs=P("i"))(x)
    np.testing.assert_array_equal(result, x + number)


MOVES = {
    "device_put": jax.device_put,
    "device_put_of_a_tree": lambda x: jax.device_put([x, x])[1],
    "reshard": lambda x: jax.sharding.reshard(x, P()),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_a_value_moved_to_where_it_lies_compiles_nothing(move):
    x = np.arange(8, dtype=np.float32)
    moved = shard_map(move, mesh=MESH, in_specs=P("i"), out_specs=P("i"))
    assert misses(moved, x) == 0
    np.testing.assert_array_equal(moved(x), x)


def test_weak_types_are_part_of_the_key():
    types = []

    def body(x):
        types.append((x * jnp.bfloat16(1)).dtype)
        return x

    for x in (2.0, np.float32(2)):
        mapped(body, P(), P())(x)
    assert types == [jnp.bfloat16, jnp.float32]


def test_equal_values_of_other_types_have_other_keys():
    values = [1, 1.0, True, 0.0, -0.0, 1 + 0j, 1 + 1j, "1", (1,), [1], None]
    values += [np.float32(1), np.float64(1), np.float32(0), np.int32(0), np.zeros((1, 2))]
    values += [np.zeros((2, 1)), jnp.ones(1), jnp.ones(1)]
    assert len({key(v) for v in values}) == len(values)
    assert key(float("nan")) == key(float("nan"))


def test_jaxprs_built_anew_have_equal_keys():
    def make(scale):
        return jax.make_jaxpr(lambda x: jnp.where(x > 0, jnp.sin(x) * scale, x))(1.0)

    assert jaxpr_key(make(2.0)) == jaxpr_key(make(2.0))
    assert jaxpr_key(make(2.0)) != jaxpr_key(make(3.0))


def test_wiring_is_part_of_the_key():
    left = jax.make_jaxpr(lambda x, y: x - y)(1.0, 2.0)
    right = jax.make_jaxpr(lambda x, y: y - x)(1.0, 2.0)
    swapped = jax.make_jaxpr(lambda x, y: (x, y))(1.0, 2.0)
    straight = jax.make_jaxpr(lambda x, y: (y, x))(1.0, 2.0)
    assert len({jaxpr_key(j) for j in (left, right, swapped, straight)}) == 4


def test_constants_and_contexts_are_part_of_the_key():
    def make(value):
        return jax.make_jaxpr(lambda x: x + value)(np.ones(3, np.float32))

    with jax.threefry_partitionable(not jax.config.jax_threefry_partitionable):
        other = make(1.0)
    jaxprs = [make(jnp.arange(3)), make(jnp.arange(1, 4)), make(1.0), other]
    assert len({jaxpr_key(j) for j in jaxprs}) == 4


def test_specs_are_part_of_the_key():
    graph = shard_map(lambda x: x, mesh=MESH, in_specs=P("i"), out_specs=P("i")).trace(X)
    for change in ({"in_specs": (P("j"),)}, {"out_specs": (P("j"),)}):
        assert key(dataclasses.replace(graph, **change)) != key(graph)


def test_identities_in_keys_are_kept_alive():
    arrays = [jnp.ones(3) for _ in range(3)]
    keys = {key(a) for a in arrays}
    del arrays
    assert all(key(jnp.ones(3)) not in keys for _ in range(100))


def test_settings_are_part_of_the_key():
    body = lambda x: lax.dot(x, x.T)  # noqa: E731
    function = mapped(body, P("i"), P("i"))
    jax.block_until_ready(function(X))
    with jax.default_matmul_precision("highest"):
        assert misses(function, X) > 0


def test_the_generator_setting_is_part_of_the_key():
    function = mapped(lambda x: x + jax.random.bits(jax.random.key(0), (2, 4)).astype(jnp.float32))
    results = []
    for partitionable in (True, False, True):
        with jax.threefry_partitionable(partitionable):
            results.append(np.asarray(function(X)))
            np.testing.assert_array_equal(results[-1], jax.jit(function)(X))
    assert not np.array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.skipif(not hasattr(jax.config, "jax_accurate_erf_inv"), reason="from JAX 0.12 on")
def test_the_accuracy_of_erf_inv_is_part_of_the_key():
    near_one = np.float32(1) - np.float32(2) ** -np.arange(1, 17, dtype=np.float32)
    function = mapped(lax.erf_inv, P("i"), P("i"))
    results = []
    for accurate in (True, False, True):
        with jax.config._value_holders["jax_accurate_erf_inv"](accurate):
            results.append(np.asarray(function(near_one)))
            np.testing.assert_array_equal(results[-1], lax.erf_inv(near_one))
    assert not np.array_equal(results[0], results[1])


FLOAT0 = jax.dtypes.float0
TANGENTS_OF_INTEGERS = {
    "argument": (lambda t: t, P("i")),
    "replicated": (lambda t: np.zeros(3, FLOAT0), P()),
    "another shape": (lambda t: t.reshape(1, -1), P(None, "i")),
    "beside others": (lambda t: (t, jnp.ones(2)), (P("i"), P("i"))),
    "derivative": (lambda t: jax.jvp(lambda x: x, (jnp.arange(2),), (t,)), (P(), P("i"))),
}


@pytest.mark.parametrize("what", TANGENTS_OF_INTEGERS)
@pytest.mark.parametrize("axes", [{"i", "j"}, {"i"}], ids=["all axes", "an axis"])
def test_tangents_of_integers(layout, axes, what):
    body, out_specs = TANGENTS_OF_INTEGERS[what]
    function = shard_map(body, mesh=MESH, in_specs=P("i"), out_specs=out_specs, axis_names=axes)
    t = np.zeros(8, FLOAT0)
    found, expected = jax.tree.leaves(function(t)), jax.tree.leaves(jax.jit(function)(t))
    assert [(x.shape, x.dtype) for x in found] == [(x.shape, x.dtype) for x in expected]


def test_a_tangent_of_integers_that_varies_is_refused_where_specs_do_not_say_so(layout):
    function = shard_map(lambda t: t, mesh=MESH, in_specs=P("i"), out_specs=P())
    with pytest.raises(ReplicationError, match="that varies along axis 'i'"):
        function(np.zeros(8, FLOAT0))


def test_whether_hangs_are_checked_is_part_of_the_key():
    """What ran unchecked is checked when it is asked for."""

    def body(x):
        return lax.cond(x[0, 0] < -1, lambda x: lax.pmin(x, "i"), lambda x: x, x)

    np.testing.assert_array_equal(mapped(body, check_hangs=False)(X), X)
    with pytest.raises(HangError, match="pmin"):
        mapped(body)(X)


def test_a_weak_type_between_strong_ones_gets_a_program_of_its_own():
    """bfloat16 times a Python float stays bfloat16, times a float32 scalar it does not.

    The type that decides is that of the result of neg, a program that is kept.
    """
    x = X.astype(jnp.bfloat16)
    for _ in range(2):
        for scalar, dtype in ((2.0, jnp.bfloat16), (np.float32(2), jnp.float32)):
            function = mapped(lambda x, s: x * lax.neg(s), (BLOCKS, P()), BLOCKS)
            assert function(x, scalar).dtype == jax.jit(function)(x, scalar).dtype == dtype


def test_changed_keyword_defaults_are_seen():
    def body(x, *, scale=2.0):
        return x * scale

    function = mapped(body)
    for scale in (2.0, 3.0, 2.0):
        body.__kwdefaults__ = {"scale": scale}
        np.testing.assert_array_equal(function(X), X * scale)
        np.testing.assert_array_equal(jax.jit(mapped(body))(X), X * scale)
        np.testing.assert_array_equal(function.lower(X).compile()(X), X * scale)


def test_cache_keeps_what_was_used_last():
    cache = Cache(maxsize=2)
    for k in (1, 2, 1, 3):
        cache.get(k, lambda k=k: -k)
    assert (len(cache), cache.hits, cache.misses) == (2, 1, 3)
    assert [cache.get(k, lambda: "made anew") for k in (1, 3, 2)] == [-1, -3, "made anew"]
    cache.clear()
    assert (len(cache), cache.hits, cache.misses) == (0, 0, 0)


def test_programs_are_bounded(monkeypatch):
    monkeypatch.setattr(PROGRAMS, "maxsize", 4)
    for n in range(1, 4):
        jax.block_until_ready(mapped(lambda x, n=n: jnp.exp2(x[:, :n]) + 1)(X))
        assert len(PROGRAMS) <= 4


def test_calls_from_several_threads():
    expected = np.asarray(jax.jit(mapped(BODIES["ring loop"]))(X))
    results = []

    def call():
        for _ in range(3):
            results.append(np.asarray(mapped(BODIES["ring loop"])(X)))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 12
    for result in results:
        np.testing.assert_array_equal(result, expected)


def test_many_calls_keep_no_memory():
    function = mapped(lambda x: jax.jit(lambda x: x * 2)(x) + lax.psum(x, "i"))
    jax.block_until_ready(function(X))
    gc.collect()
    arrays, programs_kept = len(jax.live_arrays()), len(PROGRAMS)
    for _ in range(100):
        jax.block_until_ready(function(X))
    gc.collect()
    assert (len(jax.live_arrays()), len(PROGRAMS)) == (arrays, programs_kept)


@pytest.mark.parametrize("spec", [P("i", "j"), P(None, "i"), P(("j", "i")), P()])
def test_split_arguments_and_results_do_not_pass_through_the_host(spec):
    x = jax.device_put(X, NamedSharding(MESH, spec))
    function = mapped(lambda x: lax.neg(x), spec, spec)
    function(x)
    with jax.transfer_guard_host_to_device("disallow_explicit"):
        result = jax.block_until_ready(function(x))
    assert result.sharding.is_equivalent_to(x.sharding, 2)
    np.testing.assert_array_equal(result, -X)


def test_large_arguments_stay_on_their_devices(monkeypatch):
    monkeypatch.setattr("shmap_compiler.eager.run.LARGE", X.nbytes)
    forms = []
    function = mapped(lambda x: forms.append(type(x.layout)) or lax.neg(x))
    x = jax.device_put(X, NamedSharding(MESH, BLOCKS))
    function(x)
    with jax.transfer_guard("disallow_explicit"):
        result = jax.block_until_ready(function(x))
    np.testing.assert_array_equal(result, -X)
    function(x[:4])
    assert forms == [PerDevice, PerDevice, Vmapped]


@pytest.mark.parametrize("guard", [jax.transfer_guard, jax.transfer_guard_device_to_device])
def test_arguments_stay_on_their_devices_where_moves_are_forbidden(guard):
    function = mapped(lambda x: lax.psum(jnp.sin(x), "i"), BLOCKS, P(None, "j"))
    x = jax.device_put(X, NamedSharding(MESH, BLOCKS))
    expected = function(x)
    with guard("disallow_explicit"):
        result = jax.block_until_ready(function(x))
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_host_platform_meshes_use_the_stacked_form():
    forms = []
    mapped(lambda x: forms.append(type(x.layout)) or x)(X)
    assert forms == [Vmapped]


@pytest.mark.parametrize("check_vma", [True, False])
def test_values_have_the_types_of_what_programs_compute_from_them(layout, check_vma):
    def types(x, y):
        made = jnp.ones(2)
        for value in (x, made, lax.psum(x, "i"), made * 2):
            assert jax.typeof(value) == jax.typeof(value * 1)
            assert jax.eval_shape(lambda v=value: v) == jax.eval_shape(lambda v=value: v * 1)
        return jax.jit(lambda x: x if jax.typeof(x) == jax.typeof(x * 1) else y)(x)

    f = mapped(types, (BLOCKS, BLOCKS), check_vma=check_vma)
    np.testing.assert_array_equal(f(X, -X), X)


def test_a_rule_for_vmap_that_nothing_calls():
    """Eager calls vmap operations over the devices; such rules are for the user's own vmaps."""

    @jax.custom_batching.custom_vmap
    def doubled(b):
        return 2 * b

    @doubled.def_vmap
    def _(size, batched, b):
        return 2 * b + 100, True

    summed = jax.custom_batching.sequential_vmap(lambda b: lax.psum(b, "i"))
    same(mapped(lambda b: doubled(b) + jax.jit(doubled)(b)), X)
    same(mapped(summed, out_specs=P(None, "j")), X)


def same_value(name, rule=None, table=batching.primitive_batchers):
    """A primitive of the user's that returns its operand, with a rule for jax.vmap."""
    primitive = Primitive(name)
    primitive.def_impl(lambda x: x)
    primitive.def_abstract_eval(lambda x: x)
    mlir.register_lowering(primitive, mlir.lower_fun(lambda x: x, multiple_results=False))
    if rule:
        table[primitive] = rule
    return primitive


def largest(values, dims):
    """A rule for a value that is the same for all elements of the user's jax.vmap."""
    return jnp.max(values[0], dims[0]), None


@functools.wraps(batching.broadcast)  # it then claims to be JAX's
def largest_of(data, values, dims):
    return largest(values, dims)


def raises(values, dims):
    raise ValueError("not for jax.vmap")


class Largest:
    def rule(self, values, dims):
        return largest(values, dims)


OWN_RULES = {
    "plain": same_value("largest", largest),
    "with the axis": same_value("largest_fancy", largest_of, batching.fancy_primitive_batchers),
    "with its size": same_value(
        "largest_axis",
        lambda size, name, _, *args: largest(*args),
        batching.axis_primitive_batchers,
    ),
    "partial": same_value(
        "largest_partial",
        functools.partial(
            lambda rule, data, *args: rule(*args), jax.jit(largest, static_argnums=1)
        ),
        batching.fancy_primitive_batchers,
    ),
    "method": same_value("largest_method", Largest().rule),
    "raises": same_value("raises", raises),
}
unvmapped = OWN_RULES["plain"].bind


@pytest.mark.parametrize("name", OWN_RULES)
def test_a_primitive_with_a_rule_for_vmap_that_nothing_calls(name):
    same(mapped(lambda b: b - OWN_RULES[name].bind(b)), X)


class OtherPrimitive(Primitive):
    """Of another package: its `bind` may do more than its rules say."""


def test_primitives_of_other_classes_count_as_having_such_rules():
    for cls, is_foreign in ((Primitive, False), (OtherPrimitive, True)):
        primitive = cls("vectorized")
        batching.defvectorized(primitive)
        assert has_foreign_rule(primitive) == is_foreign


@jax.custom_jvp
def zeros(b):
    return b - unvmapped(b)


zeros.defjvp(lambda primals, tangents: (zeros(*primals), tangents[0]))

HOLDERS = {
    "jit": jax.jit(lambda b: b - unvmapped(b)),
    "cond": lambda b: lax.cond(b[0, 0] > 9, lambda b: b - unvmapped(b), lambda b: b, b),
    "scan": lambda b: lax.scan(lambda c, row: (c, row - unvmapped(row)), 0, b)[1],
    "checkpoint": jax.checkpoint(lambda b: b - unvmapped(b)),
    "custom_jvp": jax.jit(zeros),
    "vmap": lambda b: jax.vmap(lambda row: row - unvmapped(row))(b),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_such_a_primitive_in_a_program(name):
    same(mapped(HOLDERS[name]), X)


def test_such_a_primitive_under_vmap_of_the_call():
    batch = jnp.stack([X, X + 1])
    for f in (mapped(lambda b: b - unvmapped(b)), mapped(jax.jit(lambda b: b - unvmapped(b)))):
        np.testing.assert_array_equal(jax.vmap(f)(batch), jnp.stack([0 * X - 1, 0 * X]))


def test_operations_with_rules_of_jax_stay_on_one_device(monkeypatch):
    made = same_value("vectorized")
    batching.defvectorized(made)
    monkeypatch.delattr(Vmapped, "_compile_over_devices")
    for name in ["arithmetic", "indexing", "scan", "while", "cond", "jit", "psum_scatter"]:
        PROGRAMS.clear()
        mapped(lambda b, body=BODIES[name]: made.bind(body(b)))(X)
