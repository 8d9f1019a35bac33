"""Random programs of named axes equal nested `jax.vmap` in float64, wherever the axes are.

A few are part of `make test`, and more of `make test-random`; both take the same programs every
time. A long run takes new ones, as many as it is told:

    SHMAP_NAMED_EXAMPLES=2000 pytest -n auto test/xmap/test_random_named.py

The header of the run tells its seed, and SHMAP_PROPERTY_SEED takes it to run the same once more.
"""

import os

import jax
import pytest
from compilers import fast_jit
from library_programs.named import NamedProgram, draw_named
from library_programs.run import REFUSED_BY_TYPES, difference_of

from shmap_compiler import BodyError

EXAMPLES = int(os.environ.get("SHMAP_NAMED_EXAMPLES", "6"))
SEED = int(os.environ["SHMAP_PROPERTY_SEED"])
BATCH = 3  # programs of one test


def complaint(program: NamedProgram) -> str | None:
    """What is wrong with one program.

    A derivative inside the function needs JAX's types of varying values (README, "Limits").
    """
    with jax.enable_x64(True):
        arrays = program.arrays()
        wanted = jax.block_until_ready(fast_jit(program.referenced())(*arrays))
        try:
            ours = jax.block_until_ready(fast_jit(program.mapped())(*arrays))
        except BodyError as error:
            steps = program.program.body.walk()
            if REFUSED_BY_TYPES in str(error) and any(s.name == "inner_gradient" for s in steps):
                return None
            raise
    return difference_of(ours, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, EXAMPLES, BATCH))
def test_a_random_program_equals_nested_vmap(announce, first):
    for number in range(first, min(first + BATCH, EXAMPLES)):
        program = draw_named(number, SEED)
        announce(program)
        try:
            found = complaint(program)
        except Exception as error:
            raise AssertionError(f"draw_named({number}, {SEED}): {error}") from error
        assert found is None, f"draw_named({number}, {SEED}): {found}"
