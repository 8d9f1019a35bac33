"""Applies a StableHLO module, given as text, to arrays: inside of jit or of a shard_map's body."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import shmap_passes
from jax.interpreters import mlir
from jax.interpreters.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shmap_compiler.base.untyped import AnyValue
from shmap_compiler.lowering.portable_module import module_p


def apply_module(text: str, operands: Sequence[AnyValue]) -> list[AnyValue]:
    """The results of the `@main` of a module.

    Raises:
      ValueError: the text is not a module with a `@main` of tensors, or operands do not fit.
    """
    artifact, inputs, results = _read(text)
    arrays = [jnp.asarray(operand) for operand in operands]
    types = tuple((array.shape, np.dtype(array.dtype)) for array in arrays)
    if types != inputs:
        raise ValueError(f"operands {_shown(types)} for a @main of {_shown(inputs)}")
    out_types = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results)
    return list(module_p.bind(*arrays, module=artifact, out_types=out_types, mesh_witness=None))


_Types = tuple[tuple[tuple[int, ...], np.dtype], ...]


@lru_cache(maxsize=256)
def _read(text: str) -> tuple[bytes, _Types, _Types]:
    """The module as an artifact, and the types of its arguments and results."""
    with shmap_passes.make_context(), ir.Location.unknown():
        try:
            module = ir.Module.parse(text)
            main = ir.SymbolTable(module.operation)["main"]
        except ir.MLIRError as error:
            raise ValueError(str(error)) from None
        except KeyError:
            raise ValueError("the module has no function @main") from None
        type_ = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
        inputs, results = (tuple(map(_type, types)) for types in (type_.inputs, type_.results))
        version = stablehlo.get_current_version()
        artifact = stablehlo.serialize_portable_artifact(module, version, allow_other_dialects=True)
    return artifact, inputs, results


def _type(type_: ir.Type) -> tuple[tuple[int, ...], np.dtype]:
    tensor = ir.RankedTensorType(type_)
    return tuple(tensor.shape), _dtypes()[str(tensor.element_type)]


@lru_cache(maxsize=1)
def _dtypes() -> dict[str, np.dtype]:
    """The NumPy type of each element type."""
    names = (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    )
    dtypes = [np.dtype(jnp.dtype(name)) for name in names]
    with shmap_passes.make_context(), ir.Location.unknown():
        return {str(mlir.dtype_to_ir_type(dtype)): dtype for dtype in dtypes}


def _shown(types: _Types) -> str:
    return ", ".join(f"{dtype.name}{list(shape)}" for shape, dtype in types) or "nothing"
