"""In which ways gathered rows are cut to chunks."""

import jax
import jax.numpy as jnp
import pytest
import shmap_passes
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from shmap_passes.ir.dataflow import Dataflow
from shmap_passes.ir.find_ops import find_ops
from shmap_passes.overlap.find.row_blocks import row_blocks_of
from shmap_passes.overlap.find.row_ways import ROWS, Way, ways

from shmap_compiler import shard_map

MESH = AbstractMesh((8,), ("i",))


def ways_of(function, *shapes, in_specs):
    """Those of all gathers of a function, in program order."""
    mapped = shard_map(function, mesh=MESH, in_specs=in_specs, out_specs=P(), check_vma=False)
    arguments = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    text = mapped.lower(*arguments).as_text("body")
    with shmap_passes.make_context():
        module = ir.Module.parse(text)
        gathers = find_ops(module.operation, ["stablehlo.all_gather"])
        return [*ways(gathers, 8, Dataflow(gathers[0].block))]


@pytest.mark.parametrize(("times", "expected"), [(16, [ROWS, Way(16)]), (64, [ROWS])])
def test_sequences_stay_whole_if_a_device_has_several(times, expected):
    def sequences(x):
        return jax.lax.all_gather(x, "i", tiled=True).reshape(-1, times, 8)

    assert ways_of(sequences, (8 * 64, 8), in_specs=P("i")) == expected


@pytest.mark.parametrize("summed", [(0,), (1,), (0, 1)])
def test_sequences_are_cut_if_one_of_several_gathers_is_summed_over(summed):
    """Such as one for the gradient of recomputed layers, after those of the forward pass."""

    def f(*arrays):
        gathered = [jax.lax.all_gather(each, "i", axis=1, tiled=True) for each in arrays]
        sums = [jnp.einsum("bsd,bse->de", gathered[k], gathered[k]) for k in summed]
        return sums, [jnp.sin(each) for each in gathered]

    shape, spec = (4, 8 * 16, 8), P(None, "i")
    assert ways_of(f, shape, shape, in_specs=(spec, spec)) == [ROWS, Way(dimension=0)]


def test_a_dimension_is_cut_if_all_gathers_have_as_much_of_it():
    def f(*arrays):
        x, y = (jax.lax.all_gather(each, "i", axis=1, tiled=True) for each in arrays)
        return jnp.einsum("bsd,bse->de", x, x), y

    spec = P(None, "i")
    assert ways_of(f, (4, 128, 8), (2, 128, 8), in_specs=(spec, spec)) == [ROWS]


@pytest.mark.parametrize(("devices", "found"), [(8, []), (1, [ROWS])])
def test_rows_are_left_where_devices_become_a_dimension(devices, found):
    """Those that a device scatters are not some of the rows of such an array."""

    def f(x, w):
        rows = jax.lax.all_gather(x, "i", tiled=True)
        apart = jnp.sin(rows.reshape(devices, -1, 8)).reshape(rows.shape)
        summed = jax.lax.psum_scatter(apart @ w, "i", tiled=True)
        return summed, jnp.einsum("rk,rf->kf", rows, apart)

    mapped = shard_map(f, mesh=MESH, in_specs=(P("i"), P()), out_specs=P(), check_vma=False)
    types = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((64, 8), (8, 8))]
    with shmap_passes.make_context():
        module = ir.Module.parse(mapped.lower(*types).as_text("body")).operation.opview
        assert [block.way for block in row_blocks_of(module)] == found
