"""Run what was rewritten: each program gives the numbers of `jax.shard_map` after the passes.

Each program is a hand-written module in body form. It goes through the pipeline in both partitioner
forms and both ways to write groups, and runs on eight devices in a child process.
"""

import numpy as np
import pytest
import shmap_passes
from body_module import ADD, PARTIAL, Program, over
from jax import lax
from run_module import passed, run_in_child


def _axis_index(*axes):
    """Adds 100 times the index along `axes` to the block."""
    names = ", ".join(f'"{axis}"' for axis in axes)
    return f"""%i = stablehlo.custom_call @shmap.axis_index()
        {{api_version = 4 : i32, backend_config = {{axes = [{names}]}}}} : () -> tensor<i32>
    %f = stablehlo.convert %i : (tensor<i32>) -> tensor<f32>
    %hundred = stablehlo.constant dense<100.0> : tensor<f32>
    %g = stablehlo.multiply %f, %hundred : tensor<f32>
    %b = stablehlo.broadcast_in_dim %g, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %y = stablehlo.add %x, %b : tensor<4x8xf32>"""


def _all_reduce(*axes):
    return f"""%y = "stablehlo.all_reduce"(%x) <{{{over(*axes)}}}> {ADD}
        : (tensor<4x8xf32>) -> tensor<4x8xf32>"""


def _all_gather(columns, *axes):
    return f"""%y = "stablehlo.all_gather"(%x) <{{all_gather_dim = 1 : i64, {over(*axes)}}}>
        : (tensor<4x8xf32>) -> tensor<4x{columns}xf32>"""


def _reduce_scatter(rows, *axes):
    return f"""%y = "stablehlo.reduce_scatter"(%x)
        <{{scatter_dimension = 0 : i64, {over(*axes)}}}> {ADD}
        : (tensor<4x8xf32>) -> tensor<{rows}x8xf32>"""


def _all_to_all(count, *axes):
    return f"""%y = "stablehlo.all_to_all"(%x) <{{split_dimension = 0 : i64,
        concat_dimension = 1 : i64, split_count = {count} : i64, {over(*axes)}}}>
        : (tensor<4x8xf32>) -> tensor<{4 // count}x{8 * count}xf32>"""


def _permute(pairs):
    return f"""%y = "stablehlo.collective_permute"(%x)
        <{{source_target_pairs = dense<{pairs}> : tensor<{len(pairs)}x2xi64>}}>
        : (tensor<4x8xf32>) -> tensor<4x8xf32>"""


def _indexed(*axes):
    return lambda x: x + 100.0 * lax.axis_index(axes)


def _ring(axis):
    return lambda x: lax.ppermute(x, axis, [(0, 1), (1, 0)])


TRANSPOSED = (("k", "i"), "j")

PROGRAMS = {
    "axis index of the major axis": Program(_axis_index("i"), _indexed("i")),
    "axis index of a middle axis": Program(_axis_index("j"), _indexed("j")),
    "axis index of the minor axis": Program(_axis_index("k"), _indexed("k")),
    "axis index of neighbours": Program(_axis_index("i", "j"), _indexed("i", "j")),
    "axis index of axes out of order": Program(_axis_index("k", "i"), _indexed("k", "i")),
    "axis index of all axes": Program(_axis_index("i", "j", "k"), _indexed("i", "j", "k")),
    "axis index of an axis of size one": Program(
        _axis_index("j"), _indexed("j"), mesh=(("i", 4), ("j", 1), ("k", 2))
    ),
    "axis index across an axis of size one": Program(
        _axis_index("i", "j", "k"), _indexed("i", "j", "k"), mesh=(("i", 4), ("j", 1), ("k", 2))
    ),
    "axis index with automatic axes": Program(
        _axis_index("k", "i"), _indexed("k", "i"), **PARTIAL, out_spec=("i", "k")
    ),
    "all_reduce over one axis": Program(_all_reduce("j"), lambda x: lax.psum(x, "j")),
    "all_reduce over axes out of order": Program(
        _all_reduce("k", "i"), lambda x: lax.psum(x, ("k", "i"))
    ),
    "all_reduce with automatic axes": Program(
        _all_reduce("k"), lambda x: lax.psum(x, "k"), **PARTIAL, out_spec=("i", None)
    ),
    "all_gather over one axis": Program(
        _all_gather(16, "k"), lambda x: lax.all_gather(x, "k", axis=1, tiled=True), out="4x16"
    ),
    "all_gather over axes out of order": Program(
        _all_gather(32, "k", "i"),
        lambda x: lax.all_gather(x, ("k", "i"), axis=1, tiled=True),
        out="4x32",
    ),
    "all_gather with automatic axes": Program(
        _all_gather(16, "k"),
        lambda x: lax.all_gather(x, "k", axis=1, tiled=True),
        out="4x16",
        **PARTIAL,
        out_spec=("i", None),
    ),
    "reduce_scatter over one axis": Program(
        _reduce_scatter(2, "k"), lambda x: lax.psum_scatter(x, "k", tiled=True), out="2x8"
    ),
    "reduce_scatter over axes out of order": Program(
        _reduce_scatter(1, "k", "i"),
        lambda x: lax.psum_scatter(x, ("k", "i"), tiled=True),
        out="1x8",
    ),
    "reduce_scatter with automatic axes": Program(
        _reduce_scatter(2, "k"),
        lambda x: lax.psum_scatter(x, "k", tiled=True),
        out="2x8",
        **PARTIAL,
        out_spec=(("i", "k"), None),
    ),
    "all_to_all over one axis": Program(
        _all_to_all(2, "k"), lambda x: lax.all_to_all(x, "k", 0, 1, tiled=True), out="2x16"
    ),
    "all_to_all over axes out of order": Program(
        _all_to_all(4, "k", "i"),
        lambda x: lax.all_to_all(x, ("k", "i"), 0, 1, tiled=True),
        out="1x32",
    ),
    "all_to_all with automatic axes": Program(
        _all_to_all(2, "k"),
        lambda x: lax.all_to_all(x, "k", 0, 1, tiled=True),
        out="2x16",
        **PARTIAL,
        out_spec=("i", "k"),
    ),
    "collective_permute": Program(
        _permute([[0, 1], [1, 0], [2, 3], [3, 2], [4, 5], [5, 4], [6, 7], [7, 6]]), _ring("k")
    ),
    "collective_permute with automatic axes": Program(
        _permute([[0, 1], [1, 0], [2, 3], [3, 2], [4, 5], [5, 4], [6, 7], [7, 6]]),
        _ring("k"),
        **PARTIAL,
        out_spec=("i", "k"),
    ),
    "dense groups": Program(
        _all_reduce("k").replace(
            over("k"),
            "replica_groups = dense<[[0, 1], [2, 3], [4, 5], [6, 7]]> : tensor<4x2xi64>",
        ),
        lambda x: lax.psum(x, "k"),
    ),
    "transposed tilings": Program(
        "%y = stablehlo.negate %x : tensor<4x8xf32>",
        lambda x: -x,
        in_spec=TRANSPOSED,
        out_spec=(None, ("k", "j")),
    ),
    "a manual axis of size one": Program(
        _all_reduce("j"),
        lambda x: lax.psum(x, "j"),
        mesh=(("i", 4), ("j", 1), ("k", 2)),
        manual=("j",),
        in_spec=("j", None),
        out_spec=(None, "j"),
    ),
    "an automatic axis of size one": Program(
        _axis_index("i", "k").replace("%y", "%z")
        + "\n    "
        + _all_to_all(2, "k").replace("(%x)", "(%z)"),
        lambda x: lax.all_to_all(_indexed("i", "k")(x), "k", 0, 1, tiled=True),
        out="2x16",
        mesh=(("i", 4), ("j", 1), ("k", 2)),
        manual=("i", "k"),
        in_spec=("i", "k"),
        out_spec=("i", "k"),
    ),
    "a mesh of one device": Program(
        _axis_index("i", "j").replace("%y", "%z")
        + "\n    "
        + _all_reduce("j").replace("(%x)", "(%z)"),
        lambda x: lax.psum(_indexed("i", "j")(x), "j"),
        mesh=(("i", 1), ("j", 1)),
        manual=("i", "j"),
        in_spec=("i", "j"),
        out_spec=("i", "j"),
    ),
    "an axis index in the condition of a loop": Program(
        f"""{_axis_index("k").replace("%y", "%start")}
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %count, %y = stablehlo.while(%n = %zero, %v = %start) : tensor<i32>, tensor<4x8xf32>
    cond {{
      %here = stablehlo.custom_call @shmap.axis_index()
          {{api_version = 4 : i32, backend_config = {{axes = ["k"]}}}} : () -> tensor<i32>
      %end = stablehlo.add %limit, %here : tensor<i32>
      %more = stablehlo.compare LT, %n, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }} do {{
      %next = stablehlo.add %n, %one : tensor<i32>
      %twice = stablehlo.add %v, %v : tensor<4x8xf32>
      stablehlo.return %next, %twice : tensor<i32>, tensor<4x8xf32>
    }}""",
        lambda x: _indexed("k")(x) * 2.0 ** (2 + lax.axis_index("k")),
    ),
    "a private function": Program(
        "%y = call @scaled(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>",
        _indexed("j"),
        more=f"""func.func private @scaled(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {{
    {_axis_index("j")}
    return %y : tensor<4x8xf32>
  }}""",
    ),
    "a private function with automatic axes": Program(
        "%y = call @scaled(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>",
        lambda x: lax.psum(_indexed("k")(x), "k"),
        **PARTIAL,
        out_spec=("i", None),
        more=f"""func.func private @scaled(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {{
    {_axis_index("k").replace("%y", "%z")}
    {_all_reduce("k").replace("(%x)", "(%z)")}
    return %y : tensor<4x8xf32>
  }}""",
    ),
}

expected = {}


@pytest.mark.subprocess
@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("groups", ["axes", "ids"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_after_the_pipeline_equals_shard_map(name, groups, partitioner):
    program = PROGRAMS[name]
    if name not in expected:
        expected[name] = program.expected()
    text = passed(program.text(), shmap_passes.pipeline(partitioner, groups))
    (result,) = run_in_child(text, (program.full_input(),), program.sizes, partitioner)
    np.testing.assert_array_equal(result, expected[name])
