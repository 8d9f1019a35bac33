"""What moves between the memory of a device and that of the host, and how long that takes."""

from __future__ import annotations

from dataclasses import dataclass, field

from shmap_compiler.explain.hlo import (
    HOST,
    Computation,
    Instruction,
    array_types,
    memory_space,
    shape,
    type_bytes,
)

_MOVING = {
    "copy",
    "copy-start",
    "dynamic-slice",
    "dynamic-slice-start",
    "dynamic-update-slice",
    "dynamic-update-slice-start",
    "slice-start",
    "fusion-start",
}


def host_bytes(computation: Computation, instruction: Instruction) -> int:
    """Bytes that an instruction moves to or from the host: of an array, or of a slice of it."""
    if instruction.opcode not in _MOVING:
        return 0
    types = [instruction.type, *(computation[name].type for name in instruction.operands)]
    arrays = [array for type_ in types for array in array_types(type_) if shape(array)]
    there = [type_bytes(array) for array in arrays if memory_space(array) == HOST]
    here = [type_bytes(array) for array in arrays if memory_space(array) != HOST]
    return min(*there, *here) if there and here else 0


def direction(instruction: Instruction) -> str:
    """Whether an instruction that moves bytes does so "to the host" or "from the host"."""
    arrays = [array for array in array_types(instruction.type) if shape(array)]
    # The type of a start has the operands first, but for that of a copy.
    result = arrays[0 if instruction.opcode == "copy-start" else -1]
    return "to the host" if memory_space(result) == HOST else "from the host"


@dataclass
class HostLink:
    """The connection of a device with the host. In each direction, one copy waits for the other.

    Attributes:
      bandwidth: bytes per second in one direction.
      usage: by direction, the seconds for which it is in use.
    """

    bandwidth: float
    usage: dict[str, float] = field(default_factory=dict)
    _until: dict[str, float] = field(default_factory=dict)

    def take(self, way: str, count: int, now: float) -> tuple[float, float]:
        """When a copy of so many bytes that could begin now begins, and when it ends."""
        begin = max(now, self._until.get(way, 0.0))
        end = self._until[way] = begin + count / self.bandwidth
        self.usage[way] = self.usage.get(way, 0.0) + end - begin
        return begin, end
