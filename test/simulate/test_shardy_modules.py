"""The simulator on what Shardy writes: its own collectives, several meshes, other entries."""

import numpy as np
import pytest
import shmap_passes
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from shmap_compiler import simulate_module
from shmap_compiler.base.errors import SimulationError

X = np.arange(16, dtype=np.float32).reshape(8, 2) % 5 - 1


def simulated(text, *args):
    return simulate_module(text, args or [X]).results[0]


def partial_product(summed):
    """A product whose contracted dimension is split, with `summed` after it."""
    return f"""
    sdy.mesh @mesh = <["x"=2, "y"=4]>
    func.func @main(%a: tensor<2x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"y"}}]>}},
        %b: tensor<8x2xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"y"}}, {{}}]>}})
        -> tensor<2x2xf32> {{
      %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
          : (tensor<2x8xf32>, tensor<8x2xf32>) -> tensor<2x2xf32>
      {summed}
      return %1 : tensor<2x2xf32>
    }}"""


@pytest.mark.parametrize(
    "summed",
    [
        '%1 = sdy.all_reduce {"y"} %0 out_sharding=<@mesh, [{}, {}]> : tensor<2x2xf32>',
        '%1 = sdy.reduce_scatter [{}, {"y"}] %0 out_sharding=<@mesh, [{}, {"y"}]>'
        " : tensor<2x2xf32>",
    ],
)
def test_a_sum_of_a_product_that_is_split_is_the_product(summed):
    found = simulated(partial_product(summed), X.T, X)
    np.testing.assert_array_equal(found, X.T @ X)


def test_a_sum_over_axes_along_which_nothing_is_split():
    summed = '%1 = sdy.all_reduce {"x"} %0 out_sharding=<@mesh, [{}, {}]> : tensor<2x2xf32>'
    with pytest.raises(SimulationError, match=r"sdy.all_reduce"):
        simulated(partial_product(summed), X.T, X)


def test_a_sum_of_an_array_that_is_unreduced():
    text = """
    sdy.mesh @mesh = <["x"=2, "y"=4]>
    func.func @main(%a: tensor<8x2xf32>
        {sdy.sharding = #sdy.sharding<@mesh, [{}, {}], unreduced={"x"}>}) -> tensor<8x2xf32> {
      %0 = sdy.all_reduce {"x"} %a out_sharding=<@mesh, [{}, {}]> : tensor<8x2xf32>
      return %0 : tensor<8x2xf32>
    }"""
    np.testing.assert_array_equal(simulated(text), X)


@pytest.mark.parametrize("reduction", ["", "max ", "min "] if hasattr(sdy, "ReductionOp") else [""])
def test_blocks_of_a_region_are_combined(reduction):
    text = f"""
    sdy.mesh @mesh = <["x"=2, "y"=4]>
    func.func @main(%a: tensor<8x2xf32>) -> tensor<2x2xf32> {{
      %0 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{{"y"}}, {{}}]>]
          out_shardings=[<@mesh, [{{}}, {{}}]>] manual_axes={{"x", "y"}} (%b: tensor<2x2xf32>) {{
        %1 = sdy.all_reduce {reduction}{{"y"}} %b out_sharding=<@mesh, [{{}}, {{}}]>
            : tensor<2x2xf32>
        sdy.return %1 : tensor<2x2xf32>
      }} : (tensor<8x2xf32>) -> tensor<2x2xf32>
      return %0 : tensor<2x2xf32>
    }}"""
    combine = {"": np.sum, "max ": np.max, "min ": np.min}[reduction]
    np.testing.assert_array_equal(simulated(text), combine(X.reshape(4, 2, 2), axis=0))


def in_regions(*meshes):
    """A module with a region on each of these meshes, one after the other."""
    regions = "\n".join(
        f"""%{k + 1} = sdy.manual_computation(%{k}) in_shardings=[<@{mesh}, [{{"a"}}, {{}}]>]
          out_shardings=[<@{mesh}, [{{"a"}}, {{}}]>] manual_axes={{"a"}} (%b: tensor<4x2xf32>) {{
        %n = stablehlo.negate %b : tensor<4x2xf32>
        sdy.return %n : tensor<4x2xf32>
      }} : (tensor<8x2xf32>) -> tensor<8x2xf32>"""
        for k, mesh in enumerate(meshes)
    )
    return f"""
    sdy.mesh @larger = <["a"=4, "b"=4]>
    sdy.mesh @used = <["a"=2, "c"=2]>
    sdy.mesh @other = <["a"=2]>
    func.func @entry(%0: tensor<8x2xf32>) -> tensor<8x2xf32> {{
      {regions}
      return %{len(meshes)} : tensor<8x2xf32>
    }}"""


def test_devices_are_numbered_by_the_mesh_of_the_regions():
    simulation = simulate_module(in_regions("used"), [X])
    assert dict(simulation.axes) == {"a": 2, "c": 2}
    np.testing.assert_array_equal(simulation.results[0], -X)


def test_regions_on_two_meshes():
    with pytest.raises(SimulationError, match=r"where another region is on @used"):
        simulate_module(in_regions("used", "other"), [X])


def test_what_is_wrong_in_a_module_that_does_not_parse():
    with pytest.raises(SimulationError, match=r"the module:1:\d+[^@]*use of undeclared"):
        simulated("func.func @main() -> tensor<f32> { return %undefined : tensor<f32> }")


def test_functions_of_which_none_is_the_entry():
    text = """
    func.func @one(%a: tensor<8x2xf32>) -> tensor<8x2xf32> { return %a : tensor<8x2xf32> }
    func.func @two(%a: tensor<8x2xf32>) -> tensor<8x2xf32> { return %a : tensor<8x2xf32> }"""
    with pytest.raises(SimulationError, match=r"the functions one, two"):
        simulated(text)


@pytest.mark.parametrize("text", ["", "module {}"])
def test_a_module_without_functions(text):
    with pytest.raises(SimulationError, match=r"found:  no functions"):
        simulated(text)


def summing(sharding, region, count="8 : i32"):
    """A region that returns its blocks as summands, for GSPMD."""
    return f"""
    module attributes {{mhlo.num_partitions = {count}}} {{
      func.func @main(%x: tensor<8x2xf32>) -> tensor<8x2xf32> {{
        %0 = stablehlo.custom_call @Sharding(%x) {{mhlo.sharding = "{{replicated}}"}}
            : (tensor<8x2xf32>) -> tensor<8x2xf32>
        %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {{mhlo.sharding = "{region}"}}
            : (tensor<8x2xf32>) -> tensor<8x2xf32>
        %2 = stablehlo.custom_call @Sharding(%1) {{mhlo.sharding = "{region}"}}
            : (tensor<8x2xf32>) -> tensor<8x2xf32>
        %3 = stablehlo.custom_call @SPMDShardToFullShape(%2) {{mhlo.sharding = "{sharding}"}}
            : (tensor<8x2xf32>) -> tensor<8x2xf32>
        return %3 : tensor<8x2xf32>
      }}
    }}"""


@pytest.mark.parametrize("count", ["12 : i4", '"8"'])
def test_a_number_of_devices_that_is_none(count):
    tiles = "{devices=[1,1,8]<=[8] last_tile_dims={unreduced}}"  # 12 of four bits is -4
    np.testing.assert_array_equal(simulated(summing(tiles, "{manual}", count)), 8 * X)


def replicated_around(body):
    """Text of GSPMD's in which no sharding lists devices."""
    block = "(tensor<8x2xf32>) -> tensor<8x2xf32>"
    return f"""
    func.func @main(%x: tensor<8x2xf32>) -> tensor<8x2xf32> {{
      %0 = stablehlo.custom_call @Sharding(%x) {{mhlo.sharding = "{{replicated}}"}} : {block}
      %b = stablehlo.custom_call @SPMDFullToShardShape(%0) {{mhlo.sharding = "{{manual}}"}}
          : {block}
      %r = {body} : {block}
      %1 = stablehlo.custom_call @Sharding(%r) {{mhlo.sharding = "{{manual}}"}} : {block}
      %2 = stablehlo.custom_call @SPMDShardToFullShape(%1) {{mhlo.sharding = "{{replicated}}"}}
          : {block}
      return %2 : tensor<8x2xf32>
    }}"""


@pytest.mark.parametrize(
    "collective",
    [
        """"stablehlo.all_reduce"(%b) <{
          replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>}> ({
        ^bb0(%p: tensor<f32>, %q: tensor<f32>):
          %s = stablehlo.add %p, %q : tensor<f32>
          stablehlo.return %s : tensor<f32>
      })""",
        """"stablehlo.collective_permute"(%b) <{
          source_target_pairs = dense<[[0, 1], [1, 2], [2, 3], [3, 0]]> : tensor<4x2xi64>}>""",
    ],
)
def test_devices_that_only_collectives_list(collective):
    simulation = simulate_module(replicated_around(collective), [X])
    assert dict(simulation.axes) == {"devices": 4}
    np.testing.assert_array_equal(simulation.results[0], X * (2 if "reduce" in collective else 1))


def test_the_export_for_gspmd_names_the_number_of_devices():
    """Here nothing else does."""
    body = """
    sdy.mesh @mesh = <["x"=2, "y"=4]>
    func.func public @main(%x: tensor<8x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
        -> (tensor<8x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
        attributes {sdy.manual_axes = #sdy<manual_axes{"x", "y"}>} {
      %0 = stablehlo.negate %x : tensor<8x2xf32>
      return %0 : tensor<8x2xf32>
    }"""
    with shmap_passes.make_context():
        module = ir.Module.parse(body)
        shmap_passes.run(module, shmap_passes.pipeline("gspmd", "ids"))
        exported = str(module)
    simulation = simulate_module(exported, [X])
    assert dict(simulation.axes) == {"devices": 8}
    np.testing.assert_array_equal(simulation.results[0], -X)


MANUAL_ALONG_4 = "{devices=[1,1,4,2]<=[8] last_tile_dims={manual, replicated}}"


@pytest.mark.parametrize(
    ("sharding", "region", "times"),
    [
        ("{unreduced}", "{manual}", 8),
        ("{devices=[1,1,4,2]<=[8] last_tile_dims={unreduced, replicated}}", "{manual}", 4),
        ("{devices=[1,1,4,2]<=[8] last_tile_dims={unreduced, replicated}}", MANUAL_ALONG_4, 4),
        # The partitioner owns what is automatic: every device computes with the sum.
        ("{devices=[1,1,4,2]<=[8] last_tile_dims={replicated, unreduced}}", MANUAL_ALONG_4, 1),
        ("{unreduced}", MANUAL_ALONG_4, 4),
    ],
)
def test_summands_of_gspmd_are_summed_along_manual_axes(sharding, region, times):
    np.testing.assert_array_equal(simulated(summing(sharding, region)), times * X)


def test_copies_of_summands_are_not_summed():
    spec = '#sdy.sharding<@mesh, [{}, {}], unreduced={"x"}>'
    text = f"""
    sdy.mesh @mesh = <["x"=2, "y"=4]>
    func.func public @main(
        %x: tensor<8x2xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}})
        -> (tensor<8x2xf32> {{sdy.sharding = {spec}}})
        attributes {{sdy.manual_axes = #sdy<manual_axes{{"x", "y"}}>}} {{
      return %x : tensor<8x2xf32>
    }}"""
    np.testing.assert_array_equal(simulated(text), 2 * X)


def on_four_devices(body, result="8"):
    return f"""
    sdy.mesh @mesh = <["i"=4]>
    func.func public @main(%a: tensor<8xf32>) -> tensor<{result}xf32> {{
      %0 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{{"i"}}]>]
          out_shardings=[<@mesh, [{{"i"}}]>] manual_axes={{"i"}} (%b: tensor<2xf32>) {{
        {body}
        sdy.return %r : tensor<{int(result) // 4}xf32>
      }} : (tensor<8xf32>) -> tensor<{result}xf32>
      return %0 : tensor<{result}xf32>
    }}"""


CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
SUM = f"""%r = "stablehlo.all_reduce"(%b)
    <{{{CHANNEL}, replica_groups = dense<0> : tensor<1x1xi64>}}> ({{
        ^bb0(%p: tensor<f32>, %q: tensor<f32>):
          %s = stablehlo.add %p, %q : tensor<f32>
          stablehlo.return %s : tensor<f32>
    }}) : (tensor<2xf32>) -> tensor<2xf32>"""
GATHER = f"""%r = "stablehlo.all_gather"(%b)
    <{{all_gather_dim = 0 : i64, {CHANNEL}, replica_groups = dense<0> : tensor<1x1xi64>}}>
    : (tensor<2xf32>) -> tensor<8xf32>"""


def test_groups_that_list_one_replica_hold_all_its_devices():
    """As a collective with a channel, and without global device ids, means them."""
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(simulated(on_four_devices(SUM), x), [12, 16] * 4)
    np.testing.assert_array_equal(simulated(on_four_devices(GATHER, "32"), x), np.tile(x, 4))


def test_devices_wait_for_all_of_their_replica():
    body = f"""
        %id = stablehlo.partition_id : tensor<ui32>
        %k = stablehlo.convert %id : (tensor<ui32>) -> tensor<i32>
        %r = "stablehlo.case"(%k) ({{ {SUM.replace("%r", "%t")}
          stablehlo.return %t : tensor<2xf32>
        }}, {{ stablehlo.return %b : tensor<2xf32> }}) : (tensor<i32>) -> tensor<2xf32>"""
    found = simulate_module(on_four_devices(body), [np.arange(8, dtype=np.float32)])
    assert found.hang is not None


def test_tokens_cannot_be_simulated():
    pairs = "source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>"
    sent = f"""%t = stablehlo.create_token : !stablehlo.token
        %u = "stablehlo.send"(%b, %t) <{{{CHANNEL}, is_host_transfer = false, {pairs}}}>
            : (tensor<2xf32>, !stablehlo.token) -> !stablehlo.token
        %r = stablehlo.negate %b : tensor<2xf32>"""
    with pytest.raises(SimulationError, match=r"a value of type !stablehlo\.token"):
        simulated(on_four_devices(sent), np.arange(8, dtype=np.float32))


def test_what_a_program_feeds_out_cannot_be_simulated():
    """Even if nothing waits for it."""
    fed = """%t = stablehlo.create_token : !stablehlo.token
        %u = "stablehlo.outfeed"(%b, %t) <{outfeed_config = ""}>
            : (tensor<2xf32>, !stablehlo.token) -> !stablehlo.token
        %r = stablehlo.negate %b : tensor<2xf32>"""
    with pytest.raises(SimulationError, match=r"stablehlo\.outfeed at [^@]*run the program on dev"):
        simulated(on_four_devices(fed), np.arange(8, dtype=np.float32))
