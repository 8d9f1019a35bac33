"""Programs on a mesh of several processes, started on this host and connected by gloo."""

import contextlib
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "Inputs" / "process.py"
CHECKS = [
    "compiled",
    "gradient",
    "eager",
    "eager_constants",
    "eager_loops_and_keys",
    "eager_derivatives",
    "eager_if",
    "eager_if_of_what_varies",
    "eager_print",
    "checks",
    "stages",
    "saved_programs",
    "pmap_of_own_rows",
    "pmap_arguments",
    "pmap_of_weak_types",
    "pmap_of_gradients",
    "pmap_nested",
    "pmap_on_own_devices",
    "pmap_on_interleaved_devices",
    "pmap_stages",
    "pmap_errors",
]
SECONDS = 240
"""After which processes that wait for each other are killed."""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_processes(count, folder):
    """For each process, its checks and their errors; whoever does not end is killed."""
    port = free_port()
    command = [sys.executable, str(PROGRAM)]
    with contextlib.ExitStack() as stack:
        children = []
        for rank in range(count):
            log = stack.enter_context(open(folder / f"{rank}.txt", "w+"))
            args = [*command, *map(str, (rank, count, port, folder))]
            child = subprocess.Popen(args, stdout=log, stderr=subprocess.STDOUT)
            stack.callback(child.wait)
            stack.callback(child.kill)
            children.append(child)
        with contextlib.suppress(subprocess.TimeoutExpired):
            for child in children:
                child.wait(timeout=SECONDS)
    found = []
    for rank in range(count):
        results = folder / f"{rank}.json"
        found.append(json.loads(results.read_text()) if results.exists() else {})
        if set(found[rank]) != set(CHECKS):
            print((folder / f"{rank}.txt").read_text())
    return found


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return run_processes(2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return run_processes(4, tmp_path_factory.mktemp("four"))


def assert_passed(processes, check):
    assert [p.get(check, "did not come to an end") for p in processes] == [None] * len(processes)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("check", CHECKS)
def test_two_processes(check, two):
    assert_passed(two, check)


@pytest.mark.multiprocess
@pytest.mark.long
@pytest.mark.parametrize("check", CHECKS)
def test_four_processes(check, four):
    assert_passed(four, check)
