"""How much of a GPU a running collective takes from other kernels.

NCCL's kernels stay on their processors until they end. Work that is not a matrix product goes on
with the others. A product is cut to tiles that its processors compute in rounds, all at a time, and
a tile that has to wait for another round makes the product longer by all of that round.

Measured on an H100 with `benchmarks/gpu.py beside`, jax 0.11.2: bf16 products as XLA compiles them,
by the rounds that their tiles need on all processors, beside a kernel of 24 blocks that moves
475 GB/s, about what a gather does. With 8 or 16 blocks, or twice the traffic, they take as long
within 11%. An H200 needed 1 to 12% less than that for 15 of the 16 products; one, of two rounds,
took 1.73 times as long. A product of fewer tiles than one round was not measured.
"""

from __future__ import annotations

import math

from .chips import Chip

TILE = 128 * 256
"""Elements of the result that a processor computes at a time, in the usual kernels for bf16."""

SLOWER = ((1, 1.74), (4, 1.33), (8, 1.23), (math.inf, 1.10))
"""Of products of at most so many rounds: how much longer they take.

Means of 16 products, measured twice; a product differs from the mean by up to 0.25, and from one
run to the next by as much where XLA chose another kernel.
"""


def share_taken(chip: Chip, computed: int) -> float:
    """The share of the speed of a kernel that a collective beside it takes; 0 on TPUs.

    Args:
      computed: elements of the result of a matrix product; 0 for other kernels.
    """
    if not chip.collective_share or not computed:
        return chip.collective_share
    rounds = math.ceil(computed / TILE / chip.processors)
    return 1 - 1 / next(slower for most, slower in SLOWER if rounds <= most)
