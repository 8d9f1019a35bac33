"""In which ways gathered rows are cut to chunks."""

import jax
import pytest
import shmap_passes
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from shmap_passes.ir.dataflow import Dataflow
from shmap_passes.ir.find_ops import find_ops
from shmap_passes.overlap.find.row_ways import ROWS, Way, ways

from shmap_compiler import shard_map


@pytest.mark.parametrize(("times", "expected"), [(16, [ROWS, Way(16)]), (64, [ROWS])])
def test_sequences_stay_whole_if_a_device_has_several(times, expected):
    def sequences(x):
        return jax.lax.all_gather(x, "i", tiled=True).reshape(-1, times, 8)

    mesh = AbstractMesh((8,), ("i",))
    mapped = shard_map(sequences, mesh=mesh, in_specs=P("i"), out_specs=P(), check_vma=False)
    text = mapped.lower(jax.ShapeDtypeStruct((8 * 64, 8), "float32")).as_text("body")
    with shmap_passes.make_context():
        module = ir.Module.parse(text)
        (gather,) = find_ops(module.operation, ["stablehlo.all_gather"])
        assert [*ways([gather], 8, Dataflow(gather.block))] == expected
