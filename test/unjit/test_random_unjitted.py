"""Random jitted programs of library calls: their source computes what they compute.

`unjit` compares before it returns, so that it returns at all is the test. A few programs are part
of `make test`, and `make test-random` takes more, the same ones every time:

    SHMAP_UNJIT_EXAMPLES=2000 pytest -n auto test/unjit/test_random_unjitted.py

The header of the run tells its seed, and SHMAP_PROPERTY_SEED takes it to run the same once more.
"""

import os

import jax
import numpy as np
import pytest
from library_programs.jitted import draw_jitted

from shmap_compiler import unjit

EXAMPLES = int(os.environ.get("SHMAP_UNJIT_EXAMPLES", "8"))
SEED = int(os.environ["SHMAP_PROPERTY_SEED"])
BATCH = 4  # programs of one test


def runs(jitted, arrays):
    """Whether a program can be partitioned and run, and has numbers for results.

    XLA's CPU compiler cannot take all layouts of an FFT, and NaN goes from one group of a
    convolution to another one.
    """
    try:
        results = jax.block_until_ready(jitted(*arrays))
        # None of an argument that no result needs.
        is_divided = any(jitted.lower(*arrays).compile().input_shardings[0])
    except (TypeError, jax.errors.JaxRuntimeError):
        return False
    return is_divided and all(np.isfinite(each).all() for each in jax.tree.leaves(results))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, EXAMPLES, BATCH))
def test_random_jitted_program_is_unjitted(announce, first):
    tried = 0
    for number in range(first, min(first + BATCH, EXAMPLES)):
        program = draw_jitted(number, SEED)
        announce(program)
        with jax.enable_x64(True):
            jitted, arrays = program.jitted(), program.arrays()
            if not runs(jitted, arrays):
                continue
            try:
                unjit(jitted, *arrays)
            except Exception as error:
                raise AssertionError(f"draw_jitted({number}, {SEED}): {error}") from error
            tried += 1
    assert tried
