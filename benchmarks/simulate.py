"""Time of simulating the examples on all their devices, in one process.

    python benchmarks/simulate.py [--partitioner shardy] [--only transformer_2d] [--repeat 5]

For each example: the number of exchanges, the time to simulate the module that XLA receives
(reading it, outlining its segments, playing them), and how much of that is processor time of this
process; the rest is spent in the interpreter, which runs in another. The fastest repetition counts.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parents[1] / "test"))

from example_programs import EXAMPLES, MODULES, arguments

from shmap_compiler.base.text_tables import show_seconds, table


def main() -> None:
    """Simulates every example and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--partitioner", default="gspmd", choices=("gspmd", "shardy"))
    parser.add_argument("--only", help="the examples of this file")
    parser.add_argument("--repeat", type=int, default=1, help="simulate each so many times")
    options = parser.parse_args()
    rows = []
    for file, name in EXAMPLES:
        if options.only not in (None, file):
            continue
        args = arguments(file, name)
        lowered = getattr(MODULES[file], name).lower(*args, partitioner=options.partitioner)
        lowered.simulate(*args)  # starts the interpreter
        simulation, wall, used = min(
            (_timed(lowered, args) for _ in range(options.repeat)), key=lambda each: each[1]
        )
        exchanges = str(len(simulation.exchanges))
        rows.append((f"{file}:{name}", exchanges, show_seconds(wall), show_seconds(used)))
    header = ("example", "exchanges", "time", "of which in the player")
    print(table(header, sorted(rows)))


def _timed(lowered: Any, args: Any) -> tuple[Any, float, float]:
    """(the simulation, how long it took, processor time of this process)."""
    start, cpu = time.perf_counter(), time.process_time()
    simulation = lowered.simulate(*args)
    return simulation, time.perf_counter() - start, time.process_time() - cpu


if __name__ == "__main__":
    main()
