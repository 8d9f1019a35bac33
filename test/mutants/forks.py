"""A process that has imported JAX, and runs pytest in a forked child for each request.

Importing JAX takes longer than most tests. The product and the tests are imported in the child, as
they are then. Each request is a line of JSON, {"arguments": [...], "seconds": 600}, on standard
input; the answer is {"status": 1, "output": "..."}, with the status "timeout" after that time.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

_CRASHED = 70
_MEMORY = 16 * 2**30


class Forks:
    """Runs pytest in one folder. Safe to use from one thread at a time.

    Args:
      environment: of the process; `PYTHONPATH` names the folder's packages.
    """

    def __init__(self, folder: Path, environment: dict[str, str]):
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            cwd=folder,
            env={"JAX_PLATFORMS": "cpu", **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def pytest(self, arguments: list[str], seconds: float) -> tuple[int | str, str]:
        """(exit status, output)."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"arguments": arguments, "seconds": seconds}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return answer["status"], answer["output"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _serve() -> None:
    import jax.experimental.pallas  # noqa: F401

    for line in sys.stdin:
        print(json.dumps(_run(**json.loads(line))), flush=True)


def _run(arguments: list[str], seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        output = Path(folder) / "output"
        child = os.fork()
        if child == 0:
            _child([f"--basetemp={folder}/tests", *arguments], output, seconds)
        status = _wait(child, seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what a test may have left
        return {"status": status, "output": output.read_text(errors="replace")}


def _child(arguments: list[str], output: Path, seconds: float) -> None:
    """Runs pytest; never returns."""
    os.setsid()
    # A mistake may make a loop endless. The processor time ends it if nobody is left who does.
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    time_s = int(seconds) * (os.cpu_count() or 1)
    resource.setrlimit(resource.RLIMIT_CPU, (time_s, time_s))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    written = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(written, 1)
    os.dup2(written, 2)
    status = _CRASHED
    try:
        import pytest

        status = int(pytest.main(arguments))
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _wait(child: int, seconds: float) -> int | str:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


if __name__ == "__main__":
    _serve()
