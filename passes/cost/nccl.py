"""How fast collectives are among the GPUs of one node, as measured by the authors of XLA.

Source: the table with which XLA's own scheduler estimates collectives on "sm_90" (NVIDIA H100),
made on a node of eight with f32 arrays: https://github.com/openxla/xla, file
xla/service/gpu/model/collective_interpolator_data.h, as it is in jax-cuda13-plugin 0.12.0.1.
Permutes are those along a ring of eight; other patterns that were measured differ by up to 1.6.
"""

from __future__ import annotations

import math

SMALLEST = 1024
"""Bytes of the first figure of each row; each next one is for twice as many."""

# fmt: off
THROUGHPUT: dict[tuple[str, int], tuple[float, ...]] = {
    ("all-gather", 2): (
        0.0186, 0.135, 0.209, 0.709, 1.41, 2.81, 5.54, 7.88, 20.7, 35.2, 59.8,
        82, 137, 209, 278, 348, 417, 454, 489, 512, 538, 550,
    ),
    ("all-gather", 4): (
        0.0159, 0.105, 0.226, 0.276, 1.16, 2.34, 4.73, 7.26, 12.7, 32.1, 51.2,
        73.4, 99.4, 148, 240, 296, 343, 383, 403, 423, 434, 443,
    ),
    ("all-gather", 8): (
        0.0321, 0.0584, 0.141, 0.163, 0.532, 1.78, 3.52, 4.44, 7.95, 27.4, 33.7,
        66.3, 89, 129, 204, 259, 314, 344, 368, 386, 393, 402,
    ),
    ("all-reduce", 2): (
        0.00834, 0.122, 0.222, 0.255, 0.676, 2.29, 4.3, 7.82, 16, 27.1, 50,
        47.5, 97.2, 115, 166, 179, 203, 216, 227, 232, 242, 250,
    ),
    ("all-reduce", 4): (
        0.0138, 0.0905, 0.128, 0.229, 0.52, 1.4, 3.63, 5.03, 13.1, 12.3, 24.1,
        35.5, 70.9, 98.7, 110, 154, 170, 182, 189, 193, 198, 202,
    ),
    ("all-reduce", 8): (
        0.0208, 0.0569, 0.126, 0.254, 0.472, 0.87, 1.65, 3.29, 10, 12.6, 20.2,
        36.6, 61.1, 80.1, 115, 149, 177, 200, 213, 221, 227, 230,
    ),
    ("all-to-all", 2): (
        0.00763, 0.0665, 0.0704, 0.537, 0.756, 0.713, 3.78, 5.3, 5.97, 27.6, 29,
        42.8, 75.1, 177, 211, 318, 396, 436, 519, 559, 624, 643,
    ),
    ("all-to-all", 4): (
        0.00749, 0.0903, 0.157, 0.28, 0.394, 1.11, 2.17, 4.08, 6.91, 13.8, 30.7,
        58.5, 79.1, 107, 191, 247, 289, 375, 400, 422, 450, 469,
    ),
    ("all-to-all", 8): (
        0.0106, 0.0537, 0.101, 0.251, 0.504, 0.504, 2.76, 3.6, 10.3, 8.65, 19.1,
        83.6, 112, 118, 159, 253, 307, 325, 354, 368, 384, 388,
    ),
    ("collective-permute", 8): (
        0.0908, 0.182, 0.343, 0.64, 1.24, 2.5, 4.46, 7.42, 9.75, 13.1, 29.8,
        41.2, 57.6, 65.3, 70.5, 74.3, 76.5, 144, 250, 286, 290, 292,
    ),
    ("reduce-scatter", 2): (
        0.0118, 0.154, 0.342, 0.725, 1.14, 0.868, 3.61, 6.94, 8.93, 26, 66.7,
        68.3, 132, 197, 247, 266, 304, 330, 347, 366, 390, 410,
    ),
    ("reduce-scatter", 4): (
        0.0282, 0.052, 0.16, 0.343, 0.537, 0.722, 4.51, 3.6, 17, 18.3, 36,
        93.1, 98.8, 153, 240, 272, 299, 332, 347, 360, 371, 383,
    ),
    ("reduce-scatter", 8): (
        0.0479, 0.0552, 0.137, 0.278, 0.498, 0.822, 1.74, 5.86, 9.17, 12.7, 51.3,
        61, 118, 141, 194, 251, 307, 326, 348, 359, 368, 376,
    ),
}
# fmt: on
"""By kind and devices in a group: gigabytes of the larger of operand and result, per second."""


def seconds(kind: str, payload: float, size: int) -> float:
    """Time of a collective in a node.

    Between measured sizes, times are on a line; beyond the largest, throughput stays the same.

    Args:
      kind: the HLO instruction; those that were not measured count as all-to-all, which is the
        slowest of the kinds that send each byte once.
      payload: bytes on one device, of the operand or the result, whichever is larger.
      size: devices in a group; the next larger group that was measured is taken.
    """
    known = kind if any(kind == k for k, _ in THROUGHPUT) else "all-to-all"
    sizes = sorted(n for k, n in THROUGHPUT if k == known)
    row = THROUGHPUT[known, next((n for n in sizes if n >= size), sizes[-1])]
    position = math.log2(max(payload, 1) / SMALLEST)
    low = math.floor(position)
    if low < 0:
        return _time(row, 0)
    if low >= len(row) - 1:
        return payload / (row[-1] * 1e9)
    share = payload / (SMALLEST * 2**low) - 1
    return (1 - share) * _time(row, low) + share * _time(row, low + 1)


def _time(row: tuple[float, ...], position: int) -> float:
    """Of a measured size: no longer than that of a larger one, which some small ones are."""
    later = enumerate(row[position:], start=position)
    return min(SMALLEST * 2**k / (rate * 1e9) for k, rate in later)
