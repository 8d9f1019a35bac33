"""Which dimensions of two shapes of one array have the same elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple


def groups(
    old: Sequence[int], new: Sequence[int]
) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Ranges of dimensions of two shapes of one array, as short as have the same elements.

    Dimensions of one index at the end belong to the last ranges.
    """
    i = j = 0
    while i < len(old) and j < len(new):
        first, start = i, j
        i, j = i + 1, j + 1
        while prod(old[first:i]) != prod(new[start:j]):
            if prod(old[first:i]) < prod(new[start:j]):
                i += 1
            else:
                j += 1
        if all(size == 1 for size in (*old[i:], *new[j:])):
            i, j = len(old), len(new)
        yield (first, i), (start, j)


class Parts(NamedTuple):
    """The shape of each of equal parts of an array, and the dimension along which they follow."""

    shape: tuple[int, ...]
    dimension: int

    @property
    def rows(self) -> int:
        return self.shape[self.dimension]


def same_parts(old: Sequence[int], dimension: int, new: Sequence[int], count: int) -> Parts | None:
    """The `count` equal parts of a dimension of `old`, as parts of a reshaped array; None for none.

    They have the same elements of it.
    """
    before = prod(old[:dimension])
    for k, size in enumerate(new):
        if prod(new[:k]) == before and size % count == 0:
            return Parts((*new[:k], size // count, *new[k + 1 :]), k)
    return None
