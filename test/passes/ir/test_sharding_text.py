"""The sharding strings are those that JAX prints for the same mesh and specs."""

import re

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from shmap_passes.ir.mesh import Mesh
from shmap_passes.ir.sharding_text import full_sharding, region_sharding

NAMES = ("a", "b", "c")


@st.composite
def cases(draw):
    """A mesh of up to eight devices, some manual axes, and a spec over them for two dimensions."""
    shapes = [(2, 2, 2), (4, 2), (2, 4), (8,), (2, 1, 4), (1, 8), (2, 2), (4, 1, 2), (1, 2, 2)]
    shape = draw(st.sampled_from(shapes))
    axes = tuple(zip(NAMES, shape, strict=False))
    names = [name for name, _ in axes]
    # JAX leaves the custom calls out when no device is told apart.
    several = [name for name, size in axes if size > 1]
    manual = {draw(st.sampled_from(several)), *draw(st.sets(st.sampled_from(names)))}
    split = draw(st.permutations(sorted(manual)))[: draw(st.integers(0, len(manual)))]
    cut = draw(st.integers(0, len(split)))
    return Mesh("mesh", axes), manual, (tuple(split[:cut]), tuple(split[cut:]))


def strings_of_jax(mesh, manual, dims):
    """[(backend_config, sharding)] of the custom calls around an identity."""
    device_mesh = jax.make_mesh(
        mesh.shape,
        mesh.names,
        axis_types=(AxisType.Auto,) * len(mesh.names),
        devices=jax.devices()[: mesh.size],
    )
    spec = PartitionSpec(*(axes or None for axes in dims))
    mapped = jax.shard_map(
        lambda x: x, mesh=device_mesh, in_specs=spec, out_specs=spec, axis_names=manual
    )
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        text = jax.jit(mapped).lower(jax.ShapeDtypeStruct((8, 8), np.float32)).as_text()
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)
    return re.findall(r'mhlo.sharding = "([^"]*)"', text)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_strings_equal_those_of_jax(case):
    mesh, manual, dims = case
    full, region = full_sharding(mesh, dims), region_sharding(mesh, 2, sorted(manual))
    assert strings_of_jax(mesh, manual, dims) == [full, region, region, full]


@pytest.mark.parametrize(
    "order", [("b", "d", "a", "c"), ("c", "a", "d", "b"), ("d", "a", "b", "c")]
)
def test_transposed_tilings_of_four_axes_hold_the_devices_that_named_sharding_gives_them(order):
    """All orders of three runs of axes that XLA's text can tell are their own inverses."""
    sizes = {"a": 2, "b": 3, "c": 5, "d": 7}
    text = full_sharding(Mesh("mesh", tuple(sizes.items())), [[axis] for axis in order])
    tiles, shape, transposed = re.fullmatch(
        r"\{devices=\[([\d,]+)\]<=\[([\d,]+)\]T\(([\d,]+)\)\}", text
    ).groups()
    numbers = [[int(n) for n in each.split(",")] for each in (tiles, shape, transposed)]
    devices = np.arange(210).reshape(numbers[1]).transpose(numbers[2]).reshape(numbers[0])
    mesh = np.arange(210).reshape(tuple(sizes.values()))
    np.testing.assert_array_equal(devices, mesh.transpose(["abcd".index(a) for a in order]))


@pytest.mark.parametrize(
    ("dims", "outer", "text"),
    [
        ([["b"]], ["a"], "{devices=[2,2,2]<=[2,2,2]T(1,0,2) last_tile_dims={manual, replicated}}"),
        ([[]], ["a"], "{devices=[1,2,4]<=[8] last_tile_dims={manual, replicated}}"),
        ([["b", "c"]], ["a"], "{devices=[4,2]<=[2,4]T(1,0) last_tile_dims={manual}}"),
    ],
)
def test_axes_that_are_manual_around_the_region_are_a_subgroup(dims, outer, text):
    mesh = Mesh("mesh", (("a", 2), ("b", 2), ("c", 2)))
    assert full_sharding(mesh, dims, outer) == text


@pytest.mark.parametrize(
    ("split", "unreduced"),
    [("", "b"), ("", "bc"), ("", "abc"), ("a", "b"), ("a", "bc"), ("c", "b"), ("ca", "b")],
)
def test_unreduced_axes_are_a_subgroup_as_in_jax(split, unreduced):
    mesh = jax.make_mesh((2, 2, 2), NAMES, axis_types=(AxisType.Explicit,) * 3)
    spec = PartitionSpec(tuple(split) or None, unreduced=set(unreduced))
    jitted = jax.jit(lambda x: 0, in_shardings=NamedSharding(mesh, spec), keep_unused=True)
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        text = jitted.lower(jax.ShapeDtypeStruct((8, 8), np.float32)).as_text()
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)
    (found,) = re.findall(r'%arg0: [^)]*mhlo.sharding = "([^"]*)"', text)
    ours = Mesh("mesh", tuple(zip(NAMES, (2, 2, 2), strict=True)))
    assert full_sharding(ours, [split, ()], unreduced=unreduced) == found


def test_groups_count_the_first_axis_as_major():
    mesh = Mesh("mesh", (("a", 2), ("b", 2), ("c", 2)))
    assert mesh.groups(["c", "a"]) == [[0, 4, 1, 5], [2, 6, 3, 7]]
    assert mesh.groups(["b"]) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert mesh.groups([]) == [[device] for device in range(8)]
