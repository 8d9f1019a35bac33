"""Names for the variables of a generated function, from those of the user's lines."""

from __future__ import annotations

import builtins
import keyword

from jaxlib.mlir import ir
from shmap_passes.ir.collective_ops import (
    AXIS_INDEX,
    COLLECTIVES,
    call_target,
    indexed_axes,
    is_axis_index,
    reduction,
)
from shmap_passes.ir.ops import defining_op

from shmap_compiler.unjit.signature import identifier
from shmap_compiler.unjit.spelling.draws import is_draw
from shmap_compiler.unjit.user_lines import UserLine

_TAKEN = {
    *keyword.kwlist,
    *dir(builtins),
    *("jax", "jnp", "np", "lax", "P", "AxisType", "partial", "mesh", "shard_map"),
    *("assume_replicated", "block_key", "call_stablehlo", "l", "O", "I"),
}
_KINDS = {
    "all_gather": "full",
    "all_reduce": "total",
    "all_to_all": "exchanged",
    "collective_permute": "received",
    "compare": "mask",
    "concatenate": "joined",
    "constant": "table",
    "convert": "cast",
    "convolution": "conv",
    "custom_call": "called",
    "dot_general": "dot",
    "dynamic_slice": "part",
    "dynamic_update_slice": "updated",
    "exponential": "exp",
    "gather": "rows",
    "iota": "iota",
    "pad": "padded",
    "reduce_scatter": "share",
    "reverse": "reversed_",
    "scatter": "scattered",
    "select": "chosen",
    "slice": "part",
    "sort": "ordered",
    "transpose": "turned",
}
_REDUCED = {"stablehlo.add": "sum", "stablehlo.maximum": "max", "stablehlo.minimum": "min"}
_LONGEST = 24


def kind_of(op: ir.Operation) -> str:
    """A word for what an operation makes."""
    if op.name == "stablehlo.custom_call" and call_target(op) == AXIS_INDEX:
        return "index_" + "_".join(indexed_axes(op))
    if is_draw(op):
        return ir.StringAttr(op.attributes["function"]).value.rpartition(".")[2]
    short = op.name.partition(".")[2]
    if short in ("reduce", "reduce_window") and len(op.results) == 1:
        return _REDUCED.get(reduction(op) or "", "reduced")
    return _KINDS.get(short, short if len(short) < 10 else "t")


def _index(op: ir.Operation) -> ir.Operation | None:
    """The axis index of which an operation makes a multiple."""
    source = defining_op(op.operands[0])
    return source if source is not None and is_axis_index(source) else None


def wanted_name(op: ir.Operation, line: UserLine, is_last: bool, operand: str) -> str:
    """The name for a result of an operation, which may be taken.

    Args:
      operand: the expression of its first operand.
      is_last: whether it is the last operation of its statement.
    """
    variable = line.variable
    if op.name == "stablehlo.custom_call" and call_target(op) == AXIS_INDEX:
        return kind_of(op)
    if op.name == "stablehlo.multiply" and (index := _index(op)) is not None:
        return f"start_{'_'.join(indexed_axes(index))}"
    if op.name in COLLECTIVES and not variable and operand.isidentifier():
        return f"{operand}_{kind_of(op)}"
    if line.is_backward:
        variable = f"d_{variable}" if variable else "d"
    if not variable:
        return kind_of(op)
    return variable if is_last and not line.is_backward else f"{variable}_{kind_of(op)}"


class Names:
    """The names that a function uses already."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._used: set[str] = set(_TAKEN)

    def fresh(self, wanted: str) -> str:
        """`wanted`, or with a number if it is taken."""
        base = identifier(wanted)[:_LONGEST].rstrip("_") or "t"
        name = base
        while name in self._used:
            self._counts[base] = self._counts.get(base, 1) + 1
            name = f"{base}_{self._counts[base]}"
        self._used.add(name)
        return name
