"""Gather and scatter."""

from __future__ import annotations

from jaxlib.mlir.dialects import stablehlo

from shmap_compiler.base.untyped import Parameter
from shmap_compiler.unjit import layout
from shmap_compiler.unjit.layout import Code, call, numbers
from shmap_compiler.unjit.signature import quoted
from shmap_compiler.unjit.spelling.operation import Op, Row
from shmap_compiler.unjit.types import shape_of

_SCATTERS = {
    "stablehlo.add": "lax.scatter_add",
    "stablehlo.multiply": "lax.scatter_mul",
    "stablehlo.maximum": "lax.scatter_max",
    "stablehlo.minimum": "lax.scatter_min",
}
# Out of bounds, StableHLO clamps the start of what it gathers, and drops what it scatters.
_GATHER_MODE, _SCATTER_MODE = quoted("clip"), quoted("drop")


def _indices(op: Op, index_vector_dim: int) -> Code:
    """Start indices, with their coordinates in the last dimension, as in JAX."""
    value = op.operands[1]
    shape = shape_of(value)
    indices = op.exact(1)
    if index_vector_dim == len(shape):
        return Code(f"{indices.at(layout.ATOM)}[..., None]")
    if index_vector_dim != len(shape) - 1:
        return call("jnp.moveaxis", indices, str(index_vector_dim), "-1")
    return indices


def _dimension_numbers(name: str, **fields: Parameter) -> Code:
    shown = {field: numbers(dims) for field, dims in fields.items() if list(dims)}
    required = {"GatherDimensionNumbers": 3, "ScatterDimensionNumbers": 3}[name]
    first = dict(list(fields.items())[:required])
    return call(
        f"lax.{name}",
        **{field: numbers(dims) for field, dims in first.items()},
        **{field: dims for field, dims in shown.items() if field not in first},
    )


def _gather(op: Op) -> Code:
    dims = stablehlo.GatherDimensionNumbers(op.op.attributes["dimension_numbers"])
    named = _dimension_numbers(
        "GatherDimensionNumbers",
        offset_dims=dims.offset_dims,
        collapsed_slice_dims=dims.collapsed_slice_dims,
        start_index_map=dims.start_index_map,
        operand_batching_dims=dims.operand_batching_dims,
        start_indices_batching_dims=dims.start_indices_batching_dims,
    )
    more = {"indices_are_sorted": "True"} if op.flag("indices_are_sorted") else {}
    return call(
        "lax.gather",
        op.exact(0),
        _indices(op, dims.index_vector_dim),
        dimension_numbers=named,
        slice_sizes=numbers(op.integers("slice_sizes")),
        mode=_GATHER_MODE,
        **more,
    )


def _scatter(op: Op) -> Code | None:
    if len(op.operands) != 3:
        return None
    dims = stablehlo.ScatterDimensionNumbers(op.op.attributes["scatter_dimension_numbers"])
    function = _SCATTERS.get(op.region_op() or "")
    if function is None and _keeps_update(op):
        function = "lax.scatter"
    if function is None:
        return None
    named = _dimension_numbers(
        "ScatterDimensionNumbers",
        update_window_dims=dims.update_window_dims,
        inserted_window_dims=dims.inserted_window_dims,
        scatter_dims_to_operand_dims=dims.scattered_dims_to_operand_dims,
        operand_batching_dims=dims.input_batching_dims,
        scatter_indices_batching_dims=dims.scatter_indices_batching_dims,
    )
    more = {name: "True" for name in ("indices_are_sorted", "unique_indices") if op.flag(name)}
    return call(
        function,
        op.exact(0),
        _indices(op, dims.index_vector_dim),
        op.exact(2),
        dimension_numbers=named,
        mode=_SCATTER_MODE,
        **more,
    )


def _keeps_update(op: Op) -> bool:
    """Whether a scatter replaces numbers by its updates."""
    block = op.op.regions[0].blocks[0]
    ops = list(block.operations)
    return len(ops) == 1 and list(ops[0].operation.operands) == [block.arguments[1]]


ROWS: dict[str, Row] = {"stablehlo.gather": _gather, "stablehlo.scatter": _scatter}
