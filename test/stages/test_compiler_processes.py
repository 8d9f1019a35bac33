"""The process of a compiler ends when nobody waits for it any more."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shmap_compiler import Target
from shmap_compiler.stages import subprocess_compiler

WORKER = """
import json, os, time
from shmap_compiler.base.worker_process import end_with_starter
end_with_starter()
print(json.dumps({"phase": str(os.getpid())}), flush=True)
time.sleep(600)
"""

STARTER = """
import sys
from pathlib import Path
from shmap_compiler import Target
from shmap_compiler.stages import subprocess_compiler
run = subprocess_compiler._run
run(Path(sys.argv[1]), [], Target.parse("cpu:8"), lambda pid: print(pid, flush=True))
"""


@pytest.fixture
def worker(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    return script


def has_ended(pid):
    """Whether a process is gone, or about to be: nobody may collect its status here."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


def wait_until_ended(pid):
    for _ in range(300):
        if has_ended(pid):
            return
        time.sleep(0.1)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    pytest.fail("the worker went on")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
def test_an_interrupt_ends_the_compiler(worker):
    pids = []

    def interrupted(phase):
        pids.append(int(phase))
        raise KeyboardInterrupt("now")

    with pytest.raises(KeyboardInterrupt, match="now"):
        subprocess_compiler._run(worker, [], Target.parse("cpu:8"), interrupted)
    wait_until_ended(*pids)


@pytest.mark.subprocess
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_compiler_ends_with_the_process_that_started_it(worker, number):
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(worker)], stdout=subprocess.PIPE, text=True
    )
    with starter:
        pid = int(starter.stdout.readline())
        assert not has_ended(pid)
        starter.send_signal(number)
    wait_until_ended(pid)
