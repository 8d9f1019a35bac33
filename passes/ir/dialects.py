"""MLIR contexts that know the dialects and passes of our modules, made without importing JAX.

jaxlib keeps the registration of its dialects in a private extension module. This is the only file
that names it: when jaxlib moves it, this file is the one to change.
"""

from __future__ import annotations

from functools import cache

from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo


def make_context() -> ir.Context:
    """A context with every dialect that JAX's own modules use (func, stablehlo, sdy, chlo, ...)."""
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context = ir.Context()
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    stablehlo.register_dialect(context)
    chlo.register_dialect(context)
    mhlo.register_mhlo_dialect(context)
    sdy.register_dialect(context)
    return context


@cache
def register_mlir_passes() -> None:
    """Makes StableHLO's passes known by name; MLIR's own and Shardy's are known already."""
    stablehlo.register_stablehlo_passes()
