"""Numbers in a random order: sorted by the random bits of a new key, as `permutation` does."""

from __future__ import annotations

from functools import cache

import jax
import numpy as np
from jaxlib.mlir import ir
from shmap_passes.ir.ops import defining_op, terminator

from shmap_compiler.unjit.types import dtype_of, shape_of

_MOST_ROWS = 2**16
_SEEDS = (0, 1, 2)


def permutation_of(bits: ir.Operation, number: int) -> tuple[ir.Operation, int] | None:
    """The sorting that makes `jax.random.permutation(key, rows)`, and how many rows it has.

    Its second result is the permutation.

    Args:
      bits: what draws random bits with a key that was split off.
      number: which of two new keys that is.
    """
    for use in bits.results[0].uses:
        op = use.owner.operation
        if op.name != "stablehlo.sort" or len(op.operands) != 2:
            continue
        shape, iota = shape_of(op.results[1]), defining_op(op.operands[1])
        is_rows = iota is not None and iota.name == "stablehlo.iota" and len(shape) == 1
        is_sorted = op.operands[0] == bits.results[0] and _sorts_by_first(op)
        if not is_rows or not is_sorted or dtype_of(op.results[1]) != np.int32:
            continue
        if shape[0] <= _MOST_ROWS and _is_permutation(shape[0], number):
            return op, shape[0]
    return None


def _sorts_by_first(sort: ir.Operation) -> bool:
    """Whether a sorting compares its first operand only, and the smallest comes first."""
    block = sort.regions[0].blocks[0]
    compare = block.operations[0].operation
    is_less = compare.name == "stablehlo.compare" and "LT" in str(
        compare.attributes["comparison_direction"]
    )
    ends = list(terminator(block).operands) == list(compare.results)
    return is_less and ends and list(compare.operands) == list(block.arguments)[:2]


@cache
def _is_permutation(rows: int, number: int) -> bool:
    """Whether JAX permutes so many rows by one sorting, by the bits of this one of two new keys."""
    for seed in _SEEDS:
        key = jax.random.key(seed, impl="threefry2x32")
        bits = jax.random.bits(jax.random.split(key)[number], (rows,), np.uint32)
        made = np.argsort(np.asarray(bits), stable=True)
        if not np.array_equal(made, jax.random.permutation(key, rows)):
            return False
    return True
