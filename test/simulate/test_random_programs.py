"""Random programs, simulated: equal to the NumPy oracle, and the same after every pass.

Neither the simulator nor the oracle shares anything with XLA, so this is a third opinion on the
programs of `test/programs` and `test/library_programs`.
"""

import os

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from library_programs import draw_program
from library_programs.run import TOLERANCE, mapped, referenced, runs_nowhere
from programs import Program, programs
from programs.compare import check_value

from shmap_compiler import shard_map, simulate_module

SEED = int(os.environ["SHMAP_PROPERTY_SEED"])
LONG = int(os.environ.get("SHMAP_SIMULATED_PROGRAMS", "500"))


def examples(count: int):
    chosen = settings(
        max_examples=count,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    return lambda test: seed(SEED)(chosen(test))


def check(program: Program, partitioner: str) -> None:
    arrays = program.arrays()
    function = shard_map(
        program, mesh=program.jax_mesh(), in_specs=program.in_specs, out_specs=program.out_specs
    )
    lowered = function.lower(*arrays, partitioner=partitioner)
    simulation = lowered.simulate(*arrays)
    assert simulation.hang is None, str(simulation)
    assert not simulation.unequal, str(simulation)
    results = zip(simulation.results, program.expected(), program.rounded(), strict=True)
    for result, value, rounded in results:
        check_value(result, value, rounded)
    validation = lowered.validate(*arrays, xla=False)
    assert validation.holds, str(validation)


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_random_programs_equal_the_oracle_after_every_pass(announce, partitioner):
    @examples(8)
    @given(program=programs(f"simulated {partitioner}"))
    def run(program):
        announce(program)
        check(program, partitioner)

    run()


@pytest.mark.long
@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_many_random_programs_equal_the_oracle_after_every_pass(announce, partitioner):
    @examples(LONG)
    @given(program=programs(f"simulated {partitioner}"))
    def run(program):
        announce(program)
        check(program, partitioner)

    run()


def check_library_program(number: int) -> None:
    """Simulates a program, transformed and jitted as a whole, beside nested `jax.vmap`."""
    program = draw_program(number, SEED)
    arrays = program.arrays()
    with jax.enable_x64(True):
        try:
            lowered = jax.jit(mapped(program, shard_map), keep_unused=True).lower(*arrays)
        except Exception as error:
            if runs_nowhere(program, error):
                return
            raise
        simulation = simulate_module(
            lowered.as_text(debug_info=True), [np.asarray(array) for array in arrays]
        )
        expected = jax.tree.leaves(jax.jit(referenced(program))(*arrays))
    assert simulation.hang is None, str(simulation)
    for result, value in zip(simulation.arrays, expected, strict=True):
        np.testing.assert_allclose(result, value, **TOLERANCE)


@pytest.mark.parametrize("number", range(6))
def test_library_programs_equal_nested_vmap(number):
    check_library_program(number)


@pytest.mark.long
@pytest.mark.parametrize("number", range(6, 6 + LONG // 5))
def test_many_library_programs_equal_nested_vmap(number):
    check_library_program(number)
