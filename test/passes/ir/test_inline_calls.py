"""Calls are inlined if that ends."""

import pytest
import shmap_passes
from jaxlib.mlir import ir
from shmap_passes.base import PassRefused
from shmap_passes.ir.find_ops import find_ops
from shmap_passes.ir.inline_calls import functions_of, inline_calls

TYPE = "(tensor<f32>) -> tensor<f32>"


def function(name, *called, private=True):
    """One that calls others, each with the result of the one before."""
    calls = [f"%{n + 1} = call @{each}(%{n}) : {TYPE}" for n, each in enumerate(called)]
    head = f"func.func {'private' if private else 'public'} @{name}(%0: tensor<f32>)"
    end = f"return %{len(called)} : tensor<f32>"
    return "\n".join([f"{head} -> tensor<f32> {{", *calls, end, "}"])


def inlined(*functions):
    """How many multiplications @main has when all calls are inlined."""
    one = function("one").replace(
        "return %0", "%1 = stablehlo.multiply %0, %0 : tensor<f32>\nreturn %1"
    )
    with shmap_passes.make_context():
        module = ir.Module.parse("\n".join([*functions, one])).operation.opview
        main = functions_of(module)["main"]
        inline_calls(module, main, lambda call: True)
        assert module.operation.verify()
        assert not find_ops(main.operation, ["func.call"])
        return len(find_ops(main.operation, ["stablehlo.multiply"]))


def test_what_is_called_often_is_inlined():
    ten = ["ten"] * 10
    functions = [function("hundred", *ten), function("ten", *["one"] * 10)]
    assert inlined(function("main", *["hundred"] * 20, private=False), *functions) == 2000


@pytest.mark.parametrize(
    ("functions", "name"),
    [
        ([function("main", "main")], "main"),
        ([function("main", "one", "f"), function("f", "f")], "f"),
        ([function("main", "f"), function("f", "g"), function("g", "one", "f")], "f"),
        ([function("main", "g"), function("g", "f"), function("f", "f")], "f"),
    ],
)
def test_no_function_calls_itself(functions, name):
    with pytest.raises(PassRefused, match=f"@{name} calls itself"):
        inlined(*functions)


LOOP = """
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %y = stablehlo.while(%a = %x) : tensor<f32> cond {
    %more = stablehlo.compare LT, %a, %a : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %z = func.call @main(%a) : (tensor<f32>) -> tensor<f32>
    stablehlo.return %z : tensor<f32>
  }
  return %y : tensor<f32>
}
"""


def test_a_loop_in_itself_does_not_end_the_process():
    with pytest.raises(PassRefused, match="@main calls itself"):
        inlined(LOOP)


def test_functions_that_call_others_twice_do_not_go_on_for_ever():
    functions = [function(f"f{n}", *[f"f{n - 1}"] * 2) for n in range(1, 40)]
    with pytest.raises(PassRefused, match="more than 20,000 calls would be inlined"):
        inlined(function("main", "f39"), *functions, function("f0", "one"))
