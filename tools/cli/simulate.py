"""`shmap simulate`: plays a program device by device, and reports what each device does."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from . import module_files, program, shared_options
from .tables import print_table

if TYPE_CHECKING:
    from shmap_compiler import Simulation

NAME = "simulate"
SUMMARY = "run a program device by device, on StableHLO's interpreter"
DESCRIPTION = """\
Simulates a shard_mapped function on all devices of its mesh; none of them has to exist. Prints
each collective with its source line, mesh axes, operands and bytes, and reports

  deadlocks            where each device waits, or that it has returned
  unequal copies       blocks of a result that differ between devices, though its spec says that
                       they are equal
  NaN and infinities   the operation, line and device that made the first one

Types without data (--arg, or jax.ShapeDtypeStructs in NAME_args) are filled with random data. Exits
with status 1 for deadlocks and unequal copies.

A file FILE.mlir holds a module on full arrays instead, of any producer: in body form, with Shardy's
manual computations, or with GSPMD's custom calls. Its arguments are random data; --mesh names and
sizes the axes of its mesh, if it does not.
"""
EPILOG = """\
examples:
  shmap simulate examples/ring_attention.py:attention
  shmap simulate examples/matmul.py:matmul_basic --mesh i=8,j=4 --stage body --trace
  shmap simulate module.mlir --mesh data=2,model=4
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared_options.add_arguments(parser, modules=True)
    parser.add_argument(
        "--stage",
        metavar="PASS",
        help='simulate the module after this pass, or "body", the emitted one (default: the module '
        "that XLA receives)",
    )
    parser.add_argument(
        "--seed",
        metavar="N",
        type=shared_options.seed,
        default=0,
        help="seed of the data (default: %(default)s)",
    )
    parser.add_argument(
        "--trace",
        action="store_true",
        help="also list every exchange in the order of completion, with axes and devices",
    )


def execute(options: argparse.Namespace) -> int:
    from shmap_compiler.base.text_tables import show_bytes

    from . import random_data

    if module_files.names_module(options.target):
        simulation = _simulate_module(options)
    else:
        work = program.load(options, needs_devices=False)
        work = replace(work, args=random_data.fill(work.args, options.seed))
        lowered = work.lower(options.partitioner)
        simulation = lowered.simulate(*work.inputs, stage=options.stage)
    if options.trace:
        print_table(
            ("exchange", "line", "round", "axes", "devices", "operands", "bytes"),
            [
                (
                    each.kind,
                    each.line or "unknown",
                    ", ".join(str(count + 1) for count in each.rounds),
                    "-" if each.axes is None else ", ".join(each.axes) or "none",
                    " ".join(map(str, each.group)),
                    each.operands,
                    show_bytes(each.bytes),
                )
                for each in simulation.exchanges
            ],
        )
        print()
    print(simulation)
    return 1 if simulation.hang is not None or simulation.unequal else 0


def _simulate_module(options: argparse.Namespace) -> Simulation:
    """Simulates the module in a file on random data."""
    import jax

    from shmap_compiler import simulate_module
    from shmap_compiler.base.errors import ProgramName
    from shmap_compiler.simulate.simulate_module import playable

    from . import random_data

    text = module_files.read(options.target, {"--stage": options.stage, "--arg": options.args})
    axes = module_files.axes(options)
    who = ProgramName(Path(options.target).name)
    types = [type_ for type_ in playable(text, axes, who).in_types if type_ is not None]
    structs = [jax.ShapeDtypeStruct(shape, element.dtype) for shape, element in types]
    args = random_data.fill(structs, options.seed)
    return simulate_module(text, args, axes=axes, who=who)
