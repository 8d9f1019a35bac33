"""What instructions of an HLO program cost on a device itself: operations, bytes and time.

Operations are those of matrix products and convolutions, counted from their shapes. Time is the
compiler's own estimate where the program tells it (libtpu writes cycles), else a roofline: the
larger of operations over the speed of the matrix units and bytes over that of the memory.
"""

from __future__ import annotations

import math
import re

from shmap_passes.cost.chips import Chip

from shmap_compiler.explain import hlo
from shmap_compiler.explain.hlo import Computation, Instruction, Module

# These take no time, or only that of what they call.
_FREE = {
    "after-all",
    "bitcast",
    "call",
    "conditional",
    "constant",
    "get-tuple-element",
    "iota",
    "opt-barrier",
    "parameter",
    "partition-id",
    "replica-id",
    "tuple",
    "while",
}


def flops(module: Module, computation: Computation, instruction: Instruction) -> int:
    """Operations of an instruction and of what it fuses; a multiply-add is two."""
    total = _own_flops(computation, instruction)
    for name in instruction.called if instruction.opcode == "fusion" else ():
        called = module.computations[name]
        total += sum(flops(module, called, inner) for inner in called)
    return total


def _own_flops(computation: Computation, instruction: Instruction) -> int:
    if instruction.opcode == "convolution":
        return _convolution_flops(computation, instruction)
    contracted = instruction.attribute(r"\blhs_contracting_dims=\{([\d,]+)\}")
    if "gemm" in (instruction.attribute(r'custom_call_target="([^"]+)"') or ""):
        dims = instruction.attribute(r'"lhs_contracting_dimensions":\[([^\]]+)\]') or ""
        contracted = dims.replace('"', "")
    if not contracted:
        return 0
    left = hlo.shape(computation[instruction.operands[0]].type)
    depth = math.prod(left[int(d)] for d in contracted.split(","))
    return 2 * math.prod(hlo.shape(instruction.type)) * depth


def _convolution_flops(computation: Computation, instruction: Instruction) -> int:
    """Each element of the result needs the whole kernel, of one output feature."""
    labels = instruction.attribute(r"\bdim_labels=\w+_(\w+)->") or ""
    kernel = hlo.shape(computation[instruction.operands[1]].type)
    used = math.prod(n for n, label in zip(kernel, labels, strict=True) if label != "o")
    return 2 * math.prod(hlo.shape(instruction.type)) * used


def seconds(
    module: Module, computation: Computation, instruction: Instruction, chip: Chip | None
) -> float:
    """Time of an instruction that is no collective; zero where it is not known."""
    if chip is None or instruction.opcode in _FREE:
        return 0.0
    cycles = instruction.attribute(r'"estimated_cycles":"(\d+)"')
    if chip.clock is not None:
        return int(cycles) / chip.clock if cycles else 0.0
    if re.search(r"-(start|done|update)$", instruction.opcode):
        return 0.0
    first = computation[instruction.operands[0]].type if instruction.operands else ""
    speed = _speed(chip, hlo.element(first))
    computing = flops(module, computation, instruction) / speed if speed else 0.0
    return max(computing, traffic(module, computation, instruction) / chip.hbm_bandwidth)


def traffic(module: Module, computation: Computation, instruction: Instruction) -> int:
    """Bytes that an instruction reads and writes in the memory of the device.

    Of an array of which it takes or replaces a slice, those of the slice.
    """
    if instruction.opcode != "fusion":
        operands = [computation[name] for name in instruction.operands]
        if instruction.opcode == "dynamic-update-slice":
            return 2 * operands[1].bytes
        if instruction.opcode in _SLICES:
            return 2 * instruction.bytes
        return instruction.bytes + sum(operand.bytes for operand in operands)
    fused = module.computations[instruction.called[0]]
    return _written(fused, fused.result) + sum(_read(fused, name) for name in fused.parameters)


_SLICES = ("slice", "dynamic-slice", "gather")


def _written(fused: Computation, result: Instruction) -> int:
    if result.opcode == "tuple":
        return sum(_written(fused, fused[name]) for name in result.operands)
    if result.opcode == "dynamic-update-slice":
        return fused[result.operands[1]].bytes
    return result.bytes


def _read(fused: Computation, parameter: str) -> int:
    """Bytes that a fused computation reads of a parameter."""
    users = [i for i in fused if parameter in i.operands]
    if all(i.opcode in _SLICES and i.operands[0] == parameter for i in users):
        return sum(i.bytes for i in users)
    replaced = [i.opcode == "dynamic-update-slice" and i.operands[0] == parameter for i in users]
    return 0 if all(replaced) else fused[parameter].bytes


def _speed(chip: Chip, element: str) -> float | None:
    """Operations per second on factors of an element type, as HLO calls it."""
    key = {"s8": "int8", "u8": "int8"}.get(element, "f8" if element.startswith("f8") else element)
    return chip.flops.get(key)
