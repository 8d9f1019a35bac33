"""Eager calls give, bit by bit, what the compiled call gives: NaN, infinities, zeros, overflow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

MESH = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("i", "j"))
PAIRS, UNEQUAL, SINGLE = [[3, 0], [1, 2]], [[0], [3, 1, 2]], [[0], [1], [2], [3]]

REDUCTIONS = {
    f"{f.__name__} {label}": lambda x, f=f, axes=axes, groups=groups: f(
        x, axes, axis_index_groups=groups
    )
    for f in (lax.psum, lax.pmax, lax.pmin)
    for label, axes, groups in [
        ("i", "i", None),
        ("j, i", ("j", "i"), None),
        ("pairs", "i", PAIRS),
        ("unequal", "i", UNEQUAL),
        ("single", "i", SINGLE),
    ]
}
MOVES = {
    "all_gather": lambda x: lax.all_gather(x, ("j", "i")),
    "all_to_all": lambda x: lax.all_to_all(x, "i", 0, 0, tiled=True),
    "ppermute": lambda x: lax.ppermute(x, "i", [(0, 1), (1, 2), (2, 3)]),
    "pbroadcast": lambda x: lax.pbroadcast(x, "i", source=2),
}
SCATTERS = {
    "psum_scatter": lambda x: lax.psum_scatter(x, "i", tiled=True),
    "psum_scatter pairs": lambda x: lax.psum_scatter(x, "i", tiled=True, axis_index_groups=PAIRS),
}
ALL = REDUCTIONS | MOVES | SCATTERS
DTYPES = ["bfloat16", "float16", "float8_e4m3fn", "int8", "uint32", "int4", "bool", "complex64"]
SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 3.5, -2.25, 0.1, 1e-3]


def random_array(dtype, shape):
    """Mostly the values that arithmetic treats in a way of their own."""
    rng = np.random.default_rng(0)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return (rng.choice(SPECIAL, shape) + 1j * rng.normal(size=shape)).astype(dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        return rng.choice(SPECIAL, shape).astype(dtype)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    info = jnp.iinfo(dtype)
    numbers = np.array([int(info.min), int(info.max), 0, 1, 5], object)
    return rng.choice(numbers, shape).astype(jnp.dtype(dtype))


def assert_same_bits(collectives, x):
    def body(x):
        return {name: f(x) for name, f in collectives.items()}

    function = shard_map(
        body, mesh=MESH, in_specs=P("i", "j"), out_specs=P(("i", "j")), check_vma=False
    )
    eager, compiled = function(x), jax.jit(function)(x)
    for name in collectives:
        a, b = np.asarray(eager[name]), np.asarray(compiled[name])
        assert (a.dtype, a.shape) == (b.dtype, b.shape), name
        # One NaN is as good as another; the rest counts bit by bit.
        are_nan = (a != a) & (b != b)
        assert np.where(are_nan, 0, a).tobytes() == np.where(are_nan, 0, b).tobytes(), name


def test_collectives_of_special_values():
    assert_same_bits(ALL, random_array("float32", (32, 16)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_some_collectives_of_other_types(dtype):
    names = ["psum i", "pmax pairs", "pmin unequal", "psum_scatter", "pbroadcast"]
    if dtype == "bool":
        names.remove("psum_scatter")
    if dtype == "complex64":
        names = ["psum i", "psum unequal", "psum_scatter pairs", "pbroadcast"]
    assert_same_bits({name: ALL[name] for name in names}, random_array(dtype, (32, 16)))


def test_collectives_of_blocks_without_elements():
    assert_same_bits(
        {name: ALL[name] for name in ["psum i", "pmax pairs", *MOVES]},
        np.zeros((0, 16), np.float32),
    )


@pytest.mark.parametrize("wrap", [jax.jit, lambda f: f], ids=["jit", "eager"])
@pytest.mark.parametrize("shape", [(0, 8), (8, 0)], ids=str)
def test_blocks_without_elements_are_gathered(shape, wrap):
    options = {"in_specs": P("i", "j"), "out_specs": P("i", "j"), "check_vma": False}
    gather = shard_map(lambda x: lax.all_gather(x, "i", tiled=True), mesh=MESH, **options)
    rows, columns = shape
    assert wrap(gather)(np.zeros(shape)).shape == (rows * MESH.shape["i"], columns)
    assert wrap(jax.grad(lambda x: gather(x).sum()))(np.zeros(shape)).shape == shape


@pytest.mark.parametrize(
    ("f", "x"),
    [
        (lambda x: lax.pmax(x, "i"), np.ones((8, 8), np.complex64)),
        (lambda x: lax.psum_scatter(x, "i", tiled=True), np.ones((0, 8), np.float32)),
    ],
    ids=["maximum of complex numbers", "scatter of nothing"],
)
def test_what_xla_refuses_is_refused(f, x):
    """Rows could carry it out; on devices it cannot be run."""
    function = shard_map(f, mesh=MESH, in_specs=P("i", "j"), out_specs=P("i", "j"), check_vma=False)
    text = "complex numbers|cannot be zero"
    with pytest.raises(Exception, match=text):
        jax.block_until_ready(jax.jit(function)(x))
    with pytest.raises(ValueError, match=text):
        function(x)


@pytest.mark.parametrize("groups", [None, [[0, 1], [2, 3], [4, 5], [6, 7]]], ids=str)
def test_mean_of_infinite_complex_numbers(groups):
    """XLA divides complex numbers in one way alone, and in another where it fuses: as for JAX."""
    parts = (1.0, np.inf, -np.inf, np.nan)
    x = np.array([complex(a, b) for a in parts for b in parts], np.complex64)
    mesh = jax.make_mesh((8,), ("n",), axis_types=(jax.sharding.AxisType.Auto,))

    def mean(each):
        options = {"mesh": mesh, "in_specs": P("n"), "out_specs": P("n"), "check_vma": False}
        return each(lambda x: lax.pmean(x, "n", axis_index_groups=groups), **options)

    for wrap in (jax.jit, lambda f: f):
        found, wanted = (np.asarray(wrap(mean(each))(x)) for each in (shard_map, jax.shard_map))
        np.testing.assert_array_equal(found.view(np.float32), wanted.view(np.float32))
