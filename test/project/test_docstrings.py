"""Docstrings of the public API: their sections, their examples, and the page that shows them.

Examples run with the names that docs/reference.md defines before it lists the API.
"""

import doctest
import inspect
import re
from pathlib import Path

import pytest

import shmap_compiler
from shmap_compiler import named

PAGE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()
SETUP = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
# Strings and tuples have no docstring of their own.
CONSTANTS = {"PARTITIONERS", "STAGES", "__version__"}
NAMES = [name for name in shmap_compiler.__all__ if name not in CONSTANTS]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture(scope="module")
def names():
    found = {}
    exec(SETUP, found)
    return found


def documented(name):
    """The object, and the public methods that its class defines."""
    found = getattr(shmap_compiler, name)
    yield name, found
    for attribute, member in vars(found).items() if inspect.isclass(found) else ():
        if not attribute.startswith("_") and inspect.isfunction(member):
            yield f"{name}.{attribute}", member


def has_examples(value):
    return ">>>" in (inspect.getdoc(value) or "")


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_run(name, names):
    run_examples(getattr(shmap_compiler, name), name, names)


@pytest.mark.parametrize("name", [n for n, f in vars(named).items() if has_examples(f)])
def test_the_examples_of_named_run(name, names):
    run_examples(getattr(named, name), name, names)


def run_examples(value, name, names):
    tests = doctest.DocTestFinder().find(value, name, globs=names)
    assert [test.name for test in tests if test.examples][:1] == [name]
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    for test in tests:
        output = []
        runner.run(test, out=output.append)
        assert runner.failures == 0, "".join(output)


@pytest.mark.parametrize("name", NAMES)
def test_functions_say_what_they_take_and_give(name):
    for path, member in documented(name):
        text = inspect.getdoc(member)
        assert text, path
        if name == "Compiled" or not inspect.isroutine(member):
            continue
        takes = [p for p in inspect.signature(member).parameters if p not in ("self", "cls")]
        if len(takes) > 1:
            assert "Args:" in text, path
            listed = re.search(r"Args:\n(.*?)(\n\n|\Z)", text, re.DOTALL)[1]
            for parameter in takes:
                assert re.search(rf"^ +\*{{0,2}}{parameter}: [^a-z]", listed, re.MULTILINE), (
                    path,
                    parameter,
                )


def test_the_reference_lists_the_whole_api():
    listed = re.findall(r"^::: shmap_compiler\.(\w+)$", PAGE, re.MULTILINE)
    assert sorted(listed) == sorted(set(shmap_compiler.__all__) - {"__version__"})
