"""Lets lit run the commands of this project as forks of a process that has imported them.

A command such as `shmap lower` spends most of its time importing JAX. `wrap(environment)` writes
commands of the same names into a folder. Each hands its arguments, folder, environment and open
files to a server, which imports the tool at the first request, and runs every request in a child of
its own. Commands whose start matters run as themselves:

- with `OWN_PROCESS=1` in their environment, which tests of starting set;
- with another environment than the tests have, in what is read while Python, XLA or JAX start;
- with `--verbose`, which changes what JAX's libraries log.
"""

from __future__ import annotations

import contextlib
import importlib
import marshal
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any

TOOLS = {
    "shmap": ("shmap_tools.cli.main", "shmap_compiler"),
    "shmap-opt": ("shmap_tools.opt.main",),
    "filecheck": ("filecheck.main",),
}
"""What is imported for each command; its `main` is in the first."""

SERVERS = {"shmap": "jax", "shmap-opt": "mlir", "filecheck": "mlir"}
"""Which process is forked for each command: that of `shmap-opt` never imports JAX."""

READ_AT_START = ("JAX_", "JAXLIB_", "XLA_", "TF_", "PYTHON", "LIBTPU_", "TPU_")

# Imports as little as possible: its own start is what a command costs now.
_CLIENT = """\
#!{python} -IS
import marshal, posix, sys
import _socket
environment = {{k.decode("utf-8", "surrogateescape"): v.decode("utf-8", "surrogateescape")
               for k, v in posix.environ.items()}}
relevant = {{k: v for k, v in environment.items() if k.startswith({read_at_start!r})}}
own = "OWN_PROCESS" in environment or "--verbose" in sys.argv
if own or relevant != {relevant!r}:
    posix.execve({tool!r}, [{tool!r}, *sys.argv[1:]], environment)
request = marshal.dumps(({name!r}, sys.argv[1:], posix.getcwd(), environment))
files = b"".join(n.to_bytes(4, sys.byteorder) for n in (0, 1, 2))
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
server.connect({address!r})
header = len(request).to_bytes(8, "little")
server.sendmsg([header], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
server.sendall(request)
answer = server.recv(1)
if not answer:
    posix.write(2, b"{name}: the process died\\n")
posix._exit(answer[0] if answer else 70)
"""


def wrap(environment: dict[str, str]) -> Path | None:
    """Starts the servers, and returns a folder with the commands; None if it cannot.

    The servers end with this process.

    Args:
      environment: of the tests.
    """
    if " " in sys.executable or len(sys.executable) > 100:  # cannot stand behind `#!`
        return None
    folder = Path(tempfile.mkdtemp(prefix="shmap-lit-"))
    if len(str(folder)) > 90:  # a socket's path has 107 characters
        folder.rmdir()
        return None
    relevant = {k: v for k, v in environment.items() if k.startswith(READ_AT_START)}
    for server in sorted(set(SERVERS.values())):
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(folder / server))
        listening.listen(128)
        subprocess.Popen(
            [sys.executable, __file__, str(listening.fileno()), str(folder)],
            env=environment,
            stdin=subprocess.PIPE,  # whose end is the end of the server
            pass_fds=[listening.fileno()],
        )
        listening.close()
    for name in TOOLS:
        command = folder / name
        text = _CLIENT.format(
            python=sys.executable,
            name=name,
            tool=str(Path(sys.executable).with_name(name)),
            address=str(folder / SERVERS[name]),
            read_at_start=READ_AT_START,
            relevant=relevant,
        )
        command.write_text(text)
        command.chmod(0o755)
    return folder


def _serve(listening: socket.socket, folder: Path) -> None:
    """Answers requests until standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children leave nothing behind
    os.setsid()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # as `shmap` asks for before it imports JAX
    with selectors.DefaultSelector() as selector:
        selector.register(listening, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        while not any(key.fileobj == 0 for key, _ in selector.select()):
            _answer(*listening.accept())
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _answer(connection: socket.socket, _: object) -> None:
    header, files, _, _ = socket.recv_fds(connection, 8, 3)
    with connection, connection.makefile("rb") as stream:
        name, arguments, folder, environment = marshal.loads(
            stream.read(int.from_bytes(header, "little"))
        )
        # A tool that cannot be imported fails in the child, where it is seen.
        with contextlib.suppress(Exception):
            for module in TOOLS[name]:
                importlib.import_module(module)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX warns of forks: it has not started yet
            child = os.fork()
        if child == 0:
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            for number, file in enumerate(files):
                os.dup2(file, number)
            sys.stdin = open(0, closefd=False)  # noqa: SIM115
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
            status = _run(name, arguments)
            connection.sendall(bytes([status & 255]))
            os._exit(status)
    for file in files:
        os.close(file)


def _run(name: str, arguments: list[str]) -> int:
    """Runs a command in this process and returns its exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sys.argv = [str(Path(sys.executable).with_name(name)), *arguments]
    status: Any = 1
    try:
        if name == "shmap":
            virtual_devices = importlib.import_module("shmap_tools.cli.virtual_devices")
            virtual_devices.request = _request_of_imported_jax
        status = importlib.import_module(TOOLS[name][0]).main()
    except SystemExit as stopped:
        status = stopped.code
    except BaseException:
        traceback.print_exc()
    if isinstance(status, str):
        print(status, file=sys.stderr)
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    return status if isinstance(status, int) else int(status is not None)


def _request_of_imported_jax(count: int, *, quiet: bool) -> None:
    """What `virtual_devices.request` does. XLA reads its flags when the first device is used."""
    del quiet  # the level that the server has
    flag = f"--xla_force_host_platform_device_count={count}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]))
