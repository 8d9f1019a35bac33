"""What moves between the memory of a device and that of the host."""

from __future__ import annotations

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
