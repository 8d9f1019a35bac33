"""The modules of all examples are the golden ones, byte for byte: see test/golden/modules.py.

A change that should leave every program as it was proves it here. After one that changes programs
on purpose, run `python test/golden/renew.py` with each tested version of JAX and review the diff.
"""

import functools
import json
import re

import pytest
from example_programs import MODULES
from golden import modules
from run_module import passed
from shmap_passes import PASSES, parse_pipeline


@pytest.fixture(scope="module")
def texts():
    return modules.modules()


@pytest.fixture(scope="module")
def contents(texts):
    return modules.contents(texts)


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


@pytest.mark.parametrize("groups", ["axes", "ids"])
@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_import_is_the_inverse_of_export(texts, partitioner, groups):
    other = {"gspmd": "shardy", "shardy": "gspmd"}[partitioner]
    bodies = [text for name, text in texts.items() if ".body" in name and not name.endswith(other)]
    assert len(bodies) > 40
    for body in bodies:
        mesh = re.sub(r'[" ]', "", re.search(r"sdy.mesh @mesh = <\[(.*)\]>", body)[1])
        importer = {
            "gspmd": f"shmap-import-custom-calls{{mesh={mesh}}}",
            "shardy": "shmap-import-manual-computation",
        }[partitioner]
        export = (
            f"shmap-legalize-collectives{{partitioner={partitioner} groups={groups}}},"
            f"shmap-wrap-manual{{partitioner={partitioner}}},shmap-inline-meshes"
        )
        # The parser and the printer are part of both ways.
        assert _after(_after(body, export), importer) == _printed(body)


@functools.cache
def _printed(body):
    return _after(body, "shmap-verify")


def _after(text, pipeline):
    return passed(text, parse_pipeline(f"builtin.module({pipeline})", PASSES))
