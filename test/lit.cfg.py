"""lit over this folder: `lit test` from anywhere, with the tools of the running interpreter."""

import os
import shutil
import sys
from pathlib import Path

import lit.formats
from jaxlib.mlir.dialects import sdy

# `config` and `lit_config` are given by lit.
# ruff: noqa: F821

config.name = "shmap_compiler"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir", ".test"]
config.test_source_root = str(Path(__file__).parent)
config.excludes = ["Inputs", "golden"]
config.maxIndividualTestTime = 300

here = Path(sys.executable).parent
config.environment["PATH"] = os.pathsep.join([str(here), os.environ.get("PATH", "")])
if "PYTHONPATH" in os.environ:  # a copy of the project, see mutants/run.py
    config.environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
config.environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
config.environment["JAX_PLATFORMS"] = "cpu"
# A tool that warns fails its test.
config.environment["PYTHONWARNINGS"] = "error"

# Whether this Shardy knows arrays that are unreduced by another operation than a sum.
if hasattr(sdy, "ReductionOp"):
    config.available_features.add("reduction-op")

# Only the tests of tools/cli/tpu load libtpu; see conftest.py.
config.environment["TPU_LIBRARY_PATH"] = str(
    Path(__file__).parent / "libtpu_needs_the_mark_tpu.txt"
)

# The commands, without the time that each takes to import JAX.
sys.path.insert(0, str(Path(__file__).parent))
from forked_tools import wrap  # noqa: E402

forked = wrap(config.environment)
if forked is not None:
    here = forked
    config.environment["PATH"] = os.pathsep.join([str(forked), config.environment["PATH"]])

filecheck = shutil.which("FileCheck") or f"{here / 'filecheck'}"
config.substitutions += [
    (r"\bFileCheck\b", filecheck),
    ("%{python}", sys.executable),
    ("%examples", str(Path(__file__).parent.parent / "examples")),
]
