"""Writes the data of the tables in docs/passes.md: python docs/make_validation.py

Validates, by simulation and for both partitioners, every pass on every example, and every form of
the passes of overlap. Takes some minutes for each; the arguments "examples" and "overlap" choose.
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
from overlap_programs import FORMS, lowered_in

COLUMNS = ("programs", "changed", "fewer", "unequal", "difference")
EXAMPLES_DATA = Path(__file__).with_name("validation.json")
OVERLAP_DATA = Path(__file__).with_name("overlap_validation.json")
PARTITIONERS = ("gspmd", "shardy")


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
            row["difference"] = max(row["difference"], _rounded(check.relative))
    return passes


def overlap_rows(partitioner: str) -> list[dict[str, Any]]:
    """What the table says of each form, for one partitioner: of the pass that rewrites into it."""
    found = []
    for name, program, pass_, op_name, options in FORMS:
        row: dict[str, Any] = {"pass": f"shmap-{pass_}", "form": name, "program": program}
        for dtype in ("float32", "bfloat16"):
            lowered, args = lowered_in(program, pass_, op_name, options, dtype, partitioner)
            validation = lowered.validate(*args, xla=False)
            print(partitioner, pass_, name, dtype, validation.holds, flush=True)
            checks = {check.name: check for check in validation.checks}
            check = checks[row["pass"]]
            row[dtype] = _rounded(check.relative)
            row["bitwise"] = check.bitwise
            row["unequal"] = row.get("unequal", 0) + (not validation.holds)
        found.append(row)
    return found


def _rounded(difference: float) -> float:
    return float(f"{difference:.0e}")


def both(function: Any) -> tuple[Any, Any]:
    """The results of a function for the two partitioners, in a process each."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        gspmd, shardy = pool.map(function, PARTITIONERS)
    return gspmd, shardy


def validate_examples() -> None:
    """Writes the data of the table of passes."""
    gspmd, shardy = both(rows)
    table = {
        name: {
            column: (max if column == "difference" else sum)((row[column], shardy[name][column]))
            for column in COLUMNS
        }
        for name, row in gspmd.items()
    }
    EXAMPLES_DATA.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


def validate_overlap() -> None:
    """Writes the data of the table of forms."""
    pairs = zip(*both(overlap_rows), strict=True)
    table = [
        {
            **one,
            "unequal": one["unequal"] + other["unequal"],
            "float32": max(one["float32"], other["float32"]),
            "bfloat16": max(one["bfloat16"], other["bfloat16"]),
        }
        for one, other in pairs
    ]
    OVERLAP_DATA.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    chosen = sys.argv[1:] or ["examples", "overlap"]
    if "examples" in chosen:
        validate_examples()
    if "overlap" in chosen:
        validate_overlap()
