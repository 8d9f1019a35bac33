"""`socket:4`: CPU devices, as if they were the sockets of one machine."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from shmap_compiler.base.errors import Problem
from shmap_compiler.base.untyped import Device
from shmap_compiler.targets.target import Target


@dataclass(frozen=True)
class SocketTarget(Target):
    """The first `count` CPU devices of this process."""

    count: int

    kind = "socket"
    syntax = "socket:COUNT"

    @classmethod
    def read(cls, text: str) -> SocketTarget | Problem:
        count = text.partition(":")[2]
        if count.isdecimal():
            return cls(text, int(count))
        return Problem(f"target {text!r}", f"{count!r}", "a number", "write socket: and a number")

    @property
    def platform(self) -> str:
        return "cpu"

    @property
    def device_count(self) -> int:
        return self.count

    @property
    def is_here(self) -> bool:
        return True

    def devices(self) -> list[Device]:
        return jax.devices("cpu")[: self.count]
