"""Tests of the tests: a test that cannot fail is a defect."""

import ast
import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shmap_compiler.stages.subprocess_compiler import Failure, places_in_subprocess
from shmap_compiler.targets import Target

HERE = Path(__file__).parents[1]
LIT_TESTS = sorted(
    path
    for path in [*HERE.rglob("*.mlir"), *HERE.rglob("*.test")]
    if not {"Inputs", "Output", "golden"} & set(path.parts)
)
PYTHON_TESTS = sorted(path for path in HERE.rglob("*.py") if "Output" not in path.parts)
PASS_TESTS = [path for path in LIT_TESTS if path.is_relative_to(HERE / "passes")]
SUFFIX = r"(?:-NEXT|-SAME|-NOT|-DAG|-LABEL|-EMPTY|-COUNT-\d+)?"
PASS_FLAG = re.compile(r" (?:'--shmap-[^']*'|--shmap-[\w-]+(?:=\S+)?)")


def prefixes(text):
    """The prefixes that the RUN lines hand to FileCheck."""
    found = set()
    for line in run_lines(text):
        for command in line.split("|"):
            if "FileCheck" in command:
                named = re.findall(r"--check-prefix(?:es)?[= ](\S+)", command)
                found |= set(",".join(named).split(",")) if named else {"CHECK"}
    return found


def run_lines(text):
    return re.findall(r"RUN: (.*)", text)


def check_like_lines(text):
    """Lines of comment that look like a check: a word in capitals first, perhaps with a suffix."""
    word = r"([A-Z][A-Z0-9_]*(?:-[A-Z0-9_]+)*?)"
    pattern = re.compile(rf"^\s*(?://|#)? ?{word}{SUFFIX}(?:{{LITERAL}})?(:|(?=\s|$))")
    return [match.groups() for line in text.splitlines() if (match := pattern.match(line))]


@pytest.mark.parametrize("path", LIT_TESTS, ids=lambda path: path.name)
def test_every_check_is_read_by_a_filecheck(path):
    text = path.read_text()
    assert run_lines(text), "has no RUN line"
    known = prefixes(text)
    for word, colon in check_like_lines(text):
        if word in ("RUN", "REQUIRES"):
            continue
        if colon:
            assert word in known, f"{word}: is read by no FileCheck of this file"
        else:
            assert word not in known | {"CHECK"}, f"{word} without a colon checks nothing"


@pytest.mark.parametrize("path", LIT_TESTS, ids=lambda path: path.name)
def test_every_filecheck_and_verified_diagnostic_has_something_to_check(path):
    text = path.read_text()
    used = {word for word, colon in check_like_lines(text) if colon}
    assert prefixes(text) <= used
    if any("--verify-diagnostics" in line for line in run_lines(text)):
        assert re.search(r"expected-(error|warning|remark)", text)


@pytest.mark.slow
@pytest.mark.subprocess
def test_a_lit_test_of_a_pass_fails_without_the_pass(tmp_path):
    for name in ("lit.cfg.py", "forked_tools.py"):
        shutil.copy(HERE / name, tmp_path)
    for path in PASS_TESTS:
        text = path.read_text()
        for number, line in enumerate(run_lines(text)):
            rest = re.sub(r".*(?:RUN|REQUIRES): .*\n", "", text)
            assert PASS_FLAG.search(line), f"{path.name}: this RUN line runs no pass: {line}"
            without = f"// RUN: {PASS_FLAG.sub('', line)}\n{rest}"
            (tmp_path / f"{path.stem}.{number}.mlir").write_text(without)
    report = tmp_path / "report.json"
    subprocess.run(
        [Path(sys.executable).with_name("lit"), "-q", "--output", report, tmp_path],
        capture_output=True,
        check=False,
    )
    results = {test["name"]: test["code"] for test in json.loads(report.read_text())["tests"]}
    assert len(results) >= len(PASS_TESTS)
    assert {name: code for name, code in results.items() if code != "FAIL"} == {}


def test_no_two_test_files_have_the_same_name():
    """pytest imports them by name, and refuses to run any test if two are equal."""
    paths = [path for path in PYTHON_TESTS if path.name.startswith("test_")]
    names = [path.name for path in paths]
    assert [str(path) for path in paths if names.count(path.name) > 1] == []


def is_raises(node):
    """Whether it is `pytest.raises`, or `raises` by itself."""
    if isinstance(node, ast.Attribute):
        return node.attr == "raises" and ast.unparse(node.value) == "pytest"
    return isinstance(node, ast.Name) and node.id == "raises"


@pytest.mark.parametrize("path", PYTHON_TESTS, ids=lambda path: path.name)
def test_every_expected_exception_says_which_message(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and is_raises(node.func):
            names = {keyword.arg for keyword in node.keywords}
            assert "match" in names, f"line {node.lineno}: pytest.raises without match="


# ---------------------------------------------------------------------------------------- markers

STARTS_PROCESSES = {
    "subprocess",
    "in_child",
    "run_in_child",
    "compile_in_subprocess",
    "places_in_subprocess",
}
"""Names of modules and helpers that start processes."""

NEEDS_COMPILER = {"needs_tpu_compiler", "needs_gpu_compiler"}
"""Decorators that mark a test as starting a process."""

HELPERS = {
    "test_explained_modules.py": {"explained_apart"},
    "test_perfetto.py": {"query"},
    "test_targets.py": {"worker"},
}
"""Helpers of a test file that start a process, or whose result does."""


def names_in(node):
    nodes = [each for each in ast.walk(node) if isinstance(each, (ast.Name, ast.arg))]
    return {each.id if isinstance(each, ast.Name) else each.arg for each in nodes}


def reached(function, functions):
    """The names that a test uses, directly, through helpers of its file, or through fixtures."""
    found, new = set(), names_in(function)
    while new:
        found |= new
        new = {n for each in new & functions.keys() for n in names_in(functions[each])} - found
    return found


def marks_of(function):
    """The names of the marks of a test, as `slow` for `@pytest.mark.slow`."""
    nodes = [node for each in function.decorator_list for node in ast.walk(each)]
    found = {node.id for node in nodes if isinstance(node, ast.Name)} & NEEDS_COMPILER
    for node in nodes:
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pytest.mark":
            found.add(node.attr)
    return found


def wrongly_marked(text, starts=STARTS_PROCESSES):
    """The tests of a file whose marks and code disagree about other processes."""
    tree = ast.parse(text)
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    for name, function in functions.items():
        if not name.startswith("test_"):
            continue
        marks = marks_of(function)
        marked = bool(marks & {"subprocess", "multiprocess", *NEEDS_COMPILER})
        if marked != bool(reached(function, functions) & {*starts, *NEEDS_COMPILER}):
            yield name


@pytest.mark.parametrize("path", sorted(HERE.rglob("test_*.py")), ids=lambda path: path.name)
def test_tests_that_start_processes_are_marked(path):
    starts = STARTS_PROCESSES | HELPERS.get(path.name, set())
    assert list(wrongly_marked(path.read_text(), starts)) == []


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("def test_it(): subprocess.run([])", ["test_it"]),
        ("def start(): in_child(f)\ndef test_it(): start()", ["test_it"]),
        ("@pytest.fixture\ndef child(): in_child(f)\ndef test_it(child): pass", ["test_it"]),
        ("@pytest.mark.subprocess\ndef test_it(): subprocess.run([])", []),
        ("@pytest.mark.subprocess\ndef test_it(): pass", ["test_it"]),
        ("@needs_tpu_compiler\ndef test_it(): pass", []),
    ],
)
def test_what_is_marked_wrongly_is_found(body, found):
    assert list(wrongly_marked(body)) == found


@pytest.mark.subprocess
def test_libtpu_cannot_be_loaded_without_the_mark():
    target = Target.parse("tpu:v5e:2x2")
    with pytest.raises(Failure, match=r"libtpu_needs_the_mark_tpu\.txt"):
        places_in_subprocess(target, (("a_name_that_no_other_test_has", 4),))


# ------------------------------------------------------------------------------- commands of CI


def commands_of_ci():
    """The rules of the Makefile that .ci/run makes for each line of JAX, as text by name."""
    root = HERE.parent
    rules = re.findall(
        r"^([\w-]+):.*\n((?:\t.*\n)+)", (root / "Makefile").read_text(), re.MULTILINE
    )
    (names,) = re.findall(
        r"^  make ([a-z -]+) PYTHON=", (root / ".ci/run").read_text(), re.MULTILINE
    )
    return {name: text for name, text in rules if name in names.split()}


def test_ci_runs_each_test_that_is_not_long_once():
    commands = "".join(commands_of_ci().values())
    expressions = re.findall(r'-m "(.*)"', commands)
    assert len(expressions) == 2
    for marks in itertools.product([False, True], repeat=2):
        selected = [
            eval(each, dict(zip(("long", "tpu"), marks, strict=True))) for each in expressions
        ]
        assert sum(selected) == (not marks[0])


def test_ci_runs_each_lit_test_once():
    commands = "".join(commands_of_ci().values())
    assert re.findall(r"lit -v test(.*)", commands) == [" --filter-out /tpu/", " --filter /tpu/"]
