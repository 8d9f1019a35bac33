"""The passes: from a per-device body to the module that XLA compiles. Knows MLIR, not JAX.

This table is what one needs to run the passes and to write one:

    PassPrinting    between which passes `run` prints the module; TextFormat: how;
                    bytecode: a module as MLIR bytecode
    make_context    an MLIR context with the dialects of our modules
    pipeline, run   the passes in order; running them on a module
    Partitioner     what the pipeline is for: "gspmd" or "shardy"
    GroupNaming     how collectives name their groups: "axes", "one-axis" or "ids"
    PASSES          every pass class
    ChooseOverlap   the pass that chooses where transfers run beside products
    parse_pipeline  passes from text, as in "builtin.module(shmap-verify,canonicalize)"
    Pass            base class of passes: a frozen dataclass with `name` and `run(module)`
    option_fields   the options of a pass class; option_types: their types;
                    option_text: a value as written
    Violation       one reason to refuse a module, with its location
    PassRefused     what a pass raises when it does not accept a module
    PassFailure     what `run` raises then, with all diagnostics
    PipelineError   a pass, an option or a value that does not exist
    read_body_form  the mesh, the manual axes, arguments and results of a module in body form
    find_ops        the ops of some names inside one, as a list
    reference       a stable code and its place in the documentation, for the end of a message
    require_known   checks that MLIR knows passes given as text
    parse           a module from its text, bytecode, or portable artifact
    write_reproducer  a module in a file, and the shmap-opt command that runs passes on it
    replace_file    writes a file completely or not at all
"""

import os

# JAX chooses the same level when it is imported, but XLA reads it with its first module, and
# importing the passes loads one: it would then report each device.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

from .base import (
    Pass,
    PassRefused,
    PipelineError,
    Violation,
    option_fields,
    option_text,
    option_types,
    reference,
)
from .diagnostics import Diagnostic, diagnostics_of
from .files.parse import parse
from .files.replace_file import replace_file
from .files.reproducer import write_reproducer
from .ir.body_form import BodyForm, read_body_form
from .ir.dialects import make_context
from .ir.find_ops import find_ops
from .ir.printing import PassPrinting, TextFormat, bytecode
from .overlap.choose_overlap import ChooseOverlap
from .pipeline import PASSES, GroupNaming, Partitioner, PassFailure, pipeline, require_known, run
from .pipeline_text import parse_pipeline

__all__ = [
    "PASSES",
    "BodyForm",
    "ChooseOverlap",
    "Diagnostic",
    "GroupNaming",
    "Partitioner",
    "Pass",
    "PassFailure",
    "PassPrinting",
    "PassRefused",
    "PipelineError",
    "TextFormat",
    "Violation",
    "bytecode",
    "diagnostics_of",
    "find_ops",
    "make_context",
    "option_fields",
    "option_text",
    "option_types",
    "parse",
    "parse_pipeline",
    "pipeline",
    "read_body_form",
    "reference",
    "replace_file",
    "require_known",
    "run",
    "write_reproducer",
]
