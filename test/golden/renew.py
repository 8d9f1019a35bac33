"""Renews the golden copies of the examples' modules for the installed version of JAX.

python test/golden/renew.py     # on each tested line of JAX; review `git diff` before committing
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Before JAX starts.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

sys.path.insert(0, str(Path(__file__).parents[1]))
from golden.modules import contents, folder, modules


def main() -> None:
    files = contents(modules())
    folder().mkdir(exist_ok=True)
    for path in folder().glob("*"):
        path.unlink()
    for name, text in files.items():
        (folder() / name).write_text(text)
    print(f"{folder()}: {len(files)} files, {sum(map(len, files.values()))} characters")


if __name__ == "__main__":
    main()
