"""Compiles the programs of `programs.py` for the devices of targets, and stores their schedules.

    python test/explain/schedules/make.py TARGET [NAME[+OPTIONS] ...]

In an environment with the compiler of the target (the extra `tpu` or `gpu`), on each line of JAX.
Files are named TARGET/JAX_NAME.hlo.xz; their first line has the places of the devices in the
network and the compiler's figures of memory, as JSON. Tests read what is stored, and compile
nothing.
"""

from __future__ import annotations

import dataclasses
import json
import lzma
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def main(text: str, *names: str) -> None:
    import programs

    from shmap_compiler import Target

    target = Target.parse(text)
    for name in names or programs.PROGRAMS:
        try:
            store(target, name)
        except Exception as error:
            print(name, "FAILED", str(error)[:300], flush=True)


def store(target: Any, named: str) -> None:
    import jax
    import programs

    from shmap_compiler import shard_map
    from shmap_compiler.records.compiled_program import MemoryAnalysis

    name, _, option = named.partition("+")
    program = programs.PROGRAMS[name]
    mesh = target.mesh(program.mesh)
    mapped = shard_map(
        program.body, mesh=mesh, in_specs=program.in_specs, out_specs=program.out_specs
    )
    lowered = jax.jit(mapped).trace(*program.types).lower(lowering_platforms=(target.platform,))
    compiled = lowered.compile(compiler_options=programs.OPTIONS[option] if option else None)
    header = {
        "places": [target.place(device) for device in mesh.devices.flat],
        "memory": dataclasses.asdict(MemoryAnalysis.of(compiled.memory_analysis())),
    }
    text = f"// {json.dumps(header)}\n{compiled.as_text().replace(str(HERE), 'schedules')}"
    line = ".".join(jax.__version__.split(".")[:2])
    path = HERE / target.text.replace(":", "-") / f"{line}_{named}.hlo.xz"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(lzma.compress(text.encode(), preset=9))
    print(path.name, len(text), path.stat().st_size, flush=True)


def environment(text: str) -> None:
    """Sets what the compiler of a target reads when it is loaded."""
    from shmap_compiler import Target

    os.environ.update(Target.parse(text).environment)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    environment(sys.argv[1])
    main(*sys.argv[1:])
