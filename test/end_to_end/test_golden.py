"""The modules of all examples are the golden ones, byte for byte: see test/golden/modules.py.

A change that should leave every program as it was proves it here. After one that changes programs
on purpose, run `python test/golden/renew.py` with each tested version of JAX and review the diff.
"""

import json

import pytest
from example_programs import MODULES
from golden import modules


@pytest.fixture(scope="module")
def contents():
    return modules.contents()


def test_every_module_of_the_examples_is_golden(contents):
    found = json.loads(contents["digests.json"])["modules"]
    kept = json.loads((modules.folder() / "digests.json").read_text())
    differ = [
        name for name in found | kept["modules"] if found.get(name) != kept["modules"].get(name)
    ]
    assert differ == [], (
        f"golden copies are of {kept['versions']}, installed are {modules.versions()}; "
        "if the change is intended, run python test/golden/renew.py"
    )


def test_the_kept_texts_are_those_of_the_digests(contents):
    kept = modules.kept()
    assert kept.keys() == contents.keys()
    assert [name for name in kept if name != "digests.json" and kept[name] != contents[name]] == []


def test_every_example_has_golden_copies(contents):
    found = json.loads(contents["digests.json"])["modules"]
    files = {name.partition(".")[0] for name in found}
    assert files == set(MODULES)
    assert len(found) > 100
