"""Programs whose floats are never rounded, so that results can be compared bit for bit.

A sum of floats depends on the order of its terms, and XLA keeps the precision of an intermediate
value when it likes. Neither can be seen as long as every number, every product and every partial
sum is exact. Most programs on small numbers are; the generator drops the operations that are not.
"""

import jax.numpy as jnp
import numpy as np
from oracle import Blocks

# Multiples of `unit` up to `bound`; a product of two, summed up to `bound`, has digits enough:
# bfloat16 has eight (64 / (1/2 * 1/2) = 2**8), float32 has 24 (2**13 / (2**-5 * 2**-5) < 2**24).
EXACT = {jnp.dtype("bfloat16"): (1 / 2, 64), jnp.dtype("float32"): (2.0**-5, 2**13)}


class Inexact(Exception):
    """An operation may round, so that its result depends on how it is computed."""


def is_float(dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.floating)


def check_exact(blocks: Blocks, dtype) -> None:
    """Raises `Inexact` if numbers need more digits than `dtype` has to spare."""
    if dtype not in EXACT:
        return
    unit, bound = EXACT[dtype]
    for block in blocks:
        wide = block.astype(np.float64)
        if np.any(np.abs(wide) > bound) or np.any(wide % unit):
            raise Inexact


def magnitude(block: np.ndarray) -> np.ndarray:
    """The absolute values without rounding: what is summed from these bounds every partial sum."""
    return np.abs(block.astype(np.float64)) if is_float(block.dtype) else block
