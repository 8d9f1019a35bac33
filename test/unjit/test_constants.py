"""Which operations are known without arguments."""

import pytest
from jaxlib.mlir import ir
from shmap_passes import make_context

from shmap_compiler.unjit import constants
from shmap_compiler.unjit.constants import Constants

DEPTH = 2000
"""More than Python's frames."""


def chain(start):
    """A module in which each operation squares the last one's result; the first squares `start`."""
    squares = "\n  ".join(
        f"%{k + 1} = stablehlo.multiply %{k}, %{k} : tensor<f32>" for k in range(1, DEPTH + 1)
    )
    text = f"""
func.func @main(%arg: tensor<f32>) -> tensor<f32> {{
  %0 = stablehlo.constant dense<2.0> : tensor<f32>
  %1 = stablehlo.add {start}, %0 : tensor<f32>
  {squares}
  return %{DEPTH + 1} : tensor<f32>
}}"""
    with make_context():
        return ir.Module.parse(text)


def operations(module):
    (main,) = module.body.operations
    return [op.operation for op in main.regions[0].blocks[0].operations][:-1]


@pytest.fixture
def examined(monkeypatch):
    """The values of which the operation is looked up."""
    found = []
    defining_op = constants.defining_op
    monkeypatch.setattr(
        constants, "defining_op", lambda value: found.append(value) or defining_op(value)
    )
    return found


@pytest.mark.parametrize("start", ["%arg", "%0"])
def test_long_chains(start, examined):
    module = chain(start)  # the operations live as long
    ops = operations(module)
    known = Constants(lambda op: op.name == "stablehlo.multiply" or op.name == "stablehlo.add")
    is_known = [op in known for op in reversed(ops)]
    assert is_known == [start == "%0"] * (DEPTH + 1) + [True]
    assert len(examined) <= 3 * 2 * len(ops)
    assert known.makers(ops[-1].results[0]) == (ops if start == "%0" else [])


def test_one_operation_that_does_not_compute_constants():
    module = chain("%0")
    ops = operations(module)
    known = Constants(lambda op: op.name == "stablehlo.multiply")
    assert [op in known for op in ops] == [True] + [False] * (DEPTH + 1)
    assert known.makers(ops[0].results[0]) == ops[:1]
