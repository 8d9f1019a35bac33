"""What a pass rewrites, and what it leaves if one thing is different.

Each difference is one with which the rewritten program could not be built, or would compute
something else. Shapes are such that they alone do not tell it.
"""

import jax
import jax.numpy as jnp
import pytest
import shmap_passes
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from overlap_programs import BY_NAME, mesh

import shmap_compiler
from shmap_compiler import shard_map

MODULE = """module {{
  sdy.mesh @mesh = <["i"=2, "j"=2]>
  func.func public @main() attributes {{sdy.manual_axes = #sdy<manual_axes{{"i", "j"}}>}} {{
    return
  }}
  func.func private @f(%x: tensor<4x8xf32>, %v: tensor<8x8xf32>, %w: tensor<8x8xf32>,
      %tokens: tensor<4x8x8xf32>, %experts: tensor<2x8x8xf32>, %c: tensor<i1>) -> {types} {{
    {body}
    return {returned} : {types}
  }}
}}"""
ADD = """({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    })"""


def collective(name, operand, axis, types, region="", **attributes):
    written = "".join(f", {key} = {value} : i64" for key, value in attributes.items())
    axes = f'axes = [#stablehlo.axis_ref<name = "{axis}">]'
    groups = f"#stablehlo.replica_group_mesh_axes<mesh = @mesh, {axes}>"
    properties = f"<{{replica_groups = {groups}{written}}}>"
    return f'"stablehlo.{name}"(%{operand}) {properties} {region} : {types}'


def gather(operand):
    types = "(tensor<4x8xf32>) -> tensor<8x8xf32>"
    return collective("all_gather", operand, "i", types, all_gather_dim=0)


def scatter(operand, axis="i"):
    types = "(tensor<8x8xf32>) -> tensor<4x8xf32>"
    return collective("reduce_scatter", operand, axis, types, ADD, scatter_dimension=0)


def product(left, right, contracted="[1] x [0]"):
    types = "(tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>"
    return f"stablehlo.dot_general %{left}, %{right}, contracting_dims = {contracted} : {types}"


def exchange(operand, axis, split, concat, types):
    dimensions = {"split_dimension": split, "concat_dimension": concat, "split_count": 2}
    return collective("all_to_all", operand, axis, types, **dimensions)


def back(axis):
    types = "(tensor<2x16x8xf32>) -> tensor<4x8x8xf32>"
    return exchange("b", axis, split=1, concat=0, types=types)


# The gradient of a block: gathered rows are multiplied, scattered, and summed up.
ROWS = f"""%g = {gather("x")}
    %a = {product("g", "v")}
    %h = stablehlo.tanh %a : tensor<8x8xf32>
    %z = {product("h", "w")}
    %y = {scatter("z")}
    %e = {gather("y")}
    %d = {product("h", "e", "[0] x [0]")}"""
ROWS_RETURNED = "%y, %d", "(tensor<4x8xf32>, tensor<8x8xf32>)"
TANH = "%h = stablehlo.tanh %a"
TO_EXPERTS = "(tensor<4x8x8xf32>) -> tensor<2x16x8xf32>"
TOKENS = f"""%a = {exchange("tokens", "i", split=0, concat=1, types=TO_EXPERTS)}
    %b = stablehlo.dot_general %a, %experts, batching_dims = [0] x [0], contracting_dims = [2] x [1]
        : (tensor<2x16x8xf32>, tensor<2x8x8xf32>) -> tensor<2x16x8xf32>
    %y = {back("i")}"""

# Pass and form, the program, and what is different: a text and what takes its place.
FOUND = {
    "overlap-row-block": ("row-chunks", ROWS, *ROWS_RETURNED),
    "overlap-all-to-all": ("chunks", TOKENS, "%y", "tensor<4x8x8xf32>"),
}
LEFT = {
    "rows that are not gathered are added": (
        "overlap-row-block",
        TANH,
        "%n = stablehlo.add %a, %v : tensor<8x8xf32>\n    %h = stablehlo.tanh %n",
    ),
    "rows are added to a column": (
        "overlap-row-block",
        TANH,
        """%k = stablehlo.slice %v [0:8, 0:1] : (tensor<8x8xf32>) -> tensor<8x1xf32>
    %l = stablehlo.broadcast_in_dim %k, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x8xf32>
    %n = stablehlo.add %a, %l : tensor<8x8xf32>
    %h = stablehlo.tanh %n""",
    ),
    "rows are added to columns": (
        "overlap-row-block",
        TANH,
        f"""%n = {product("v", "g", "[0] x [1]")}
    %o = stablehlo.add %a, %n : tensor<8x8xf32>
    %h = stablehlo.tanh %o""",
    ),
    "rows are multiplied by columns, and columns by rows": (
        "overlap-row-block",
        f"%d = {product('h', 'e', '[0] x [0]')}",
        """%n = stablehlo.dot_general %h, %e, contracting_dims = [0, 1] x [1, 0]
        : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<f32>
    %d = stablehlo.broadcast_in_dim %n, dims = [] : (tensor<f32>) -> tensor<8x8xf32>""",
    ),
    "rows are multiplied by rows, and scattered": (
        "overlap-row-block",
        f"%z = {product('h', 'w')}",
        """%k = stablehlo.broadcast_in_dim %h, dims = [0, 1]
        : (tensor<8x8xf32>) -> tensor<8x8x8xf32>
    %z = stablehlo.dot_general %h, %k, batching_dims = [0] x [0], contracting_dims = [1] x [1]
        : (tensor<8x8xf32>, tensor<8x8x8xf32>) -> tensor<8x8xf32>""",
    ),
    "rows are read inside of an operation": (
        "overlap-row-block",
        f"%z = {product('h', 'w')}",
        f"""%z = {product("h", "w")}
    %k = "stablehlo.if"(%c) ({{
      %n = stablehlo.negate %h : tensor<8x8xf32>
      stablehlo.return %n : tensor<8x8xf32>
    }}, {{
      stablehlo.return %w : tensor<8x8xf32>
    }}) : (tensor<i1>) -> tensor<8x8xf32>""",
    ),
    "something is computed from what is summed": (
        "overlap-row-block",
        f"%z = {product('h', 'w')}",
        f"%o = {product('h', 'w')}\n    %z = stablehlo.negate %o : tensor<8x8xf32>",
    ),
    "sums go along another axis": ("overlap-row-block", scatter("z"), scatter("z", "j")),
    "tokens return along another axis": ("overlap-all-to-all", back("i"), back("j")),
}


def rewritten(pass_name, old="", new=""):
    """Whether a pass changes its program, in which a text is replaced."""
    form, body, returned, types = FOUND[pass_name]
    assert old in body
    text = MODULE.format(body=body.replace(old, new), returned=returned, types=types)
    with shmap_passes.make_context():
        module = ir.Module.parse(text.replace(f": ({types[1:-1]})", f": {types[1:-1]}"))
        before = str(module)
        shmap_passes.run(module, [BY_NAME[pass_name](form=form, parts=2)])
        return str(module) != before


@pytest.mark.parametrize("pass_name", FOUND)
def test_without_a_difference_it_is_rewritten(pass_name):
    assert rewritten(pass_name)


@pytest.mark.parametrize("difference", LEFT)
def test_with_a_difference_it_is_left(difference):
    assert not rewritten(*LEFT[difference])


@pytest.mark.parametrize("form", ["row-chunks", "row-stages"])
@pytest.mark.parametrize("scattered", [0, 1])
def test_sequences_are_cut_unless_they_are_scattered(form, scattered):
    """Tokens, dimension 1, are gathered, and in attention multiplied by each other."""

    def body(x, v, w):
        rows = lax.all_gather(x, "i", axis=1, tiled=True)
        scores = jnp.tanh(jnp.einsum("bsd,btd->bst", rows @ v, rows @ v))
        h = jnp.einsum("bst,btd->bsd", scores, rows @ v)
        y = lax.psum_scatter(h @ w, "i", scatter_dimension=scattered, tiled=True)
        return y, jnp.einsum("bsd,bse->de", rows, h)

    pass_ = BY_NAME["overlap-row-block"](form=form, parts=2)
    types = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((4, 8, 8), (8, 8), (8, 8))]
    with shmap_compiler.passes(pass_):
        specs = (P(None, "i"), P(), P()), (P(*(None,) * scattered, "i"), P())
        f = shard_map(body, mesh=mesh(i=2), in_specs=specs[0], out_specs=specs[1], check_vma=False)
        states = {state.name: state.text for state in f.lower(*types).snapshots.stages}
    is_rewritten = states[pass_.name] != states["shmap-normalize-all-to-all"]
    assert is_rewritten == (scattered == 1)
