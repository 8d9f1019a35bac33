"""How collectives are written, and that they do what the module does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jitted_programs import mesh

from shmap_compiler.simulate.simulate_module import simulate_module
from shmap_compiler.unjit.program import NoSpelling
from shmap_compiler.unjit.signature import read_sides
from shmap_compiler.unjit.source import write_source
from shmap_compiler.unjit.unjitted import load

BLOCK = "tensor<2x4xf32>"
SPLIT = '#sdy.sharding<@mesh, [{"i", "j"}, {}]>'
GROUPS = """
    replica_groups = #stablehlo.replica_group_mesh_axes<
        mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>"""
SUM = """
  ^bb0(%l: tensor<f32>, %r: tensor<f32>):
    %sum = stablehlo.add %l, %r : tensor<f32>
    stablehlo.return %sum : tensor<f32>"""


def module(lines, returned="%0", results=(BLOCK,)):
    """A module in body form of two blocks, `%x` and `%y`."""
    split = f"{{sdy.sharding = {SPLIT}}}"
    types = ", ".join(f"{each} {split}" for each in results)
    return f"""
module @m {{
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: {BLOCK} {split}, %y: {BLOCK} {split}) -> ({types})
      attributes {{sdy.manual_axes = #sdy<manual_axes{{"i", "j"}}>}} {{
    {lines}
    return {returned} : {", ".join(results)}
  }}
}}"""


def written(text, count=1):
    types = [jax.ShapeDtypeStruct((16, 4), jnp.float32)] * 2
    inputs = read_sides(types, ["x", "y"])
    outputs = read_sides(types[:1] * count, [f"result_{k}" for k in range(count)])
    tree = None if count == 1 else tuple
    return write_source(text, "f", "f", (), inputs, outputs, tree, (0, 1), {})


def check(text, count=1):
    """Runs the source of a module and the module; returns the source."""
    source = written(text, count)
    args = [np.arange(64, dtype=np.float32).reshape(16, 4) + k for k in range(2)]
    found = jax.tree.leaves(load(source, mesh()).replace(check_vma=False)(*args))
    for ours, theirs in zip(found, simulate_module(text, args, who="f").arrays, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    return source.text


def permuted(pairs):
    rows = ", ".join(f"[{source}, {target}]" for source, target in pairs)
    return module(
        '%0 = "stablehlo.collective_permute"(%x) '
        f"<{{source_target_pairs = dense<[{rows}]> : tensor<{len(pairs)}x2xi64>}}>"
        f" : ({BLOCK}) -> {BLOCK}"
    )


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        # along the minor axis, and along the major one
        ([(k, k ^ 1) for k in range(8)], 'lax.ppermute(x, "j", [(0, 1), (1, 0)])'),
        (
            [(k, (k + 2) % 8) for k in range(8)],
            'lax.ppermute(x, "i", [(0, 1), (1, 2), (2, 3), (3, 0)])',
        ),
        # along both
        (
            [(k, (k + 1) % 8) for k in range(8)],
            'lax.ppermute(x, ("i", "j"), [(k, (k + 1) % 8) for k in range(8)])',
        ),
        (
            [(k, (k - 1) % 8) for k in range(8)],
            'lax.ppermute(x, ("i", "j"), [(k, (k - 1) % 8) for k in range(8)])',
        ),
        (
            [(k, k + 1) for k in range(7)],
            'lax.ppermute(x, ("i", "j"), [(k, k + 1) for k in range(7)])',
        ),
        (
            [(k, k - 1) for k in range(1, 8)],
            'lax.ppermute(x, ("i", "j"), [(k, k - 1) for k in range(1, 8)])',
        ),
        # only some devices of a row
        ([(0, 1)], 'lax.ppermute(x, ("i", "j"), [(0, 1)])'),
    ],
)
def test_permutations_are_along_the_fewest_axes(pairs, expected):
    assert expected in check(permuted(pairs))


def test_permutations_along_two_of_three_axes():
    pairs = [(k, (k + 2) % 8) for k in range(8)]
    text = permuted(pairs).replace('<["i"=4, "j"=2]>', '<["a"=2, "b"=2, "c"=2]>')
    text = text.replace('{"i", "j"}', '{"a", "b", "c"}')
    assert 'lax.ppermute(x, ("a", "b"), [(0, 1), (1, 2), (2, 3), (3, 0)])' in written(text).text


def test_one_sum_of_several_arrays():
    text = module(
        f'%0:2 = "stablehlo.all_reduce"(%x, %y) <{{{GROUPS}}}> ({{{SUM}}})'
        f" : ({BLOCK}, {BLOCK}) -> ({BLOCK}, {BLOCK})",
        "%0#0, %0#1",
        (BLOCK, BLOCK),
    )
    assert 'lax.psum((x, y), "j")' in check(text, 2)


def test_several_arrays_are_gathered_at_once():
    whole = "tensor<2x8xf32>"
    text = module(
        f'%0:2 = "stablehlo.all_gather"(%x, %y) <{{all_gather_dim = 1 : i64, {GROUPS}}}>'
        f" : ({BLOCK}, {BLOCK}) -> ({whole}, {whole})",
        "%0#1, %0#0",
        (whole, whole),
    )
    assert 'lax.all_gather((x, y), "j", axis=1, tiled=True)' in check(text, 2)


def test_collectives_that_jax_does_not_have_are_named():
    combine = SUM.replace("stablehlo.add %l, %r", "stablehlo.power %l, %r")
    text = module(
        f'%0 = "stablehlo.all_reduce"(%x) <{{{GROUPS}}}> ({{{combine}}}) : ({BLOCK}) -> {BLOCK}'
    )
    with pytest.raises(NoSpelling, match=r"stablehlo\.all_reduce of a kind that jax\.lax does not"):
        written(text)


CANONICAL = """
    %is_zero_NAME = stablehlo.compare EQ, %NAME, %zero : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %no_minus_NAME = stablehlo.select %is_zero_NAME, %zero, %NAME : tensor<i1>, tensor<f32>
    %is_nan_NAME = stablehlo.compare NE, %NAME, %NAME : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %of_NAME = stablehlo.select %is_nan_NAME, %nan, %no_minus_NAME : tensor<i1>, tensor<f32>"""


@pytest.mark.parametrize(("first", "is_ascending"), [("l", True), ("r", False)])
def test_sorts_are_ascending_only_if_the_first_number_is_the_smaller(first, is_ascending):
    second = "r" if first == "l" else "l"
    text = module(f"""
    %0 = "stablehlo.sort"(%x) <{{dimension = 1 : i64, is_stable = true}}> ({{
  ^bb0(%l: tensor<f32>, %r: tensor<f32>):
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %nan = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    {CANONICAL.replace("NAME", "l")}
    {CANONICAL.replace("NAME", "r")}
    %less = stablehlo.compare LT, %of_{first}, %of_{second}, TOTALORDER
        : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
    }}) : ({BLOCK}) -> {BLOCK}""")
    assert ("lax.sort(" in check(text)) == is_ascending
