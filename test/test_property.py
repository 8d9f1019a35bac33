"""Random programs on random meshes: ours equals the NumPy oracle, and equals `jax.shard_map`.

A short run is part of `make test`, and is the same every time. A long run takes new programs:

    SHMAP_PROPERTY_EXAMPLES=5000 pytest test/test_property.py

A failure prints the smallest program found, and the call that makes it again. Should XLA end the
process, the program that did it is in `running_program.txt` in pytest's temporary folder.
"""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from jax.sharding import NamedSharding
from programs import Program, programs

from shmap_compiler import shard_map

EXAMPLES = int(os.environ.get("SHMAP_PROPERTY_EXAMPLES", "60"))

# The functions at the end of some programs are rounded once, by XLA and by NumPy.
TOLERANCE = {"float32": {"rtol": 1e-5, "atol": 1e-6}, "bfloat16": {"rtol": 2**-7, "atol": 2**-8}}


def examples(count: int) -> settings:
    return settings(
        max_examples=count,
        derandomize="SHMAP_PROPERTY_EXAMPLES" not in os.environ,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


@pytest.fixture(scope="module")
def announce(tmp_path_factory):
    """Writes down the program that is about to run."""
    path = tmp_path_factory.getbasetemp() / "running_program.txt"

    def write(program: Program) -> None:
        note(str(program))
        path.write_text(f"{program}\n\n{program!r}\n")

    return write


def ours(program: Program):
    return shard_map(
        program, mesh=program.jax_mesh(), in_specs=program.in_specs, out_specs=program.out_specs
    )


def check(program: Program, results, jit: bool = False) -> None:
    """Compares values, types and shardings with what the oracle and the specs say."""
    expected = program.expected()
    mesh = program.jax_mesh()
    assert isinstance(results, tuple)
    assert len(results) == len(expected)
    for result, value, spec, rounded in zip(
        results, expected, program.out_specs, program.rounded(), strict=True
    ):
        assert (result.shape, result.dtype) == (value.shape, value.dtype)
        if result.size or not jit:  # a user's jit forgets how an empty array is sharded
            assert result.sharding.is_equivalent_to(NamedSharding(mesh, spec), result.ndim)
        if rounded:
            wide = jnp.float32
            np.testing.assert_allclose(
                np.asarray(result).astype(wide), value.astype(wide), **TOLERANCE[value.dtype.name]
            )
        else:
            np.testing.assert_array_equal(np.asarray(result), value)


@examples(EXAMPLES)
@given(program=programs())
def test_random_program_in_jit_equals_oracle_and_jax(announce, program):
    announce(program)
    check(program, jax.jit(ours(program))(*program.arrays()), jit=True)
    if program.runs_in_jax():
        jaxs = jax.shard_map(
            program,
            mesh=program.jax_mesh(),
            in_specs=program.in_specs,
            out_specs=program.out_specs,
            check_vma=False,
        )
        check(program, jax.jit(jaxs)(*program.arrays()), jit=True)


# A direct call compiles one operation at a time, which takes its time when each is met once.
@examples(EXAMPLES // 4)
@given(program=programs())
def test_random_program_called_directly(announce, program):
    announce(program)
    check(program, ours(program)(*program.arrays()))


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@examples(EXAMPLES // 2)
@given(program=programs())
def test_random_program_in_each_partitioner_form(announce, partitioner, program):
    announce(program)
    arrays = program.arrays()
    check(program, ours(program).lower(*arrays, partitioner=partitioner).compile()(*arrays))
