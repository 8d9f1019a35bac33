"""Reports the places of a target's mesh, in a process that subprocess_compiler.py starts.

    python places_worker.py TARGET SIZES

SIZES are the axes of the mesh as JSON. Reports on standard output as subprocess_worker.py does, and
{"places": ...}, the coordinates of each device by position in the mesh.
"""

from __future__ import annotations

import json
import sys

import jax

from shmap_compiler.base.worker_process import end_with_starter
from shmap_compiler.targets import Target


def main(text: str, sizes: str) -> int:
    print(json.dumps({"phase": "topology"}), flush=True)
    target = Target.parse(text)
    try:
        devices = target.mesh(json.loads(sizes)).devices.flat
    except (jax.errors.JaxRuntimeError, ValueError, NotImplementedError) as error:
        print(json.dumps({"failure": str(error)}), flush=True)
        return 1
    print(json.dumps({"places": [target.place(device) for device in devices]}), flush=True)
    return 0


if __name__ == "__main__":
    end_with_starter()
    sys.exit(main(*sys.argv[1:]))
