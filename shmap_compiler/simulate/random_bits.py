"""The random bits of `stablehlo.rng_bit_generator`, as XLA makes them on CPUs and GPUs.

StableHLO leaves them to the implementation. XLA's default algorithm there is Philox4x32-10 (Salmon
et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), which encrypts a counter. The state is
a 64-bit key and a 64-bit counter; the key is the upper half of the counter, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxlib.mlir import ir

from shmap_compiler.simulate.arithmetic import Function, result_dtype
from shmap_compiler.simulate.element_types import known_element_type

_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], np.uint64)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORD = np.uint64(32)
_MASK = np.uint64(0xFFFFFFFF)


def bits_of(op: ir.Operation) -> Function | None:
    """What an op computes; None for an algorithm or a state that is not XLA's default."""
    algorithm = str(op.attributes["rng_algorithm"]).rpartition(" ")[2].rstrip(">")
    state = ir.RankedTensorType(op.operands[0].type)
    if algorithm not in ("DEFAULT", "PHILOX") or list(state.shape) != [2]:
        return None
    if result_dtype(op) != np.uint64:
        return None
    tensor = ir.RankedTensorType(op.results[1].type)
    shape, dtype = tuple(tensor.shape), known_element_type(str(tensor.element_type)).dtype

    def run(state: np.ndarray) -> list[np.ndarray]:
        count = int(np.prod(shape, dtype=np.int64))
        words = count * max(1, dtype.itemsize // 4)
        blocks = -(-words // 4)
        key, counter = (np.uint64(x) for x in state)
        with np.errstate(over="ignore"):
            counters = counter + np.arange(blocks, dtype=np.uint64)
            following = counter + np.uint64(blocks)
            upper = key + (counters < counter)  # carried over
        found = _encrypted(counters, upper, key).reshape(-1)[:words]
        wide = found.view(np.uint64) if dtype.itemsize == 8 else found
        bits = wide.astype(np.dtype(f"u{dtype.itemsize}")).view(dtype)
        return [np.array([key, following]), bits.reshape(shape)]

    return run


def _encrypted(counters: np.ndarray, upper: np.ndarray, key: np.uint64) -> np.ndarray:
    """Four 32-bit words for each counter, of which two arrays are the halves."""
    x: Sequence[np.ndarray] = (
        counters & _MASK,
        counters >> _WORD,
        upper & _MASK,
        upper >> _WORD,
    )
    keys = [int(key & _MASK), int(key >> _WORD)]
    for _ in range(_ROUNDS):
        low, high = (a * m for a, m in zip((x[0], x[2]), _MULTIPLIERS, strict=True))
        x = (
            (high >> _WORD) ^ x[1] ^ np.uint64(keys[0]),
            high & _MASK,
            (low >> _WORD) ^ x[3] ^ np.uint64(keys[1]),
            low & _MASK,
        )
        keys = [(k + step) & 0xFFFFFFFF for k, step in zip(keys, _KEY_STEPS, strict=True)]
    return np.ascontiguousarray(np.stack(x, -1).astype(np.uint32))
