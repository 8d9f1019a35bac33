"""Workers answer the message that was sent, whatever became of those before."""

import signal

import pytest

from shmap_compiler.base.worker_process import WorkerProcess

ECHO = """
import struct, sys, time
while True:
    (length,) = struct.unpack("<Q", sys.stdin.buffer.read(8))
    message = sys.stdin.buffer.read(length)
    if message == b"slow":
        time.sleep(2)
    sys.stdout.buffer.write(struct.pack("<Q", length) + message)
    sys.stdout.buffer.flush()
"""


@pytest.fixture
def worker(tmp_path):
    script = tmp_path / "echo.py"
    script.write_text(ECHO)
    found = WorkerProcess(script)
    yield found
    found.stop()


def interrupt(*_):
    raise KeyboardInterrupt("now")


def test_an_interrupted_question_leaves_no_answer(worker):
    assert worker.ask(b"first", 60) == b"first"
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(KeyboardInterrupt, match="now"):
            worker.ask(b"slow", 60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert worker.ask(b"last", 60) == b"last"


def test_a_late_answer_is_not_taken_for_the_next(worker):
    with pytest.raises(TimeoutError, match=r"^$"):
        worker.ask(b"slow", 0.5)
    assert worker.ask(b"last", 60) == b"last"
