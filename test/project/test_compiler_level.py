"""The level at which the tests compile changes code alone: not what XLA computes, and with what.

`conftest.py` lowers it, because LLVM took more than half of the time of the tests. Tests that count
collectives, or measure memory, read what XLA's own passes and buffer assignment leave, which comes
before LLVM. With JAX 0.10 fusions differ: see `OLDER_EMITTERS` in conftest.py.
"""

import os
import re
from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from example_programs import EXAMPLES, MODULES, arguments

JAX_0_10 = jax.__version_info__ < (0, 11)
OWN_LEVEL = {"xla_backend_optimization_level": 3} | (
    {"xla_backend_extra_options": ""} if JAX_0_10 else {}
)
COLLECTIVES = re.compile(r" = (.* (?:all-|reduce-scatter|collective-)[\w-]*)\(")
ONE_OF_EACH_FILE = list({file: (file, name) for file, name in reversed(EXAMPLES)}.values())


def facts(compiled):
    """What tests read of a compiled program."""
    memory = compiled.memory_analysis()
    sizes = [name for name in dir(memory) if name.endswith("_size_in_bytes")]
    hlo = compiled.as_text()
    facts = {"hlo": Counter(COLLECTIVES.findall(hlo)) if JAX_0_10 else hlo}
    return facts | {name: getattr(memory, name) for name in sizes}


def gradient(program):
    def total(*args):
        leaves = jax.tree.leaves(program(*args))
        return sum(jnp.sum(jnp.square(x)) for x in leaves if jnp.issubdtype(x.dtype, jnp.inexact))

    return jax.grad(total, allow_int=True)


def test_the_older_emitters_of_jax_0_10_can_be_left_out():
    """The option that OWN_LEVEL gives is what it takes to compile as XLA does by itself there."""
    program = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y @ jnp.sin(y), x))
    lowered = program.lower(jnp.ones((8, 8)))
    wrapped = ["%wrapped_" in lowered.compile(o).as_text() for o in ({}, OWN_LEVEL)]
    level = os.environ["SHMAP_TEST_XLA_LEVEL"]
    assert wrapped == ([False, True] if JAX_0_10 and level == "0" else [True, True])


@pytest.mark.parametrize(("file", "name"), ONE_OF_EACH_FILE)
def test_the_level_changes_neither_hlo_nor_buffers(file, name):
    lowered = jax.jit(gradient(getattr(MODULES[file], name))).lower(*arguments(file, name))
    assert facts(lowered.compile()) == facts(lowered.compile(compiler_options=OWN_LEVEL))


def test_the_tests_have_the_level_that_their_header_names():
    level = os.environ["SHMAP_TEST_XLA_LEVEL"]
    assert f"--xla_backend_optimization_level={level}" in os.environ["XLA_FLAGS"].split()
