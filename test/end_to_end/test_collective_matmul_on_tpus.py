"""The plain example of `examples/collective_matmul.py` is faster than the one written by hand.

Times are explain's, of the schedules of libtpu for three chips.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from compilers import needs_tpu_compiler

ROOT = Path(__file__).parents[2]
TARGETS = ("tpu:v5e:2x4", "tpu:v6e:2x4", "tpu:v5p:2x2x2")
# One process for all: loading libtpu takes longer than compiling one of these.
PROGRAM = f"""
import json
import sys

sys.path[:0] = [{str(ROOT / "benchmarks")!r}, {str(ROOT / "examples")!r}]
from compile_here import compile_in_this_process

compile_in_this_process()

import collective_matmul
import jax
import jax.numpy as jnp

types = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((16384, 2048), (2048, 2048))]

def seconds(name, target, mode):
    lowered = getattr(collective_matmul, name).lower(*types, overlap=mode)
    totals = lowered.compile(target).explain().totals
    return totals.step_seconds + totals.unestimated_seconds

programs = (("plain", "auto"), ("two_way", "off"))
print(json.dumps([[seconds(n, t, mode) for n, mode in programs] for t in {TARGETS!r}]))
"""


@pytest.mark.slow
@needs_tpu_compiler
def test_the_plain_program_is_faster_than_the_one_written_by_hand():
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    command = [sys.executable, "-P", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    for target, times in zip(TARGETS, json.loads(done.stdout.splitlines()[-1]), strict=True):
        overlapped, by_hand = times
        assert overlapped < 0.6 * by_hand, target
