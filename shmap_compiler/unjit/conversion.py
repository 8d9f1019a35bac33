"""HLO to StableHLO, in a process that may die.

The process starts with the first conversion, and again after it has died.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import Any

_WORKER = Path(__file__).with_name("worker.py")
_LENGTH_BYTES = 8


class ConversionFailed(Exception):
    """The converter rejected the program, or died of it."""


class Converter:
    """A worker process that converts programs."""

    def __init__(self) -> None:
        self._process: Any = None
        self._log: Any = None
        self._lock = threading.Lock()

    def convert(self, proto: bytes) -> bytes:
        """The StableHLO, as MLIR bytecode, of an HloModuleProto.

        Raises:
          ConversionFailed: there is none.
        """
        with self._lock:
            if self._process is None:
                self._process = self._start()
            try:
                self._process.stdin.write(len(proto).to_bytes(_LENGTH_BYTES, "little") + proto)
                self._process.stdin.flush()
                answer = self._read(int.from_bytes(self._read(_LENGTH_BYTES), "little"))
            except (EOFError, BrokenPipeError):
                raise ConversionFailed(f"the converter ended: {self._last_words()}") from None
        if answer[0] != 1:
            raise ConversionFailed(answer[1:].decode().partition("\n")[0])
        return answer[1:]

    def _read(self, count: int) -> bytes:
        data = self._process.stdout.read(count)
        if len(data) < count:
            raise EOFError
        return data

    def _start(self) -> Any:
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        environment = {
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        return subprocess.Popen(
            [sys.executable, "-P", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
        )

    def _last_words(self) -> str:
        self._process.wait()
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().splitlines() if line.strip()]
        fatal = [line for line in lines if line.startswith("F") and "] " in line]
        said = fatal[0].partition("] ")[2] if fatal else (lines or ["nothing"])[-1]
        status = self._process.returncode
        self.stop()
        return f"status {status}, {said}"

    def stop(self) -> None:
        """Ends the process, if there is one."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            # What was not sent to a process that died is of no use.
            try:
                pipe.close()
            except BrokenPipeError:
                continue
        self._log.close()
        self._process = None


@cache
def shared() -> Converter:
    """The converter of this process."""
    converter = Converter()
    atexit.register(converter.stop)
    return converter
