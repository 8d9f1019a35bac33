"""Writes docs/validation.json, the table in docs/passes.md: python docs/make_validation.py

Validates every pass on every example for both partitioners, by simulation. Takes some minutes.
Then run python docs/make_passes.py.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import json
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "test"))

from example_programs import EXAMPLES, MODULES, arguments

COLUMNS = ("programs", "changed", "fewer", "unequal", "difference")
DATA = Path(__file__).with_name("validation.json")


def validations(partitioner: str) -> Iterator[tuple[str, Any, Any]]:
    """(name, the lowered program, its validation) of every example."""
    for file, name in EXAMPLES:
        args = arguments(file, name)
        lowered = getattr(MODULES[file], name).lower(*args, partitioner=partitioner)
        yield f"{file}:{name}", lowered, lowered.validate(*args, xla=False)


def rows(partitioner: str) -> dict[str, dict[str, Any]]:
    """What the table says of each pass, for one partitioner."""
    passes: dict[str, dict[str, Any]] = {}
    for name, lowered, validation in validations(partitioner):
        print(partitioner, name, "equal" if validation.holds else validation, flush=True)
        states, checks = lowered.snapshots.stages, validation.checks
        for number in range(1, len(states)):
            before, state, check = states[number - 1], states[number], checks[number]
            row = passes.setdefault(state.name, dict.fromkeys(COLUMNS, 0))
            row["programs"] += 1
            row["changed"] += state.text != before.text
            row["fewer"] += checks[number - 1].exchanges - check.exchanges
            row["unequal"] += check.difference is not None
            row["difference"] = max(row["difference"], float(f"{check.relative:.0e}"))
    return passes


def main() -> None:
    """Validates for both partitioners, in a process each, and writes the table's data."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        gspmd, shardy = pool.map(rows, ("gspmd", "shardy"))
    table = {
        name: {
            column: (max if column == "difference" else sum)((row[column], shardy[name][column]))
            for column in COLUMNS
        }
        for name, row in gspmd.items()
    }
    DATA.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
