"""Which loops gather what does not depend on the step before, and how many steps they have."""

import itertools

import numpy as np
import pytest
import shmap_passes
from jaxlib.mlir import ir
from shmap_passes.ir.body_form import read_body_form
from shmap_passes.ir.find_ops import find_ops
from shmap_passes.overlap.find.loops import WHILE, counted_loop, gathering_loops
from shmap_passes.overlap.unroll_gathering_loops import UnrollGatheringLoops

from shmap_compiler import import_module

MODULE = """module {{
  sdy.mesh @mesh = <["i"=2]>
  func.func public @main() attributes {{sdy.manual_axes = #sdy<manual_axes{{"i"}}>}} {{
    return
  }}
  func.func private @f(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>, %c: tensor<i1>) {{
    %start = stablehlo.constant dense<{start}> : tensor<i32>
    %last:4 = stablehlo.while(%k = %start, %a = %x, %s = %w, %r = %x)
        : tensor<i32>, tensor<4x8xf32>, tensor<8x8xf32>, tensor<4x8xf32>
    cond {{
      %limit = stablehlo.constant dense<{limit}> : tensor<i32>
      %more = stablehlo.compare {direction}, %k, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }} do {{
      %step = stablehlo.constant dense<{step}> : tensor<i32>
      %o = stablehlo.slice %s [0:4, 0:8] : (tensor<8x8xf32>) -> tensor<4x8xf32>
      {body}
      %y = stablehlo.dot_general %a, %g, contracting_dims = [1] x [0]
          : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
      %z = "stablehlo.reduce_scatter"(%g) <{{scatter_dimension = 0 : i64, {groups}}}> ({{
        ^bb0(%p: tensor<f32>, %q: tensor<f32>):
          %sum = stablehlo.add %p, %q : tensor<f32>
          stablehlo.return %sum : tensor<f32>
      }}) : (tensor<8x8xf32>) -> tensor<4x8xf32>
      %next = stablehlo.add %k, %step : tensor<i32>
      stablehlo.return {returned} : tensor<i32>, tensor<4x8xf32>, tensor<8x8xf32>, tensor<4x8xf32>
    }}
    return
  }}
}}"""
GROUPS = (
    "replica_groups = #stablehlo.replica_group_mesh_axes<"
    'mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>'
)
GATHER = (
    f'%g = "stablehlo.all_gather"(%o) <{{all_gather_dim = 0 : i64, {GROUPS}}}>'
    " : (tensor<4x8xf32>) -> tensor<8x8xf32>"
)
DEFAULTS = {
    "start": 0,
    "limit": 4,
    "step": 1,
    "direction": "LT",
    "body": GATHER,
    "returned": "%next, %y, %s, %z",
    "groups": GROUPS,
}


def parsed(**changes):
    """A module, and its loop."""
    module = ir.Module.parse(MODULE.format(**{**DEFAULTS, **changes}))
    return module, find_ops(module.operation, [WHILE])[0]


def free(**changes):
    """The collectives that need not wait for the step before, nor delay the next one."""
    with shmap_passes.make_context():
        module, loop = parsed(**changes)
        found = list(gathering_loops([loop], read_body_form(module)))
        return [op.name for each in found for op, _ in each.collectives]


@pytest.mark.parametrize("start", [-3, 0, 2, 9])
def test_steps_are_those_of_a_range(start):
    for limit, step in itertools.product((0, 4, 7), (1, 2, 3)):
        with shmap_passes.make_context():
            _module, op = parsed(start=start, limit=limit, step=step)
            assert counted_loop(op).trips == len(range(start, limit, step))


@pytest.mark.parametrize("change", [{"direction": "LE"}, {"direction": "GT"}, {"step": -1}])
def test_other_loops_are_not_counted(change):
    with shmap_passes.make_context():
        _module, op = parsed(**change)
        assert counted_loop(op) is None


def test_loops_whose_counter_wraps_around_are_not_counted():
    with shmap_passes.make_context():
        _module, op = parsed(limit=2**31 - 2, step=2**30 - 1)
        assert counted_loop(op).trips == 2
        _module, op = parsed(limit=2**31 - 1, step=2**30)
        assert counted_loop(op) is None


def test_collectives_that_no_other_step_needs():
    assert free() == ["stablehlo.all_gather", "stablehlo.reduce_scatter"]


def test_a_gather_of_what_the_step_before_computes_waits():
    assert free(body=GATHER.replace("%o", "%a")) == ["stablehlo.reduce_scatter"]
    assert free(returned="%next, %y, %g, %z") == ["stablehlo.reduce_scatter"]


def test_a_gather_of_what_an_operation_computes_inside_of_it_waits():
    branch = """%b = "stablehlo.if"(%c) ({
        stablehlo.return %a : tensor<4x8xf32>
      }, {
        stablehlo.return %o : tensor<4x8xf32>
      }) : (tensor<i1>) -> tensor<4x8xf32>
      """
    assert free(body=branch + GATHER.replace("%o", "%b")) == ["stablehlo.reduce_scatter"]


def test_a_sum_that_the_next_step_reads_delays_it():
    read = "%n = stablehlo.negate %r : tensor<4x8xf32>\n      "
    assert free(body=read + GATHER) == ["stablehlo.all_gather"]
    assert free(returned="%next, %z, %s, %r") == ["stablehlo.all_gather"]


CAPTURING = """module {{
  sdy.mesh @mesh = <["i"=2]>
  func.func public @main(
      %x: tensor<4x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"i"}}, {{}}]>}},
      %w: tensor<3x4x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"i"}}, {{}}]>}},
      %b: tensor<4x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"i"}}, {{}}]>}})
      -> (tensor<4x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"i"}}, {{}}]>}})
      attributes {{sdy.manual_axes = #sdy<manual_axes{{"i"}}>}} {{
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %last:3 = stablehlo.while(%k = %zero, %a = %x, %c = %x)
        : tensor<i32>, tensor<4x8xf32>, tensor<4x8xf32>
    cond {{
      %more = stablehlo.compare LT, %k, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }} do {{
      %s = stablehlo.dynamic_slice %w, %k, %zero, %zero, sizes = [1, 4, 8]
          : (tensor<3x4x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x8xf32>
      %o = stablehlo.reshape %s : (tensor<1x4x8xf32>) -> tensor<4x8xf32>
      {gather}
      %y = stablehlo.dot_general %a, %g, contracting_dims = [1] x [0]
          : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
      %z = stablehlo.add %y, %c : tensor<4x8xf32>
      %next = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %next, %z, %b : tensor<i32>, tensor<4x8xf32>, tensor<4x8xf32>
    }}
    return %last#1 : tensor<4x8xf32>
  }}
}}"""


@pytest.mark.parametrize("barriers", [False, True])
def test_steps_take_what_the_one_before_returns_from_outside_of_the_loop(barriers):
    with shmap_passes.make_context():
        module = ir.Module.parse(CAPTURING.format(gather=GATHER))
        shmap_passes.run(module, [UnrollGatheringLoops("unroll", barriers=barriers)])
        assert not find_ops(module.operation, [WHILE])
        rewritten = str(module)
    rng = np.random.default_rng(0)
    shapes = (8, 8), (3, 8, 8), (8, 8)
    x, w, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in shapes)
    (found,) = import_module(rewritten).simulate(x, w, b).results
    np.testing.assert_array_equal(found, ((x @ w[0] + x) @ w[1] + b) @ w[2] + b)
