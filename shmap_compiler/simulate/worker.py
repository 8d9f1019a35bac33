"""Evaluates segments of programs with StableHLO's reference interpreter, in a process of its own.

The interpreter ends its process on an operation that it does not support. `interpreter.py` starts
this file and notices that. Messages are pickles, each after its length in eight bytes:

    (number of the segment, its module as bytecode or None, arrays)  ->  (status, payload)

The status is "values" with a list of arrays, "unknown" if the module has to be sent along, or
"error" with the interpreter's message.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
from typing import Any, BinaryIO

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from shmap_passes.ir.dialects import make_context

from shmap_compiler.base.untyped import OpView, Unchecked

LENGTH = struct.Struct("<Q")
_MOST_BYTES = 2**28
"""MLIR keeps the elements of every attribute as long as its context: after this many, a new one."""


class Evaluator:
    """Evaluates modules; forgets them when their context is full."""

    def __init__(self) -> None:
        self._start_again()

    def _start_again(self) -> None:
        self._context = make_context()
        stablehlo.register_interpreter_dialect(self._context)
        self._modules: dict[int, tuple[Any, list[Any]]] = {}
        self._bytes = 0

    def answer(
        self, number: int, code: bytes | None, arrays: list[np.ndarray]
    ) -> tuple[str, Unchecked]:
        if self._bytes > _MOST_BYTES:
            self._start_again()
        with self._context, ir.Location.unknown():
            if code is not None:
                self._modules[number] = _parsed(code)
            if number not in self._modules:
                return "unknown", None
            module, types = self._modules[number]
            inputs = [_attribute(x, t) for x, t in zip(arrays, types, strict=True)]
            try:
                outputs = stablehlo.eval_module(module, inputs)
            except (RuntimeError, ValueError) as error:
                return "error", str(error)
            results = [_array(each) for each in outputs]
        self._bytes += sum(x.nbytes for x in (*arrays, *results))
        return "values", results


def _parsed(code: bytes) -> tuple[ir.Module, list[ir.Type]]:
    module = ir.Module.parse(code)
    main = next(
        f for f in module.body.operations if str(f.operation.attributes["sym_name"]) == '"main"'
    )
    return module, list(ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value).inputs)


def _attribute(array: np.ndarray, type_: ir.Type) -> ir.Attribute:
    tensor = ir.RankedTensorType(type_)
    if not array.size:
        return ir.Attribute.parse(f"dense<> : {type_}")
    data = np.array(array, order="C", copy=True)
    return ir.DenseElementsAttr.get(data.data, type=tensor.element_type, shape=list(tensor.shape))


def _array(attribute: OpView) -> np.ndarray:
    shape = tuple(ir.RankedTensorType(attribute.type).shape)
    return np.array(attribute).reshape(shape)


def _read(stream: BinaryIO) -> Unchecked:
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    return pickle.loads(stream.read(*LENGTH.unpack(head)))


def main() -> None:
    """Answers until the input ends."""
    # What libraries print must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    evaluator = Evaluator()
    while (message := _read(sys.stdin.buffer)) is not None:
        try:
            answer = evaluator.answer(*message)
        except Exception as error:
            answer = "error", f"{type(error).__name__}: {error}"
        data = pickle.dumps(answer, protocol=5)
        answers.write(LENGTH.pack(len(data)) + data)
        answers.flush()


if __name__ == "__main__":
    main()
