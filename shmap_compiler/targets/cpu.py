"""`cpu:8`: virtual devices of the CPU this process runs on."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

import jax

from shmap_compiler.base.errors import OptionProblem, TargetError
from shmap_compiler.base.meshes import request_cpu_devices
from shmap_compiler.base.untyped import Device
from shmap_compiler.targets.target import Target


@dataclass(frozen=True)
class CpuTarget(Target):
    """The first `count` CPU devices of this process."""

    count: int

    kind = "cpu"
    syntax = "cpu:DEVICES"

    @classmethod
    def read(cls, text: str) -> CpuTarget | OptionProblem:
        count = text.partition(":")[2]
        if re.fullmatch("[1-9][0-9]{0,8}", count):
            return cls(text, int(count))
        return OptionProblem(
            f"target {text!r}",
            f"{count!r} as the number of devices",
            "a whole number of at least 1, as in 'cpu:8'",
            "write cpu: and a number",
        )

    @property
    def platform(self) -> str:
        return "cpu"

    @property
    def device_count(self) -> int:
        return self.count

    @property
    def environment(self) -> Mapping[str, str]:
        flag = f"--xla_force_host_platform_device_count={self.count}"
        return {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()}

    @property
    def is_here(self) -> bool:
        return True

    def devices(self) -> list[Device]:
        here = jax.devices("cpu")
        if len(here) >= self.count:
            return here[: self.count]
        problem = OptionProblem(
            self.where,
            f"{len(here)} CPU devices in this process",
            f"{self.count}",
            request_cpu_devices(self.count),
        )
        raise TargetError(None, [problem])

    def _takes(self, device_count: int) -> bool:
        return device_count <= self.count
