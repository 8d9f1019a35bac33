"""What is read from a stack is what was written, wherever it was written and read."""

import random

import numpy as np
import pytest
import shmap_passes
from jaxlib.mlir import ir
from run_module import run_module
from shmap_passes.overlap.rewrite.stacks import forward_stacks

UPDATE = "stablehlo.dynamic_update_slice"
STACK = "tensor<3x3xf32>"
OPERATIONS = 60


def drawn(seed):
    """Writes of rows and columns in two arrays, and reads; some where nobody knows, or outside."""
    draw = random.Random(seed)
    pieces = {0: ("tensor<1x3xf32>", "%row"), 1: ("tensor<3x1xf32>", "%column")}
    lines = [f"%i{n} = stablehlo.constant dense<{n - 1}> : tensor<i32>" for n in range(5)]
    indices = ["%i0", "%i1", "%i1", "%i2", "%i2", "%i3", "%i3", "%i4", "%n"]
    stacks, results = [["%x"], ["%y"]], []
    for k in range(OPERATIONS):
        lines.append(f"%f{k} = stablehlo.constant dense<{k}.0> : tensor<f32>")
        dimension, place = draw.choice((0, 0, 0, 0, 0, 1)), draw.choice(indices)
        type_, piece = pieces[dimension]
        starts = f"{place}, %i1" if dimension == 0 else f"%i1, {place}"
        family = draw.choice(stacks)
        whole = family[-1] if draw.random() < 0.9 else draw.choice(family)
        if draw.random() < 0.5:
            of_this = f"broadcast_in_dim %f{k}, dims = [] : (tensor<f32>) -> {type_}"
            lines += [
                f"%b{k} = stablehlo.{of_this}",
                f"%p{k} = stablehlo.add {piece}, %b{k} : {type_}",
            ]
            types = f"({STACK}, {type_}, tensor<i32>, tensor<i32>) -> {STACK}"
            lines.append(f"%s{k} = {UPDATE} {whole}, %p{k}, {starts} : {types}")
            family.append(f"%s{k}")
        else:
            size = "sizes = [1, 3]" if dimension == 0 else "sizes = [3, 1]"
            types = f"({STACK}, tensor<i32>, tensor<i32>) -> {type_}"
            lines.append(f"%r{k} = stablehlo.dynamic_slice {whole}, {starts}, {size} : {types}")
            results.append((f"%r{k}", type_))
    results += [(family[-1], STACK) for family in stacks]
    names, types = zip(*results, strict=True)
    arrays = f"%x: {STACK}, %y: {STACK}, %row: tensor<1x3xf32>, %column: tensor<3x1xf32>"
    body = "\n    ".join(lines)
    return f"""module {{
  func.func public @main({arrays}, %n: tensor<i32>) -> ({", ".join(types)}) {{
    {body}
    return {", ".join(names)} : {", ".join(types)}
  }}
}}"""


def forwarded(text, how="zeros"):
    with shmap_passes.make_context():
        module = ir.Module.parse(text)
        forward_stacks(module.body.operations[0].regions[0].blocks[0], how)
        module.operation.verify()
        return str(module)


@pytest.mark.parametrize("seed", range(4))
def test_reads_and_stacks_are_the_same_after_it(seed):
    text = drawn(seed)
    after = forwarded(text)
    assert 0 < after.count("dynamic_slice") < text.count("dynamic_slice")
    rng = np.random.default_rng(seed)
    shapes = [(3, 3), (3, 3), (1, 3), (3, 1)]
    args = [*(rng.random(shape, np.float32) for shape in shapes), np.int32(2)]
    before, then = (run_module(each, args, {"i": 1}, "shardy") for each in (text, after))
    for ours, theirs in zip(then, before, strict=True):
        np.testing.assert_array_equal(ours, theirs)


FILLED = """module {{
  func.func public @main(%p: tensor<1x3xf32>) -> ({types}) {{
    %i0 = stablehlo.constant dense<0> : tensor<i32>
    %i1 = stablehlo.constant dense<1> : tensor<i32>
    %s = stablehlo.constant dense<{zero}> : tensor<2x3xf32>
    %s0 = stablehlo.dynamic_update_slice %s, %p, %i0, %i0 : {update}
    %s1 = stablehlo.dynamic_update_slice %s0, %p, %{last}, %i0 : {update}
    return {returned} : {types}
  }}
}}"""
WRITE = "(tensor<2x3xf32>, tensor<1x3xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>"


def starts_empty(how="allocate", last="i1", returned="%s1"):
    types = ", ".join(["tensor<2x3xf32>"] * returned.count("%"))
    text = FILLED.format(types=types, zero="0.0", update=WRITE, last=last, returned=returned)
    return "AllocateBuffer" in forwarded(text, how)


def test_a_stack_that_is_written_as_a_whole_need_not_be_zeros():
    assert starts_empty()
    assert not starts_empty("zeros")


def test_a_stack_with_places_that_are_read_as_zeros_stays():
    assert not starts_empty(last="i0")
    assert not starts_empty(returned="%s1, %s0")


READ = """module {{
  func.func public @main(%p: tensor<1x3xf32>, %s: tensor<4x3xf32>) -> tensor<1x3xf32> {{
    %zero = stablehlo.constant dense<0> : tensor<{type}>
    %left = stablehlo.constant dense<{left}> : tensor<{type}>
    %right = stablehlo.constant dense<{right}> : tensor<{type}>
    %i = stablehlo.{operation} %left, %right : tensor<{type}>
    %less = stablehlo.compare LT, %i, %zero, {kind} : (tensor<{type}>, tensor<{type}>) -> tensor<i1>
    %one = stablehlo.constant dense<1> : tensor<{type}>
    %n = stablehlo.select %less, %one, %zero : tensor<i1>, tensor<{type}>
    %t = stablehlo.dynamic_update_slice %s, %p, %n, %zero
        : (tensor<4x3xf32>, tensor<1x3xf32>, tensor<{type}>, tensor<{type}>) -> tensor<4x3xf32>
    %r = stablehlo.dynamic_slice %t, %n, %zero, sizes = [1, 3]
        : (tensor<4x3xf32>, tensor<{type}>, tensor<{type}>) -> tensor<1x3xf32>
    return %r : tensor<1x3xf32>
  }}
}}"""


def is_forwarded(type_, left, operation, right):
    kind = "UNSIGNED" if type_.startswith("ui") else "SIGNED"
    text = READ.format(type=type_, left=left, operation=operation, right=right, kind=kind)
    return "dynamic_slice" not in forwarded(text)


def test_numbers_that_wrap_around_are_not_known():
    assert is_forwarded("i8", 0, "subtract", 127)
    assert is_forwarded("i8", -1, "subtract", 127)
    assert not is_forwarded("i8", -2, "subtract", 127)
    assert not is_forwarded("i8", 127, "add", 1)
    assert is_forwarded("ui8", 127, "add", 128)
    assert not is_forwarded("ui8", 128, "add", 128)
    assert not is_forwarded("ui8", 0, "subtract", 1)
    assert not is_forwarded("ui8", 16, "multiply", 16)


@pytest.mark.parametrize("type_", ["i4", "ui2"])
def test_numbers_of_few_bits(type_):
    assert is_forwarded(type_, 0, "add", 1)
