"""The passes: from a per-device body to the module that XLA compiles. Knows MLIR, not JAX.

This table is what one needs to run the passes and to write one:

    make_context    an MLIR context with the dialects of our modules
    pipeline, run   the passes in order; running them on a module
    PASSES          every pass class
    Pass            base class of passes: a frozen dataclass with `name` and `run(module)`
    Problem         one reason to refuse a module, with its location
    Refused         what a pass raises when it does not accept a module
    PassFailure     what `run` raises then, with all diagnostics
    read_body_form  the mesh, the manual axes, arguments and results of a module in body form
    walk            all operations inside one, as a list
"""

from .base import Pass, PassOptionError, Problem, Refused
from .body_form import BodyForm, read_body_form, walk
from .dialects import make_context, register_mlir_passes
from .pipeline import PASSES, PassFailure, pipeline, run

__all__ = [
    "PASSES",
    "BodyForm",
    "Pass",
    "PassFailure",
    "PassOptionError",
    "Problem",
    "Refused",
    "make_context",
    "pipeline",
    "read_body_form",
    "register_mlir_passes",
    "run",
    "walk",
]
