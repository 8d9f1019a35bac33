"""Operations that move elements about: shapes, slices, joints."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from shmap_passes.ir.types import Value

from shmap_compiler.base.jax_compat import setting
from shmap_compiler.unjit import layout
from shmap_compiler.unjit.affine_numbers import AffineNumbers
from shmap_compiler.unjit.layout import Code, call, display, numbers
from shmap_compiler.unjit.spelling.operation import Op, Row
from shmap_compiler.unjit.types import dtype_of, shape_of

_ROW = re.compile(r"(.*)\[(\d*):\d*\]")
"""A slice along the first dimension."""


def _reshape(op: Op) -> Code:
    before, after = shape_of(op.operands[0]), op.shape
    index = _new_axes(before, after)
    source = op.exact(0)
    if index is not None:
        return Code(f"{source.at(layout.ATOM)}[{index}]")
    row = _ROW.fullmatch(source.text) if source.level == layout.ATOM else None
    if row is not None and before == (1, *after):
        return Code(f"{row[1]}[{row[2] or 0}]")
    if after == () and len(before) == 1:
        return Code(f"{source.at(layout.ATOM)}[0]")
    shape = [str(size) for size in after] if after else ["()"]
    return call(f"{source.at(layout.ATOM)}.reshape", *shape)


def _new_axes(before: tuple[int, ...], after: tuple[int, ...]) -> str | None:
    """The index that adds dimensions of size one; None if the shapes differ in another way."""
    added, rest = [], list(before)
    for size in after:
        if rest and rest[0] == size:
            rest.pop(0)
            added.append(":")
        elif size == 1:
            added.append("None")
        else:
            return None
    if rest or "None" not in added:
        return None
    while added[-1] == ":":
        added.pop()
    return ", ".join(added)


def _transpose(op: Op) -> Code:
    order = op.integers("permutation")
    if order == (1, 0):
        return Code(f"{op.exact(0).at(layout.ATOM)}.T")
    return call(f"{op.exact(0).at(layout.ATOM)}.transpose", *map(str, order))


def _broadcast(op: Op) -> Code:
    dims = op.integers("broadcast_dimensions")
    return call("lax.broadcast_in_dim", op.exact(0), numbers(op.shape), numbers(dims))


def _iota(op: Op) -> Code:
    if len(op.shape) == 1:
        return call("jnp.arange", str(op.shape[0]), dtype=op.dtype)
    dim = str(op.integer("iota_dimension"))
    return call("lax.broadcasted_iota", op.dtype, numbers(op.shape), dim)


def _slice(op: Op) -> Code:
    source = op.operands[0]
    parts = []
    starts, ends = op.integers("start_indices"), op.integers("limit_indices")
    steps = op.integers("strides")
    for start, end, step, size in zip(starts, ends, steps, shape_of(source), strict=True):
        text = f"{start or ''}:{end if end < size else ''}"
        parts.append(f"{text}:{step}" if step != 1 else text)
    while len(parts) > 1 and parts[-1] == ":":
        parts.pop()
    return Code(f"{op.exact(0).at(layout.ATOM)}[{', '.join(parts)}]")


def _dynamic_slice(op: Op) -> Code:
    sizes = op.integers("slice_sizes")
    shape = shape_of(op.operands[0])
    starts = op.operands[1:]
    cut = [dim for dim, size in enumerate(shape) if sizes[dim] < size]
    if len(cut) == 1:
        (dim,) = cut
        start, axis = _index(op, starts[dim]), str(dim)
        clamped = _clamped(op, [starts[dim]])
        size = str(sizes[dim])
        return call("lax.dynamic_slice_in_dim", op.exact(0), start, size, axis=axis, **clamped)
    indices = display("(", _indices(op, starts), ")")
    clamped = _clamped(op, starts)
    return call("lax.dynamic_slice", op.exact(0), indices, numbers(sizes), **clamped)


def _dynamic_update_slice(op: Op) -> Code:
    whole, part = shape_of(op.operands[0]), shape_of(op.operands[1])
    starts = op.operands[2:]
    cut = [dim for dim, size in enumerate(whole) if part[dim] < size]
    if len(cut) == 1:
        (dim,) = cut
        arrays, start, axis = (op.exact(0), op.exact(1)), _index(op, starts[dim]), str(dim)
        clamped = _clamped(op, [starts[dim]])
        return call("lax.dynamic_update_slice_in_dim", *arrays, start, axis=axis, **clamped)
    indices = display("(", _indices(op, starts), ")")
    return call(
        "lax.dynamic_update_slice", op.exact(0), op.exact(1), indices, **_clamped(op, starts)
    )


def _clamped(op: Op, starts: Sequence[Value]) -> dict[str, str]:
    """Keeps `lax` from counting negative starts from the end; StableHLO takes 0 for them."""
    known = AffineNumbers(op.values.mesh)
    found = [known.read(start) for start in starts]
    is_positive = all(each is not None and int(each.first.min()) >= 0 for each in found)
    return {} if is_positive else {"allow_negative_indices": "False"}


def _index(op: Op, value: Value) -> Code:
    """A start index: of constants the number alone."""
    known = op.values.constant(value)
    return op.values.exact(value) if known is None else Code(str(max(0, int(known))))


def _indices(op: Op, starts: Sequence[Value]) -> list[Code]:
    """Start indices, all of one type, which JAX demands of those that have one.

    It takes numbers for integers of its default type.
    """
    default = np.int64 if setting("jax_enable_x64") else np.int32
    are_numbers = all(op.values.constant(start) is not None for start in starts)
    if are_numbers or dtype_of(starts[0]) == default:
        return [_index(op, start) for start in starts]
    return [op.values.exact(start) for start in starts]


def _concatenate(op: Op) -> Code:
    parts = display("[", op.all_exact(), "]")
    return call("jnp.concatenate", parts, axis=str(op.integer("dimension")))


def _pad(op: Op) -> Code:
    edges = [op.integers(f"{name}_padding{end}") for name, end in _EDGES]
    rows = [numbers(row) for row in zip(*edges, strict=True)]
    return call("lax.pad", op.exact(0), op.exact(1), display("[", rows, "]"))


_EDGES = (("edge", "_low"), ("edge", "_high"), ("interior", ""))


def _reverse(op: Op) -> Code:
    dims = op.integers("dimensions")
    return call("lax.rev", op.exact(0), numbers(dims))


def _table(op: Op) -> Code | None:
    """A constant with different elements, or with none."""
    elements = op.values.constant(op.result)
    if elements is None or elements.dtype.kind not in "biuf":
        return None
    if not elements.size:  # nested brackets do not say how many columns no rows have
        return call("jnp.zeros", numbers(elements.shape), op.dtype)
    rows = np.asarray(elements).tolist()
    return call("jnp.array", _nested(rows), op.dtype)


def _nested(rows) -> Code:
    return display("[", map(_nested, rows), "]") if isinstance(rows, list) else Code(_number(rows))


def _number(value) -> str:
    text = repr(value)
    return {"nan": "jnp.nan", "inf": "jnp.inf", "-inf": "-jnp.inf"}.get(text, text)


ROWS: dict[str, Row] = {
    "stablehlo.reshape": _reshape,
    "stablehlo.transpose": _transpose,
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.iota": _iota,
    "stablehlo.slice": _slice,
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.dynamic_update_slice": _dynamic_update_slice,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.pad": _pad,
    "stablehlo.reverse": _reverse,
    "stablehlo.constant": _table,
}
