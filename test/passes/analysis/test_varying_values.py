"""What is inferred of values inside functions, loops, branches and nested regions.

Passes read it there too, and lit tests see only the results of @main.
"""

import pytest
import shmap_passes
from jaxlib.mlir import ir
from shmap_passes.analysis.replication import infer
from shmap_passes.ir.body_form import read_body_form
from shmap_passes.ir.find_ops import find_ops

INDEX = """stablehlo.custom_call @shmap.axis_index() {{
    api_version = 4 : i32, backend_config = {{axes = ["{}"]}}}} : () -> tensor<i32>"""


def varying_of_negates(body, functions="", manual='"i", "j"'):
    """The axes along which the result of each negate in `body` and `functions` varies."""
    text = f"""module {{
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(
      %x: tensor<4xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"i"}}]>}},
      %y: tensor<4xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"j"}}]>}},
      %e: tensor<4xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}]>}})
      attributes {{sdy.manual_axes = #sdy<manual_axes{{{manual}}}>}} {{
    {body}
    return
  }}
  {functions}
}}"""
    with shmap_passes.make_context():
        module = ir.Module.parse(text)
        varying = infer(read_body_form(module), module)
        negates = find_ops(module.operation, ["stablehlo.negate"])
        return [varying.of(op.results[0]) for op in negates]


def test_a_function_varies_as_in_all_its_calls():
    calls = """call @f(%x) : (tensor<4xf32>) -> ()
    call @f(%y) : (tensor<4xf32>) -> ()"""
    function = """func.func private @f(%v: tensor<4xf32>) {
    %0 = stablehlo.negate %v : tensor<4xf32>
    return
  }"""
    assert varying_of_negates(calls, function) == [("i", "j")]


def test_what_some_devices_compute_once_more_varies():
    loop = f"""%i = {INDEX.format("i")}
    %r = stablehlo.while(%k = %i) : tensor<i32>
    cond {{
      %limit = stablehlo.constant dense<3> : tensor<i32>
      %more = stablehlo.compare LT, %k, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }} do {{
      %0 = stablehlo.negate %e : tensor<4xf32>
      stablehlo.return %k : tensor<i32>
    }}"""
    assert varying_of_negates(loop) == [("i",)]


def test_what_some_devices_compute_varies():
    branches = f"""%j = {INDEX.format("j")}
    %r = "stablehlo.case"(%j) ({{
      %0 = stablehlo.negate %e : tensor<4xf32>
      stablehlo.return %0 : tensor<4xf32>
    }}, {{
      stablehlo.return %e : tensor<4xf32>
    }}) : (tensor<i32>) -> tensor<4xf32>"""
    assert varying_of_negates(branches) == [("j",)]


def test_blocks_of_a_nested_region_vary_along_its_axes():
    region = """%0 = sdy.manual_computation(%e) in_shardings=[<@mesh, [{"j"}]>]
        out_shardings=[<@mesh, [{"j"}]>] manual_axes={"j"} (%v: tensor<2xf32>) {
      %1 = stablehlo.negate %v : tensor<2xf32>
      sdy.return %1 : tensor<2xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>"""
    assert varying_of_negates(region, manual='"i"') == [("j",)]


@pytest.mark.parametrize(
    ("axis", "expected"),
    [
        ('#stablehlo.axis_ref<name = "i">', ()),
        ('#stablehlo.axis_ref<name = "i", sub_axis_info = (1)2>', ("i",)),
    ],
    ids=["whole", "part"],
)
def test_a_sum_along_part_of_an_axis_varies_along_it(axis, expected):
    total = f"""%s = "stablehlo.all_reduce"(%x) <{{
      replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [{axis}]>}}> ({{
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %0 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %0 : tensor<f32>
    }}) : (tensor<4xf32>) -> tensor<4xf32>
    %n = stablehlo.negate %s : tensor<4xf32>"""
    assert varying_of_negates(total) == [expected]
