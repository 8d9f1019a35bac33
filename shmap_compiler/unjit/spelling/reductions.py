"""Reductions over dimensions and windows, sorting."""

from __future__ import annotations

from typing import Any

import numpy as np
from shmap_passes.ir.types import Value

from shmap_compiler.base.jax_compat import setting
from shmap_compiler.unjit.layout import Code, call, display, numbers
from shmap_compiler.unjit.spelling.operation import Op, Row
from shmap_compiler.unjit.types import dtype_of, is_float, kind_of

# The function of `jnp` or `lax` for the op of a region, and the number with which it begins.
_REDUCED = {
    "stablehlo.add": ("jnp.sum", "lax.add"),
    "stablehlo.multiply": ("jnp.prod", "lax.mul"),
    "stablehlo.maximum": ("jnp.max", "lax.max"),
    "stablehlo.minimum": ("jnp.min", "lax.min"),
    "stablehlo.and": ("jnp.all", "lax.bitwise_and"),
    "stablehlo.or": ("jnp.any", "lax.bitwise_or"),
    "stablehlo.xor": ("", "lax.bitwise_xor"),
}


def _neutral(name: str, dtype: np.dtype) -> object:
    """What the reduction of no numbers is in `jnp`; None if `jnp` reduces in another type."""
    if dtype.kind == "b":
        return {"stablehlo.and": True, "stablehlo.or": False}.get(name)
    if name in ("stablehlo.add", "stablehlo.multiply"):
        # Sums of narrow types are computed in wider ones, those of integers in the default one.
        default = 8 if dtype.kind in "iu" and setting("jax_enable_x64") else 4
        narrow = dtype.itemsize < default or dtype.kind not in "iuf"
        return None if narrow else dtype.type(name == "stablehlo.multiply")
    if name in ("stablehlo.maximum", "stablehlo.minimum") and dtype.kind in "iuf":
        sign = -1 if name == "stablehlo.maximum" else 1
        if dtype.kind == "f":
            return dtype.type(sign * np.inf)
        limits = np.iinfo(dtype)
        return dtype.type(limits.min if sign < 0 else limits.max)
    return None


def _reduce(op: Op) -> Code | None:
    dims = op.integers("dimensions")
    count = len(op.op.results)
    if count > 1:
        return _reduce_several(op, dims, count)
    name = op.region_op()
    if name not in _REDUCED:
        return _reduce_several(op, dims, count)
    ours, lax = _REDUCED[name]
    start = op.values.constant(op.operands[1])
    neutral = _neutral(name, dtype_of(op.result))
    if ours and start is not None and neutral is not None and start.item() == neutral:
        axis = str(dims[0]) if len(dims) == 1 else numbers(dims).text
        return call(ours, op.exact(0), axis=axis)
    return call("lax.reduce", op.exact(0), _start(op), lax, numbers(dims))


def _start(op: Op) -> Code:
    """What a reduction begins with.

    JAX knows the derivative of a reduction only if it sees the number.
    """
    code, _, _ = op.values.loose(op.operands[1])
    is_default = op.dtype in ("jnp.float32", "jnp.int32", "jnp.bool_")
    return code if is_default and op.values.constant(op.operands[1]) is not None else op.exact(1)


def _reduce_several(op: Op, dims: tuple[int, ...], count: int) -> Code | None:
    """A reduction of several arrays at once, such as that of argmax."""
    function = op.values.function(op.op.regions[0], "combine")
    if function is None:
        return None
    arrays = op.all_exact()
    if count > 1 and all(map(_becomes_integers, op.op.results)):
        # JAX knows no derivative of such a reduction; here it is zero.
        arrays = [
            call("lax.stop_gradient", array) if is_float(value) else array
            for array, value in zip(arrays, op.operands, strict=True)
        ]
    if count == 1:
        return call("lax.reduce", arrays[0], arrays[1], _pairwise(op, function), numbers(dims))
    whole = display("(", arrays[:count], ")")
    starts = display("(", arrays[count:], ")")
    return call("lax.reduce", whole, starts, _pairwise(op, function), numbers(dims))


_MOVED = ("reshape", "broadcast_in_dim", "all_gather", "concatenate", "slice", "transpose")


def _becomes_integers(value: Value) -> bool:
    """Whether a value takes part in nothing but the choice of integers, such as of an argmax."""
    if not is_float(value):
        return True
    for use in value.uses:
        user = use.owner.operation
        short = user.name.partition(".")[2]
        if not (short in _MOVED or (short == "reduce" and len(user.results) > 1)):
            return False
        if not all(map(_becomes_integers, user.results)):
            return False
    return True


def _pairwise(op: Op, function: str) -> Code:
    """The function of a region, on two tuples instead of on their elements in a row."""
    if len(op.op.results) == 1:
        return Code(function)
    return Code(f"lambda a, b: {function}(*a, *b)")


def _reduce_window(op: Op) -> Code | None:
    name = op.region_op()
    if len(op.op.results) != 1 or name not in _REDUCED:
        return None
    rank = len(op.shape)
    ones = (1,) * rank
    padding = op.integers("padding") or (0,) * (2 * rank)
    named: dict[str, Code | str] = {
        "window_dimensions": numbers(op.integers("window_dimensions")),
        "window_strides": numbers(op.integers("window_strides") or ones),
        "padding": display("[", (numbers(padding[2 * k : 2 * k + 2]) for k in range(rank)), "]"),
    }
    for theirs, ours in (
        ("base_dilations", "base_dilation"),
        ("window_dilations", "window_dilation"),
    ):
        dilation = op.integers(theirs) or ones
        if dilation != ones:
            named[ours] = numbers(dilation)
    # Unlike `lax.reduce`, it does not convert the number to the type of the array.
    start = _start(op) if not setting("jax_enable_x64") else op.exact(1)
    return call("lax.reduce_window", op.exact(0), start, _REDUCED[name][1], **named)


def _top_k(op: Op) -> Code:
    return call("lax.top_k", op.exact(0), str(op.integer("k")))


def _sort(op: Op) -> Code | None:
    """A sort in ascending order by the first operand, as `lax.sort` compares."""
    keys = _keys(op)
    if keys is None:
        return None
    stable = "True" if op.flag("is_stable") else "False"
    dim = str(op.integer("dimension"))
    arrays = op.all_exact()
    named = {"dimension": dim, "is_stable": stable}
    if len(arrays) == 1:
        return call("lax.sort", arrays[0], **named)
    return call("lax.sort", display("(", arrays, ")"), **named, num_keys=str(keys))


def _keys(op: Op) -> int | None:
    """By how many operands a region compares; None if it compares in another way."""
    block = op.op.regions[0].blocks[0]
    ops = [each.operation for each in block.operations]
    if len(ops) < 2 or ops[-2].name != "stablehlo.compare":
        return None
    compare = Op(ops[-2], op.values)
    if list(ops[-1].operands) != list(ops[-2].results):
        return None
    if compare.word("comparison_direction") != "LT":
        return None
    used = {k for k, argument in enumerate(block.arguments) if list(argument.uses)}
    if used != {0, 1}:
        return None
    kind = kind_of(dtype_of(op.operands[0]))
    plain = list(ops[-2].operands) == list(block.arguments)[:2]
    if kind in "iub":
        return 1 if plain else None
    # Numbers are compared in total order, after -0 became 0 and all NaN became one.
    kept: dict[Any, Any] = {}
    for each in ops[:-2]:
        if each.name == "stablehlo.select":
            otherwise = each.operands[2]
            before = kept.get(otherwise)
            kept[each.results[0]] = otherwise if before is None else before
    compared = [kept[value] for value in ops[-2].operands if value in kept]
    if compared != list(block.arguments)[:2]:
        return None
    names = sorted(each.name for each in ops[:-2] if each.name != "stablehlo.constant")
    expected = ["stablehlo.compare"] * 4 + ["stablehlo.select"] * 4
    total = compare.word("compare_type") == "TOTALORDER"
    return 1 if total and names == expected else None


ROWS: dict[str, Row] = {
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.sort": _sort,
    "chlo.top_k": _top_k,
}
