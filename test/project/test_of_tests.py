"""Tests of the tests: a test that cannot fail is a defect."""

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
LIT_TESTS = sorted(
    path
    for path in [*HERE.rglob("*.mlir"), *HERE.rglob("*.test")]
    if not {"Inputs", "Output", "golden"} & set(path.parts)
)
PYTHON_TESTS = sorted(path for path in HERE.rglob("*.py") if "Output" not in path.parts)
PASS_TESTS = sorted((HERE / "passes").rglob("*.mlir"))
SUFFIX = r"(?:-NEXT|-SAME|-NOT|-DAG|-LABEL|-EMPTY|-COUNT-\d+)?"
PASS_FLAG = re.compile(r" --shmap-[\w-]+(?:=\S+)?")


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


def test_a_lit_test_of_a_pass_fails_without_the_pass(tmp_path):
    shutil.copy(HERE / "lit.cfg.py", tmp_path)
    for path in PASS_TESTS:
        text = path.read_text()
        for number, line in enumerate(run_lines(text)):
            rest = re.sub(r".*RUN: .*\n", "", text)
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


@pytest.mark.parametrize("path", PYTHON_TESTS, ids=lambda path: path.name)
def test_every_expected_exception_says_which_message(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("pytest.raises", "raises"):
            names = {keyword.arg for keyword in node.keywords}
            assert "match" in names, f"line {node.lineno}: pytest.raises without match="
