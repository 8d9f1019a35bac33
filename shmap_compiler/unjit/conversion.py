"""HLO to StableHLO, in a process that may die."""

from __future__ import annotations

import atexit
import threading
from functools import cache
from pathlib import Path

from shmap_compiler.base.worker_process import WorkerDied, WorkerProcess, reason_of_abort

_SECONDS = 300.0
"""How long one conversion may take."""


class ConversionFailed(Exception):
    """The converter rejected the program, died of it, or took too long."""


class Converter:
    """Converts programs in a worker process."""

    def __init__(self) -> None:
        self._worker = WorkerProcess(Path(__file__).with_name("worker.py"))
        self._lock = threading.Lock()

    def convert(self, proto: bytes) -> bytes:
        """The StableHLO, as MLIR bytecode, of an HloModuleProto.

        Raises:
          ConversionFailed: there is none.
        """
        with self._lock:
            try:
                answer = self._worker.ask(proto, _SECONDS)
            except WorkerDied as died:
                found = f"the converter ended: status {died.status}, {reason_of_abort(died.log)}"
                raise ConversionFailed(found) from None
            except TimeoutError:
                found = f"the converter ran for more than {_SECONDS:g} s"
                raise ConversionFailed(found) from None
        if answer[0] != 1:
            raise ConversionFailed(answer[1:].decode().partition("\n")[0])
        return answer[1:]

    def stop(self) -> None:
        """Ends the worker, if there is one."""
        self._worker.stop()


@cache
def shared() -> Converter:
    """The converter of this process."""
    converter = Converter()
    atexit.register(converter.stop)
    return converter
