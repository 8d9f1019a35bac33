"""Random programs compute what they do without overlap, whatever form their sites have.

A few are part of `make test`, and more of `make test-random`; both take the same programs every
time. `SHMAP_OVERLAP_EXAMPLES=1000 SHMAP_PROPERTY_SEED=7 pytest FILE` takes others.
"""

import os
import re

import jax
import numpy as np
import pytest
from compilers import FAST, fast_jit
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from overlap_drawn import AXES, Drawn, WriteRandomForms
from overlap_programs import mesh
from shmap_passes.pipeline import overlap_passes

import shmap_compiler

EXAMPLES = int(os.environ.get("SHMAP_OVERLAP_EXAMPLES", "8"))
BATCHES = "12"
"""They have no program in common."""
SEED = int(os.environ["SHMAP_PROPERTY_SEED"])

# XLA's compiler for CPUs makes products of bf16 whose result is f32, and transposed, which then
# cannot run; plain programs of JAX have the same.
NOT_ON_CPUS = re.compile("Unsupported element type for DotThunk")


def computed(program, on):
    """The results of all devices, under what is in scope; None if XLA cannot run it."""
    function, args = program.function(on), program.arguments()
    if program.derivative == "outside":
        compiled = fast_jit(function)
    else:
        compiled = function.lower(*args).compile(compiler_options=FAST)
    try:
        results = jax.block_until_ready(compiled(*args))
    except jax.errors.JaxRuntimeError as error:
        if not NOT_ON_CPUS.search(str(error)):
            raise
        return None
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(results)]


def check(results, plain, program, on):
    """Relative to the largest entry: sums are added in another order, and rounded in bf16.

    What is further from the plain results must be as near to those of wider numbers as they are:
    products of products can be 0.1 from these in bf16, of either program.
    """
    limit = 2e-5 if program.dtype == "float32" else 6e-2
    limits = [limit * np.abs(theirs).max() for theirs in plain]
    apart = _apart(results, plain)
    if all(each <= limit for each, limit in zip(apart, limits, strict=True)):
        return
    with jax.enable_x64(True):
        precise = computed(program.wider(), on)
    plain_apart = _apart(plain, precise)
    for number, each in enumerate(_apart(results, precise)):
        most = max(limits[number], 4 * plain_apart[number])
        assert each <= most, f"result {number} is {each} from the precise one, {most} is allowed"


def _apart(results, others):
    assert [each.shape for each in results] == [each.shape for each in others]
    return [np.abs(x - y).max() for x, y in zip(results, others, strict=True)]


@settings(
    max_examples=EXAMPLES // len(BATCHES),
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@seed(SEED)
@given(number=st.integers(0, 2**32 - 1), size=st.integers(2, 8))
@pytest.mark.slow
@pytest.mark.parametrize("batch", BATCHES)
def test_a_random_program_computes_the_same_in_forms_that_are_forced_and_drawn(
    announce, batch, number, size
):
    program, on = Drawn(f"{batch} {number}", size), mesh(**AXES)
    announce(program)
    plain = computed(program, on)
    assert plain is None or all(np.isfinite(result).all() for result in plain)
    if plain is None:
        return
    with shmap_compiler.overlap("force", rounding=True):
        forced = computed(program, on)
    with shmap_compiler.passes(WriteRandomForms(seed=number), *overlap_passes()):
        drawn = computed(program, on)
    for results in (forced, drawn):
        if results is not None:
            check(results, plain, program, on)
