"""Results of a program beside what the oracle says."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

# The functions at the end of some programs are rounded once, by XLA and by NumPy.
TOLERANCE = {"float32": {"rtol": 1e-5, "atol": 1e-6}, "bfloat16": {"rtol": 2**-7, "atol": 2**-8}}


def check_value(result, value: np.ndarray, rounded: bool) -> None:
    assert (result.shape, result.dtype) == (value.shape, value.dtype)
    if rounded:
        wide = jnp.float32
        np.testing.assert_allclose(
            np.asarray(result).astype(wide), value.astype(wide), **TOLERANCE[value.dtype.name]
        )
    else:
        np.testing.assert_array_equal(np.asarray(result), value)
