"""The watchdog: what it puts into programs, and what it prints when one hangs."""

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from shmap_compiler import ShmapError, shard_map, watch_collectives

HANG = Path(__file__).parent / "Inputs" / "hang.py"
MESH = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("i", "j"))
X = np.arange(16, dtype=np.float32).reshape(4, 4)


def step(x):
    x = lax.psum(x, "i")
    x = lax.psum(x * 2, "i")  # of the same types, and another collective
    total = lax.fori_loop(0, 2, lambda _, c: lax.ppermute(c, "j", [(0, 1), (1, 0)]), x)
    return x * lax.psum(total, ("i", "j"))


def mapped(f=step, **options):
    # A function of its own for each test: nothing is taken from caches.
    return shard_map(
        lambda x: f(x), mesh=MESH, in_specs=P("i", "j"), out_specs=P(("i", "j")), **options
    )


def callbacks(function):
    return len(re.findall(r"custom_call @\w*callback", jax.jit(function).lower(X).as_text()))


@pytest.mark.subprocess
def test_what_hangs_is_reported():
    """The child is killed when it has reported, and in any case after five minutes.

    The other devices come to the collective well before it is reported, also on a loaded machine.
    """
    child = subprocess.Popen(
        [sys.executable, str(HANG)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"SHMAP_WATCHDOG": "5"},
    )
    timer = threading.Timer(300, child.kill)
    timer.start()
    lines = []
    try:
        for line in child.stderr:
            if lines or line.startswith("shmap watchdog"):
                lines.append(line.rstrip())
            if len(lines) == 10:
                break
    finally:
        timer.cancel()
        child.kill()
        child.wait()
        child.stderr.close()
    first, *rest = lines
    assert re.fullmatch(r"shmap watchdog: `step` has been in a collective for \d+\.\d s", first)
    place = r"at \S*hang\.py"
    expected = [
        "  its collectives, in the order of the program:",
        rf"    1\. psum over 'i' {place}:20 \(step\)",
        rf"    2\. ppermute over 'j' {place}:21 \(.*lambda>\)",
        rf"    3\. pmax over 'i' {place}:22 \(.*lambda>\)",
        "  the devices of this process:",
        *[
            rf"    i=0, j={j} \(.*:{j}\): waits in 3\. pmax \(entered 1 times\); next: 1\. psum"
            for j in (0, 1)
        ],
        *[rf"    i=1, j={j} \(.*:{2 + j}\): has left 2\. ppermute; next: 3\. pmax" for j in (0, 1)],
    ]
    assert len(rest) == len(expected), lines
    for line, pattern in zip(rest, expected, strict=True):
        assert re.fullmatch(pattern, line), (line, pattern)


def test_watched_programs_compute_the_same(capsys):
    function = mapped()
    gradient = jax.grad(lambda x: jnp.sum(function(x) ** 2))
    expected, expected_gradient = jax.jit(function)(X), jax.jit(gradient)(X)
    with watch_collectives(60):
        np.testing.assert_array_equal(jax.jit(function)(X), expected)
        np.testing.assert_allclose(jax.jit(gradient)(X), expected_gradient, rtol=1e-5)
    assert "watchdog" not in capsys.readouterr().err


def test_each_collective_has_two_callbacks_while_the_watchdog_is_on():
    function = mapped()
    assert callbacks(function) == 0
    with watch_collectives(60):
        assert callbacks(function) == 8
        assert "callback" not in function.lower(X).as_text()
    assert callbacks(function) == 0


def test_programs_with_automatic_axes_are_not_watched():
    function = shard_map(
        lambda x: lax.psum(x, "i"), mesh=MESH, in_specs=P("i"), out_specs=P(), axis_names={"i"}
    )
    with watch_collectives(60):
        assert callbacks(function) == 0


def test_a_collective_that_is_slow_is_reported_once(capfd):
    """A callback of the user's keeps two devices from coming, both until the same time.

    If it ran for one after the other, they would come apart, which is reported again.
    """
    came: list[float] = []

    def late(k):
        if k == 0:
            came.append(time.monotonic())
            threading.Event().wait(max(0.0, came[0] + 6 - time.monotonic()))
        return np.float32(0)

    def body(x):
        wait = jax.pure_callback(late, jax.ShapeDtypeStruct((), x.dtype), lax.axis_index("i"))
        return lax.psum(x + wait, "i")

    with watch_collectives(2.5):
        jax.block_until_ready(jax.jit(mapped(body))(X))
    reports = capfd.readouterr().err.split("shmap watchdog")[1:]
    assert len(reports) == 1
    assert "i=0, j=0 (" in reports[0]
    assert reports[0].count("waits in 1. psum (entered 1 times)") == 2
    assert reports[0].count("has not reached a collective; next: 1. psum") == 2


@pytest.mark.parametrize("seconds", [0, -1, "soon", float("inf"), float("nan"), None])
def test_seconds_are_positive_numbers(seconds):
    with (
        pytest.raises(ShmapError, match=r"(?s)watch_collectives.*needed: a number of seconds"),
        watch_collectives(seconds),
    ):
        pass
