"""A small part of `make fuzz`, the same modules every time; see fuzzing/run.py."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "fuzzing" / "run.py"


@pytest.mark.slow
@pytest.mark.subprocess
def test_shmap_opt_survives_mutated_modules():
    # In a process of its own, where JAX has not started threads: the modules run in forks.
    command = [sys.executable, str(RUN), "--modules", "200", "--seed", "20", "--seconds", "600"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "200 modules" in done.stdout
    counts = {
        what: int(n) for n, what in re.findall(r"(\d+) (accepted|refused by a pass)", done.stdout)
    }
    assert counts["accepted"] > 3
    assert counts["refused by a pass"] > 3


@pytest.mark.subprocess
def test_a_defect_is_found(tmp_path):
    code = f"""
import sys
sys.argv = ["run.py", "--modules", "60", "--seed", "20"]
sys.path.insert(0, {str(RUN.parent.parent)!r})
from fuzzing import run
from shmap_passes.checks.verify import Verify
def stumble(self, module):
    raise KeyError("stumbled")
Verify.run = stumble
sys.exit(run.main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "KeyError: 'stumbled'" in done.stdout
