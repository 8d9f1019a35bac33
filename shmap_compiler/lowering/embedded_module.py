"""Applies a StableHLO module, given as text, to arrays: inside of jit or of a shard_map's body."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import shmap_passes
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.interpreters.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from shmap_passes.ir.collective_ops import (
    is_axis_index,
    is_collective,
    short_name,
)
from shmap_passes.ir.ops import walk

from shmap_compiler.base.jax_compat import shaped_array
from shmap_compiler.base.untyped import AnyValue
from shmap_compiler.lowering.portable_module import lower_artifact

_Types = tuple[tuple[tuple[int, ...], np.dtype], ...]


@dataclass(frozen=True)
class EmbeddedModule:
    """The text of a module, as a parameter of `embedded_p`."""

    text: str

    def __repr__(self) -> str:
        return f"<module of {', '.join(_read(self.text).operations)}>"

    @property
    def results(self) -> _Types:
        """The types of what its @main returns."""
        return _read(self.text).results


embedded_p = Primitive("embedded_stablehlo")
"""A call of an `EmbeddedModule`. Its derivative and batching are in `unjit/`, which reads it."""
embedded_p.multiple_results = True


def apply_module(text: str, operands: Sequence[AnyValue]) -> list[AnyValue]:
    """The results of the `@main` of a module.

    Raises:
      ValueError: the text is not a module with a `@main` of tensors, it communicates, or operands
        do not fit.
    """
    module = _read(text)
    if module.communicates:
        raise ValueError(
            f"a module with {module.communicates}, in which devices could wait for each other "
            "unseen: use the collectives of jax.lax"
        )
    if "@lapack_" in text:
        _load_lapack()
    arrays = [jnp.asarray(operand) for operand in operands]
    types = tuple((array.shape, np.dtype(array.dtype)) for array in arrays)
    if types != module.inputs:
        raise ValueError(f"operands {_shown(types)} for a @main of {_shown(module.inputs)}")
    return list(embedded_p.bind(*arrays, module=EmbeddedModule(text)))


@functools.lru_cache(maxsize=1)
def _load_lapack() -> None:
    """Lets JAX load LAPACK, as it does when it lowers a call of it: a module alone does not."""
    matrix = jax.ShapeDtypeStruct((1, 1), np.float32)
    jax.jit(jnp.linalg.cholesky).trace(matrix).lower(lowering_platforms=("cpu",))


@dataclass(frozen=True)
class _Module:
    """What is known of a module.

    Attributes:
      artifact: in StableHLO's portable form.
      inputs, results: the types of its @main.
      operations: the names of its operations.
      communicates: the name of one that communicates, or tells devices apart; "" if none does.
    """

    artifact: bytes
    inputs: _Types
    results: _Types
    operations: tuple[str, ...]
    communicates: str


@functools.lru_cache(maxsize=256)
def _read(text: str) -> _Module:
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
        names = dict.fromkeys(op.name for op in walk(module.operation))
        operations = tuple(name for name in names if name.partition(".")[0] != "func")
        communicates = next(_communicating(module.operation), "")
        version = stablehlo.get_current_version()
        artifact = stablehlo.serialize_portable_artifact(module, version, allow_other_dialects=True)
    return _Module(artifact, inputs, results, operations[1:], communicates)


def _communicating(root: ir.Operation) -> Iterator[str]:
    others = ("stablehlo.partition_id", "stablehlo.replica_id", "stablehlo.send", "stablehlo.recv")
    for op in walk(root):
        if is_collective(op):
            yield f"stablehlo.{short_name(op)}"
        elif op.name in others or is_axis_index(op):
            yield op.name


def _type(type_: ir.Type) -> tuple[tuple[int, ...], np.dtype]:
    tensor = ir.RankedTensorType(type_)
    return tuple(tensor.shape), _dtypes()[str(tensor.element_type)]


@functools.lru_cache(maxsize=1)
def _dtypes() -> dict[str, np.dtype]:
    """The NumPy type of each element type."""
    names = (
        *(
            "int2",
            "int4",
            "uint2",
            "uint4",
            "bool",
            "int8",
            "int16",
            "int32",
            "int64",
            "uint8",
            "uint16",
            "uint32",
            "uint64",
        ),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("float8_e3m4", "float8_e4m3", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz"),
        *("float8_e5m2", "float8_e5m2fnuz"),
    )
    dtypes = [np.dtype(jnp.dtype(name)) for name in names]
    with shmap_passes.make_context(), ir.Location.unknown():
        return {str(mlir.dtype_to_ir_type(dtype)): dtype for dtype in dtypes}


def _shown(types: _Types) -> str:
    return ", ".join(f"{dtype.name}{list(shape)}" for shape, dtype in types) or "nothing"


# ----------------------------------------------------------------------------- the primitive


@functools.lru_cache(maxsize=256)
def _compiled(module: EmbeddedModule):
    return jax.jit(functools.partial(embedded_p.bind, module=module))


def _impl(*args, module):
    return _compiled(module)(*args)


def _abstract(*_, module):
    return [shaped_array(shape, dtype, weak_type=False) for shape, dtype in module.results]


def _lowering(ctx, *args, module):
    return lower_artifact(ctx, args, _read(module.text).artifact)


embedded_p.def_impl(_impl)
embedded_p.def_abstract_eval(_abstract)
mlir.register_lowering(embedded_p, _lowering)
