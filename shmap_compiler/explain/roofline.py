"""What instructions of an HLO program cost on a device itself: operations, bytes and time.

Operations are those of matrix products and convolutions, counted from their shapes. Time is the
compiler's own estimate where the program tells it (libtpu writes cycles), else a roofline: the
larger of operations over the speed of the matrix units and bytes over that of the memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

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

_ASYNCHRONOUS = re.compile(r"-(start|done|update)$")
"""Copies and slices beside other instructions; what they wait for is not modelled."""

_FREE_CALLS = {"AllocateBuffer", "ConcatBitcast", "Sharding"}
"""Custom calls that move nothing."""


def flops(module: Module, computation: Computation, instruction: Instruction) -> int:
    """Operations of an instruction and of what it fuses; a multiply-add is two."""
    return sum(_own_flops(*inside) for inside in _fused(module, computation, instruction))


def _own_flops(computation: Computation, instruction: Instruction) -> int:
    if instruction.opcode == "convolution":
        return _convolution_flops(computation, instruction)
    contracted = instruction.attribute(r"\blhs_contracting_dims=\{([\d,]*)\}")
    if any(word in instruction.call_target for word in ("gemm", "matmul")):
        contracted = instruction.attribute(r'"lhs_contracting_dimensions":\[([^\]]*)\]')
    if contracted is None:
        return 0
    left = hlo.shape(computation[instruction.operands[0]].type)
    depth = math.prod(left[int(d)] for d in re.findall(r"\d+", contracted))
    return 2 * math.prod(hlo.shape(instruction.type)) * depth


def _convolution_flops(computation: Computation, instruction: Instruction) -> int:
    """Each element of the result needs those elements of the kernel that meet the input.

    Products with batch dimensions are convolutions over these dimensions, with padding or dilation
    of which all but one position of the window meets nothing.
    """
    labels = instruction.attribute(r"\bdim_labels=(\w+->\w+)") or ""
    of_input, of_kernel, of_result = re.split("_|->", labels)
    left, kernel = (hlo.shape(computation[name].type) for name in instruction.operands[:2])
    result = hlo.shape(instruction.type)
    batch = left[of_input.index("b")] // int(
        instruction.attribute(r"\bbatch_group_count=(\d+)") or 1
    )
    window = instruction.attribute(r"\bwindow=\{([^}]*)\}") or ""
    met = math.prod(
        _meetings(
            left[of_input.index(d)],
            kernel[of_kernel.index(d)],
            result[of_result.index(d)],
            _Window.read(window, int(d)),
        )
        for d in of_kernel
        if d.isdigit()
    )
    return 2 * batch * kernel[of_kernel.index("i")] * result[of_result.index("f")] * met


@dataclass(frozen=True)
class _Window:
    """How a kernel moves along one dimension of a convolution."""

    stride: int
    padding: int
    input_dilation: int
    kernel_dilation: int

    @staticmethod
    def read(text: str, dimension: int) -> _Window:
        """From the text of a window: `size=3x3 stride=2x2 pad=1_1x1_1 lhs_dilate=1x2`."""

        def number(name: str, default: int) -> int:
            match = re.search(rf"\b{name}=([^ ]+)", text)
            return int(match[1].split("x")[dimension].partition("_")[0]) if match else default

        return _Window(
            number("stride", 1), number("pad", 0), number("lhs_dilate", 1), number("rhs_dilate", 1)
        )


def _meetings(left: int, kernel: int, result: int, window: _Window) -> int:
    """Along one dimension, how many pairs of positions in result and kernel meet the input.

    The position `k` of the kernel meets, for `r` of the result, what is at `r * stride - padding +
    k * kernel_dilation` of the dilated input.
    """
    last = (left - 1) * window.input_dilation
    shared = math.gcd(window.stride, window.input_dilation)
    apart = window.input_dilation // shared
    count = 0
    for k in range(kernel):
        offset = k * window.kernel_dilation - window.padding
        if offset % shared:
            continue
        first = (-offset // shared * pow(window.stride // shared, -1, apart)) % apart
        lowest = max(0, -(offset // window.stride))
        highest = min(result - 1, (last - offset) // window.stride)
        lowest += (first - lowest) % apart
        count += max(0, (highest - lowest) // apart + 1)
    return count


@dataclass(frozen=True)
class Work:
    """An instruction that is not a collective, and what it costs.

    Attributes:
      name, opcode: of the instruction.
      source: the user's line, "" if XLA kept none.
      scope: the operation it comes from, with the named scopes around it.
      element: the element type of the factors of its matrix products, "" if it has none; "tf32" of
        f32 that a GPU rounds to it.
      computed: elements of the result of its largest matrix product, 0 if it has none.
      trips: how often it runs, counting all loops around it.
      flops, traffic, seconds: of one run; operations, bytes in memory, time.
      unestimated: seconds that its memory traffic would take, if its compiler estimates times and
        gives none for it. `seconds` is zero then.
    """

    name: str
    opcode: str
    source: str
    scope: str
    element: str
    computed: int
    trips: int
    flops: int
    traffic: int
    seconds: float
    unestimated: float


def work(
    module: Module, computation: Computation, instruction: Instruction, chip: Chip | None
) -> Work | None:
    """What an instruction that is not a collective costs; None if it takes no time of its own."""
    if instruction.opcode in _FREE or _ASYNCHRONOUS.search(instruction.opcode):
        return None
    if instruction.call_target in _FREE_CALLS:
        return None
    main = _main(module, computation, instruction, chip)
    count = flops(module, computation, instruction)
    moved = traffic(module, computation, instruction)
    seconds, unestimated = _seconds(instruction, count, moved, main.element, chip)
    return Work(
        name=instruction.name,
        opcode=instruction.opcode,
        source=main.source,
        scope=main.scope,
        element=main.element if count else "",
        computed=main.computed if count else 0,
        trips=1,
        flops=count,
        traffic=moved,
        seconds=seconds,
        unestimated=unestimated,
    )


_ENDLESS = 2**63 - 1
"""The cycles that libtpu gives a few products of v6e; a roofline is nearer."""


def _seconds(
    instruction: Instruction, count: int, moved: int, element: str, chip: Chip | None
) -> tuple[float, float]:
    """The time of an instruction, and that which its compiler should have estimated."""
    if chip is None:
        return 0.0, 0.0
    in_memory = moved / (chip.hbm_bandwidth * chip.hbm_share)
    speed = chip.speed(element)
    computing = count / (speed * chip.flops_share) if speed else 0.0
    if chip.clock is not None:
        cycles = instruction.attribute(r'"estimated_cycles":"(\d+)"')
        if cycles and int(cycles) >= _ENDLESS:
            return max(computing, in_memory), 0.0
        return (int(cycles) / chip.clock, 0.0) if cycles else (0.0, in_memory)
    return chip.kernel_seconds + max(computing, in_memory), 0.0


@dataclass(frozen=True)
class _Main:
    """What most of an instruction's time goes to: the largest product that it fuses, or itself."""

    source: str
    scope: str
    element: str
    computed: int


def _main(
    module: Module, computation: Computation, instruction: Instruction, chip: Chip | None
) -> _Main:
    inside = [*_fused(module, computation, instruction)]
    where, largest = max(inside, key=lambda pair: _own_flops(*pair))
    factor = hlo.element(where[largest.operands[0]].type) if largest.operands else ""
    near = [largest, instruction, *(inner for _, inner in inside)]
    source = next(filter(None, map(module.source, near)), "")
    scope = next((i.scope for i in near if i.scope), "")
    if factor == "f32" and chip is not None and "tf32" in chip.flops and not _is_precise(largest):
        factor = "tf32"
    computed = math.prod(hlo.shape(largest.type)) if factor else 0
    return _Main(source, scope, factor, computed)


def _is_precise(product: Instruction) -> bool:
    """Whether a product of f32 was asked for with more than the default precision."""
    return re.search(r"operand_precision[^\]}]*high", product.attributes, re.IGNORECASE) is not None


def _fused(
    module: Module, computation: Computation, instruction: Instruction
) -> Iterator[tuple[Computation, Instruction]]:
    """An instruction, and those that it fuses at any depth, each with its computation."""
    yield computation, instruction
    for name in instruction.called if instruction.opcode == "fusion" else ():
        called = module.computations[name]
        for inner in called:
            yield from _fused(module, called, inner)


def traffic(module: Module, computation: Computation, instruction: Instruction) -> int:
    """Bytes that an instruction reads and writes in the memory of the device.

    Of an array of which it takes or replaces a slice, those of the slice.
    """
    if instruction.opcode != "fusion":
        operands = [computation[name] for name in instruction.operands]
        if instruction.opcode == "dynamic-update-slice":
            return 2 * operands[1].memory_bytes
        if instruction.opcode in _SLICES:
            return 2 * instruction.memory_bytes
        return instruction.memory_bytes + sum(operand.memory_bytes for operand in operands)
    fused = module.computations[instruction.called[0]]
    return _written(fused, fused.result) + sum(_read(fused, name) for name in fused.parameters)


_SLICES = ("slice", "dynamic-slice", "gather")


def _written(fused: Computation, result: Instruction) -> int:
    if result.opcode == "tuple":
        return sum(_written(fused, fused[name]) for name in result.operands)
    if result.opcode == "dynamic-update-slice":
        return fused[result.operands[1]].memory_bytes
    return result.memory_bytes


def _read(fused: Computation, parameter: str) -> int:
    """Bytes that a fused computation reads of a parameter."""
    users = [i for i in fused if parameter in i.operands]
    if all(i.opcode in _SLICES and i.operands[0] == parameter for i in users):
        return sum(i.memory_bytes for i in users)
    replaced = [i.opcode == "dynamic-update-slice" and i.operands[0] == parameter for i in users]
    return 0 if all(replaced) else fused[parameter].memory_bytes
