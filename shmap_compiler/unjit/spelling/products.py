"""Products, convolutions, transforms."""

from __future__ import annotations

import string

from jaxlib.mlir.dialects import stablehlo

from shmap_compiler.unjit import layout
from shmap_compiler.unjit.layout import Code, binary, call, display, numbers
from shmap_compiler.unjit.signature import quoted
from shmap_compiler.unjit.spelling.operation import Op, Row
from shmap_compiler.unjit.types import element_of, shape_of


def _precision(op: Op) -> dict[str, str]:
    """The argument for a precision other than the default; both operands have the same."""
    if "precision_config" not in op.op.attributes:
        return {}
    text = str(op.op.attributes["precision_config"])
    for name in ("HIGHEST", "HIGH"):
        if name in text:
            return {"precision": quoted(name.lower())}
    return {}


def _more(op: Op) -> dict[str, str]:
    named = _precision(op)
    if element_of(op.result) != element_of(op.operands[0]):
        named["preferred_element_type"] = op.dtype
    return named


def _dot_general(op: Op) -> Code | None:
    if "algorithm" in op.op.attributes and _is_set(op):
        return None
    dims = stablehlo.DotDimensionNumbers(op.op.attributes["dot_dimension_numbers"])
    batch = list(dims.lhs_batching_dimensions), list(dims.rhs_batching_dimensions)
    summed = list(dims.lhs_contracting_dimensions), list(dims.rhs_contracting_dimensions)
    ranks = [len(shape_of(value)) for value in op.operands]
    more = _more(op)
    if not batch[0] and ranks == [2, 2] and summed == ([1], [0]) and not more:
        return binary(op.exact(0), "@", op.exact(1), layout.PRODUCT)
    letters = iter(string.ascii_lowercase)
    named: tuple[dict[int, str], dict[int, str]] = ({}, {})
    shared = [[next(letters) for _ in pair[0]] for pair in (batch, summed)]
    for pair, used in zip((batch, summed), shared, strict=True):
        for left, right, letter in zip(*pair, used, strict=True):
            named[0][left] = named[1][right] = letter
    free = []
    for rank, names in zip(ranks, named, strict=True):
        for dim in range(rank):
            if dim not in names:
                names[dim] = next(letters)
                free.append(names[dim])
    ins = ["".join(names[d] for d in range(r)) for r, names in zip(ranks, named, strict=True)]
    equation = f"{ins[0]},{ins[1]}->{''.join([*shared[0], *free])}"
    return call("jnp.einsum", quoted(_in_order(equation)), op.exact(0), op.exact(1), **more)


def _in_order(equation: str) -> str:
    """The equation with letters in the order in which they appear."""
    letters = iter(string.ascii_lowercase)
    names: dict[str, str] = {}
    return "".join(
        names.setdefault(c, next(letters) if c not in names else "") if c.isalpha() else c
        for c in equation
    )


def _is_set(op: Op) -> bool:
    return "algorithm" in str(op.op.attributes["algorithm"])


def _convolution(op: Op) -> Code | None:
    dims = stablehlo.ConvDimensionNumbers(op.op.attributes["dimension_numbers"])
    spatial = len(shape_of(op.operands[0])) - 2
    padding = op.integers("padding") or (0,) * (2 * spatial)
    named: dict[str, Code | str] = {
        "window_strides": numbers(op.integers("window_strides") or (1,) * spatial),
        "padding": display("[", map(numbers, _pairs(padding)), "]"),
    }
    for name in ("lhs_dilation", "rhs_dilation"):
        dilation = op.integers(name)
        if any(step != 1 for step in dilation):
            named[name] = numbers(dilation)
    layouts = (
        _dimension_names(dims.input_batch_dimension, dims.input_feature_dimension, "NC", dims, 0),
        _dimension_names(
            dims.kernel_output_feature_dimension, dims.kernel_input_feature_dimension, "OI", dims, 1
        ),
        _dimension_names(dims.output_batch_dimension, dims.output_feature_dimension, "NC", dims, 2),
    )
    named["dimension_numbers"] = display("(", map(quoted, layouts), ")")
    for name in ("feature_group_count", "batch_group_count"):
        if op.integer(name, 1) != 1:
            named[name] = str(op.integer(name, 1))
    named.update(_more(op))
    kernel = op.exact(1)
    if "window_reversal" in op.op.attributes:
        text = str(op.op.attributes["window_reversal"])
        flags = [word == "true" for word in text[text.index(":") + 1 :].strip(" >").split(", ")]
        turned = [d for d, flag in zip(dims.kernel_spatial_dimensions, flags, strict=True) if flag]
        if turned:
            kernel = call("lax.rev", kernel, numbers(turned))
    return call("lax.conv_general_dilated", op.exact(0), kernel, **named)


def _pairs(values: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [tuple(values[k : k + 2]) for k in range(0, len(values), 2)]


def _dimension_names(first: int, second: int, letters: str, dims, which: int) -> str:
    """The dimensions of an operand, as convolutions name them: "NHWC"."""
    spatial = (
        dims.input_spatial_dimensions,
        dims.kernel_spatial_dimensions,
        dims.output_spatial_dimensions,
    )[which]
    names = {first: letters[0], second: letters[1]}
    names.update(zip(spatial, "HWD" if len(spatial) > 1 else "W", strict=False))
    return "".join(names[k] for k in range(len(names)))


def _fft(op: Op) -> Code:
    kind = op.word("fft_type")
    return call("lax.fft", op.exact(0), quoted(kind), numbers(op.integers("fft_length")))


ROWS: dict[str, Row] = {
    "stablehlo.dot_general": _dot_general,
    "stablehlo.convolution": _convolution,
    "stablehlo.fft": _fft,
}
