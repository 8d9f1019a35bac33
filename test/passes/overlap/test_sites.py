"""Where communication and computation can overlap: the sites of small modules, and their forms."""

import pytest
import shmap_passes
from body_module import ADD, over
from jaxlib.mlir import ir
from shmap_passes.cost.work import ProductShape
from shmap_passes.overlap.choose.choices import choices
from shmap_passes.overlap.choose.sites import find_sites
from shmap_passes.overlap.form import FORM, Form, erase, read, write

GATHER = f"""%g = "stablehlo.all_gather"(%x) <{{all_gather_dim = 0 : i64, {over("i")}}}>
        : (tensor<4x8xf32>) -> tensor<16x8xf32>"""
USE = "stablehlo.custom_call @use(%y) {has_side_effect = true}"
BODIES = {
    "gather, free dimension": f"""{GATHER}
    %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0]
        : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    {USE} : (tensor<16x6xf32>) -> ()""",
    "gather, added to the product": f"""{GATHER}
    %v = stablehlo.constant dense<1.0> : tensor<8x8xf32>
    %p = stablehlo.dot_general %g, %v, contracting_dims = [1] x [0]
        : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
    %y = stablehlo.add %p, %g : tensor<16x8xf32>
    {USE} : (tensor<16x8xf32>) -> ()""",
    "gather, multiplied by what needs a product": f"""{GATHER}
    %p = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0]
        : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %v = stablehlo.slice %p [0:8, 0:6] : (tensor<16x6xf32>) -> tensor<8x6xf32>
    %y = stablehlo.dot_general %g, %v, contracting_dims = [1] x [0]
        : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    {USE} : (tensor<16x6xf32>) -> ()""",
    "gather, negated": f"""{GATHER}
    %p = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0]
        : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %y = stablehlo.negate %g : tensor<16x8xf32>
    {USE} : (tensor<16x8xf32>) -> ()
    {USE.replace("%y", "%p")} : (tensor<16x6xf32>) -> ()""",
    "gather, transposed, as right operand": f"""{GATHER}
    %t = stablehlo.transpose %g, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
    %y = stablehlo.dot_general %w, %t, contracting_dims = [0] x [0]
        : (tensor<8x6xf32>, tensor<8x16xf32>) -> tensor<6x16xf32>
    {USE} : (tensor<6x16xf32>) -> ()""",
    "gather, contracted dimension": f"""{GATHER}
    %v = stablehlo.constant dense<1.0> : tensor<6x16xf32>
    %y = stablehlo.dot_general %v, %g, contracting_dims = [1] x [0]
        : (tensor<6x16xf32>, tensor<16x8xf32>) -> tensor<6x8xf32>
    {USE} : (tensor<6x8xf32>) -> ()""",
    "scatter": f"""%p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
        : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
    %y = "stablehlo.reduce_scatter"(%p) <{{scatter_dimension = 0 : i64, {over("i")}}}> {ADD}
        : (tensor<4x6xf32>) -> tensor<1x6xf32>""",
    "exchange": f"""%b = stablehlo.reshape %x : (tensor<4x8xf32>) -> tensor<4x2x4xf32>
    %s = "stablehlo.all_to_all"(%b) <{{split_dimension = 0 : i64, concat_dimension = 1 : i64,
        split_count = 4 : i64, {over("i")}}}> : (tensor<4x2x4xf32>) -> tensor<1x8x4xf32>
    %v = stablehlo.constant dense<1.0> : tensor<1x4x4xf32>
    %z = stablehlo.dot_general %s, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1]
        : (tensor<1x8x4xf32>, tensor<1x4x4xf32>) -> tensor<1x8x4xf32>
    %y = "stablehlo.all_to_all"(%z) <{{split_dimension = 1 : i64, concat_dimension = 0 : i64,
        split_count = 4 : i64, {over("i")}}}> : (tensor<1x8x4xf32>) -> tensor<4x2x4xf32>""",
    "loop": f"""%zero = stablehlo.constant dense<0> : tensor<i32>
    %n, %y = stablehlo.while(%k = %zero, %c = %x) : tensor<i32>, tensor<4x8xf32>
    cond {{
      %three = stablehlo.constant dense<3> : tensor<i32>
      %more = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }} do {{
      %one = stablehlo.constant dense<1> : tensor<i32>
      %o = stablehlo.dynamic_slice %w, %k, %k, sizes = [2, 6]
          : (tensor<8x6xf32>, tensor<i32>, tensor<i32>) -> tensor<2x6xf32>
      %g = "stablehlo.all_gather"(%o) <{{all_gather_dim = 0 : i64, {over("i")}}}>
          : (tensor<2x6xf32>) -> tensor<8x6xf32>
      %d = stablehlo.dot_general %c, %g, contracting_dims = [1] x [0]
          : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
      %e = stablehlo.dot_general %d, %g, contracting_dims = [1] x [1]
          : (tensor<4x6xf32>, tensor<8x6xf32>) -> tensor<4x8xf32>
      %next = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %next, %e : tensor<i32>, tensor<4x8xf32>
    }}""",
    "sum": f"""%p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
        : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
    %y = "stablehlo.all_reduce"(%p) <{{{over("i")}}}>
        {ADD} : (tensor<4x6xf32>) -> tensor<4x6xf32>""",
    "reduced by a maximum": f"""%p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
        : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
    %y = "stablehlo.reduce_scatter"(%p) <{{scatter_dimension = 0 : i64, {over("i")}}}>
        {ADD.replace("stablehlo.add", "stablehlo.maximum")}
        : (tensor<4x6xf32>) -> tensor<1x6xf32>""",
}


def module(body, mesh='["i"=4, "j"=2]', manual='"i", "j"'):
    return ir.Module.parse(f"""module {{
  sdy.mesh @mesh = <{mesh}>
  func.func public @main(
      %x: tensor<4x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"i"}}, {{}}]>}},
      %w: tensor<8x6xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}})
      attributes {{sdy.manual_axes = #sdy<manual_axes{{{manual}}}>}} {{
    {body}
    return
  }}
}}""")


def facts(site):
    return site.pattern, site.shapes, site.received, site.cut, site.trips


WIRE = 3 * 4 * 8 * 4  # bytes of the blocks of three other devices


SCATTER = BODIES["scatter"].replace(
    "%p = stablehlo.dot_general %x", "%p = stablehlo.dot_general %h"
)
USE_OF_TANH = f"{USE.replace('%y', '%t')} : (tensor<4x8xf32>) -> ()"
END_OF_SCATTER, END_OF_SUM = (
    BODIES[name][BODIES[name].index("%y = ") :] for name in ("scatter", "sum")
)
TWO_PRODUCTS = """%p0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
        : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
    %p1 = stablehlo.dot_general %w, %h, contracting_dims = [0] x [1]
        : (tensor<8x6xf32>, tensor<4x8xf32>) -> tensor<6x4xf32>
    %p2 = stablehlo.transpose %p1, dims = [1, 0] : (tensor<6x4xf32>) -> tensor<4x6xf32>
    %p = stablehlo.add %p0, %p2 : tensor<4x6xf32>
    """
PRODUCT = """%s = stablehlo.constant dense<1.0> : tensor<8x8xf32>
    %b = stablehlo.dot_general %x, %s, contracting_dims = [1] x [0]
        : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %t = stablehlo.tanh %b : tensor<4x8xf32>
    %h = stablehlo.multiply %t, %b : tensor<4x8xf32>
    """


@pytest.mark.parametrize(
    ("body", "source"),
    [
        (BODIES["scatter"], "argument"),
        (BODIES["sum"], "argument"),
        (PRODUCT + SCATTER, "product"),
        (PRODUCT + BODIES["sum"].replace("dot_general %x", "dot_general %h"), "product"),
        (f"{PRODUCT}{SCATTER}\n    {USE.replace('%y', '%t')} : (tensor<4x8xf32>) -> ()", "shared"),
        (f"{PRODUCT}{SCATTER}\n    {USE.replace('%y', '%b')} : (tensor<4x8xf32>) -> ()", "shared"),
        (f"{PRODUCT.replace('tanh %b', 'reverse %b, dims = [0]')}{SCATTER}", "other"),
        (f"%h = stablehlo.tanh %x : tensor<4x8xf32>\n    {SCATTER}", "other"),
        (f"{PRODUCT}{TWO_PRODUCTS}{END_OF_SCATTER}", "other"),
        (f"{PRODUCT}{TWO_PRODUCTS}{END_OF_SUM}", "other"),
        (TWO_PRODUCTS.replace("%h", "%x") + END_OF_SCATTER, "argument"),
        (f"{PRODUCT}{TWO_PRODUCTS}{END_OF_SUM}\n    {USE_OF_TANH}", "shared"),
    ],
)
def test_where_the_rows_of_a_product_come_from(body, source):
    with shmap_passes.make_context():
        (site,) = find_sites(module(body))
        assert site.source == source


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (
            "gather, free dimension",
            [("gather-product", (ProductShape(1, 16, 6, 8),), WIRE, 4, 1)],
        ),
        (
            "gather, transposed, as right operand",
            [("gather-product", (ProductShape(1, 16, 6, 8),), WIRE, 4, 1)],
        ),
        (
            "gather, contracted dimension",
            [("gather-contraction", (ProductShape(1, 6, 8, 16),), WIRE, 8, 1)],
        ),
        ("scatter", [("product-scatter", (ProductShape(1, 4, 6, 8),), 3 * 6 * 4, 1, 1)]),
        ("sum", [("product-sum", (ProductShape(1, 4, 6, 8),), 3 * 6 * 4, 6, 1)]),
        ("exchange", [("all-to-all", (ProductShape(1, 8, 4, 4),), 2 * 3 * 8 * 4, 2, 1)]),
        (
            "loop",
            [
                (
                    "gathering-loop",
                    (ProductShape(1, 4, 6, 8), ProductShape(1, 4, 8, 6)),
                    3 * 12 * 4,
                    1,
                    3,
                ),
                # The other product needs the first one.
                ("gather-contraction", (ProductShape(1, 4, 6, 8),), 3 * 12 * 4, 6, 1),
            ],
        ),
        ("reduced by a maximum", []),
    ],
)
def test_the_sites_of_a_module(name, found):
    with shmap_passes.make_context():
        sites = find_sites(module(BODIES[name]))
        assert [facts(site) for site in sites] == found
        assert all(site.axes == ("i",) and site.count == 4 for site in sites)
        assert all(site.element == "f32" for site in sites)


@pytest.mark.parametrize("end", [END_OF_SCATTER, END_OF_SUM])
def test_products_that_are_added_are_of_one_site(end):
    with shmap_passes.make_context():
        (site,) = find_sites(module(PRODUCT + TWO_PRODUCTS + end))
        assert site.shapes == (ProductShape(1, 4, 6, 8), ProductShape(1, 4, 6, 8))


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("gather, free dimension", 0),
        ("gather, added to the product", 0),
        ("gather, negated", 16 * 8 * 4),
        ("gather, multiplied by what needs a product", 16 * 8 * 4),
        ("loop", 8 * 6 * 4),
    ],
    ids=str,
)
def test_what_else_reads_a_gathered_array(name, kept):
    """In the loop, a product that needs the result of the one that is computed in pieces.

    What is computed element by element from such a product can read pieces of the array, too.
    """
    with shmap_passes.make_context():
        *_, site = find_sites(module(BODIES[name]))
        assert site.kept == kept


@pytest.mark.parametrize("effort", ["auto", "force"])
def test_sites_beside_automatic_axes_are_left(effort):
    """And found, so that the report says why."""
    with shmap_passes.make_context():
        partly_manual = module(BODIES["gather, free dimension"], manual='"i"')
        (choice,) = choices(partly_manual, None, effort)
    assert choice.form is None
    assert choice.plan.reason == "some axes of the mesh are automatic"


def test_there_are_no_sites_over_one_device():
    with shmap_passes.make_context():
        one = BODIES["gather, free dimension"].replace("16x", "4x")
        assert find_sites(module(one, '["i"=1, "j"=2]')) == ()


@pytest.mark.parametrize(
    "form",
    [
        Form("ring"),
        Form("ring", order=(0, 2, 1, 3), empty="allocate", stacked=True, narrow=True),
        Form("columns", parts=4, barriers=False),
    ],
)
def test_a_form_is_read_as_it_was_written(form):
    with shmap_passes.make_context():
        text = module(BODIES["gather, free dimension"])
        op = find_sites(text)[0].op
        assert read(op) is None
        write(op, form)
        again = ir.Module.parse(str(text))
        assert read(find_sites(again)[0].op) == form
        erase(op)
        assert FORM not in op.attributes


@pytest.mark.parametrize("text", ['"ring"', '{name = "spiral"}', '{name = "ring", empty = 1}'])
def test_what_is_not_a_form_is_not_read(text):
    with shmap_passes.make_context():
        op = find_sites(module(BODIES["gather, free dimension"]))[0].op
        op.attributes[FORM] = ir.Attribute.parse(text)
        found = read(op)
    assert found is None or found == Form("ring")


@pytest.mark.parametrize(
    ("free", "rows", "pattern"), [(6, 2, "gather-product"), (2, 6, "gather-contraction")]
)
def test_of_two_products_the_larger_one_is_computed_in_pieces(free, rows, pattern):
    use = "stablehlo.custom_call @use({}) {{has_side_effect = true}} : (tensor<{}xf32>) -> ()"
    body = f"""{GATHER}
    %u = stablehlo.constant dense<1.0> : tensor<8x{free}xf32>
    %v = stablehlo.constant dense<1.0> : tensor<{rows}x16xf32>
    %y = stablehlo.dot_general %g, %u, contracting_dims = [1] x [0]
        : (tensor<16x8xf32>, tensor<8x{free}xf32>) -> tensor<16x{free}xf32>
    %z = stablehlo.dot_general %v, %g, contracting_dims = [1] x [0]
        : (tensor<{rows}x16xf32>, tensor<16x8xf32>) -> tensor<{rows}x8xf32>
    {use.format("%y", f"16x{free}")}
    {use.format("%z", f"{rows}x8")}"""
    with shmap_passes.make_context(), ir.Location.unknown():
        (site,) = find_sites(module(body))
        assert site.pattern == pattern
