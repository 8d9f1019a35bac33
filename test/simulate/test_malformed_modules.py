"""Modules that MLIR reads and nobody can run: a SimulationError says what is wrong."""

import numpy as np
import pytest

from shmap_compiler import simulate_module
from shmap_compiler.base.errors import SimulationError

X = np.ones((8, 2), np.float32)


def refused(text, found):
    with pytest.raises(SimulationError, match=found):
        simulate_module(text, [X])


@pytest.mark.parametrize(
    ("mesh", "found"),
    [
        ('"i"=2], device_ids=[1, 0', "@mesh lists device ids"),
        ('"i"=9223372036854775807', "a mesh of 9,223,372,036,854,775,807 devices"),
    ],
)
def test_meshes_that_cannot_be_simulated(mesh, found):
    """Modules in body form."""
    text = f"""
    sdy.mesh @mesh = <[{mesh}]>
    func.func @main(%x: tensor<8x2xf32>) -> tensor<8x2xf32>
        attributes {{sdy.manual_axes = #sdy<manual_axes{{"i"}}>}} {{
      return %x : tensor<8x2xf32>
    }}"""
    refused(text, found)


@pytest.mark.parametrize(
    ("tiles", "found"),
    [
        ("[2,1]0,1", "must name each of 4 devices once"),
        ("[4,1]0,1,1,2", "must name each of 4 devices once"),
        ("[2,1]0,1,2,3", "names 4 devices for 2 tiles"),
    ],
)
def test_a_function_with_a_sharding_of_other_devices(tiles, found):
    """It is read when it is called."""
    text = f"""
    module attributes {{mhlo.num_partitions = 4 : i32}} {{
      func.func public @main(%x: tensor<8x2xf32>) -> tensor<2x2xf32> {{
        %0 = call @f(%x) : (tensor<8x2xf32>) -> tensor<2x2xf32>
        return %0 : tensor<2x2xf32>
      }}
      func.func private @f(%x: tensor<8x2xf32>) -> tensor<2x2xf32> {{
        %0 = stablehlo.custom_call @Sharding(%x) {{mhlo.sharding = "{{devices={tiles}}}"}}
            : (tensor<8x2xf32>) -> tensor<8x2xf32>
        %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {{mhlo.sharding = "{{manual}}"}}
            : (tensor<8x2xf32>) -> tensor<2x2xf32>
        return %1 : tensor<2x2xf32>
      }}
    }}"""
    refused(text, found)


SPLIT = "{devices=[2,1]<=[2]}"


@pytest.mark.parametrize(
    ("sharding", "block", "found"),
    [
        (None, "4x2", "enters or leaves a region: none"),
        (SPLIT, "2x2", r"from tensor<8x2xf32> to tensor<2x2xf32> with the sharding"),
        (SPLIT, "4x2", r"@Sharding from tensor<4x2xf32> to tensor<2x2xf32>"),
    ],
)
def test_a_region_whose_blocks_are_no_parts_of_the_array(sharding, block, found):
    hint = "" if sharding is None else f'{{mhlo.sharding = "{sharding}"}}'
    text = f"""
    func.func @main(%x: tensor<8x2xf32>) -> tensor<2x2xf32> {{
      %0 = stablehlo.custom_call @Sharding(%x) {hint} : (tensor<8x2xf32>) -> tensor<8x2xf32>
      %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {{mhlo.sharding = "{{manual}}"}}
          : (tensor<8x2xf32>) -> tensor<{block}xf32>
      %2 = stablehlo.custom_call @Sharding(%1) {{mhlo.sharding = "{{manual}}"}}
          : (tensor<{block}xf32>) -> tensor<2x2xf32>
      return %2 : tensor<2x2xf32>
    }}"""
    refused(text, found)


AXIS_K = r'axis "k", which @mesh \[i=2\] lacks'
BY_AXIS = (
    "replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = "
    '[#stablehlo.axis_ref<name = "k">]>'
)
ROWS = "split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 2 : i64, "
PAIRS = "source_target_pairs = dense<[[0, 1], [9, 0]]> : tensor<2x2xi64>"
INDEX = (
    'call_target_name = "shmap.axis_index", api_version = 4 : i32, backend_config = {axes = ["k"]}'
)


@pytest.mark.parametrize(
    ("op", "found"),
    [
        (f'"stablehlo.all_to_all"(%x) <{{{ROWS}{BY_AXIS}}}> : (TYPE) -> TYPE', AXIS_K),
        (
            f'"stablehlo.all_to_all"(%x) <{{{ROWS}replica_groups = dense<[[0, 1], [2, 3]]> '
            ": tensor<2x2xi64>}> : (TYPE) -> TYPE",
            r"device 2; @mesh",
        ),
        (
            f'"stablehlo.all_to_all"(%x) <{{{ROWS.replace("2", "1")}replica_groups = dense<[[0]]> '
            ": tensor<1x1xi64>}> : (TYPE) -> TYPE",
            "groups that leave out device 1",
        ),
        (f'"stablehlo.collective_permute"(%x) <{{{PAIRS}}}> : (TYPE) -> TYPE', "device 9; @mesh"),
        (
            f'"stablehlo.all_to_all"(%x) <{{{ROWS}{BY_AXIS}}}> : (TYPE) -> TYPE'.replace(
                "@mesh", "@main"
            ),
            "groups on mesh @main, which the module lacks",
        ),
        (f'"stablehlo.custom_call"() <{{{INDEX}}}> : () -> tensor<i32>', AXIS_K),
    ],
)
def test_devices_and_axes_that_are_not_there(op, found):
    spec = "{sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}"
    text = f"""
    sdy.mesh @mesh = <["i"=2]>
    func.func @main(%x: TYPE {spec}) -> (TYPE {spec})
        attributes {{sdy.manual_axes = #sdy<manual_axes{{"i"}}>}} {{
      %0 = {op}
      return %x : TYPE
    }}"""
    refused(text.replace("TYPE", "tensor<8x2xf32>"), found)


BY_I = BY_AXIS.replace('"k"', '"i"')


@pytest.mark.parametrize(
    ("op", "result", "found"),
    [
        (
            f'"stablehlo.all_to_all"(%x) <{{{ROWS.replace("2", "4")}{BY_I}}}>',
            "8x2",
            "all_to_all splits into 4 parts for a group of 2 devices",
        ),
        (
            f'"stablehlo.all_gather"(%x) <{{all_gather_dim = 0 : i64, {BY_I}}}>',
            "32x2",
            "8 per device makes 8 x 2 = 16, the result has 32",
        ),
    ],
)
def test_results_of_other_sizes_than_the_groups_make(op, result, found):
    text = f"""
    sdy.mesh @mesh = <["i"=2]>
    func.func @main(%x: tensor<8x2xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}})
        -> (tensor<{result}xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}})
        attributes {{sdy.manual_axes = #sdy<manual_axes{{"i"}}>}} {{
      %0 = {op} : (tensor<8x2xf32>) -> tensor<{result}xf32>
      return %0 : tensor<{result}xf32>
    }}"""
    refused(text, found)


def test_groups_on_a_mesh_of_other_devices():
    groups = BY_AXIS.replace("@mesh", "@other")
    text = f"""
    sdy.mesh @mesh = <["i"=2]>
    sdy.mesh @other = <["k"=1099511627776]>
    func.func @main(%x: tensor<8x2xf32>) -> tensor<8x2xf32> {{
      %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{{}}, {{}}]>]
          out_shardings=[<@mesh, [{{}}, {{}}]>] manual_axes={{"i"}} (%b: tensor<8x2xf32>) {{
        %1 = "stablehlo.all_to_all"(%b) <{{{ROWS}{groups}}}> : (tensor<8x2xf32>) -> tensor<8x2xf32>
        sdy.return %1 : tensor<8x2xf32>
      }} : (tensor<8x2xf32>) -> tensor<8x2xf32>
      return %0 : tensor<8x2xf32>
    }}"""
    refused(text, r"groups on @other \[k=1099511627776\], and the mesh is @mesh \[i=2\]")


@pytest.mark.parametrize("groups", ["[[0, 1]]", "[[0], [1]]"])
def test_replicas_are_refused(groups):
    count = "1x2" if groups == "[[0, 1]]" else "2x1"
    text = f"""
    module attributes {{mhlo.num_replicas = 2 : i32}} {{
      func.func @main(%x: tensor<8x2xf32>) -> tensor<8x2xf32> {{
        %0 = "stablehlo.all_reduce"(%x) <{{
            replica_groups = dense<{groups}> : tensor<{count}xi64>}}> ({{
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %sum = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %sum : tensor<f32>
        }}) : (tensor<8x2xf32>) -> tensor<8x2xf32>
        return %0 : tensor<8x2xf32>
      }}
    }}"""
    refused(text, "found:  2 replicas")


PERMUTE = """"stablehlo.collective_permute"(%x) <{
          source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (TYPE) -> TYPE"""


@pytest.mark.parametrize("op", [PERMUTE, "stablehlo.negate %x : TYPE"])
@pytest.mark.parametrize(
    "call", ["call @f(%0)", 'stablehlo.composite "own.f" %0 {decomposition = @f}']
)
def test_functions_that_call_themselves(op, call):
    text = f"""
    sdy.mesh @mesh = <["i"=2]>
    func.func @main(%x: TYPE) -> TYPE {{
      %0 = call @f(%x) : (TYPE) -> TYPE
      return %0 : TYPE
    }}
    func.func private @f(%x: TYPE) -> TYPE {{
      %0 = {op}
      %1 = {call} : (TYPE) -> TYPE
      return %1 : TYPE
    }}"""
    refused(text.replace("TYPE", "tensor<8x2xf32>"), "@f calls itself, which XLA does not take")


def test_axes_that_are_not_those_of_the_mesh():
    text = """
    sdy.mesh @mesh = <["i"=4]>
    func.func @main(%x: tensor<8x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>})
        -> (tensor<8x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>})
        attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
      return %x : tensor<8x2xf32>
    }"""
    with pytest.raises(SimulationError, match=r"(?s)found:  data=4.*mesh @mesh .*leave the axes"):
        simulate_module(text, [X], axes={"data": 4})
    simulate_module(text, [np.ones((32, 2), np.float32)], axes={"i": 4})
