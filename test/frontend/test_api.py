"""What `shard_map` accepts, and how its results lie on the devices."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from run_module import jax_partitioner

from shmap_compiler import Graph, ShardMapped, shard_map, smap

X = np.arange(8 * 6, dtype=np.float32).reshape(8, 6)


def mesh_of(shape, names, axis_type=AxisType.Auto):
    return jax.make_mesh(shape, names, axis_types=(axis_type,) * len(names))


MESH = mesh_of((4, 2), ("i", "j"))


def mapped(fun, in_specs, out_specs, mesh=MESH, **options):
    return shard_map(fun, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)


def assert_lies_as(result, mesh, spec):
    assert isinstance(result, jax.Array)
    assert result.sharding.is_equivalent_to(NamedSharding(mesh, spec), result.ndim)


# ------------------------------------------------------------------------ ways to write and call


def test_decorator_with_partial():
    @partial(shard_map, mesh=MESH, in_specs=P("i", "j"), out_specs=P("i"))
    def row_sums(x):
        """Sums rows."""
        return lax.psum(x.sum(1), "j")

    assert isinstance(row_sums, ShardMapped)
    assert (row_sums.__name__, row_sums.__doc__) == ("row_sums", "Sums rows.")
    np.testing.assert_array_equal(row_sums(X), X.sum(1))


class Doubling:
    """Doubles."""

    def __call__(self, x):
        return 2 * x


def power(x, exponent):
    return x**exponent


@pytest.mark.parametrize(
    ("fun", "name"),
    [
        (partial(power, exponent=2), "power"),
        (partial(partial(power), exponent=2), "power"),
        (Doubling(), "Doubling"),  # of JAX's an "<unnamed function>"
    ],
    ids=["partial", "partial of partial", "object"],
)
def test_the_name_of_a_function_without_a_name(fun, name):
    ours, theirs = (
        mapper(fun, mesh=MESH, in_specs=P("i"), out_specs=P("i"))
        for mapper in (shard_map, jax.shard_map)
    )
    assert ours.__name__ == ours.__qualname__ == name
    assert theirs.__name__ == theirs.__qualname__ in (name, "<unnamed function>")
    assert (ours.__doc__, ours.__wrapped__) == (theirs.__doc__, theirs.__wrapped__)
    assert f"module @jit_{name} " in jax.jit(ours).lower(X).as_text()


def test_decorator_with_keywords_only():
    @shard_map(mesh=MESH, in_specs=P("i"), out_specs=P("i"))
    def double(x):
        return 2 * x

    np.testing.assert_array_equal(double(X), 2 * X)


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["direct", "jit"])
def test_called_directly_and_inside_jit(wrap, axis_type):
    mesh = mesh_of((4, 2), ("i", "j"), axis_type)
    function = wrap(mapped(lambda x: lax.psum(x, "i"), P("i", "j"), P(None, "j"), mesh))
    result = function(X)
    np.testing.assert_array_equal(result, X.reshape(4, 2, 6).sum(0))
    assert_lies_as(result, mesh, P(None, "j"))


def test_two_programs_in_one_jit():
    rows = mapped(lambda x: lax.psum(x, "i"), P("i"), P())
    columns = mapped(lambda x: x - lax.axis_index("j"), P(None, "j"), P(None, "j"))
    result = jax.jit(lambda x: columns(rows(x)) + 1)(X)
    expected = X.reshape(4, 2, 6).sum(0) - np.repeat([0, 1], 3) + 1
    np.testing.assert_array_equal(result, expected)


def test_replace_gives_the_function_with_another_mesh():
    function = mapped(lambda x: x + lax.axis_size("i"), P("i"), P("i"))
    other = function.replace(mesh=mesh_of((2, 4), ("i", "j")))
    np.testing.assert_array_equal(function(X), X + 4)
    np.testing.assert_array_equal(other(X), X + 2)


def test_replace_keeps_the_axes():
    function = mapped(lambda x: lax.psum(x, "i"), P("i"), P(), axis_names={"i"})
    other = function.replace(mesh=mesh_of((2, 4), ("i", "j")))
    assert other.axis_names == {"i"}
    np.testing.assert_array_equal(jax.jit(other)(X), X.reshape(2, 4, 6).sum(0))


def test_method_as_function():
    class Layer:
        scale = 3

        @partial(shard_map, mesh=MESH, in_specs=(None, P("i")), out_specs=P("i"))
        def __call__(self, x):
            return self.scale * x

    np.testing.assert_array_equal(Layer()(X), 3 * X)


def test_callable_object_and_bound_method_as_function():
    class Scale:
        def __init__(self, factor):
            self.factor = factor

        def __call__(self, x):
            return self.factor * x

        def method(self, x):
            return self(x)

    for function in (Scale(5), Scale(5).method, partial(lax.mul, np.float32(5))):
        np.testing.assert_array_equal(mapped(function, P("i"), P("i"))(X), 5 * X)


# ------------------------------------------------------------------------------------- arguments


def test_pytrees_with_a_spec_per_leaf_and_with_prefixes():
    def layer(params, x):
        y = x @ params["w"] + params["b"]["bias"]
        return {"y": y, "sums": (y.sum()[None], lax.psum(y.sum(), ("i", "j")))}

    params = {"w": np.ones((6, 4), np.float32), "b": {"bias": np.arange(4, dtype=np.float32)}}
    leafwise = ({"w": P(None, "j"), "b": {"bias": P("j")}}, P("i"))
    by_prefix = ({"w": P(None, "j"), "b": P("j")}, P("i"))
    out_specs = {"y": P("i", "j"), "sums": (P(("i", "j")), P())}
    expected = X @ params["w"] + params["b"]["bias"]
    for in_specs in (leafwise, by_prefix):
        result = mapped(layer, in_specs, out_specs)(params, X)
        assert jax.tree.structure(result) == jax.tree.structure(out_specs)
        np.testing.assert_array_equal(result["y"], expected)
        blocks = expected.reshape(4, 2, 2, 2).sum((1, 3))
        np.testing.assert_array_equal(result["sums"][0], blocks.reshape(-1))
        np.testing.assert_array_equal(result["sums"][1], expected.sum())


def test_in_specs_may_be_a_list_and_out_specs_a_prefix():
    first, second = mapped(lambda x, y: (x, x + y), [P("i"), P("i")], P("i"))(X, X)
    np.testing.assert_array_equal(first, X)
    np.testing.assert_array_equal(second, 2 * X)


def test_no_arguments_and_no_results():
    np.testing.assert_array_equal(mapped(lambda: jnp.arange(3), (), P())(), [0, 1, 2])
    np.testing.assert_array_equal(
        mapped(lambda: lax.axis_index(("j", "i"))[None], (), P(("j", "i")))(), np.arange(8)
    )
    assert mapped(lambda x: (), P("i"), ())(X) == ()
    assert mapped(lambda x: None, P("i"), P())(X) is None


@pytest.mark.parametrize("call", ["direct", "jit"])
def test_arguments_without_spec_reach_the_function_as_they_are(call):
    seen = []

    def body(x, mode, options, factor):
        seen.append((mode, options, factor))
        return x * factor if mode == "scale" else x

    function = mapped(body, (P("i"), None, None, None), P("i"))
    options = {"name": "adam", "steps": (1, 2.0)}
    if call == "jit":
        result = jax.jit(lambda x: function(x, "scale", options, 3))(X)
    else:
        result = function(X, "scale", options, 3)
    np.testing.assert_array_equal(result, 3 * X)
    assert seen == [("scale", options, 3)]
    assert type(seen[0][2]) is int


def test_closure_over_arrays_of_all_kinds():
    w = jnp.arange(6.0)
    table = np.eye(6, dtype=np.float32)
    on_mesh = jax.device_put(X[0], NamedSharding(MESH, P("j")))

    def body(x):
        return x @ table + w + on_mesh + 1.5

    function = mapped(body, P("i"), P("i"))
    expected = X + np.arange(6) + X[0] + 1.5
    np.testing.assert_array_equal(function(X), expected)
    np.testing.assert_array_equal(jax.jit(function)(X), expected)
    np.testing.assert_array_equal(function.lower(X).compile()(X), expected)


def test_closure_over_values_of_an_enclosing_jit():
    def outer(x, y):
        return mapped(lambda block: block + y.sum(), P("i"), P("i"))(x)

    np.testing.assert_array_equal(jax.jit(outer)(X, X), X + X.sum())
    # Here all arguments of the call are concrete, and only the closure is traced.
    np.testing.assert_array_equal(jax.jit(partial(outer, X))(X), X + X.sum())


@pytest.mark.parametrize("scalar", [2, 2.5, True, np.float32(2.5), np.int8(2), jnp.float32(2.5)])
def test_scalars(scalar):
    function = mapped(lambda x: (x, lax.psum(x, "j")), P(), P())
    same, total = function(scalar)
    expected = jax.jit(lambda x: (x, lax.add(x * 1, x * 1)))(jnp.asarray(scalar))
    assert (same.dtype, same.shape) == (expected[0].dtype, ())
    assert same == expected[0]
    assert float(total) == 2 * float(scalar)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "bfloat16", "float16", "complex64"])
def test_dtypes(dtype):
    x = (np.arange(8) % 3).astype(jnp.dtype(dtype))

    def body(x):
        right = [(i, (i + 1) % 4) for i in range(4)]
        return lax.ppermute(x, "i", right), lax.all_gather(x, "i", tiled=True)

    shifted, gathered = mapped(body, P("i"), (P("i"), P()))(x)
    assert shifted.dtype == gathered.dtype == x.dtype
    np.testing.assert_array_equal(shifted, np.roll(x, 2))
    np.testing.assert_array_equal(gathered, x)


def test_random_keys():
    keys = jax.random.split(jax.random.key(7), 4)

    def body(keys):
        (key,) = keys
        return jax.random.normal(key, (1, 3)), jax.random.fold_in(key, 1)[None]

    numbers, folded = mapped(body, P("i"), P("i"))(keys)
    assert folded.dtype == keys.dtype
    for n in range(4):
        np.testing.assert_array_equal(numbers[n], jax.random.normal(keys[n], (3,)))
        assert folded[n] == jax.random.fold_in(keys[n], 1)


def test_zero_size():
    empty = np.zeros((0, 6), np.float32)
    function = mapped(lambda x: (x + 1, lax.psum(x.sum(), ("i", "j"))), P("i", "j"), (P("i"), P()))
    for wrap in (lambda f: f, jax.jit):
        grown, total = wrap(function)(empty)
        assert (grown.shape, grown.dtype) == ((0, 3), np.float32)
        assert total == 0


@pytest.mark.parametrize("dtype", ["float32", "bool", "complex64", "int4"])
def test_arguments_of_zero_size_only(dtype):
    """XLA knows no device from arguments that it folds away."""
    function = mapped(lambda x: (x, lax.axis_index("i")[None] + x.size), P(), (P(), P("i")))
    same, positions = jax.jit(function)(jnp.zeros((0, 6), dtype))
    assert (same.shape, same.dtype) == ((0, 6), jnp.dtype(dtype))
    np.testing.assert_array_equal(positions, np.arange(MESH.shape["i"]))


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("size", [1, 2])
def test_calls_that_return_zero_sizes_beside_an_automatic_axis(partitioner, size):
    """If that has size one, XLA's older partitioner aborts on it with `jax.shard_map`."""

    @jax.jit
    def none_and_one(x):
        return jnp.zeros((0, 3)), x + 1

    mesh = jax.make_mesh((2, size), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    function = shard_map(
        none_and_one, mesh=mesh, in_specs=P("i"), out_specs=(P(), P("i")), axis_names={"i"}
    )
    with jax_partitioner(partitioner):
        none, one = jax.block_until_ready(jax.jit(function)(jnp.arange(4.0)))
    assert none.shape == (0, 3)
    np.testing.assert_array_equal(one, [1, 2, 3, 4])


# ---------------------------------------------------------------------------------------- meshes


def position_of_each_device(mesh):
    """What each device believes its position to be, by device id."""
    axes = mesh.axis_names
    function = mapped(lambda: lax.axis_index(axes)[None], (), P(axes), mesh)
    return {s.device.id: int(s.data[0]) for s in function().addressable_shards}


@pytest.mark.usefixtures("equal_programs_compile_once")
@pytest.mark.parametrize("ids", [[0, 1, 2, 3], [5, 2, 7, 0], [3, 2, 1, 0]], ids=str)
@pytest.mark.parametrize("shape", [{"i": 4}, {"i": 2, "j": 2}, {"j": 1, "i": 4}], ids=str)
def test_mesh_over_some_of_the_devices_in_any_order(ids, shape):
    devices = np.array([jax.devices()[k] for k in ids]).reshape(tuple(shape.values()))
    mesh = Mesh(devices, tuple(shape), axis_types=(AxisType.Auto,) * len(shape))
    assert position_of_each_device(mesh) == {k: n for n, k in enumerate(ids)}
    n = shape["i"]
    right = [(k, (k + 1) % n) for k in range(n)]
    result = mapped(lambda x: lax.ppermute(x, "i", right), P("i"), P("i"), mesh)(X)
    np.testing.assert_array_equal(result, np.roll(X, 8 // n, axis=0))
    assert result.sharding.device_set == set(devices.flat)


@pytest.mark.parametrize("shape", [{"i": 1}, {"i": 1, "j": 1}], ids=str)
def test_mesh_of_one_device(shape):
    mesh = mesh_of(tuple(shape.values()), tuple(shape))
    axes = tuple(shape)

    def body(x):
        gathered = lax.all_gather(x, axes, tiled=True)
        scattered = lax.psum_scatter(gathered, axes, tiled=True)
        exchanged = lax.all_to_all(scattered, axes, 0, 1, tiled=True)
        return lax.ppermute(exchanged, axes, [(0, 0)]) + lax.axis_index(axes)

    function = mapped(body, P(axes), P(axes), mesh)
    np.testing.assert_array_equal(function(X), X)
    np.testing.assert_array_equal(jax.jit(function)(X), X)


def test_axes_of_size_one_beside_others():
    mesh = mesh_of((1, 4, 1), ("one", "i", "also_one"))

    def body(x):
        return lax.psum(x, ("one", "i")) + lax.axis_index(("also_one", "i")) * lax.axis_size("one")

    result = mapped(body, P(("one", "i"), "also_one"), P(("i", "one")), mesh)(X)
    np.testing.assert_array_equal(
        result, np.concatenate([X.reshape(4, 2, 6).sum(0) + k for k in range(4)])
    )


def test_abstract_mesh_traces_and_lowers_like_the_mesh_it_stands_for():
    def body(x):
        return lax.psum(x, "j")

    abstract = AbstractMesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    specs = (P("i", "j"), P("i"))
    without, with_devices = mapped(body, *specs, abstract), mapped(body, *specs)
    assert str(without.trace(X)) == str(with_devices.trace(X))
    for stage in ("graph", "body"):
        assert without.lower(X).as_text(stage) == with_devices.lower(X).as_text(stage)


def test_abstract_mesh_larger_than_this_machine():
    mesh = AbstractMesh((64, 32), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    x = jax.ShapeDtypeStruct((6400, 320), jnp.bfloat16)
    lowered = mapped(lambda x: lax.psum(x, "j"), P("i", "j"), P("i"), mesh).lower(x)
    assert [t.shape for t in lowered.graph.body_in_types] == [(100, 10)]
    assert '<["i"=64, "j"=32]>' in lowered.as_text("body")


# ----------------------------------------------------------------------------- tracing and lowering


def test_trace_and_lower_accept_types_instead_of_arrays():
    function = mapped(lambda p, x: lax.psum(x * p["s"], "i"), (P(), P("i")), P())
    arrays = ({"s": np.float32(2)}, X)
    types = jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), a.dtype), arrays)
    mixed = (types[0], X)
    graphs = [function.trace(*args) for args in (arrays, types, mixed)]
    assert all(isinstance(g, Graph) for g in graphs)
    assert len({str(g) for g in graphs}) == 1
    assert len({function.lower(*args).as_text() for args in (arrays, types, mixed)}) == 1


def test_second_call_neither_traces_nor_compiles(caplog):
    traces = []

    def body(x):
        traces.append(x.shape)
        return lax.psum(x, "i")

    function = jax.jit(mapped(body, P("i"), P()))
    with jax.log_compiles():
        first = function(X)
        assert "Compiling" in caplog.text
        caplog.clear()
        again = function(X + 1)
    assert caplog.text == ""
    np.testing.assert_array_equal(again, first + 4)
    for x in (X[:4], X, X[:4]):
        function(x)
    assert traces == [(2, 6), (1, 6)]


# ------------------------------------------------------------------ where arguments and results lie


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize(
    "spec", [P(), P("i"), P(None, "j"), P(("j", "i")), P("j", None), P("i", "j")], ids=str
)
def test_results_lie_as_out_specs_say(spec, partitioner):
    x = np.zeros((8, 8), np.float32)
    function = mapped(lambda x: x, spec, spec)
    results = [function(x), jax.jit(function)(x), function.lower(x).compile()(x)]
    for result in results:
        assert_lies_as(result, MESH, spec)


def addresses(array):
    return [s.data.unsafe_buffer_pointer() for s in array.addressable_shards]


def test_nothing_moves_when_arguments_lie_right():
    """With all copies between devices and host forbidden, only arguments in place will do."""
    function = mapped(lambda x: x + 1, P("i", "j"), P("i", "j"))
    in_place = jax.device_put(X, NamedSharding(MESH, P("i", "j")))
    elsewhere = jax.device_put(X, NamedSharding(MESH, P("j")))
    executable = function.lower(X).compile()
    before = addresses(in_place)
    with jax.transfer_guard("disallow_explicit"):
        for call in (jax.jit(function), executable):
            assert_lies_as(call(in_place), MESH, P("i", "j"))
        with pytest.raises(Exception, match=r"Disallowed .* transfer"):
            executable(elsewhere)
    assert addresses(in_place) == before
    np.testing.assert_array_equal(executable(elsewhere), X + 1)


def test_arguments_are_moved_where_needed():
    function = mapped(lambda x: x + lax.axis_index("i"), P("i"), P("i"))
    expected = X + np.repeat(np.arange(4), 2)[:, None]
    placements = [
        X,
        jnp.asarray(X),
        jax.device_put(X, NamedSharding(MESH, P(None, "j"))),
        jax.device_put(X, NamedSharding(MESH, P())),
    ]
    executable = function.lower(X).compile()
    for x in placements:
        np.testing.assert_array_equal(function(x), expected)
        np.testing.assert_array_equal(executable(x), expected)
    # An executable also moves what is committed to a single device, or to other devices.
    np.testing.assert_array_equal(executable(jax.device_put(X, jax.devices()[3])), expected)


# --------------------------------------------------------------------------------- partial manual


def test_axes_left_automatic():
    def body(x):
        assert x.shape == (2, 6)
        return lax.psum(x, "i") @ jnp.ones((6, 2))

    function = mapped(body, P("i"), P(), axis_names={"i"})
    expected = X.reshape(4, 2, 6).sum(0) @ np.ones((6, 2), np.float32)
    np.testing.assert_array_equal(jax.jit(function)(X), expected)
    np.testing.assert_array_equal(function(X), expected)


def test_one_axis_name_may_be_given_as_a_string():
    function = mapped(lambda x: lax.psum(x, "i"), P("i"), P(), axis_names="i")
    assert function.axis_names == {"i"}
    np.testing.assert_array_equal(function(X), X.reshape(4, 2, 6).sum(0))


# --------------------------------------------------------------- the mesh in scope or of arguments

EXPLICIT = mesh_of((4, 2), ("i", "j"), AxisType.Explicit)


def place(mesh, spec):
    return jax.device_put(X, NamedSharding(mesh, spec))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["direct", "jit"])
def test_mesh_in_scope(wrap):
    function = wrap(shard_map(lambda x: lax.psum(x, "i"), in_specs=P("i"), out_specs=P()))
    with jax.set_mesh(MESH):
        result = function(X)
    np.testing.assert_array_equal(result, X.reshape(4, 2, 6).sum(0))
    assert_lies_as(result, MESH, P())
    with jax.set_mesh(mesh_of((2, 4), ("i", "j"))):  # the same function on another mesh
        np.testing.assert_array_equal(function(X), X.reshape(2, 4, 6).sum(0))


@pytest.mark.parametrize("axis_type", list(AxisType)[:2])
def test_second_mesh_of_the_devices_in_scope(axis_type):
    first = mesh_of((2, 4), ("i", "j"), axis_type)
    second = mesh_of((4, 2), ("k", "j"), axis_type)
    with jax.set_mesh(first), jax.sharding.use_abstract_mesh(second.abstract_mesh):
        for mesh in (second, second.abstract_mesh, None):
            function = mapped(lambda x: lax.psum(x, "k"), P("k"), P(), mesh)
            result = function(X)
            np.testing.assert_array_equal(result, X.reshape(4, 2, 6).sum(0))
            assert_lies_as(result, second, P())
            gradient = jax.grad(lambda x: function(x).sum())(X)  # noqa: B023, called here
            np.testing.assert_array_equal(gradient, np.ones_like(X))


def test_mesh_of_the_arguments():
    function = shard_map(lambda x: lax.psum(x, "j"), in_specs=P("i", "j"), out_specs=P("i"))
    for mesh in (MESH, EXPLICIT):
        result = function(place(mesh, P("i", "j")))
        np.testing.assert_array_equal(result, X.reshape(8, 2, 3).sum(1))
        assert_lies_as(result, mesh, P("i"))
    typed = jax.jit(function)(place(EXPLICIT, P("i", "j")))
    np.testing.assert_array_equal(typed, X.reshape(8, 2, 3).sum(1))


def test_abstract_mesh_gets_devices_from_scope_or_arguments():
    function = mapped(lambda x: lax.psum(x, "i"), P("i"), P(), MESH.abstract_mesh)
    expected = X.reshape(4, 2, 6).sum(0)
    in_place = place(MESH, P("i"))
    for wrap in (lambda f: f, jax.jit):
        np.testing.assert_array_equal(wrap(function)(in_place), expected)
        with jax.set_mesh(MESH):
            np.testing.assert_array_equal(wrap(function)(X), expected)
    gradient = jax.grad(lambda x: (function(x) ** 2).sum())
    np.testing.assert_array_equal(jax.jit(gradient)(in_place), np.tile(2 * expected, (4, 1)))
    with jax.set_mesh(MESH):
        np.testing.assert_array_equal(gradient(X), np.tile(2 * expected, (4, 1)))
    devices = np.array(jax.devices())[::-1].reshape(4, 2)
    reversed_mesh = Mesh(devices, ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    result = function(place(reversed_mesh, P("i")))
    np.testing.assert_array_equal(result, expected)
    assert_lies_as(result, reversed_mesh, P())


def test_abstract_mesh_in_jit_serves_other_devices_without_tracing_again():
    traces = []

    def body(x):
        traces.append(x.shape)
        return 2 * x

    half = [Mesh(np.array(jax.devices()[k : k + 4]), ("i",)) for k in (0, 4)]
    function = jax.jit(mapped(body, P("i"), P("i"), half[0].abstract_mesh))
    for mesh in half:
        result = function(place(mesh, P("i")))
        np.testing.assert_array_equal(result, 2 * X)
        assert_lies_as(result, mesh, P("i"))
    assert traces == [(2, 6)]


# ------------------------------------------------------------------------------- sharding in types


def test_in_specs_from_the_types_of_arguments():
    seen = []

    @shard_map(mesh=EXPLICIT, out_specs=P("i", "j"))
    def double(x, scale):
        seen.append((x.shape, scale.shape))
        return x * scale

    for wrap in (lambda f: f, jax.jit):
        result = wrap(double)(place(EXPLICIT, P("i", "j")), jnp.float32(2))
        np.testing.assert_array_equal(result, 2 * X)
        assert_lies_as(result, EXPLICIT, P("i", "j"))
    assert seen == [((2, 3), ())] * 2


def test_eager_calls_are_told_apart_by_the_axes_left_explicit():
    """What was compiled for one type of an argument is not run for another."""
    double = shard_map(lambda x: 2 * x, in_specs=P("i"), out_specs=P("i"), axis_names={"i"})
    with jax.set_mesh(EXPLICIT):
        for spec in (P("i", "j"), P("i", None)):
            x = place(EXPLICIT, spec)
            assert double(x).sharding.spec == spec
            assert jax.grad(lambda x: (double(x) ** 2).sum())(x).sharding.spec == spec


@pytest.mark.parametrize("in_specs", [{}, {"in_specs": P("i")}], ids=["inferred", "given"])
def test_axes_left_explicit_are_in_the_types_inside(in_specs):
    mesh = mesh_of((2, 2, 2), ("i", "j", "k"), AxisType.Explicit)
    types = []

    @shard_map(mesh=mesh, out_specs=P("i"), axis_names={"i"}, **in_specs)
    def body(x):
        types.append(jax.typeof(x))
        return (x * x).T

    def outer(x):
        y = body(x)
        types.append(jax.typeof(y))
        return y

    result = jax.jit(outer)(place(mesh, P(("i", "j"), "k")))
    blocks = X.reshape(2, 4, 6)
    np.testing.assert_array_equal(result, np.concatenate([b.T**2 for b in blocks]))
    assert (types[0].shape, types[0].sharding.spec) == ((4, 6), P("j", "k"))
    assert (types[1].shape, types[1].sharding.spec) == ((12, 4), P(("i", "k"), "j"))
    assert_lies_as(result, mesh, P(("i", "k"), "j"))
    gradient = jax.jit(jax.grad(lambda x: outer(x).sum()))(place(mesh, P(("i", "j"), "k")))
    np.testing.assert_array_equal(gradient, 2 * X)
    assert gradient.sharding.spec == P(("i", "j"), "k")


def test_direct_call_on_explicit_axes_moves_values_between_forms():
    """Some operations of a choice run where the blocks lie, others on stacked blocks."""
    with jax.set_mesh(EXPLICIT):
        keys = jax.device_put(jax.random.split(jax.random.key(0), 8), P("i"))
        weights = jax.device_put(np.abs(X), P("i"))

        @jax.vmap
        def choose(key, weights):
            return jax.random.choice(key, jnp.arange(6), p=weights)

        function = shard_map(choose, in_specs=(P("i"), P("i")), out_specs=P("i"))
        direct, jitted = function(keys, weights), jax.jit(function)(keys, weights)
    np.testing.assert_array_equal(direct, jitted)


def test_types_inside_name_the_mesh():
    def body(x):
        assert jax.typeof(x).sharding.mesh == jax.sharding.get_abstract_mesh()
        assert jax.typeof(x).sharding.mesh.axis_types == (AxisType.Manual, AxisType.Auto)
        return x

    np.testing.assert_array_equal(jax.jit(mapped(body, P("i"), P("i"), axis_names={"i"}))(X), X)


def test_types_of_results_over_explicit_axes():
    function = mapped(lambda x: (x, lax.psum(x, "j")), P("i", "j"), (P("i", "j"), P("i")), EXPLICIT)
    x = place(EXPLICIT, P("i", "j"))
    same, total = jax.eval_shape(function, x)
    assert same.sharding.spec == P("i", "j")
    assert total.sharding.spec == P("i", None)


# -------------------------------------------------------------------------- arguments without spec


def test_arrays_without_spec_reach_the_function_whole():
    seen = []

    def body(x, table):
        seen.append(type(table))
        return x + table.sum()

    function = mapped(body, (P("i"), None), P("i"))
    np.testing.assert_array_equal(function(X, X), X + X.sum())
    assert seen == [np.ndarray]
    np.testing.assert_array_equal(function(X, jnp.asarray(X)), X + X.sum())
    np.testing.assert_array_equal(jax.jit(function)(X, X), X + X.sum())
    gradient = jax.grad(lambda t: function(X, t).sum())(X)
    np.testing.assert_array_equal(gradient, np.full_like(X, X.size))


def test_values_without_hash_reach_the_function():
    class Unhashable:
        def __hash__(self):
            raise RuntimeError("no hash")

    function = mapped(lambda x, options: x * options["n"], (P("i"), None), P("i"))
    np.testing.assert_array_equal(function(X, {"n": 3, "other": Unhashable()}), 3 * X)
    assert mapped(lambda x: None, None, None)(Unhashable()) is None


def test_result_none_has_the_spec_none():
    same, nothing = mapped(lambda x: (x, None), P("i"), (P("i"), None))(X)
    assert nothing is None
    np.testing.assert_array_equal(same, X)


def test_default_arguments_of_the_function():
    def body(x, scale=3, *, shift=1):
        return x * scale + shift

    np.testing.assert_array_equal(mapped(body, P("i"), P("i"))(X), 3 * X + 1)
    np.testing.assert_array_equal(mapped(body, (P("i"), P()), P("i"))(X, 2), 2 * X + 1)


# -------------------------------------------------------------------------------------- nested maps


@pytest.mark.parametrize("given", [True, False], ids=["mesh", "scope"])
def test_nested(given):
    mesh = {"mesh": MESH} if given else {}

    def inner(x):
        assert x.shape == (2, 3)
        return x + lax.psum(x, ("i", "j"))

    def outer(x):
        assert x.shape == (2, 6)
        inside = shard_map(inner, in_specs=P(None, "j"), out_specs=P(None, "j"), **mesh)
        return inside(x) * lax.axis_index("i")

    function = shard_map(outer, in_specs=P("i"), out_specs=P("i"), axis_names={"i"}, **mesh)
    total = X.reshape(4, 2, 2, 3).sum((0, 2))
    expected = (X + np.tile(total, (4, 2))) * np.repeat(np.arange(4), 2)[:, None]
    with jax.set_mesh(MESH):
        np.testing.assert_array_equal(jax.jit(function)(X), expected)
        np.testing.assert_array_equal(function(X), expected)


@pytest.mark.parametrize(
    "of",
    [jnp.sum, lambda x: x[:, :3] * 2, lambda x: x[:, :3]],
    ids=["scalar", "block", "part"],
)
def test_nested_function_closes_over_values_of_the_enclosing_one(of):
    def function(shard_map):
        def outer(x):
            y = of(x)
            inside = shard_map(
                lambda z: jnp.sin(z) * y,
                in_specs=P(None, "j"),
                out_specs=P(None, "j"),
                axis_names={"j"},
            )
            return inside(x)

        return shard_map(outer, mesh=MESH, in_specs=P("i"), out_specs=P("i"), axis_names={"i"})

    def alone(x):
        rows = x.reshape(4, 2, 6)
        y = jax.vmap(of)(rows)
        y = y[:, None, None] if y.ndim == 1 else jnp.tile(y, (1, 1, 2))
        return (jnp.sin(rows) * y).reshape(8, 6)

    ours = function(shard_map)
    np.testing.assert_allclose(jax.jit(ours)(X), jax.jit(function(jax.shard_map))(X), rtol=1e-6)
    # JAX's own gradient does not lower: its partitioner refuses what it makes of the inner one.
    gradients = [jax.jit(jax.grad(lambda x, f=f: (f(x) ** 2).sum()))(X) for f in (ours, alone)]
    np.testing.assert_allclose(*gradients, rtol=1e-5)


def test_nested_over_what_is_left():
    mesh = mesh_of((2, 2, 2), ("i", "j", "k"))

    def innermost(x):
        return lax.psum(x, ("i", "j", "k"))

    def inner(x):
        return shard_map(innermost, in_specs=P("k"), out_specs=P())(x)

    def outer(x):
        return shard_map(inner, in_specs=P("j"), out_specs=P(), axis_names={"j"})(x)

    function = shard_map(outer, in_specs=P("i"), out_specs=P(), axis_names={"i"})
    with jax.set_mesh(mesh):
        np.testing.assert_array_equal(jax.jit(function)(X), X.sum(0, keepdims=True))


# --------------------------------------------------------------------------------------------- smap


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["direct", "jit"])
def test_smap(wrap):
    @smap(in_axes=(0, None), out_axes=(0, None), axis_name="i")
    def rows(x, y):
        assert (x.shape, y.shape) == ((2, 6), (8, 6))

        @smap(in_axes=1, out_axes=1, axis_name="j")
        def columns(x):
            assert x.shape == (2, 3)
            return x * lax.axis_index("j")

        return columns(x), y

    with jax.set_mesh(MESH):
        x, y = wrap(rows)(X, X)
    np.testing.assert_array_equal(x, X * np.repeat([0, 1], 3))
    np.testing.assert_array_equal(y, X)
    with jax.set_mesh(EXPLICIT):
        doubled = smap(lambda x: 2 * x, out_axes=0, axis_name="i")
        np.testing.assert_array_equal(wrap(doubled)(place(EXPLICIT, P("i"))), 2 * X)
