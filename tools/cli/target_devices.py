"""The option `--target`, which also asks for as many virtual devices as the target has."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence

_CORES = {"tpu7x": 2}


class TargetWithDevices(argparse.Action):
    """Stores a target, and makes `devices` at least the number of its devices.

    It reads the number from the text, because JAX is imported later, with that many devices.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)
        namespace.devices = max(namespace.devices, device_count(str(values)))


def device_count(target: str) -> int:
    """The number of devices of a target, as its text has it; 1 if that has none."""
    kind, _, shape = target.rpartition(":")
    sizes = [int(size) for size in shape.split("x") if re.fullmatch(r"\d{1,4}", size)]
    cores = next((count for name, count in _CORES.items() if name in kind), 1)
    return math.prod(sizes) * cores
