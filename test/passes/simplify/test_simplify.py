"""Run what was cleaned up: equal numbers before and after each pass, and fewer collectives.

The number and bytes of collectives are those of the HLO that XLA makes of the module. Where they do
not change, XLA's CPU backend does the same by itself.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import shmap_passes
from body_module import ADD, PARTIAL, Program, over
from jax import lax
from run_module import in_child, passed, run_and_count
from shmap_passes import PASSES

BY_NAME = {cls.name: cls for cls in PASSES}
CLEAN_UP = [
    type(each)
    for each in shmap_passes.pipeline()
    if each.name.startswith(
        ("shmap-elide", "shmap-merge", "shmap-form", "shmap-fold", "shmap-comb")
    )
]


@dataclass(frozen=True)
class Case:
    """A program that `cleanup` changes, and what then goes over the wire: {kind: count}."""

    cleanup: str
    program: Program
    before: dict
    after: dict


def reduce(result, operand, *axes, type_="4x8"):
    return f"""%{result} = "stablehlo.all_reduce"(%{operand}) <{{{over(*axes)}}}> {ADD}
        : (tensor<{type_}xf32>) -> tensor<{type_}xf32>"""


def own_rows(result, operand, axes, rows, whole):
    """The block of `rows` rows that belongs to the device with its index along `axes`."""
    names = ", ".join(f'"{axis}"' for axis in axes)
    return f"""%i = stablehlo.custom_call @shmap.axis_index()
        {{api_version = 4 : i32, backend_config = {{axes = [{names}]}}}} : () -> tensor<i32>
    %rows = stablehlo.constant dense<{rows}> : tensor<i32>
    %o = stablehlo.multiply %i, %rows : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %{result} = stablehlo.dynamic_slice %{operand}, %o, %zero, sizes = [{rows}, 8]
        : (tensor<{whole}x8xf32>, tensor<i32>, tensor<i32>) -> tensor<{rows}x8xf32>"""


def gather(result, operand, rows, *axes):
    return f"""%{result} = "stablehlo.all_gather"(%{operand})
        <{{all_gather_dim = 0 : i64, {over(*axes)}}}>
        : (tensor<4x8xf32>) -> tensor<{rows}x8xf32>"""


def integers(text):
    return text.replace("f32", "i32")


def lines(*each):
    return "\n    ".join(each)


def sum_of(x, *axes):
    return lax.psum(x, axes)


def own(x, axes, rows):
    return lax.dynamic_slice_in_dim(x, lax.axis_index(axes) * rows, rows)


MINUS = "%n = stablehlo.negate %x : tensor<4x8xf32>"
TOTAL = "%y = stablehlo.add %p, %q : tensor<4x8xf32>"
ONE = {"mesh": (("i", 4), ("j", 1), ("k", 2))}
SUM_ALONG_K = reduce("s", "x", "k")
EQUAL_ALONG_K = {"in_spec": (("i", "j"), None), "out_spec": (("i", "j"), None)}

CASES = {
    "a sum over an axis of size one": Case(
        "shmap-elide-trivial-collectives",
        Program(reduce("y", "x", "j"), lambda x: sum_of(x, "j"), **ONE),
        {"all-reduce": 1},
        {},
    ),
    "a sum of an equal value": Case(
        "shmap-elide-invariant-reductions",
        Program(
            lines(SUM_ALONG_K, reduce("y", "s", "k")),
            lambda x: sum_of(sum_of(x, "k"), "k"),
            **EQUAL_ALONG_K,
        ),
        {"all-reduce": 2},
        {"all-reduce": 1},
    ),
    "a sum of a value that is equal along one of two axes": Case(
        "shmap-elide-invariant-reductions",
        Program(
            lines(SUM_ALONG_K, reduce("y", "s", "k", "i")),
            lambda x: sum_of(sum_of(x, "k"), "k", "i"),
            **EQUAL_ALONG_K,
        ),
        {"all-reduce": 2},
        {"all-reduce": 2},
    ),
    "a sum of an equal value, with automatic axes": Case(
        "shmap-elide-invariant-reductions",
        Program(
            lines(SUM_ALONG_K, reduce("y", "s", "k")),
            lambda x: sum_of(sum_of(x, "k"), "k"),
            manual=("i", "k"),
            in_spec=("i", None),
            out_spec=("i", None),
        ),
        {"all-reduce": 2},
        {"all-reduce": 1},
    ),
    "the same sum twice": Case(
        "shmap-merge-equal-collectives",
        Program(
            lines(reduce("p", "x", "k"), reduce("q", "x", "k"), TOTAL),
            lambda x: 2 * sum_of(x, "k"),
        ),
        {"all-reduce": 1},
        {"all-reduce": 1},
    ),
    "the own block of what was gathered": Case(
        "shmap-elide-gathered-slices",
        Program(lines(gather("g", "x", 8, "k"), own_rows("y", "g", ("k",), 4, 8)), lambda x: x),
        {"all-gather": 1},
        {},
    ),
    "the own block of what was gathered, with automatic axes": Case(
        "shmap-elide-gathered-slices",
        Program(
            lines(gather("g", "x", 8, "k"), own_rows("y", "g", ("k",), 4, 8)),
            lambda x: x,
            **PARTIAL,
            out_spec=("i", "k"),
        ),
        {"all-gather": 1},
        {},
    ),
    "the own block of a sum": Case(
        "shmap-form-reduce-scatter",
        Program(
            lines(reduce("p", "x", "k"), own_rows("y", "p", ("k",), 2, 4)),
            lambda x: own(sum_of(x, "k"), "k", 2),
            out="2x8",
        ),
        {"all-reduce": 1},
        {"reduce-scatter": 1},
    ),
    "the own block of a sum over axes out of order": Case(
        "shmap-form-reduce-scatter",
        Program(
            lines(
                "%n = stablehlo.convert %x : (tensor<4x8xf32>) -> tensor<4x8xi32>",
                integers(reduce("p", "n", "i", "k")),
                integers(own_rows("r", "p", ("k", "i"), 1, 4)),
                "%y = stablehlo.convert %r : (tensor<1x8xi32>) -> tensor<1x8xf32>",
            ),
            lambda x: own(sum_of(x.astype(int), "i", "k"), ("k", "i"), 1).astype(float),
            out="1x8",
        ),
        {"all-reduce": 1},
        {"reduce-scatter": 1},
    ),
    "a sum of a sum": Case(
        "shmap-fold-all-reduces",
        Program(lines(reduce("p", "x", "i"), reduce("y", "p", "k")), lambda x: sum_of(x, "i", "k")),
        {"all-reduce": 2},
        {"all-reduce": 1},
    ),
    "a sum of a sum, with automatic axes": Case(
        "shmap-fold-all-reduces",
        Program(
            lines(reduce("p", "x", "i"), reduce("y", "p", "k")),
            lambda x: sum_of(x, "i", "k"),
            **PARTIAL,
            out_spec=(None, None),
        ),
        {"all-reduce": 2},
        {"all-reduce": 1},
    ),
    "two small sums": Case(
        "shmap-combine-all-reduces",
        Program(
            lines(MINUS, reduce("p", "x", "k"), reduce("q", "n", "k"), TOTAL),
            lambda x: sum_of(x, "k") + sum_of(-x, "k"),
        ),
        {"all-reduce": 1},
        {"all-reduce": 1},
    ),
}


@pytest.mark.subprocess
@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("name", CASES)
def test_a_pass_leaves_the_numbers_and_sends_less(name, partitioner):
    case = CASES[name]
    rest = [p for p in shmap_passes.pipeline(partitioner) if type(p) not in CLEAN_UP]
    cleaned = passed(case.program.text(), [BY_NAME[case.cleanup]()])
    assert cleaned != passed(case.program.text(), [])
    found = []
    for text in (case.program.text(), cleaned):
        args = (case.program.full_input(),), case.program.sizes, partitioner
        (result,), collectives = in_child(run_and_count, passed(text, rest), *args)
        np.testing.assert_array_equal(result, case.program.expected())
        found.append(collectives)
    before, after = found
    assert {each.kind: each.count for each in before} == case.before
    assert {each.kind: each.count for each in after} == case.after
    assert sum(each.bytes for each in after) <= sum(each.bytes for each in before)


def test_every_clean_up_pass_has_a_case():
    assert {case.cleanup for case in CASES.values()} == {cls.name for cls in CLEAN_UP}
