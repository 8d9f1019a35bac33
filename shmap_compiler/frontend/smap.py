"""`smap`: `shard_map` over one mesh axis, in the manner of `jax.vmap`."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, overload

import jax
from jax.sharding import PartitionSpec

from shmap_compiler.base.descriptions import describe, show_value
from shmap_compiler.base.errors import Problem, TypeProblem, spec_error
from shmap_compiler.base.untyped import Function, PyTree, Unchecked, Wrapped
from shmap_compiler.frontend.arguments import INFER
from shmap_compiler.frontend.shard_map import shard_map
from shmap_compiler.frontend.shard_mapped import ShardMapped

_P = ParamSpec("_P")
_R = TypeVar("_R")


@overload
def smap(
    f: Callable[_P, _R],
    /,
    *,
    in_axes: PyTree = ...,
    out_axes: PyTree,
    axis_name: str,
) -> ShardMapped[_P, _R]: ...


@overload
def smap(
    f: None = None,
    /,
    *,
    in_axes: PyTree = ...,
    out_axes: PyTree,
    axis_name: str,
) -> Callable[[Callable[_P, _R]], ShardMapped[_P, _R]]: ...


def smap(
    f: Function | None = None,
    /,
    *,
    in_axes: PyTree = INFER,
    out_axes: PyTree,
    axis_name: str,
) -> Wrapped:
    """Maps a function over one axis of the mesh in scope, with the interface of `jax.vmap`.

    Args:
      f: The per-device function. If omitted, a decorator is returned.
      in_axes: For each argument (a prefix of the tuple of arguments), the dimension that is split,
        or None if all devices get the whole. May be omitted if the axis is of type Explicit.
      out_axes: For each result, the dimension along which blocks are concatenated, or None if
        they are equal on all devices.
      axis_name: The mesh axis. All others stay automatic.

    Returns:
      A `ShardMapped`.

    Raises:
      SpecError: An axis is not a dimension, or `axis_name` is not a name.

    Examples:
      >>> with jax.set_mesh(mesh):
      ...     f = smap(lambda b: lax.psum(b, "i"), in_axes=0, out_axes=None, axis_name="i")
      ...     print(jax.jit(f)(x))
      [56. 64.]
    """
    problems = [
        *_axis_name_problems(axis_name),
        *([] if in_axes is INFER else _axes_problems(in_axes, "in_axes")),
        *_axes_problems(out_axes, "out_axes"),
    ]
    if problems:
        raise spec_error("smap" if f is None else describe(f), problems)
    return shard_map(
        f,
        in_specs=INFER if in_axes is INFER else _specs_of_axes(in_axes, axis_name),
        out_specs=_specs_of_axes(out_axes, axis_name),
        axis_names=axis_name,
    )


def _specs_of_axes(axes: Unchecked, axis_name: str) -> PyTree:
    def spec(axis: int | None) -> PartitionSpec:
        return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, axis_name)

    return jax.tree.map(spec, axes, is_leaf=lambda axis: axis is None)


# ------------------------------------------------------------------------------------- mistakes


def _axis_name_problems(axis_name: object) -> list[Problem]:
    if isinstance(axis_name, str):
        return []
    return [
        TypeProblem(
            "axis_name of smap",
            show_value(axis_name),
            "the name of one mesh axis",
            "nest smaps, one for each axis, or use shard_map",
        )
    ]


_MOST_DIMENSIONS = 1000
"""No array has so many. The spec of a wrong dimension may not fit in memory."""


def _axes_problems(axes: Unchecked, root: str) -> list[Problem]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(axes, is_leaf=lambda axis: axis is None)
    return [
        (Problem if type(axis) is int else TypeProblem)(
            root + jax.tree_util.keystr(path),
            show_value(axis),
            "a dimension, counted from the first (0), or None"
            if type(axis) is not int or axis < 0
            else f"a dimension below {_MOST_DIMENSIONS}, more than any array has",
            "write 0 to split the first dimension, or None for equal blocks on all devices",
        )
        for path, axis in leaves
        if axis is not None and not (type(axis) is int and 0 <= axis < _MOST_DIMENSIONS)
    ]
