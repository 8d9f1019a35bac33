"""Which products come before chunks of a sum, because they are the last to read large arrays."""

import shmap_passes
from jaxlib.mlir import ir
from overlap_programs import BY_NAME
from shmap_passes.ir.find_ops import find_ops

LARGE = "tensor<4096x4096xf32>"
MODULE = """module {{
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main() attributes {{sdy.manual_axes = #sdy<manual_axes{{"i"}}>}} {{
    return
  }}
  func.func private @f(%x: tensor<16x8xf32>, %w: tensor<8x6xf32>, %u: tensor<4096x4096xf32>)
      -> (tensor<4x6xf32>, {type_}) {{
    %v = {large}
    {operand}
    %p = stablehlo.dot_general %o, %w, contracting_dims = [1] x [0]
        : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %y = "stablehlo.reduce_scatter"(%p) <{{scatter_dimension = 0 : i64,
        replica_groups = #stablehlo.replica_group_mesh_axes<
            mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}}> ({{
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %s = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %s : tensor<f32>
    }}) : (tensor<16x6xf32>) -> tensor<4x6xf32>
    {last}
    return %y, %q : tensor<4x6xf32>, {type_}
  }}
}}"""
SQUARE = (
    f"stablehlo.dot_general %u, %u, contracting_dims = [1] x [0] : ({LARGE}, {LARGE}) -> {LARGE}"
)
DIFFERENCE = "%o = stablehlo.add %x, %x : tensor<16x8xf32>"
OF_LARGE = f"%o = stablehlo.slice %v [0:16, 0:8] : ({LARGE}) -> tensor<16x8xf32>"
SMALL = "tensor<4096x8xf32>"
TIMES = f"""%t = stablehlo.slice %u [0:4096, 0:8] : ({LARGE}) -> {SMALL}
    %q = stablehlo.dot_general %v, %t, contracting_dims = [1] x [0]
        : ({LARGE}, {SMALL}) -> {SMALL}"""
AS_LARGE = f"%q = {SQUARE.replace('%u, %u', '%v, %u')}"
READ_LATER = f"""%n = {SQUARE.replace("%u, %u", "%v, %u")}
    %h = stablehlo.slice %n [0:4, 0:4096] : ({LARGE}) -> tensor<4x4096xf32>
    %q = stablehlo.dot_general %y, %h, contracting_dims = [0] x [0]
        : (tensor<4x6xf32>, tensor<4x4096xf32>) -> tensor<6x4096xf32>"""


def rewritten(text, form):
    module = ir.Module.parse(text)
    pass_ = BY_NAME["overlap-product-scatter"](form=form, parts=2, ordered=True)
    shmap_passes.run(module, [pass_])
    return module


def operations(operand=DIFFERENCE, last=TIMES, type_=SMALL, form="columns"):
    """The products and barriers of a program after the pass, each by its result's type."""
    text = MODULE.format(large=SQUARE, operand=operand, last=last, type_=type_)
    with shmap_passes.make_context():
        module = rewritten(text, form)
        names = ["stablehlo.dot_general", "stablehlo.optimization_barrier"]
        found = find_ops(module.operation, names)
        return [(op.name.rpartition(".")[2], str(op.results[0].type)) for op in found]


def is_before_chunks(product=SMALL, **program):
    """Whether the product with this result, which reads the large array, is before the chunks."""
    found = operations(**program)
    last = max(k for k, each in enumerate(found) if each == ("dot_general", product))
    return last < found.index(("dot_general", "tensor<16x3xf32>"))


def test_the_last_product_that_reads_an_array_comes_before_chunks():
    assert is_before_chunks()


def test_the_last_product_that_reads_an_array_comes_before_partial_sums():
    """The rows that sums read are there when the product is."""
    found = operations(form="partial-sums")
    product = found.index(("dot_general", SMALL))
    assert found[product + 1] == ("optimization_barrier", "tensor<16x8xf32>")


def test_all_products_that_are_added_wait_for_the_last_product():
    text = MODULE.format(large=SQUARE, operand=DIFFERENCE, last=TIMES, type_=SMALL)
    first = text.index("    %p = ")
    others = text[first : text.index("    %y = ")].replace("%p", "%p{}").replace("%o", "%{}")
    added = "    %p = stablehlo.add %p0, %p1 : tensor<16x6xf32>\n"
    products = others.format(0, "o") + others.format(1, "x") + added
    text = text[:first] + products + text[text.index("    %y = ") :]
    with shmap_passes.make_context():
        module = rewritten(text, "partial-sums")
        found = find_ops(module.operation, ["stablehlo.optimization_barrier"])
        (waiting,) = (op for op in found if len(op.results) == 3 and op.parent == found[0].parent)
        assert [len([*result.uses]) > 0 for result in waiting.results] == [True, True, False]


def test_a_result_of_the_program_has_its_memory_anyway():
    assert is_before_chunks(LARGE, last=AS_LARGE, type_=LARGE)


def test_an_array_that_chunks_read_too_stays():
    assert not is_before_chunks(operand=OF_LARGE)


def test_a_product_that_needs_as_much_memory_as_it_releases_stays():
    assert not is_before_chunks(LARGE, last=READ_LATER, type_="tensor<6x4096xf32>")


def barriers(**program):
    """The types of the first results of barriers."""
    return [type_ for name, type_ in operations(**program) if name == "optimization_barrier"]


ROWS = "tensor<16x8xf32>"
ORDER = [ROWS, ROWS, "tensor<4x3xf32>", ROWS]
"""The barriers that hold products and chunks in order."""


def test_what_chunks_read_is_stored_once():
    assert barriers() == [ROWS, *ORDER]


def test_only_what_is_computed_element_by_element_is_stored_for_chunks():
    other = f"%o = stablehlo.reverse %x, dims = [0] : {ROWS}"
    assert barriers(operand=other) == ORDER


def test_what_reads_itself_twice_many_times_is_followed_once():
    """There are 2**64 ways from the product to the result."""
    squares = [f"%t{k + 1} = stablehlo.multiply %t{k}, %t{k} : {LARGE}" for k in range(64)]
    last = "\n".join(
        [AS_LARGE.replace("%q", "%t0"), *squares, f"%q = stablehlo.tanh %t64 : {LARGE}"]
    )
    assert is_before_chunks(LARGE, last=last, type_=LARGE)
