"""The reference interpreter of StableHLO, which runs in a worker process that may die.

The process starts with the first evaluation, and again after it has died. All simulations of this
process share it.
"""

from __future__ import annotations

import atexit
import pickle
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from shmap_compiler.base.untyped import Unchecked
from shmap_compiler.base.worker_process import WorkerDied, WorkerProcess
from shmap_compiler.simulate.steps import Segment

SECONDS = 300.0
"""How long one evaluation may take."""


class EvaluationFailed(Exception):
    """The interpreter rejected a segment, died in it, or took too long."""


class Interpreter:
    """Evaluates segments in a worker process."""

    def __init__(self) -> None:
        self._worker = WorkerProcess(Path(__file__).with_name("worker.py"))
        self._known: set[int] = set()
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

    def _ask(self, message: Unchecked, seconds: float) -> tuple[str, Unchecked]:
        try:
            return pickle.loads(self._worker.ask(pickle.dumps(message, protocol=5), seconds))
        except WorkerDied as died:
            self._known.clear()
            raise EvaluationFailed(_last_words(died)) from None
        except TimeoutError:
            self._known.clear()
            raise EvaluationFailed(f"it ran for more than {seconds:g} s") from None

    def stop(self) -> None:
        """Ends the worker, if there is one."""
        self._worker.stop()
        self._known.clear()


@cache
def shared() -> Interpreter:
    """The interpreter of this process."""
    interpreter = Interpreter()
    atexit.register(interpreter.stop)
    return interpreter


def evaluated(segment: Segment, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of a segment. Raises EvaluationFailed if there are none."""
    pairs = zip(segment.inputs, operands, strict=True)
    carriers = [carrier for element, array in pairs for carrier in element.packed(array)]
    given = iter(shared().evaluate(segment.number, segment.code, carriers))
    return [
        element.unpacked([next(given) for _ in element.carriers]) for element in segment.outputs
    ]


def _last_words(died: WorkerDied) -> str:
    lines = [line.strip() for line in died.log.splitlines() if line.strip()]
    said = [line for line in lines if "LLVM ERROR" in line] or lines[-1:]
    if not said:
        return f"it ended with status {died.status}"
    # What follows the first sentence is advice to those who write interpreters.
    return said[-1].removeprefix("LLVM ERROR: ").partition(". ")[0]
