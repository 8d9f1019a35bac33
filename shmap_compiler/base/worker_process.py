"""Worker processes, for libraries that end their process on some inputs."""

from __future__ import annotations

import os
import select
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from shmap_compiler.base.untyped import AnyValue

LENGTH = struct.Struct("<Q")
"""Comes before each message, and says how many bytes it has."""


class WorkerDied(Exception):
    """A worker ended before it answered.

    Attributes:
      status: its exit status.
      log: what it wrote to standard error.
    """

    def __init__(self, status: int, log: str):
        super().__init__(f"the worker ended with status {status}")
        self.status, self.log = status, log


class WorkerProcess:
    """Runs a script that answers messages. It starts with the first one, and after it has died.

    The script reads messages from standard input and writes an answer to each on standard output,
    each after its `LENGTH`. It imports from the same places as this process.
    """

    def __init__(self, script: Path):
        self.script = script
        self._process: Any = None
        self._log: Any = None

    def ask(self, message: bytes, seconds: float) -> bytes:
        """The answer to a message.

        Raises:
          WorkerDied: there is none.
          TimeoutError: there is none after so many seconds; the worker is stopped.
        """
        process = self._process = self._process or self._start()
        deadline = time.monotonic() + seconds
        try:
            self._send(LENGTH.pack(len(message)))
            self._send(message)
            (length,) = LENGTH.unpack(self._receive(LENGTH.size, deadline))
            return self._receive(length, deadline)
        except (EOFError, BrokenPipeError):
            status = process.wait()
            self._log.seek(0)
            died = WorkerDied(status, self._log.read())
            self.stop()
            raise died from None
        except BaseException:
            # After a KeyboardInterrupt, too: the next message would get this answer.
            self.stop()
            raise

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

    def _start(self) -> AnyValue:
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        environment = {
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        return subprocess.Popen(
            [sys.executable, "-P", str(self.script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
            env=environment,
        )

    def _send(self, data: bytes) -> None:
        """Linux writes at most 2 GiB at a time."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._process.stdin.fileno(), rest) :]

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


def end_with_starter() -> None:
    """Has a worker exit as soon as the process that started it is gone, whatever it is doing.

    That process holds the worker's standard input open, and sends nothing.
    """

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def reason_of_abort(log: str) -> str:
    """Why a process was aborted: the first line of its log that begins with F, or the last line.

    XLA begins each line of its log with a letter for the severity, F for fatal.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith("F") and "] " in line]
    if fatal:
        return fatal[0].partition("] ")[2]
    return lines[-1] if lines else "nothing"
