"""The entries of mutants/*.toml fit the project; `make mutants` runs them."""

import pytest
from mutants import run


def test_every_old_text_occurs_once_and_every_test_exists():
    problems = [f"{mutant}: {mutant.problem()}" for mutant in run.load() if mutant.problem()]
    assert not problems, "\n".join(problems)


def test_no_mutant_is_listed_twice():
    mutants = [(mutant.file, mutant.old, mutant.new) for mutant in run.load()]
    assert len(set(mutants)) == len(mutants)


@pytest.mark.parametrize(
    ("file", "old", "found"),
    [("none.py", "x", "no such file"), ("passes/checks/verify.py", "import", "occurs")],
)
def test_an_entry_that_fits_no_more_is_told(file, old, found):
    assert found in run.Mutant(file, old, "y", ("test/project/test_mutants.py",)).problem()
