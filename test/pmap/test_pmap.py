"""pmap does what `jax.pmap` does: mapped axes, collectives, structures, types, placement."""

import copy
import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shmap_compiler
from shmap_compiler import BodyError, Pmapped, pmap

DEVICES = jax.devices()[:8]
ROWS = np.arange(32.0, dtype=np.float32).reshape(8, 4)
SQUARE = np.arange(64.0, dtype=np.float32).reshape(8, 8)
CUBE = np.arange(512.0, dtype=np.float32).reshape(8, 8, 8)
EVEN_ODD = [[0, 2, 4, 6], [1, 3, 5, 7]]
SHIFT = [(i, (i + 1) % 8) for i in range(8)]


def equal(found, expected):
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-6)


def along(collective, **options):
    return lambda x: collective(x, "i", **options)


COLLECTIVES = {
    "psum": (along(lax.psum), ROWS),
    "pmean": (along(lax.pmean), ROWS),
    "pmax": (along(lax.pmax), ROWS),
    "pmin": (along(lax.pmin), ROWS),
    "psum of complex": (along(lax.psum), ROWS.view(np.complex64)),
    "psum of booleans": (along(lax.psum), ROWS % 2 == 0),
    "psum in groups": (along(lax.psum, axis_index_groups=EVEN_ODD), ROWS),
    "all_gather": (along(lax.all_gather), ROWS),
    "all_gather of booleans": (along(lax.all_gather), ROWS % 2 == 0),
    "all_gather, last": (along(lax.all_gather, axis=-1), ROWS),
    "all_gather, tiled": (along(lax.all_gather, tiled=True), ROWS),
    "all_gather, tiled, last": (along(lax.all_gather, tiled=True, axis=-1), CUBE),
    "all_gather in groups": (along(lax.all_gather, axis_index_groups=EVEN_ODD), ROWS),
    "psum_scatter": (along(lax.psum_scatter), SQUARE),
    "psum_scatter, tiled": (along(lax.psum_scatter, tiled=True), np.tile(ROWS, (1, 4))),
    "psum_scatter in groups": (
        along(lax.psum_scatter, axis_index_groups=EVEN_ODD, tiled=True),
        ROWS,
    ),
    "all_to_all": (along(lax.all_to_all, split_axis=0, concat_axis=1), CUBE),
    "pswapaxes": (along(lax.pswapaxes, axis=0), SQUARE),
    "ppermute": (along(lax.ppermute, perm=SHIFT), ROWS),
    "pshuffle": (along(lax.pshuffle, perm=[(i - 1) % 8 for i in range(8)]), ROWS),
    "axis_index": (lambda x: x + lax.axis_index("i"), ROWS),
    "axis_size": (lambda x: lax.axis_size("i"), ROWS),
    "psum of a constant": (lambda x: lax.psum(np.float32(1), "i"), ROWS),
    "axis_index in a loop": (
        lambda x: lax.scan(lambda c, y: (c + y * lax.axis_index("i"), None), 0.0, x)[0],
        ROWS,
    ),
    "axis_index under checkpoint": (
        jax.checkpoint(lambda x: x * lax.axis_index("i").astype(np.float32)),
        ROWS,
    ),
}


@pytest.mark.parametrize("case", COLLECTIVES)
def test_collectives_are_those_of_jax(case):
    body, rows = COLLECTIVES[case]
    equal(pmap(body, "i")(rows), jax.pmap(body, "i")(rows))


def test_collectives_of_trees_of_different_types():
    tree = {"f": ROWS, "i": np.arange(8), "k": {"b": ROWS.astype(np.int32)}}
    equal(pmap(along(lax.psum), "i")(tree), jax.pmap(along(lax.psum), "i")(tree))


def test_dimensions_counted_from_the_end():
    """With JAX 0.10, `jax.pmap` fails here, or ends the process."""
    last, second = (
        pmap(along(lax.psum_scatter, scatter_dimension=d, tiled=True), "i") for d in (-1, 1)
    )
    equal(last(CUBE), second(CUBE))
    ends, starts = (
        pmap(along(lax.all_to_all, split_axis=s, concat_axis=c), "i") for s, c in ((-2, -1), (0, 1))
    )
    if jax.__version_info__ < (0, 11):
        with pytest.raises(BodyError, match="counted from the end"):
            ends(CUBE)
    else:
        equal(ends(CUBE), starts(CUBE))


def test_uneven_groups():
    groups = [[0, 1], [2, 3, 4, 5, 6, 7]]
    found = pmap(along(lax.psum, axis_index_groups=groups), "i")(ROWS)
    expected = np.concatenate([np.tile(ROWS[:2].sum(0), (2, 1)), np.tile(ROWS[2:].sum(0), (6, 1))])
    equal(found, expected)


def test_a_cellular_automaton_exchanges_its_borders():
    @functools.partial(pmap, axis_name="i")
    def step(cells):
        left = lax.ppermute(cells[-1:], "i", SHIFT)
        right = lax.ppermute(cells[:1], "i", [(b, a) for a, b in SHIFT])
        wide = jnp.concatenate([left, cells, right])
        return wide[:-2] ^ (wide[1:-1] | wide[2:])

    cells = np.zeros(40, bool)
    cells[20] = True
    ours, expected = cells.reshape(8, 5), cells
    for _ in range(9):
        ours = step(ours)
        expected = np.roll(expected, 1) ^ (expected | np.roll(expected, -1))
    equal(ours.reshape(40), expected)


# --------------------------------------------------------------------------- axes of arguments


AXES = [
    ((0, 0), 0),
    ((1, 0), 0),
    ((0, None), 0),
    ((None, 1), 1),
    (0, 1),
    (1, 2),
    (0, 2),
    ([0, 1], 0),
]


@pytest.mark.parametrize(("in_axes", "out_axes"), AXES)
def test_axes_are_those_of_vmap(in_axes, out_axes):
    def body(x, y):
        return x * y + jnp.flip(y)

    mapped = functools.partial(jax.vmap(body, in_axes=in_axes, out_axes=out_axes))
    equal(pmap(body, in_axes=in_axes, out_axes=out_axes)(CUBE, CUBE), mapped(CUBE, CUBE))


def test_axes_counted_from_the_end():
    x = CUBE[:, :4, :2]
    body = lambda a: (a * 2, {"sum": a.sum(0)})  # noqa: E731
    axes = (-1, {"sum": -2})
    found = pmap(body, in_axes=-3, out_axes=axes)(x)
    equal(found, jax.vmap(body, in_axes=-3, out_axes=axes)(x))
    assert found[0].shape == (4, 2, 8)
    assert found[1]["sum"].shape == (8, 2)


def test_out_axes_from_the_end_on_two_columns():
    """`jax.pmap` returns shape (32, 1) here."""
    equal(pmap(lambda x: x, out_axes=-1)(ROWS), ROWS.T)


def test_axes_of_parts_of_arguments():
    arguments = {"w": CUBE, "b": ROWS}, [ROWS[:, 0], np.float32(2)]
    in_axes = {"w": 1, "b": None}, [0, None]

    def body(params, rest):
        return {"y": params["w"].sum(0) * rest[0] + rest[1], "b": params["b"]}

    out_axes = {"y": 1, "b": None}
    found = pmap(body, in_axes=in_axes, out_axes=out_axes)(*arguments)
    equal(found, jax.vmap(body, in_axes=in_axes, out_axes=out_axes)(*arguments))
    assert found["b"].sharding.spec == P()


def test_keyword_arguments_are_mapped_over_their_first_dimension():
    f = pmap(lambda x, *, y: x * y, in_axes=1)
    equal(f(ROWS.T, y=ROWS), ROWS * ROWS)
    equal(pmap(lambda *, y: y, in_axes=1)(y=ROWS), ROWS)


def test_without_mapped_arguments_axis_size_counts():
    f = pmap(lambda x: x + lax.axis_index("i"), "i", in_axes=None, axis_size=4)
    equal(f(ROWS[0]), ROWS[0] + np.arange(4, dtype=np.float32)[:, None])
    equal(pmap(lambda: lax.axis_index("i"), "i", axis_size=3)(), np.arange(3, dtype=np.int32))
    equal(pmap(lambda x: x, axis_size=8)(ROWS), ROWS)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_results_that_depend_on_no_argument(dtype):
    expected = np.full(8, 3, dtype)
    equal(pmap(lambda _: dtype(3))(ROWS), expected)
    equal(pmap(lambda _: lax.psum(dtype(3), "i"), "i")(ROWS), expected * dtype(8))


def test_numbers_of_python_are_arrays():
    found = pmap(lambda x, y: (3, 2.5 * y), in_axes=(0, None))(ROWS, 2)
    expected = jax.pmap(lambda x, y: (3, 2.5 * y), in_axes=(0, None))(ROWS, 2)
    assert [x.weak_type for x in found] == [x.weak_type for x in expected] == [True, True]
    equal(found, expected)


def test_hundreds_of_arguments():
    equal(pmap(sum)([np.full(8, k) for k in range(120)]), np.full(8, sum(range(120)), np.int32))


def test_structures_of_arguments_and_results():
    class Point(tuple):
        pass

    jax.tree_util.register_pytree_node(Point, lambda p: (tuple(p), None), lambda _, p: Point(p))
    found = pmap(lambda p, empty, none: (p, empty, None))(Point((ROWS, ROWS)), (), None)
    assert isinstance(found[0], Point)
    assert found[1:] == ((), None)


# ------------------------------------------------------------------------------ static arguments


def test_static_arguments():
    @functools.partial(pmap, static_broadcasted_argnums=(0, 2), in_axes=(None, 0, None, 1))
    def f(how, x, power, y):
        return how(x) ** power + y

    equal(f(jnp.negative, ROWS, 2, ROWS.T), ROWS**2 + ROWS)
    equal(f(jnp.negative, ROWS, 3, ROWS.T), ROWS - ROWS**3)
    equal(pmap(lambda x, k: x * k, static_broadcasted_argnums=-1)(ROWS, 3), ROWS * 3)


# in_axes, and the positions of static arguments.
AXES_BESIDE_STATIC = {
    "left out at the end": ((0, None), (2,)),
    "left out, two": ((0,), (1, 2)),
    "surplus": ((0, None, None, 3, {"a": 4}), (2,)),
    "of no meaning, and surplus": ((7, 0, None, 3), (0,)),
    "structures, in the middle": (({"a": 0, "b": None}, (5, {"c": 6}), 0, 0), (1,)),
    "structures, left out": ((None, {"a": 1, "b": [0]}), (2,)),
}


@pytest.mark.parametrize("case", AXES_BESIDE_STATIC)
def test_static_arguments_need_no_axes(case):
    in_axes, static = AXES_BESIDE_STATIC[case]
    args = ["sin" if k in static else {"a": SQUARE + k, "b": [ROWS[:, 0]]} for k in range(3)]

    def body(*row, z):
        assert tuple(k for k, x in enumerate(row) if x == "sin") == static
        return [x for x in row if x != "sin"], z

    ours, theirs = (
        f(body, in_axes=in_axes, static_broadcasted_argnums=static) for f in (pmap, jax.pmap)
    )
    equal(ours(*args, z=ROWS), theirs(*args, z=ROWS))


def test_static_arguments_need_no_axes_in_transformations():
    def results(pmap):
        f = pmap(
            lambda x, how, y: how(x) * y,
            in_axes=(0, None, None, 0),
            static_broadcasted_argnums=1,
        )
        of_arrays = lambda x, y: f(x, jnp.sin, y)  # noqa: E731
        yield jax.jit(of_arrays)(ROWS, ROWS[0])
        yield jax.vmap(of_arrays)(CUBE, SQUARE)
        yield jax.grad(lambda x, y: of_arrays(x, y).sum(), (0, 1))(ROWS, ROWS[0])
        yield f.lower(ROWS, jnp.sin, ROWS[0]).compile()(ROWS, ROWS[0])
        with jax.disable_jit():
            yield f(ROWS, jnp.sin, ROWS[0])

    equal(list(results(pmap)), list(results(jax.pmap)))


def test_a_method_with_static_self():
    class Model:
        @functools.partial(pmap, static_broadcasted_argnums=0)
        def double(self, x):
            return x * 2

    equal(Model().double(ROWS), ROWS * 2)


# --------------------------------------------------------------------------- types with a meaning


def test_keys():
    keys = jax.random.split(jax.random.key(0), 8)
    equal(pmap(jax.random.bits)(keys), jax.pmap(jax.random.bits)(keys))
    equal(jax.jit(pmap(jax.random.bits))(keys), jax.pmap(jax.random.bits)(keys))
    key = jax.random.key(7)
    found = pmap(lambda k, one: (k, one), in_axes=(0, None), out_axes=(-1, None))(keys, key)
    assert [k.dtype for k in found] == [keys.dtype] * 2
    np.testing.assert_array_equal(jax.random.key_data(found[0]), jax.random.key_data(keys))
    assert found[1].shape == ()
    old = jax.random.key_data(keys)
    equal(
        pmap(lambda k: jax.random.fold_in(k, 3))(old),
        jax.vmap(jax.random.fold_in, (0, None))(old, 3),
    )


def test_float0():
    zeros = np.zeros((8, 2), jax.dtypes.float0)
    found = pmap(lambda x: x)(zeros), jax.pmap(lambda x: x)(zeros)
    assert found[0].shape == found[1].shape
    assert found[0].dtype == found[1].dtype
    one = np.zeros((), jax.dtypes.float0)
    assert pmap(lambda x: one)(ROWS).shape == (8,)
    assert pmap(lambda x: x)(zeros[:, :0]).shape == (8, 0)


# ------------------------------------------------------------------------------------- placement


def test_results_are_ordinary_arrays_on_the_first_devices_in_order():
    for count in (1, 3, 8):
        y = pmap(lambda x: x, "i")(ROWS[:count])
        expected = NamedSharding(Mesh(np.array(DEVICES[:count]), "i"), P("i"))
        assert isinstance(y.sharding, NamedSharding)
        assert y.sharding.mesh == expected.mesh
        assert y.sharding.is_equivalent_to(expected, 2)
        assert [s.device for s in y.addressable_shards] == DEVICES[:count]
        assert y.addressable_shards[0].data.shape == (1, 4)
    found = pmap(lambda x: (x, lax.pmean(x, "i")), "i", out_axes=(1, None))(ROWS)
    assert [y.sharding.spec for y in found] == [P(None, "i"), P()]


@pytest.mark.parametrize("out_axes", [0, 1, None])
def test_results_without_elements_are_where_those_with_elements_are(out_axes):
    def row(x):
        rest = x[:, :0]
        return (x, rest) if out_axes is not None else lax.pmean((x, rest), "i")

    rows = ROWS.reshape(8, 2, 2)
    found = pmap(row, "i", out_axes=out_axes)(rows)
    expected = jax.pmap(row, "i", out_axes=out_axes)(rows)
    for mine, jaxs in zip(found, expected, strict=True):
        assert (mine.shape, mine.dtype) == (jaxs.shape, jaxs.dtype)
        assert mine.sharding == jaxs.sharding
        assert mine.addressable_shards[0].data.shape == jaxs.addressable_shards[0].data.shape
    assert found[0].sharding == found[1].sharding
    moved = pmap(row, "i", out_axes=out_axes)(jax.device_put(rows, DEVICES[3]))
    assert moved[1].sharding == found[1].sharding


def test_results_without_elements_of_each_kind_of_call():
    f = pmap(lambda x, *, y: (x * 2, y), "i", donate_argnums=0)
    y = np.zeros((8, 0))
    once = f(f(ROWS, y=ROWS)[0], y=y)
    again = f(*once[:1], y=once[1])
    assert once[0].is_deleted()
    assert again[1].sharding.spec == again[0].sharding.spec == P("i")
    same = jax.jit(lambda z: z, in_shardings=again[0].sharding)
    assert same(again[1]).shape == y.shape
    assert jax.jit(f)(ROWS, y=y)[1].shape == y.shape
    nested = pmap(pmap(lambda x: (x, x[:0])))(ROWS.reshape(2, 4, 4))
    assert nested[1].addressable_shards[0].data.shape == (1, 4, 0)
    with jax.disable_jit():
        assert f(ROWS, y=y)[1].sharding.spec == P("i")


def test_results_stay_where_they_are():
    f = pmap(lambda x: x * 2)
    once = f(ROWS)
    assert f(once).sharding is f(f(once)).sharding
    equal(f(once), ROWS * 4)
    equal(once + once, ROWS * 4)
    equal(once[3], ROWS[3] * 2)
    equal(jax.jit(lambda z: z + once)(7), ROWS * 2 + 7)


@pytest.mark.parametrize("is_disabled", [False, True])
def test_arguments_on_other_devices_are_moved(is_disabled):
    f = pmap(lambda x: x * 2, devices=DEVICES[:4])
    with jax.disable_jit(is_disabled):
        equal(f(jax.device_put(ROWS[:4], DEVICES[7])), ROWS[:4] * 2)


@pytest.mark.parametrize("devices", [DEVICES[::-1], DEVICES[3:], DEVICES[4:5]], ids=len)
def test_given_devices(devices):
    count = len(devices)
    f = pmap(lambda x: (x + lax.axis_index("i"), lax.psum(x, "i")), "i", devices=devices)
    y, total = f(ROWS[:count])
    equal(y, ROWS[:count] + np.arange(count, dtype=np.float32)[:, None])
    equal(total, np.tile(ROWS[:count].sum(0), (count, 1)))
    assert list(y.sharding.mesh.devices.flat) == devices


def elsewhere():
    grid = np.array(DEVICES).reshape(2, 4)
    return {
        "one device": DEVICES[5],
        "other order": NamedSharding(Mesh(np.array(DEVICES[::-1]), "q"), P("q")),
        "fewer devices": NamedSharding(Mesh(np.array(DEVICES[:4]), "i"), P("i")),
        "other mesh": NamedSharding(Mesh(grid, ("a", "b")), P("b", "a")),
        "other dimension": NamedSharding(Mesh(np.array(DEVICES[:4]), "i"), P(None, "i")),
        "all": NamedSharding(Mesh(np.array(DEVICES), "i"), P()),
    }


@pytest.mark.parametrize("where", elsewhere())
def test_arrays_on_other_devices_are_moved(where):
    x = jax.device_put(ROWS, elsewhere()[where])
    f = pmap(lambda x, y: (x * 2 + y["y"], lax.psum(x, "i")), "i")
    for _ in range(2):
        found, total = f(x, {"y": ROWS})
        equal(found, ROWS * 3)
        equal(total, np.tile(ROWS.sum(0), (8, 1)))
        assert found.sharding.spec == P("i")


@pytest.mark.parametrize("where", elsewhere())
def test_programs_of_arrays_on_other_devices_are_lowered(where):
    f = pmap(lambda x: x * 2)
    x = jax.device_put(ROWS, elsewhere()[where])
    equal(f.lower(x).compile()(ROWS), ROWS * 2)
    assert f.eval_shape(x).shape == ROWS.shape


def test_two_arguments_on_different_devices_are_moved():
    x, y = jax.device_put(ROWS, DEVICES[2]), jax.device_put(ROWS, DEVICES[3])
    f = pmap(lambda x, y, k: x * y * k, static_broadcasted_argnums=2)
    equal(f(x, y, 3), ROWS**2 * 3)
    equal(f.lower(x, y, 3).compile()(ROWS, ROWS), ROWS**2 * 3)


def test_a_function_that_raises_runs_once():
    """Also where an argument would have to be moved."""
    runs = []

    def body(x):
        runs.append(x)
        if x.ndim > 1:
            raise ValueError("no matrices")
        return x

    f = pmap(body)
    f(ROWS)
    with pytest.raises(ValueError, match="no matrices"):
        f(jax.device_put(ROWS[..., None], DEVICES[3]))
    assert len(runs) == 2


def test_donated_arguments():
    sharding = NamedSharding(Mesh(np.array(DEVICES), "i"), P("i"))
    x, y = jax.device_put(ROWS, sharding), jax.device_put(ROWS, sharding)
    f = pmap(lambda k, x, y: x + y + k, "i", donate_argnums=1, static_broadcasted_argnums=0)
    equal(f(1, x, y), ROWS * 2 + 1)
    assert x.is_deleted()
    assert not y.is_deleted()
    f = pmap(
        lambda x, k, y: x + y + k,
        in_axes=(0, None, 0, 0),
        static_broadcasted_argnums=1,
        donate_argnums=2,
    )
    x = jax.device_put(ROWS, sharding)
    equal(f(x, 1, y), ROWS * 2 + 1)
    assert not x.is_deleted()
    assert y.is_deleted()
    x = jax.device_put(ROWS, sharding)
    equal(pmap(lambda *, x: x * 2, donate_argnums=())(x=x), ROWS * 2)
    assert not x.is_deleted()


def test_a_backend_is_a_platform():
    assert pmap(lambda x: x, backend="cpu")(ROWS).sharding.mesh.devices[0].platform == "cpu"


# ----------------------------------------------------------------------------------- as a function


def test_it_is_the_same_function_as_long_as_nothing_differs():
    calls = []

    def f(x):
        calls.append(x)
        return x * 2

    for _ in range(3):
        equal(pmap(f, "i")(ROWS), ROWS * 2)
    assert len(calls) == 1
    pmap(f, "i", out_axes=1)(ROWS)
    pmap(f, "i")(ROWS.astype(np.int32))
    pmap(f, "i")(ROWS[:4])
    assert len(calls) == 4


@pmap
def of_this_module(x):
    return x * 2


def test_it_is_copied_and_pickled_like_a_function():
    equal(of_this_module(ROWS), ROWS * 2)
    assert copy.deepcopy({"f": of_this_module})["f"] is of_this_module
    assert pickle.loads(pickle.dumps(of_this_module)) is of_this_module


def test_numbers_of_numpy_are_positions_and_sizes():
    f = pmap(
        lambda x, n: x * n,
        axis_size=np.int64(8),
        static_broadcasted_argnums=np.int32(1),
        donate_argnums=[np.int64(0)],
    )
    equal(f(ROWS, 3), ROWS * 3)


def test_what_it_tells_about_itself():
    def scale(x, factor):
        """Scales."""
        return x * factor

    f = pmap(scale, "i", in_axes=(0, None), static_broadcasted_argnums=[])
    assert isinstance(f, Pmapped)
    assert f.__wrapped__ is scale
    assert (f.__name__, f.__doc__) == ("scale", "Scales.")
    assert "scale" in repr(f)
    assert f.options == {
        "axis_name": "i",
        "in_axes": (0, None),
        "out_axes": 0,
        "static_broadcasted_argnums": (),
        "devices": None,
        "backend": None,
        "axis_size": None,
        "donate_argnums": (),
        "check_hangs": True,
    }
    assert shmap_compiler.pmap is pmap


def summed(x, axis):
    return lax.psum(x, axis)


class Summing:
    """Sums."""

    def __call__(self, x):
        return lax.psum(x, "none")


@pytest.mark.parametrize(
    ("fun", "name"),
    [(functools.partial(summed, axis="none"), "summed"), (Summing(), "Summing")],
    ids=["partial", "object"],
)
def test_the_name_of_a_function_without_a_name(fun, name):
    f = pmap(fun)
    assert f.__name__ == f.__qualname__ == name
    assert (f.__doc__, f.__wrapped__) == (fun.__doc__, fun)
    with pytest.raises(BodyError, match=f"^pmap of `{name}`"):
        f(ROWS)
