"""What passes read is kept for one MLIR context, which its attributes belong to."""

import shmap_passes
from jaxlib.mlir import ir
from shmap_passes.ir.memoize import memoized, memoizing, remember


@memoized
def number(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), value)


def test_each_context_has_a_memory_of_its_own():
    with shmap_passes.make_context() as outer, memoizing(outer):
        first = number(1)
        with memoizing(outer):
            assert number(1) is first
        with shmap_passes.make_context() as inner, memoizing(inner):
            assert number(1).context == inner
            remember(number, (2,), None)
        assert number(1) is first
        assert number(2) is not None
