"""Every collective, over every kind of axes, against the oracle.

All devices hold different numbers, and the result of each of them is looked at: the body returns it
with a new leading dimension that the whole mesh shares.
"""

import signal

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax import lax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from shmap_compiler import ShmapError, shard_map

# The parameters of each collective for a team of n devices. Blocks have the shape (n, 2n).
CASES = {
    "psum": lambda n: {},
    "pmean": lambda n: {},
    "pmax": lambda n: {},
    "pmin": lambda n: {},
    "all_gather": lambda n: {},
    "all_gather last": lambda n: {"axis": 2},
    "all_gather tiled": lambda n: {"tiled": True},
    "all_gather tiled last": lambda n: {"axis": 1, "tiled": True},
    "psum_scatter": lambda n: {},
    "psum_scatter tiled": lambda n: {"tiled": True},
    "psum_scatter tiled last": lambda n: {"scatter_dimension": 1, "tiled": True},
    "all_to_all": lambda n: {"split_axis": 0, "concat_axis": 0},
    "all_to_all to last": lambda n: {"split_axis": 0, "concat_axis": 1},
    "all_to_all tiled": lambda n: {"split_axis": 0, "concat_axis": 0, "tiled": True},
    "all_to_all tiled to last": lambda n: {"split_axis": 0, "concat_axis": 1, "tiled": True},
    "all_to_all tiled from last": lambda n: {"split_axis": 1, "concat_axis": 0, "tiled": True},
    "ppermute": lambda n: {"perm": [(i, (i + 1) % n) for i in range(n)]},
    "ppermute to one": lambda n: {"perm": [(0, n - 1)]},
    "ppermute of none": lambda n: {"perm": []},
    "pshuffle": lambda n: {"perm": [n - 1, *range(n - 1)]},
    "pbroadcast": lambda n: {"source": n - 1},
    "axis_index": lambda n: {},
    "axis_size": lambda n: {},
}
TAKES_GROUPS = ("psum", "pmean", "pmax", "pmin", "all_gather", "psum_scatter", "all_to_all")
GROUPED_CASES = [case for case in CASES if case.split()[0] in TAKES_GROUPS]
OTHER_TYPES = [
    (case, dtype)
    for case in CASES
    for dtype in ("int32", "bfloat16", "bool")
    if (case.split()[0], dtype) != ("psum_scatter", "bool")
]
WITHOUT_OPERAND = ("axis_index", "axis_size")

MESH_AND_AXES = [
    ({"i": 4, "j": 2}, "i"),
    ({"i": 4, "j": 2}, ("i", "j")),
    ({"i": 4, "j": 2}, ("j", "i")),
    ({"i": 2, "j": 2, "k": 2}, ("k", "i")),
    ({"i": 2, "j": 2, "k": 2}, ("j", "k", "i")),
    ({"i": 1, "j": 3}, ("j",)),
    ({"i": 1, "j": 3}, "i"),
    ({"i": 1}, "i"),
]
MESH_AXES_AND_GROUPS = [
    ({"i": 4, "j": 2}, "i", [[0, 3], [2, 1]]),
    ({"i": 4, "j": 2}, "i", [[2, 0, 3, 1]]),
    ({"i": 2, "j": 4}, "j", [[3], [0], [1], [2]]),
    ({"i": 4, "j": 2}, ("j", "i"), [[0, 3, 5, 6], [7, 1, 2, 4]]),
    ({"i": 2, "j": 2, "k": 2}, ("k", "i"), [[1, 2], [0, 3]]),
]


def check(case, mesh_shape, axes, groups=None, dtype="float32", partitioner=None):
    """Compares each device's result with the oracle's; `partitioner=None` is the direct call."""
    name = case.split()[0]
    team = len(oracle.teams(mesh_shape, axes, groups)[0])
    params = {"axis_name": axes, **CASES[case](team)}
    if groups is not None:
        params["axis_index_groups"] = groups
    collective = getattr(lax, name)

    def body(x):
        result = collective(**params) if name in WITHOUT_OPERAND else collective(x, **params)
        return jnp.expand_dims(result, 0)

    mesh = Mesh(
        np.array(jax.devices()[: len(oracle.devices(mesh_shape))]).reshape(
            tuple(mesh_shape.values())
        ),
        tuple(mesh_shape),
    )
    everywhere = PartitionSpec(tuple(mesh_shape))
    f = shard_map(body, mesh=mesh, in_specs=everywhere, out_specs=everywhere)
    x = numbers((mesh.size * team, 2 * team), dtype)
    result = f(x) if partitioner is None else f.lower(x, partitioner=partitioner).compile()(x)

    blocks = oracle.split(x, everywhere, mesh_shape)
    operands = () if name in WITHOUT_OPERAND else (blocks,)
    expected = np.stack(oracle.collective(name, mesh_shape, *operands, **params))
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(np.asarray(result), expected)


def numbers(shape, dtype) -> np.ndarray:
    """Different numbers, as far as sums over eight devices stay exact in the type."""
    count = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    if dtype == "bool":
        return count % 3 == 0
    return (count % 31 if dtype == "bfloat16" else count).astype(jnp.dtype(dtype))


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize(("mesh_shape", "axes"), MESH_AND_AXES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_collective_over_axes(case, mesh_shape, axes, partitioner):
    check(case, mesh_shape, axes, partitioner=partitioner)


@pytest.mark.parametrize(("mesh_shape", "axes", "groups"), MESH_AXES_AND_GROUPS, ids=str)
@pytest.mark.parametrize("case", GROUPED_CASES)
def test_collective_within_groups(case, mesh_shape, axes, groups):
    check(case, mesh_shape, axes, groups)


@pytest.mark.parametrize("partitioner", [None, "gspmd", "shardy"])
@pytest.mark.parametrize("case", ["psum", "pmax", "pmin"])
def test_all_reduce_within_groups_of_different_sizes(case, partitioner):
    groups = [[0, 7, 2], [5, 4, 3, 1, 6]]
    check(case, {"i": 4, "j": 2}, ("j", "i"), groups, partitioner=partitioner)


@pytest.mark.parametrize(("case", "dtype"), OTHER_TYPES)
def test_collective_on_other_types(case, dtype):
    check(case, {"i": 4, "j": 2}, ("j", "i"), dtype=dtype)


def test_psum_scatter_refuses_booleans():
    # psum counts them; a scatter that only or-s them would be another function in silence.
    with pytest.raises((ShmapError, TypeError), match="bool"):
        check("psum_scatter", {"i": 4, "j": 2}, "i", dtype="bool")


def test_collective_on_a_pytree_and_on_a_constant():
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("i", "j"))
    x = np.arange(8, dtype=np.float32)

    def body(x):
        sums = lax.psum({"x": x, "constants": (1, np.float32(2))}, ("i", "j"))
        return sums["x"] + 100 * sums["constants"][0] + 1000 * sums["constants"][1]

    f = shard_map(body, mesh=mesh, in_specs=PartitionSpec(("i", "j")), out_specs=PartitionSpec())
    np.testing.assert_array_equal(np.asarray(f(x)), [28 + 100 * 8 + 1000 * 16])


def test_axis_size_is_a_python_integer():
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("i", "j"))

    def body(x):
        assert isinstance(lax.axis_size(("j", "i")), int)
        return jnp.tile(x, lax.axis_size(("j", "i")))

    f = shard_map(body, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec())
    np.testing.assert_array_equal(np.asarray(f(np.float32([1]))), np.ones(8))


@pytest.mark.parametrize("partitioner", [None, "gspmd"])
def test_collectives_over_no_axes(partitioner):
    """Each device by itself, as for JAX."""

    def body(x):
        return [
            lax.psum(x, ()),
            lax.all_gather(x, (), tiled=True),
            lax.psum_scatter(x, (), tiled=True),
            lax.all_to_all(x, (), 0, 0, tiled=True),
            lax.ppermute(x, (), [(0, 0)]),
            lax.pbroadcast(x, (), 0),
            x + lax.ppermute(x, (), []) + lax.axis_index(()),
        ]

    mesh = Mesh(np.array(jax.devices()), ("i",))
    f = shard_map(body, mesh=mesh, in_specs=PartitionSpec("i"), out_specs=PartitionSpec("i"))
    x = np.arange(8, dtype=np.float32)
    results = f(x) if partitioner is None else f.lower(x, partitioner=partitioner).compile()(x)
    for result in results:
        np.testing.assert_array_equal(result, x)


@pytest.mark.parametrize("partitioner", [None, "gspmd"])
@pytest.mark.parametrize("source", [True, 5])
def test_pbroadcast_from_a_source_that_is_no_plain_integer(source, partitioner):
    mesh = Mesh(np.array(jax.devices()), ("i",))
    f = shard_map(
        lambda x: lax.pbroadcast(x, "i", source),
        mesh=mesh,
        in_specs=PartitionSpec("i"),
        out_specs=PartitionSpec(),
    )
    x = np.arange(8, dtype=np.float32)
    result = f(x) if partitioner is None else f.lower(x, partitioner=partitioner).compile()(x)
    np.testing.assert_array_equal(result, [int(source)])


def test_a_ppermute_of_65536_pairs_lowers():
    """Checks that were quadratic in the pairs took minutes; this needs less than a second."""
    count = 65536
    perm = [(k, (k + 1) % count) for k in range(count)]
    f = shard_map(
        lambda x: lax.ppermute(x, "i", perm),
        mesh=AbstractMesh((count,), ("i",)),
        in_specs=PartitionSpec("i"),
        out_specs=PartitionSpec("i"),
    )

    def stop(*_):
        raise TimeoutError("30 s of CPU time are gone")

    previous = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, 30)
    try:
        text = f.lower(jax.ShapeDtypeStruct((count,), np.float32)).as_text()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
    assert f"tensor<{count}x2xi64>" in text


@pytest.mark.parametrize("partitioner", [None, "gspmd"])
def test_psum_over_dimensions_and_mesh_axes_keeps_the_type(partitioner):
    """Sums of int8 are int8, and wrap around."""
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("i", "j"))
    f = shard_map(
        lambda x: lax.psum(x, (0, "i")),
        mesh=mesh,
        in_specs=PartitionSpec("i"),
        out_specs=PartitionSpec(),
    )
    x = np.arange(8 * 3, dtype=np.int8).reshape(8, 3) * np.int8(5)
    result = f(x) if partitioner is None else f.lower(x, partitioner=partitioner).compile()(x)
    assert result.dtype == np.int8
    np.testing.assert_array_equal(result, x.sum(0, dtype=np.int8))


@pytest.mark.parametrize("source", [0, 2, 5])
@pytest.mark.parametrize("check_vma", [True, False])
def test_gradient_of_pbroadcast(source, check_vma):
    """What all devices make of the block is owed to the source alone."""
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("i", "j"))
    everywhere = PartitionSpec(("i", "j"))
    f = shard_map(
        lambda x: lax.pbroadcast(x, ("j", "i"), source),
        mesh=mesh,
        in_specs=everywhere,
        out_specs=everywhere,
        check_vma=check_vma,
    )
    x, w = np.arange(8, dtype=np.float32), np.arange(1, 9, dtype=np.float32) ** 2
    place = np.arange(8).reshape(4, 2).T.reshape(8)[source]  # in the order of the mesh
    wanted = np.where(np.arange(8) == place, w.sum(), 0)
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: f(x) @ w))(x), wanted)
    np.testing.assert_array_equal(jax.jit(f)(x), np.full(8, place))
