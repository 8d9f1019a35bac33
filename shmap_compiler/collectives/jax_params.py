"""Reads the parameters of JAX's primitives for collectives."""

from __future__ import annotations

import math
from collections.abc import Mapping

from shmap_compiler.base.untyped import AxisName, Parameter


def named_axes(params: Mapping[str, Parameter]) -> tuple[AxisName, ...]:
    """The axes of a collective, dimensions of the block (integers) among them."""
    axes = params["axes"] if "axes" in params else params["axis_name"]
    return tuple(axes) if isinstance(axes, (tuple, list)) else (axes,)


def group_params(params: Mapping[str, Parameter], sizes: Mapping[str, int]) -> dict[str, Parameter]:
    """The parameters that all collectives with groups share, as this family has them."""
    axes = tuple(a for a in named_axes(params) if not isinstance(a, int))
    groups = params.get("axis_index_groups")
    if groups is None:
        return {"axes": axes, "groups": None, "size": math.prod(sizes[a] for a in axes)}
    groups = tuple(tuple(map(int, g)) for g in groups)
    return {"axes": axes, "groups": groups, "size": len(groups[0])}
