"""`shmap demo`: a matrix product before and after the passes, compiled and run."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import ModuleType

from . import lower, run, shared_options

NAME = "demo"
SUMMARY = "show a matrix product before and after the passes, and run it"
DESCRIPTION = """\
Prints a small shard_mapped program, the module of one device that is emitted for it, and the module
that XLA's partitioner receives after the passes. Then compiles it, runs it on eight virtual CPU
devices and compares the result with the product of the full matrices.
"""
EPILOG = """\
The same for a program of yours: shmap lower FILE.py:NAME --stage body, --stage stablehlo, and
shmap run FILE.py:NAME.
"""
_FILE = Path(__file__).with_name("demo_program.py")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared_options.add_partitioner(parser)
    shared_options.add_verbose(parser)
    parser.set_defaults(devices=shared_options.DEFAULT_DEVICES)


def execute(options: argparse.Namespace) -> int:
    chosen = () if options.partitioner is None else ("--partitioner", options.partitioner)
    _print_header("The program")
    print(_FILE.read_text(encoding="utf-8").rstrip())
    _print_header("Emitted: the program of one device")
    _execute(lower, "--stage", "body", *chosen)
    _print_header("After the passes: what XLA's partitioner receives")
    _execute(lower, "--stage", "stablehlo", *chosen)
    _print_header("Compiled and run on 8 virtual CPU devices")
    return _execute(run, *chosen)


def _execute(command: ModuleType, *argv: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.execute(parser.parse_args([f"{_FILE}:matmul", *argv]))


def _print_header(text: str) -> None:
    print(f"\n== {text}\n", flush=True)
