"""Operations that have no spelling, as StableHLO inside of Python source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func
from shmap_passes.ir.ops import defining_op, free_values, replace_operands, walk
from shmap_passes.ir.types import Value

from shmap_compiler.base.errors import ArgumentTypeError, Problem, ShmapError
from shmap_compiler.base.untyped import AnyValue, PyTree
from shmap_compiler.lowering.embedded_module import apply_module


def call_stablehlo(text: str, *operands: AnyValue) -> PyTree:
    """Applies a StableHLO module to arrays.

    The source that `unjit` writes calls it for operations that have no name in `jax.lax`. It can be
    differentiated and batched like the functions of JAX that its operations correspond to, LAPACK's
    factorizations included. Under `jax.vmap`, other operations are applied to one example after the
    other.

    Args:
      text: A module with a function `@main` of one tensor for each operand.
      *operands: Arrays of the types that `@main` takes.

    Returns:
      The results of `@main`: an array, or a tuple of several.

    Raises:
      ArgumentTypeError: The text is not such a module, the module communicates, or the operands do
        not fit.
      DerivativeError: Raised by differentiation, if an operation has no known derivative.

    Examples:
      >>> text = '''
      ... func.func @main(%x: tensor<16xf32>) -> tensor<16xf32> {
      ...   %y = stablehlo.cbrt %x : tensor<16xf32>
      ...   return %y : tensor<16xf32>
      ... }
      ... '''
      >>> call_stablehlo(text, x).shape
      (16,)
    """
    try:
        results = apply_module(text, operands)
    except ShmapError:
        raise
    except ValueError as error:
        problem = Problem(
            "the module given to call_stablehlo",
            str(error).partition("\n")[0],
            "a StableHLO module whose @main takes arrays of the operands' types",
            "print it again, or pass operands of these types",
        )
        raise ArgumentTypeError(None, [problem]) from None
    return results[0] if len(results) == 1 else tuple(results)


def outline(ops: Sequence[ir.Operation], outputs: Sequence[Value]) -> tuple[list[Value], str]:
    """The values that operations read, and a module that computes some of their results.

    Regions cannot read arguments of the module: constants that they read are part of it.
    """
    ops = [*_read_by_regions(ops), *ops]
    inputs = free_values(ops)
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        types = [value.type for value in inputs], [value.type for value in outputs]
        main = func.FuncOp("main", types, visibility="public")
    with ir.InsertionPoint(main.add_entry_block()):
        mapping: dict[Any, Any] = dict(zip(inputs, main.arguments, strict=True))
        for op in ops:
            copy = op.clone()
            replace_operands(copy, mapping)
            mapping.update(zip(op.results, copy.results, strict=True))
        func.ReturnOp([mapping[value] for value in outputs])
    return inputs, str(module.operation.get_asm(enable_debug_info=False))


def _read_by_regions(ops: Sequence[ir.Operation]) -> list[ir.Operation]:
    """The constants around operations that their regions read."""
    inner = [each for op in ops if len(op.regions) for each in walk(op) if each != op]
    makers = dict.fromkeys(defining_op(value) for value in free_values(inner))
    return [
        op
        for op in makers
        if op is not None and op.name == "stablehlo.constant" and op not in (*ops, *inner)
    ]


def definition(name: str, text: str) -> list[str]:
    """The statement that keeps a module in a variable of the file."""
    body = text.strip().replace("\\", "\\\\").splitlines()
    return [f'{name} = """', *body, '"""']
