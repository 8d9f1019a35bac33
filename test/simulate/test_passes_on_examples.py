"""Every pass on every example, for both partitioners, through the simulator."""

import pytest
from example_programs import EXAMPLES, MODULES, arguments

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
