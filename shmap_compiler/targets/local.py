"""`local`: the devices of this process, of any kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
from shmap_passes.cost.chips import CHIPS, Chip

from shmap_compiler.base.errors import OptionProblem
from shmap_compiler.base.untyped import Device
from shmap_compiler.targets import gpu, tpu
from shmap_compiler.targets.target import Target


@dataclass(frozen=True)
class LocalTarget(Target):
    """All devices of JAX's default backend."""

    kind = "local"
    syntax = "local"

    @classmethod
    def read(cls, text: str) -> LocalTarget | OptionProblem:
        if text == "local":
            return cls(text)
        return OptionProblem(
            f"target {text!r}",
            f"{text.partition(':')[2]!r} after 'local'",
            "nothing: 'local' means all devices of this process",
            "write 'local', or 'cpu:8' for virtual devices",
        )

    @property
    def platform(self) -> str:
        backend = jax.default_backend()
        return {"gpu": "cuda"}.get(backend, backend)

    @property
    def chip(self) -> Chip | None:
        kind = self.devices()[0].device_kind
        return next((chip for chip in CHIPS if chip.device_kind == kind), None)

    @property
    def compiler_options(self) -> Mapping[str, str]:
        if self.platform == "cuda":
            return gpu.COMPILER_OPTIONS
        known = [g for g in tpu.GENERATIONS.values() if g.chip == self.chip]
        return known[0].compiler_options if known else {}

    @property
    def device_count(self) -> int:
        return len(self.devices())

    @property
    def is_here(self) -> bool:
        return True

    def devices(self) -> list[Device]:
        return jax.devices()

    def _takes(self, device_count: int) -> bool:
        return device_count <= self.device_count
