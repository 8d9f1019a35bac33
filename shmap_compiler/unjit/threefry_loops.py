"""Loops that hash numbers with a key, as JAX's generator threefry does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry2x32_p
from jaxlib.mlir import ir
from shmap_passes.ir.ops import Position, defining_op, walk
from shmap_passes.ir.types import Value

from shmap_compiler.unjit.embedded import call_stablehlo, outline
from shmap_compiler.unjit.types import element_of, is_tensor, shape_of

_MOST_OPS = 40


@dataclass(frozen=True)
class Hash:
    """A loop that is threefry.

    Attributes:
      op: the loop.
      key: the two words of the key, as one value.
      high, low: the numbers that are hashed.
      results: the hashes.
    """

    op: ir.Operation
    key: Value
    high: Value
    low: Value
    results: tuple[Value, Value]


def read_hash(loop: ir.Operation) -> Hash | None:
    """A loop as threefry; None if it is something else."""
    words = [k for k, value in enumerate(loop.operands) if _is_words(value)]
    if len(words) != 2:
        return None
    sums = [_sum_with_key(loop.operands[k]) for k in words]
    for (high, first), (low, second) in product(*sums):
        key = _key(first, second)
        if key is None:
            continue
        ops = _ops_behind(loop, {high, low, first, second})
        if ops is None:
            continue
        results = tuple(loop.results[k] for k in words)
        inputs, module = outline([*ops, loop], results)
        given = (first, second, high, low)
        if any(value not in given for value in inputs) or len(inputs) != len(given):
            continue
        order = tuple(given.index(value) for value in inputs)
        if is_threefry(module, order, shape_of(low), shape_of(first)):
            return Hash(loop, key, high, low, (results[0], results[1]))
    return None


def _is_words(value: Value) -> bool:
    return is_tensor(value) and element_of(value) == "ui32" and _is_block(value)


def _is_block(value: Value) -> bool:
    """Whether a value is neither a number nor the table of rotations, which is a constant."""
    source = defining_op(value)
    is_constant = source is not None and source.name == "stablehlo.constant"
    return shape_of(value) != () and not is_constant


def _sum_with_key(value: Value) -> list[tuple[Value, Value]]:
    """The numbers and the word of the key that a value is the sum of, in all ways."""
    source = defining_op(value)
    if source is None or source.name != "stablehlo.add":
        return []
    left, right = source.operands
    found = []
    for numbers, word in ((left, right), (right, left)):
        spread = defining_op(word)
        if spread is None:
            continue
        if spread.name == "stablehlo.broadcast_in_dim" and shape_of(spread.operands[0]) == ():
            found.append((numbers, spread.operands[0]))
        elif spread.name == "stablehlo.slice" and shape_of(word) == (1,):
            found.append((numbers, word))
    return found


def _key(first: Value, second: Value) -> Value | None:
    """The array of which two numbers are the two elements."""
    found = [_element(each) for each in (first, second)]
    if found[0] is None or found[1] is None:
        return None
    (key, start), (other, end) = found[0], found[1]
    return key if key == other and (start, end) == (0, 1) and shape_of(key) == (2,) else None


def _element(value: Value) -> tuple[Value, int] | None:
    part = defining_op(value)
    if part is not None and part.name == "stablehlo.reshape":
        part = defining_op(part.operands[0])
    if part is None or part.name != "stablehlo.slice" or shape_of(part.results[0]) != (1,):
        return None
    (start,) = ir.DenseI64ArrayAttr(part.attributes["start_indices"])
    return part.operands[0], start


def _ops_behind(loop: ir.Operation, stops: set[Value]) -> list[ir.Operation] | None:
    """The operations between some values and a loop, in order; None if there is a path around."""
    found: dict[ir.Operation, None] = {}
    todo = [operand for each in walk(loop) for operand in each.operands]
    inside = set(walk(loop))
    while todo:
        value = todo.pop()
        source = defining_op(value)
        if value in stops or source in inside or source in found:
            continue
        if source is None:
            owner: Any = ir.BlockArgument(value).owner
            if any(owner == region.blocks[0] for region in loop.regions):
                continue
            return None
        is_constant = source.name == "stablehlo.constant"
        is_near = source.block == loop.block and len(found) < _MOST_OPS
        if len(source.regions) or not (is_constant or is_near):
            return None
        found[source] = None
        todo += list(source.operands)
    # Constants may be in a block around that of the loop.
    around = [op for op in found if op.block != loop.block]
    return around + sorted((op for op in found if op.block == loop.block), key=Position)


@cache
def is_threefry(
    module: str, order: tuple[int, ...], shape: tuple[int, ...], word: tuple[int, ...] = ()
) -> bool:
    """Whether a module computes threefry, bit by bit.

    Args:
      order: which of key, key, high and low numbers its arguments are.
      shape: that of the numbers.
      word: the shape of each word of the key, () or (1,).
    """
    rng = np.random.default_rng(0)
    given = [
        jnp.asarray(rng.integers(0, 2**32, size, dtype=np.uint32))
        for size in (word, word, shape, shape)
    ]
    spread = [jnp.broadcast_to(word, shape) for word in given[:2]]
    expected = threefry2x32_p.bind(*spread, *given[2:])
    try:
        found = call_stablehlo(module, *(given[k] for k in order))
    except jax.errors.JaxRuntimeError:
        return False
    return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
