"""Programs that libtpu keeps in VMEM do not get forms for which they would need memory.

Comments give MiB of temporaries by libtpu 0.0.50.1: of the plain program, of the form that is
expected to take the least time, and of what is chosen if that is another one.
"""

import itertools

import jax
import pytest
import shmap_passes
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from shmap_passes.cost import libtpu_memory
from shmap_passes.cost.chips import TPU_V6E
from shmap_passes.cost.machine import Machine
from shmap_passes.cost.networks import Torus
from shmap_passes.ir.dataflow import Dataflows
from shmap_passes.overlap.choose import vmem
from shmap_passes.overlap.choose.lives import Lives
from shmap_passes.overlap.choose.vmem import REASON
from shmap_passes.overlap.choose_overlap import ChooseOverlap
from test_choices import (
    EXPERTS,
    MLP,
    SUMMED,
    V5E,
    V5P,
    V6E,
    experts,
    mlp,
    mlp_gradient,
    scatter,
    summed,
)

from shmap_compiler import shard_map


def weights(x, w):
    return x @ jax.lax.all_gather(w, "i", axis=0, tiled=True)


SPECS = {
    summed: (SUMMED, P()),
    scatter: (SUMMED, P("i")),
    weights: ((P("i"), P("i")), P("i")),
    mlp: (MLP, P("i")),
    mlp_gradient: (MLP, MLP),
    experts: (EXPERTS, EXPERTS[0]),
}
SQUARE = Machine(
    TPU_V6E,
    Torus((4, 4), (False, False), 100e9),
    tuple(itertools.product(range(4), repeat=2)),
    True,
)


def choices(fun, machine, *sizes, mesh=(8,), may_round=True):
    """The name and the parts of each form, or why there is none."""
    axes = ("o", "i")[2 - len(mesh) :]
    ins, outs = SPECS[fun]
    mapped = shard_map(
        fun, mesh=AbstractMesh(mesh, axes), in_specs=ins, out_specs=outs, check_vma=False
    )
    types = [jax.ShapeDtypeStruct(shape, "bfloat16") for shape in sizes]
    pass_ = ChooseOverlap(machine=machine.text, may_round=may_round)
    with shmap_passes.make_context():
        module = ir.Module.parse(mapped.lower(*types).as_text("body"))
        found = pass_.choices(module.operation.opview)
        assert all(c.form is None or c.plan.parts == c.form.parts for c in found)
        return [(c.form.name, c.form.parts) if c.form else c.plan.reason for c in found]


RING, SUMS = ("ring", 0), ("partial-sums", 4)


@pytest.mark.parametrize(
    ("fun", "sizes", "expected"),
    [
        # 0, 32, 7; with twice the columns 64, 33: the plain program needs memory, too.
        (summed, ((4096, 32768), (32768, 4096)), ("columns", 16)),
        (summed, ((4096, 32768), (32768, 8192)), ("columns", 8)),
        # 0, 13, 7.
        (scatter, ((1024, 32768), (32768, 8192)), ("columns", 8)),
        # 0, 25: in more chunks 9, those of the result with those of the product.
        (scatter, ((4096, 16384), (16384, 4096)), REASON),
        # 0, 24; and 128, 48.
        (weights, ((8192, 4096), (4096, 4096)), REASON),
        (weights, ((32768, 8192), (8192, 8192)), ("columns", 8)),
    ],
)
def test_small_arrays_are_sent_in_chunks_that_need_little_memory(fun, sizes, expected):
    assert choices(fun, V6E, *sizes, may_round=False) == [expected]


def test_on_v5p_small_arrays_need_memory_as_they_are():
    assert choices(scatter, V5P, (4096, 16384), (16384, 4096), may_round=False) == [("columns", 8)]
    assert choices(weights, V5P, (8192, 4096), (4096, 4096)) == [("columns", 8)]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        # 0, 32, 1: a SparseCore gathers from memory if a form is chosen.
        (((8192, 2048), (2048, 8192), (8192, 2048)), [RING, SUMS]),
        # 256, 321 in chunks of columns, as the activation, 64 MiB, is in VMEM, 81.
        (((32768, 4096), (4096, 8192), (8192, 4096)), [RING, SUMS]),
        # 512, 201; and 256, 257, 70.
        (((65536, 4096), (4096, 2048), (2048, 4096)), [RING, ("columns", 8)]),
        (((16384, 8192), (8192, 8192), (8192, 8192)), [RING, ("columns", 16)]),
    ],
)
def test_gathers_beside_sums_go_round_in_rings_if_that_is_not_slower(sizes, expected):
    found = choices(mlp, V6E, *sizes)
    assert [each if isinstance(each, tuple) else None for each in found] == expected


def test_sums_have_more_chunks_if_few_need_more_memory():
    """1280, 1312 in two chunks, 1216."""
    sizes = ((65536, 2048), (2048, 32768), (32768, 2048))
    found = choices(mlp, SQUARE, *sizes, mesh=(4, 4), may_round=False)
    assert found == [RING, ("columns", 4)]


@pytest.mark.parametrize(
    ("machine", "sizes", "expected"),
    [
        # 256, 273; 257, 274: a cotangent of 16 MiB is gathered from VMEM.
        (V6E, ((4096, 16384), (16384, 512), (512, 16384)), []),
        (V5P, ((4096, 16384), (16384, 512), (512, 16384)), []),
        # 256, 273, 211.
        (V6E, ((32768, 2048), (2048, 4096), (4096, 2048)), [("row-chunks", 4)]),
        # 32, 34, with its rings; with sums in chunks of columns 86.
        (V6E, ((8192, 2048), (2048, 8192), (8192, 2048)), 2 * [RING, SUMS]),
        # A cotangent of 128 MiB is not in VMEM: 2338, 2212 with sums in columns, 1858.
        (V6E, ((65536, 8192), (8192, 2048), (2048, 8192)), [("row-chunks", 4)]),
    ],
)
def test_gradients_that_gather_from_vmem(machine, sizes, expected):
    found = choices(mlp_gradient, machine, *sizes)
    assert [each for each in found if isinstance(each, tuple)] == expected


def test_chunks_of_rows_need_memory_where_the_plain_program_needs_none():
    """0, 28 in chunks of rows."""
    sizes = ((16384, 512), (512, 2048), (2048, 512))
    found = choices(mlp_gradient, SQUARE, *sizes, mesh=(16,))
    assert not any(isinstance(each, tuple) for each in found)
    assert found.count(REASON) == 3


def test_what_is_exchanged_in_chunks_needs_memory():
    """0, 16; and 96, 64."""
    small = ((8, 4096, 2048), (8, 2048, 1024), (8, 1024, 2048))
    assert choices(experts, V5E, *small) == [REASON]
    large = ((8, 8192, 4096), (8, 4096, 2048), (8, 2048, 4096))
    assert choices(experts, V5E, *large) == [("chunks", 4)]


GATHER_OF_TWO = """
#i = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>
#rows = #sdy.sharding<@mesh, [{"i"}, {}]>
#all = #sdy.sharding<@mesh, [{"i"}]>
module {
  sdy.mesh @mesh = <["i"=8]>
  func.func public @main(%x: tensor<16384x2048xbf16> {sdy.sharding = #rows},
                         %w: tensor<2048x8192xbf16> {sdy.sharding = #rows})
      -> (tensor<2048x8192xbf16> {sdy.sharding = #rows}, tensor<1024xbf16> {sdy.sharding = #all})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
        : (tensor<16384x2048xbf16>, tensor<2048x8192xbf16>) -> tensor<16384x8192xbf16>
    %y = "stablehlo.reduce_scatter"(%p) <{replica_groups = #i, scatter_dimension = 0 : i64}> ({
    ^bb0(%a: tensor<bf16>, %b: tensor<bf16>):
      %s = stablehlo.add %a, %b : tensor<bf16>
      stablehlo.return %s : tensor<bf16>
    }) : (tensor<16384x8192xbf16>) -> tensor<2048x8192xbf16>
    %v = stablehlo.constant dense<1.0> : tensor<128xbf16>
    %g:2 = "stablehlo.all_gather"(%v, %v) <{all_gather_dim = 0 : i64, replica_groups = #i}>
        : (tensor<128xbf16>, tensor<128xbf16>) -> (tensor<1024xbf16>, tensor<1024xbf16>)
    return %y, %g#0 : tensor<2048x8192xbf16>, tensor<1024xbf16>
  }
}
"""


def test_a_gather_of_several_arrays_beside_a_sum():
    """JAX writes one for each array, other producers may not."""
    with shmap_passes.make_context():
        module = ir.Module.parse(GATHER_OF_TWO).operation.opview
        (choice,) = ChooseOverlap(machine=V6E.text).choices(module)
        assert choice.form is not None
        assert (choice.site.pattern, choice.form.name) == ("product-scatter", "columns")


def test_what_is_kept_in_vmem():
    assert libtpu_memory.keeps_all_in_vmem(V6E, 74 << 20, 32 << 20)
    assert not libtpu_memory.keeps_all_in_vmem(V6E, 160 << 20, 32 << 20)
    assert not libtpu_memory.keeps_all_in_vmem(V6E, 64 << 20, 64 << 20)
    assert not libtpu_memory.keeps_all_in_vmem(V5P, 1 << 20, 1 << 20)
    kept = [libtpu_memory.gathers_from_vmem(each, 64 << 20) for each in (V5E, V6E, V5P)]
    assert kept == [False, True, False]


def test_what_is_larger_than_what_is_sent_has_its_place():
    """The sum is f32, and its conversion is gathered."""
    text = """func.func @main(%x: tensor<8x8xbf16>) -> tensor<8x8xbf16> {
      %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]
        : (tensor<8x8xbf16>, tensor<8x8xbf16>) -> tensor<8x8xf32>
      %1 = stablehlo.convert %0 : (tensor<8x8xf32>) -> tensor<8x8xbf16>
      %2 = stablehlo.dot_general %1, %x, contracting_dims = [1] x [0]
        : (tensor<8x8xbf16>, tensor<8x8xbf16>) -> tensor<8x8xbf16>
      %3 = stablehlo.negate %2 : tensor<8x8xbf16>
      %4 = stablehlo.dot_general %3, %1, contracting_dims = [1] x [0]
        : (tensor<8x8xbf16>, tensor<8x8xbf16>) -> tensor<8x8xbf16>
      return %4 : tensor<8x8xbf16>
    }"""
    with shmap_passes.make_context():
        module = ir.Module.parse(text).operation.opview
        block = module.body.operations[0].regions[0].blocks[0]
        flows = Dataflows()
        function = vmem._Function(block, Lives(flows), flows.of(block), None, V6E)
        _, one, two, three, *_ = (op.results[0] for op in [*block.operations][:-1])
        assert function._none(one) == {one: 0}
        assert function._none(three) == {three: 0, two: 0}
