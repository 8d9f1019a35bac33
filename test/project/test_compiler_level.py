"""The level at which the tests compile changes code alone: not what XLA computes, and with what.

`conftest.py` lowers it, because LLVM took more than half of the time of the tests. Tests that count
collectives, or measure memory, read what XLA's own passes and buffer assignment leave, which comes
before LLVM.
"""

import os

import jax
import jax.numpy as jnp
import pytest
from example_programs import EXAMPLES, MODULES, arguments

OWN_LEVEL = {"xla_backend_optimization_level": 3}
ONE_OF_EACH_FILE = list({file: (file, name) for file, name in reversed(EXAMPLES)}.values())


def facts(compiled):
    """What tests read of a compiled program."""
    memory = compiled.memory_analysis()
    sizes = [name for name in dir(memory) if name.endswith("_size_in_bytes")]
    return {name: getattr(memory, name) for name in sizes} | {"hlo": compiled.as_text()}


def gradient(program):
    def total(*args):
        leaves = jax.tree.leaves(program(*args))
        return sum(jnp.sum(jnp.square(x)) for x in leaves if jnp.issubdtype(x.dtype, jnp.inexact))

    return jax.grad(total, allow_int=True)


@pytest.mark.parametrize(("file", "name"), ONE_OF_EACH_FILE)
def test_the_level_changes_neither_hlo_nor_buffers(file, name):
    lowered = jax.jit(gradient(getattr(MODULES[file], name))).lower(*arguments(file, name))
    assert facts(lowered.compile()) == facts(lowered.compile(compiler_options=OWN_LEVEL))


def test_the_tests_have_the_level_that_their_header_names():
    level = os.environ["SHMAP_TEST_XLA_LEVEL"]
    assert f"--xla_backend_optimization_level={level}" in os.environ["XLA_FLAGS"].split()
