"""Time of simulating the examples on all their devices, in one process.

    python benchmarks/simulate.py [--partitioner shardy] [--only transformer_2d]

For each example: the number of exchanges, the time to simulate the module that XLA receives
(reading it, outlining its segments, playing them), and how much of that is processor time of this
process; the rest is spent in the interpreter, which runs in another.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

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
    options = parser.parse_args()
    rows = []
    for file, name in EXAMPLES:
        if options.only not in (None, file):
            continue
        args = arguments(file, name)
        lowered = getattr(MODULES[file], name).lower(*args, partitioner=options.partitioner)
        lowered.simulate(*args)  # starts the interpreter
        start, cpu = time.perf_counter(), time.process_time()
        simulation = lowered.simulate(*args)
        wall, used = time.perf_counter() - start, time.process_time() - cpu
        rows.append(
            (
                f"{file}:{name}",
                str(len(simulation.exchanges)),
                show_seconds(wall),
                show_seconds(used),
            )
        )
    header = ("example", "exchanges", "time", "of which in the player")
    print(table(header, sorted(rows)))


if __name__ == "__main__":
    main()
