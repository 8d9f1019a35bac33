"""Every pass on every example, for both partitioners, through the simulator."""

import json
from pathlib import Path

import jax
import pytest
from example_programs import EXAMPLES, MODULES, arguments
from shmap_passes import pipeline

from shmap_compiler.base.random_keys import as_data
from shmap_compiler.simulate.agreement import compare

TABLE = Path(__file__).parents[2] / "docs" / "validation.json"
QUICK = [("matmul", "matmul_reduce_scatter"), ("mixture_of_experts", "mixture")]


def assert_valid(file, name, partitioner):
    args = arguments(file, name)
    lowered = getattr(MODULES[file], name).lower(*args, partitioner=partitioner)
    validation = lowered.validate(*args, xla=False)
    assert validation.holds, str(validation)


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize(("file", "name"), QUICK)
def test_some_examples(file, name, partitioner):
    assert_valid(file, name, partitioner)


@pytest.mark.long
@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize(("file", "name"), EXAMPLES)
def test_all_examples(file, name, partitioner):
    assert_valid(file, name, partitioner)


@pytest.mark.long
@pytest.mark.parametrize(("file", "name"), EXAMPLES)
def test_all_examples_equal_the_compiled_program(file, name):
    args = arguments(file, name)
    lowered = getattr(MODULES[file], name).lower(*args)
    simulation = lowered.simulate(*args)
    assert simulation.hang is None
    assert not simulation.unequal
    expected = jax.block_until_ready(lowered.compile()(*args))
    for each in compare(simulation.results, jax.tree.map(as_data, expected)):
        assert each.holds, each


def test_the_table_in_the_documentation_has_every_pass_and_no_difference():
    rows = json.loads(TABLE.read_text())
    assert list(rows) == [each.name for each in pipeline()], "python docs/make_validation.py"
    assert {row["unequal"] for row in rows.values()} == {0}
    assert {row["programs"] for row in rows.values()} == {2 * len(EXAMPLES)}
