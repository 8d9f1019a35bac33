"""The reference interpreter of StableHLO, which runs in a worker process that may die.

The process starts with the first evaluation, and again after it has died. All simulations of this
process share it.
"""

from __future__ import annotations

import atexit
import os
import pickle
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from shmap_compiler.simulate.worker import LENGTH

_WORKER = Path(__file__).with_name("worker.py")
SECONDS = 300.0
"""How long one evaluation may take."""


class EvaluationFailed(Exception):
    """The interpreter rejected a segment, died in it, or took too long."""


class Interpreter:
    """A worker process that evaluates segments."""

    def __init__(self) -> None:
        self._process: Any = None
        self._known: set[int] = set()
        self._log: Any = None
        self._lock = threading.Lock()

    def evaluate(
        self,
        number: int,
        code: bytes,
        arrays: Sequence[np.ndarray],
        seconds: float = SECONDS,
    ) -> list[np.ndarray]:
        """The results of a segment.

        Args:
          number: of the segment; equal numbers stand for equal code.
          code: its module as MLIR bytecode.
          arrays: one for each argument of its `@main`.
          seconds: how long it may take.

        Raises:
          EvaluationFailed: there are no results.
        """
        with self._lock:
            sent = None if number in self._known else code
            status, payload = self._ask((number, sent, list(arrays)), seconds)
            if status == "unknown":
                status, payload = self._ask((number, code, list(arrays)), seconds)
            if status == "error":
                raise EvaluationFailed(payload.partition("\n")[0])
            self._known.add(number)
            return payload

    def _ask(self, message: Any, seconds: float) -> tuple[str, Any]:
        if self._process is None:
            self._process = self._start()
        data = pickle.dumps(message, protocol=5)
        deadline = time.monotonic() + seconds
        try:
            self._process.stdin.write(LENGTH.pack(len(data)) + data)
            self._process.stdin.flush()
            (length,) = LENGTH.unpack(self._receive(LENGTH.size, deadline))
            return pickle.loads(self._receive(length, deadline))
        except (EOFError, BrokenPipeError):
            self._process.wait()
            words = self._last_words()
            self.stop()
            raise EvaluationFailed(words) from None
        except TimeoutError:
            self.stop()
            raise EvaluationFailed(f"it ran for more than {seconds:g} s") from None

    def _receive(self, count: int, deadline: float) -> bytes:
        parts = bytearray()
        pipe = self._process.stdout.fileno()
        while len(parts) < count:
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            part = os.read(pipe, count - len(parts))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def _start(self) -> Any:
        self._known.clear()
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        return subprocess.Popen(
            [sys.executable, "-P", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
            env=environment,
        )

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().splitlines() if line.strip()]
        said = [line for line in lines if "LLVM ERROR" in line] or lines[-1:]
        status = self._process.returncode
        if not said:
            return f"it ended with status {status}"
        # What follows the first sentence is advice to those who write interpreters.
        return said[-1].removeprefix("LLVM ERROR: ").partition(". ")[0]

    def stop(self) -> None:
        """Ends the process, if there is one."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            pipe.close()
        self._log.close()
        self._process = None


@cache
def shared() -> Interpreter:
    """The interpreter of this process."""
    interpreter = Interpreter()
    atexit.register(interpreter.stop)
    return interpreter
