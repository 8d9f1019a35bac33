"""Which loops gather what does not depend on the step before, and how many steps they have."""

import itertools

import pytest
import shmap_passes
from jaxlib.mlir import ir
from shmap_passes.ir.body_form import read_body_form
from shmap_passes.ir.find_ops import find_ops
from shmap_passes.overlap.find.loops import WHILE, counted_loop, gathering_loops

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
