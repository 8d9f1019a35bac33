"""Every test sees eight virtual CPU devices, asked for before JAX starts, and GPUs if any are here.

Tests that do not ask for a GPU run on the CPU, the first of the platforms.
"""

import contextlib
import gc
import importlib.util
import json
import os
import resource
import secrets
from pathlib import Path

import pytest


def has_gpu() -> bool:
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin")
    return Path("/dev/nvidiactl").exists() and any(map(importlib.util.find_spec, plugins))


# The random programs are the same every time, or new ones if a number of them is asked for without
# a seed. The seed is drawn here, because all processes of one run must have the same.
COUNTS = {
    "SHMAP_PROPERTY_EXAMPLES",
    "SHMAP_LIBRARY_EXAMPLES",
    "SHMAP_UNJIT_EXAMPLES",
    "SHMAP_NAMED_EXAMPLES",
}
ASKED = COUNTS & set(os.environ)
os.environ.setdefault("SHMAP_PROPERTY_SEED", str(secrets.randbits(32) if ASKED else 0))

# More than half of the time of the tests was LLVM's, for code that runs once. The level changes
# neither what XLA's own passes compute nor its buffers and collectives, as
# project/test_compiler_level.py shows. Commands in lit, examples as scripts, and benchmarks have
# XLA's own level. So have tests where a GPU is: there, at level 0, XLA of JAX 0.11 computes
# max(x, abs(x)) of integers as x.
os.environ.setdefault("SHMAP_TEST_XLA_LEVEL", "3" if has_gpu() else "0")

# The XLA of JAX 0.10 compiles fusions by MLIR or by older code that takes a third of the time. The
# older code does not wrap single instructions in fusions; collectives and buffers are the same.
# Later ones ignore the option.
OLDER_EMITTERS = (
    "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters"
    if os.environ["SHMAP_TEST_XLA_LEVEL"] == "0"
    else ""
)

# On a loaded machine a device may come to a collective later than the 40 s after which XLA ends the
# process by default.
os.environ["XLA_FLAGS"] = " ".join(
    [
        f"--xla_backend_optimization_level={os.environ['SHMAP_TEST_XLA_LEVEL']}",
        OLDER_EMITTERS,
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
        "--xla_cpu_collective_call_warn_stuck_timeout_seconds=60",
        "--xla_cpu_collective_call_terminate_timeout_seconds=300",
    ]
)
os.environ.setdefault("JAX_PLATFORMS", "cpu,cuda" if has_gpu() else "cpu")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several processes share a GPU


def pytest_report_header() -> str:
    names = ("SHMAP_PROPERTY_SEED", "SHMAP_TEST_XLA_LEVEL")
    return ", ".join(f"{name}={os.environ[name]}" for name in names)


NO_LIBTPU = Path(__file__).with_name("libtpu_needs_the_mark_tpu.txt")
"""What tests without the mark `tpu` find in place of libtpu: loading it fails, and names this file.

Processes that a test starts inherit it.
"""


def pytest_itemcollected(item) -> None:
    if "tpu" in getattr(item, "fixturenames", ()):
        item.add_marker("tpu")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Takes the modules of all libraries out of garbage collection: they stay, and are many."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


SLOW = 5.0
"""A test is marked `slow` if it takes more CPU time than this, in seconds."""


def pytest_addoption(parser) -> None:
    parser.addoption(
        "--cpu-times",
        metavar="FILE",
        help="write the CPU time of each test in seconds, and fail if a mark `slow` is missing",
    )


def cpu_time() -> float:
    """Seconds that this process has taken, and the processes that it has waited for."""
    used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    item.stash[STARTED] = cpu_time()
    with pytest.MonkeyPatch.context() as patch:
        if item.get_closest_marker("tpu") is None:
            patch.setenv("TPU_LIBRARY_PATH", str(NO_LIBTPU))
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "teardown":
        report.cpu_time = cpu_time() - item.stash[STARTED]
        report.marked_slow = item.get_closest_marker("slow") is not None
    return report


STARTED = pytest.StashKey[float]()


class CpuTimes:
    """What `--cpu-times` collects, in the process that reports."""

    def __init__(self, path: str):
        self.path = Path(path)
        self.times: dict[str, float] = {}
        self.unmarked: list[str] = []

    def pytest_runtest_logreport(self, report) -> None:
        if report.when == "teardown":
            self.times[report.nodeid] = round(report.cpu_time, 2)
            if report.cpu_time > SLOW and not report.marked_slow:
                self.unmarked.append(report.nodeid)

    def pytest_sessionfinish(self, session) -> None:
        times = dict(sorted(self.times.items(), key=lambda each: -each[1]))
        self.path.write_text(json.dumps(times, indent=1))
        if self.unmarked and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter) -> None:
        if self.unmarked:
            terminalreporter.section(f"without the mark slow, but over {SLOW:g} s of CPU time")
            for name in self.unmarked:
                terminalreporter.write_line(f"{self.times[name]:7.1f}  {name}")


def pytest_configure(config) -> None:
    path = config.getoption("--cpu-times")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(CpuTimes(path))


@contextlib.contextmanager
def compiling_through(folder: Path):
    """Switches on JAX's persistent compilation cache, for all programs, in this folder."""
    import jax
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    settings = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}

    def use(settings):
        reset_cache()  # JAX reads the settings once
        for name, value in settings.items():
            jax.config.update(name, value)

    use(settings)
    try:
        yield
    finally:
        use(before)


@pytest.fixture
def compilation_cache(tmp_path):
    """The persistent compilation cache, in a folder of the test."""
    with compiling_through(tmp_path / "compilation_cache"):
        yield


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("compilation_cache")


@pytest.fixture
def equal_programs_compile_once(shared_folder):
    """For tests with the same programs, up to names, as others: a tenth of the time."""
    with compiling_through(shared_folder):
        yield


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
