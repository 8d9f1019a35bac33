"""Every test sees eight virtual CPU devices, asked for before JAX starts, and GPUs if any are here.

Tests that do not ask for a GPU run on the CPU, the first of the platforms.
"""

import importlib.util
import os
import secrets
from pathlib import Path

import pytest


def has_gpu() -> bool:
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin")
    return Path("/dev/nvidiactl").exists() and any(map(importlib.util.find_spec, plugins))


# On a loaded machine a device may come to a collective later than the 40 s after which XLA ends the
# process by default.
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
        "--xla_cpu_collective_call_warn_stuck_timeout_seconds=60",
        "--xla_cpu_collective_call_terminate_timeout_seconds=300",
    ]
)
os.environ.setdefault("JAX_PLATFORMS", "cpu,cuda" if has_gpu() else "cpu")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several processes share a GPU

# The random programs are the same every time, or new ones if a number of them is asked for without
# a seed. The seed is drawn here, because all processes of one run must have the same.
ASKED = {"SHMAP_PROPERTY_EXAMPLES", "SHMAP_LIBRARY_EXAMPLES"} & set(os.environ)
os.environ.setdefault("SHMAP_PROPERTY_SEED", str(secrets.randbits(32) if ASKED else 0))


def pytest_report_header() -> str:
    return f"SHMAP_PROPERTY_SEED={os.environ['SHMAP_PROPERTY_SEED']}"


@pytest.fixture(scope="session")
def announce(tmp_path_factory):
    """Records the random program that is about to run: XLA may end the process.

    It is in `running_program.txt` in pytest's temporary folder.
    """
    from hypothesis import currently_in_test_context, note

    path = tmp_path_factory.getbasetemp() / "running_program.txt"

    def write(program: object) -> None:
        if currently_in_test_context():
            note(str(program))
        path.write_text(f"{program}\n\n{program!r}\n")

    return write
