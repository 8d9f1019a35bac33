"""Operations on pieces compute pieces: of every dimension, in every place, of every operation.

`cut_through` and `cut_of_operand` are compared with NumPy, which takes pieces by reshaping. What
`take`, `compute` and `join` build is run.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shmap_passes
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from run_module import run_module
from shmap_passes.ir.find_ops import find_ops
from shmap_passes.ir.ops import terminator
from shmap_passes.overlap.find.cuts import Cut, cut_of_operand, cut_through
from shmap_passes.overlap.find.row_sums import kept_dimension
from shmap_passes.overlap.rewrite.pieces import compute, empty, join, take

from shmap_compiler import shard_map


def values(*shapes):
    """Distinct numbers, small enough for exact products."""
    return [np.arange(np.prod(s), dtype=np.float32).reshape(s) + k for k, s in enumerate(shapes)]


def reshape(shape):
    return lambda x: lax.reshape(x, shape)


def broadcast(shape, dimensions):
    return lambda x: lax.broadcast_in_dim(x, shape, dimensions)


@pytest.mark.parametrize("dimension", range(4))
def test_the_dimension_that_a_reduction_keeps(dimension):
    module = """func.func @f(%x: tensor<2x3x4x5xf32>, %zero: tensor<f32>) -> tensor<3x5xf32> {
      %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.maximum across dimensions = [0, 2]
          : (tensor<2x3x4x5xf32>, tensor<f32>) -> tensor<3x5xf32>
      return %0 : tensor<3x5xf32>
    }"""
    with shmap_passes.make_context():
        (op,) = find_ops(ir.Module.parse(module).operation, ["stablehlo.reduce"])
        assert kept_dimension(op, dimension) == (None, 0, None, 1)[dimension]


# Name -> (what computes it, the shapes of its operands).
OPERATIONS = {
    "transposed": (lambda x: jnp.transpose(x, (1, 2, 0)), [(4, 6, 8)]),
    "transposed back": (lambda x: jnp.transpose(x, (2, 0, 1)), [(4, 6, 8)]),
    "merged": (reshape((24, 8)), [(4, 6, 8)]),
    "merged behind": (reshape((4, 48)), [(4, 6, 8)]),
    "split": (reshape((4, 6, 8)), [(24, 8)]),
    "split otherwise": (reshape((8, 3, 8)), [(4, 6, 8)]),
    "sliced": (lambda x: lax.slice(x, (0, 1, 0), (4, 6, 8), (1, 2, 1)), [(4, 6, 8)]),
    "padded": (lambda x: lax.pad(x, 1.0, ((0, 0, 0), (1, 0, 2))), [(4, 6)]),
    "joined": (lambda x, y: lax.concatenate((x, y), 1), [(4, 6), (4, 2)]),
    "in front": (reshape((1, 4, 6)), [(4, 6)]),
    "broadcast": (broadcast((2, 4, 5, 6), (1, 3)), [(4, 6)]),
    "broadcast from one": (broadcast((4, 6), (0, 1)), [(4, 1)]),
    "sum": (lambda x, y: x + y, [(4, 6), (4, 6)]),
    "of a scalar": (lambda p, x, y: lax.select(p > 0, x, y), [(), (4, 6), (4, 6)]),
    "product": (lambda x, y: jnp.einsum("mk,kn->mn", x, y), [(4, 6), (6, 8)]),
    "turned product": (lambda x, y: jnp.einsum("km,nk->mn", x, y), [(6, 4), (8, 6)]),
    "with a batch": (
        lambda x, y: lax.dot_general(x, y, (((1,), (2,)), ((2,), (0,)))),
        [(4, 6, 2), (2, 8, 6)],
    ),
    "of two free dimensions": (lambda x, y: jnp.einsum("abk,kc->abc", x, y), [(4, 2, 6), (6, 8)]),
}


def module_of(function, operands):
    """A module, the operation whose result its @main returns, and the end of @main."""
    module = ir.Module.parse(jax.jit(function).lower(*operands).as_text())
    end = terminator(module.body.operations[0].regions[0].blocks[0])
    return module, end.operands[0].owner, end


def cuts_of(shape):
    """Each dimension, cut with one or two indices outside and inside of what is cut."""
    for dimension, whole in enumerate(shape):
        for outer, inner in itertools.product((1, 2), (1, 2)):
            if whole % (2 * outer * inner) == 0:
                yield Cut(dimension, whole // (outer * inner), outer, inner)


def piece(array, cut, start, size):
    """By the definition of a cut."""
    before, after = array.shape[: cut.dimension], array.shape[cut.dimension + 1 :]
    apart = array.reshape(*before, cut.outer, cut.size, cut.inner, *after)
    taken = np.take(apart, range(start, start + size), axis=cut.dimension + 1)
    return taken.reshape(*before, -1, *after)


def on_pieces(op, function, pieces, whole):
    """What an operation computes of pieces; `whole` has the shape that must be written with it."""
    if op.name == "stablehlo.reshape":
        return pieces[0].reshape(whole.shape)
    if op.name == "stablehlo.broadcast_in_dim":
        return np.asarray(
            broadcast(whole.shape, list(op.attributes["broadcast_dimensions"]))(*pieces)
        )
    if op.name == "stablehlo.slice":
        starts, steps = (list(op.attributes[name]) for name in ("start_indices", "strides"))
        places = zip(starts, whole.shape, steps, strict=True)
        return pieces[0][tuple(slice(k, k + size * step, step) for k, size, step in places)]
    return np.asarray(function(*pieces))


@pytest.mark.parametrize("name", OPERATIONS)
def test_pieces_of_operands_give_the_piece_of_the_result(name):
    function, shapes = OPERATIONS[name]
    operands = values(*shapes)
    whole = np.asarray(function(*operands))
    followed = 0
    with shmap_passes.make_context():
        _module, op, _ = module_of(function, operands)
        for number, shape in enumerate(shapes):
            for cut in cuts_of(shape):
                through = cut_through(op, number, cut)
                if through is None:
                    continue
                followed += 1
                assert cut.size == through.size
                given = [through_operand(op, k, number, cut, through) for k in range(len(shapes))]
                assert given[number] == cut
                for start in (0, cut.size // 2):
                    pieces = [
                        value if each is None else piece(value, each, start, cut.size // 2)
                        for value, each in zip(operands, given, strict=True)
                    ]
                    expected = piece(whole, through, start, cut.size // 2)
                    computed = on_pieces(op, function, pieces, expected)
                    np.testing.assert_array_equal(computed, expected)
    assert followed >= (1 if "from one" in name else 2)


def through_operand(op, k, number, cut, through):
    """The cut that operand `k` must have if operand `number` has `cut`."""
    if op.name in ("stablehlo.reshape", "stablehlo.broadcast_in_dim"):
        return cut  # of the only operand
    return cut_of_operand(op, k, through)


def test_a_dimension_that_is_broadcast_summed_or_split_cannot_be_followed():
    def found(function, shape, number, cut):
        operands = values(*shape)
        with shmap_passes.make_context():
            _module, op, _ = module_of(function, operands)
            return cut_through(op, number, cut)

    assert found(*OPERATIONS["broadcast from one"], 0, Cut(1, 1)) is None
    assert found(*OPERATIONS["product"], 0, Cut(1, 6)) is None
    assert found(*OPERATIONS["split"], 0, Cut(0, 24)) is None
    assert found(*OPERATIONS["split"], 0, Cut(0, 4, inner=6)) == Cut(0, 4)
    assert found(*OPERATIONS["merged"], 0, Cut(1, 6)) == Cut(0, 6, outer=4)
    assert found(*OPERATIONS["of a scalar"], 1, Cut(0, 4)) == Cut(0, 4)


# What is computed beside the pieces, or made smaller instead of taken.
BESIDE = {
    "sum of a row": (lambda x, b: x + b, [(4, 6), (6,)]),
    "sum of a column": (lambda x, b: x + b[:, None], [(4, 6), (4,)]),
    "sum of a constant": (lambda x: x + 2, [(4, 6)]),
    "sum of one number": (lambda x, b: x + b.reshape(1, 1), [(4, 6), (1,)]),
}
ALL = {**OPERATIONS, **BESIDE}


@pytest.mark.parametrize("name", ALL)
def test_what_is_built_of_pieces_is_the_whole(name):
    """All cuts of an operand in one module, in halves and more, in a buffer and concatenated."""
    function, shapes = ALL[name]
    operands = values(*shapes)
    with shmap_passes.make_context():
        module, op, end = module_of(function, operands)
        number = next(k for k, shape in enumerate(shapes) if shape)
        of_operation = next(
            k
            for k, operand in enumerate(op.operands)
            if list(operand.type.shape) == [*shapes[number]]
        )
        joined = []
        with ir.InsertionPoint(end), ir.Location.unknown():
            for cut in cuts_of(shapes[number]):
                through = cut_through(op, of_operation, cut)
                if through is not None:
                    joined += built(op, of_operation, cut, through)
        returns(module, end, joined)
        text = str(module)
    expected = np.asarray(function(*operands))
    results = run_module(text, operands, {"i": 1}, "shardy")
    assert len(results) == len(joined) >= 4
    for result in results:
        np.testing.assert_array_equal(result, expected)


def built(op, number, cut, through):
    """The result of an operation from its pieces, in all ways."""
    whole, result = op.operands[number], op.results[0]
    found = []
    for parts in (k for k in (2, 3, 4) if cut.size % k == 0):
        size = cut.size // parts
        pieces = []
        for part in range(parts):

            def taken(value, its, start=part * size, size=size):
                return take(value, its, start, size)

            cuts = {whole: cut, result: through}
            known = compute([op], {whole: taken(whole, cut)}, cuts, size, taken)
            pieces.append(known[result])
        buffers = [None, empty(result.type, "zeros")]
        found += [join(pieces, through, result.type, buffer) for buffer in buffers]
    return found


def returns(module, end, results):
    """Lets @main return other results than it did."""
    main = module.body.operations[0]
    inputs = [argument.type for argument in main.regions[0].blocks[0].arguments]
    types = [result.type for result in results]
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, types))
    del main.attributes["res_attrs"]
    with ir.InsertionPoint(end), ir.Location.unknown():
        ir.Operation.create("func.return", operands=results)
    end.erase()


def test_exchanges_of_arrays_without_elements_are_left():
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))

    def experts(x, w):
        y = lax.all_to_all(x, "i", 0, 1, tiled=True)
        return lax.all_to_all(jnp.einsum("etd,edf->etf", y, w), "i", 1, 0, tiled=True)

    split = {"in_specs": (P(None, "i"), P("i")), "out_specs": P(None, "i")}
    lowered = shard_map(experts, mesh=mesh, **split).lower(
        jnp.zeros((8, 0, 8)), jnp.zeros((8, 8, 4)), overlap="force"
    )
    assert lowered.compile()(jnp.zeros((8, 0, 8)), jnp.zeros((8, 8, 4))).shape == (8, 0, 4)
