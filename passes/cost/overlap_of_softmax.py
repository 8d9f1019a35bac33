"""When the maximum that a softmax subtracts is stored on TPUs, and what that saves."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .libtpu_times import EXPONENTIALS
from .machine import Machine
from .overlap import Plan
from .work import Work

_SHORTEST_ROW = 3072
"""Shorter rows may be in one kernel with the product before them, or in VMEM.

Of ten layers with 512 to 2048 tokens, four took 30 to 34% less time on v6e with stored maxima, and
three 13 to 53% more; on v5e and v5p those without a mask took 9 to 64% more.
"""

_FEWEST_COLUMNS = 128
"""Heads with fewer columns may be computed in one kernel with softmax.

This holds for rows shorter than `_SHORTEST_ROW`, and for groups of queries on v5e and v5p.
"""

_FEWEST = 64 << 20
"""Fewer may be in VMEM: four heads of one sequence of 3072 tokens took 16% longer on v6e."""


@dataclass(frozen=True)
class _Softmax:
    """What libtpu 0.0.50.1 makes of softmax on a chip, from schedules of layers of attention.

    Attributes:
      saved: the seconds for each number that a stored maximum saved at least.
      longest_row: so many numbers at most. With longer ones layers took at most 4% less on v5e, and
        3% more on v5p, but a quarter of the temporaries.
      shortest_masked: so many numbers at least, if there is a mask or a bias, and heads have
        `_FEWEST_COLUMNS` or more. Layers with 2048 to 2816 tokens took 17 to 36% less time; two
        gradients with grouped queries took the same. Layers with 1024 or 1536 tokens, or with 64
        columns, took 15 to 60% more.
      is_joined: whether the product before it may be in one kernel with it, if it has fewer than
        two dimensions of batches, or groups of queries with fewer than `_FEWEST_COLUMNS`. Layers
        of 3072 and 4096 tokens took 33 to 62% longer, with or without a mask; a causal one with one
        head of keys took 32% less, and some took the same.
    """

    saved: float
    longest_row: float = math.inf
    shortest_masked: int = _SHORTEST_ROW
    is_joined: bool = False


_CHIPS = {
    "TPU v5e": _Softmax(5.0e-12, longest_row=8191, shortest_masked=2048, is_joined=True),
    "TPU v5p": _Softmax(2.1e-12, longest_row=6143, shortest_masked=2048, is_joined=True),
    "TPU v6e": _Softmax(2.9e-12),
}


def plan_of_softmax(work: Work, machine: Machine) -> Plan:
    """The plan for a softmax of `work.exponentials` numbers in rows of `work.cut`.

    Its times are those of exponentials, with what is before and after them: at least as much is
    saved, and the products beside them may take less time as well. A softmax that is left, as one
    on a chip where it was not measured, is in no report, so no reason is given.
    """
    chip = _CHIPS.get(machine.chip.name)
    if chip is None or not _is_stored(work, chip):
        return Plan(None)
    expected = work.exponentials * EXPONENTIALS[machine.chip.name]
    plain = expected + work.exponentials * chip.saved
    return Plan("stored-maximum", plain=plain, expected=expected)


def _is_stored(work: Work, chip: _Softmax) -> bool:
    if not work.heads or work.exponentials < _FEWEST or work.cut > chip.longest_row:
        return False
    (product,) = work.products
    is_wide = product.k >= _FEWEST_COLUMNS
    if chip.is_joined and (work.heads < 2 or (work.queries > 1 and not is_wide)):
        return False
    return work.cut >= (chip.shortest_masked if work.masks and is_wide else _SHORTEST_ROW)
