"""Finds the maxima that are subtracted before exponentials are computed, as in softmax.

    %m = stablehlo.reduce(%x) applies stablehlo.maximum across dimensions = [3]
    %b = stablehlo.broadcast_in_dim %m, dims = [0, 1, 2]
    %d = stablehlo.subtract %x, %b
    %e = stablehlo.exponential %d

Anything may be computed element by element from the maximum before it is subtracted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

from jaxlib.mlir import ir

from ...ir.collective_ops import reduction
from ...ir.constants import CONSTANT, is_splat
from ...ir.ops import defining_op, is_token
from ...ir.types import Value, element_of, shape_of
from .consumers import users_of
from .products import DOT, Product
from .row_sums import reduced_dimensions
from .stored import is_fused

_CALL = "func.call"
"""As that of `jnp.where`."""


@dataclass(frozen=True)
class Softmax:
    """A softmax, or another function that begins in the same way, such as logsumexp.

    Attributes:
      op: the reduction that computes the maximum of each row.
    """

    op: ir.Operation

    @property
    def numbers(self) -> int:
        """Of all rows together."""
        return prod(self._shape)

    @property
    def row(self) -> int:
        """The numbers of one row."""
        return prod(self._shape[dimension] for dimension in reduced_dimensions(self.op))

    @property
    def product(self) -> Product | None:
        """That of which the numbers are computed element by element, or by functions.

        None if there is none.
        """
        products = (op for op in map(defining_op, self._sources) if op is not None)
        return next((Product.of(op) for op in products if op.name == DOT), None)

    @property
    def masks(self) -> int:
        """The number of other arrays that they are computed from, such as masks and biases."""
        return len(self._sources[1:])

    @cached_property
    def _sources(self) -> list[Value]:
        """The arrays that the numbers are computed from: products, masks, arguments."""
        found: list[Value] = []
        pending, seen = [self.op.operands[0]], set[Value]()
        while pending:
            value = pending.pop()
            if is_token(value.type):
                continue
            source = defining_op(value)
            is_mask = element_of(value) == ir.IntegerType.get_signless(1, value.type.context)
            if source is not None and not is_mask and _passes_on(source):
                pending += [each for each in reversed(source.operands) if each not in seen]
                seen.update(source.operands)
            elif shape_of(value) and not (source is not None and _is_one_number(source)):
                found.append(value)
        return found

    @property
    def _shape(self) -> list[int]:
        return shape_of(self.op.operands[0])


def _passes_on(op: ir.Operation) -> bool:
    """Whether an array is computed from the operands, element by element or by a function."""
    return len(op.operands) > 0 and (is_fused(op.name) or op.name == _CALL)


def _is_one_number(op: ir.Operation) -> bool:
    """Whether an operation is a constant whose elements are all equal."""
    return op.name == CONSTANT and is_splat(op)


def softmaxes(ops: Iterable[ir.Operation]) -> Iterator[Softmax]:
    """Those whose maximum is one of some reductions."""
    for op in ops:
        is_maximum = len(op.results) == 1 and reduction(op) == "stablehlo.maximum"
        if is_maximum and any(_is_exponent(each, op) for each in _differences(op)):
            yield Softmax(op)


def _differences(maximum: ir.Operation) -> Iterator[ir.Operation]:
    """The operations that subtract what is computed element by element from a maximum."""
    pending, seen = [*maximum.results], set[Value]()
    while pending:
        for user in users_of(pending.pop()):
            result = user.results[0] if len(user.results) == 1 else None
            if user.name == "stablehlo.subtract":
                yield user
            elif is_fused(user.name) and result is not None and result not in seen:
                seen.add(result)
                pending.append(result)


def _is_exponent(difference: ir.Operation, maximum: ir.Operation) -> bool:
    """Whether the maximum is subtracted from its own numbers, for exponentials."""
    readers = users_of(difference.results[0])
    is_own = difference.operands[0] == maximum.operands[0]
    return is_own and any(reader.name == "stablehlo.exponential" for reader in readers)
