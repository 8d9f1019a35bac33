"""When the arrays of a block are in memory."""

import shmap_passes
from jaxlib.mlir import ir
from shmap_passes.ir.dataflow import Dataflows
from shmap_passes.overlap.choose.lives import Lives, Timeline

TEXT = """func.func @main(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>)
    -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = stablehlo.tanh %1 : tensor<8x8xf32>
  %3 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
    : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %4 = stablehlo.dot_general %1, %3, contracting_dims = [1] x [0]
    : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %5 = stablehlo.dot_general %4, %2, contracting_dims = [1] x [0]
    : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %6 = stablehlo.negate %3 : tensor<8x8xf32>
  %7 = stablehlo.negate %6 : tensor<8x8xf32>
  return %4, %5, %7 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}"""


def test_lives():
    """The transposed array is read where %4 is computed, the tanh is stored where %5 is."""
    with shmap_passes.make_context():
        module = ir.Module.parse(TEXT).operation.opview
        block = module.body.operations[0].regions[0].blocks[0]
        numbers = {op.results[0]: n for n, op in enumerate([*block.operations][:-1])}
        lives = Lives(Dataflows()).of(block)
        by_number = {numbers[life.value]: life for life in lives}
        assert {n: (life.first, life.last) for n, life in by_number.items()} == {
            0: (0, 4),
            2: (2, 5),
            3: (3, 7),
            4: (4, 8),
            5: (5, 8),
            7: (7, 8),
        }
        assert {life.bytes_ for life in lives} == {256}
        assert [n for n, life in by_number.items() if life.is_fused] == [7, 2]
        assert [n for n, life in by_number.items() if life.is_returned] == [7, 5]
        assert [n for n, life in by_number.items() if life.becomes_result] == [7, 5]
        # The last negation takes the place of %3.
        assert Timeline.of(lives).peak() == 4 * 256
