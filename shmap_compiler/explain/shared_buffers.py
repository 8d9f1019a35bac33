"""Finds the results of an instruction that are written over one of its operands."""

from __future__ import annotations

from shmap_compiler.explain.hlo import Computation, Instruction, Module


def shared_buffers(
    module: Module, instruction: Instruction, number: int
) -> tuple[int | None, list[int]]:
    """The operand whose buffer a result is written to, and those whose buffer it could be."""
    if instruction.opcode == "dynamic-update-slice":
        return 0, []
    if instruction.opcode == "fusion":
        fused = module.computations[instruction.called[0]]
        result = fused.result
        if result.opcode == "tuple":
            result = fused[result.operands[number]]
        return _updated(fused, result), _elementwise(fused, result)
    if instruction.opcode == "all-reduce":
        return None, [number]
    return None, [*range(len(instruction.operands))] if instruction.opcode in ELEMENTWISE else []


def _updated(fused: Computation, result: Instruction) -> int | None:
    """The parameter that a fusion returns, or returns with a slice replaced."""

    def whole(instruction: Instruction) -> Instruction:
        while instruction.opcode == "bitcast":
            instruction = fused[instruction.operands[0]]
        return instruction

    result = whole(result)
    if result.opcode == "dynamic-update-slice":
        result = whole(fused[result.operands[0]])
    return fused.parameters.get(result.name)


def _elementwise(fused: Computation, result: Instruction) -> list[int]:
    """The parameters that each element of a result needs one element of, at the same place."""
    alike, others = set[int](), set[int]()
    seen = set[tuple[str, bool]]()
    waiting = [(result, True)]
    while waiting:
        instruction, same = waiting.pop()
        if (instruction.name, same) in seen:
            continue
        seen.add((instruction.name, same))
        if instruction.opcode == "parameter":
            (alike if same else others).add(fused.parameters[instruction.name])
        same = same and instruction.opcode in ELEMENTWISE
        waiting += [(fused[name], same) for name in instruction.operands]
    return sorted(alike - others)


ELEMENTWISE = frozenset(
    {
        *("abs", "add", "and", "bitcast", "ceil", "clamp", "compare", "convert", "copy", "cosine"),
        *("divide", "exponential", "exponential-minus-one", "floor", "log", "log-plus-one"),
        *("logistic", "maximum", "minimum", "multiply", "negate", "not", "or", "power"),
        *("remainder", "rsqrt", "select", "sign", "sine", "sqrt", "subtract", "tanh", "xor"),
    }
)
"""HLO instructions of which each element needs one element of each operand."""
