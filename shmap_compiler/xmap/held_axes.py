"""Regions on mesh axes along which an enclosing xmap has divided the program already.

A shard_map over such an axis is not possible again, and not needed: each device takes its part of
an array by its index along the axis, and gathers the parts of a result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set

from jax import lax

from shmap_compiler.base.untyped import AnyValue
from shmap_compiler.xmap.axes import AxisMapping
from shmap_compiler.xmap.named_jaxpr import NamedJaxpr

Flat = Callable[..., Sequence[AnyValue]]
"""A function of the flat full arrays of a call, after the constants of the program."""


def on_parts(fun: Flat, program: NamedJaxpr, held: Set[str]) -> Flat:
    """A function of whole arrays, from one of what `held` axes leave of them to each device.

    Args:
      fun: of the flat arrays of the program, its constants first.
      held: mesh axes that are manual around the program; no value of it differs along them.
    """
    assert program.mesh is not None, "it has axes"
    sizes, whole = dict(program.mesh.shape), len(program.constants)

    def run(*args: AnyValue) -> Sequence[AnyValue]:
        parts = [
            _each_dimension(_part, x, mapping, program, held, sizes)
            for x, mapping in zip(args[whole:], program.in_mappings, strict=True)
        ]
        results = fun(*args[:whole], *parts)
        return [
            _each_dimension(_gathered, x, mapping, program, held, sizes)
            for x, mapping in zip(results, program.out_mappings, strict=True)
        ]

    return run


def _each_dimension(
    change: Callable[..., AnyValue],
    x: AnyValue,
    mapping: AxisMapping,
    program: NamedJaxpr,
    held: Set[str],
    sizes: Mapping[str, int],
) -> AnyValue:
    for name, at in mapping.positions:
        axes = program.placements[name].mesh_axes
        if not held.isdisjoint(axes):
            x = change(x, at, axes, held, sizes)
    return x


def _part(
    x: AnyValue, at: int, axes: Sequence[str], held: Set[str], sizes: Mapping[str, int]
) -> AnyValue:
    """The device's part along those of `axes` that are held, of a dimension split over all."""
    split = [sizes[a] for a in axes]
    shape = x.shape
    x = x.reshape(*shape[:at], *split, shape[at] // math.prod(split), *shape[at + 1 :])
    for place in reversed(range(len(axes))):
        if axes[place] in held:
            index = lax.axis_index(axes[place])
            x = lax.dynamic_index_in_dim(x, index, at + place, keepdims=False)
    part = shape[at] // math.prod(sizes[a] for a in axes if a in held)
    return x.reshape(*shape[:at], part, *shape[at + 1 :])


def _gathered(
    x: AnyValue, at: int, axes: Sequence[str], held: Set[str], sizes: Mapping[str, int]
) -> AnyValue:
    """The parts of all devices along those of `axes` that are held, where `_part` took them."""
    rest = [sizes[a] for a in axes if a not in held]
    shape = x.shape
    x = x.reshape(*shape[:at], *rest, shape[at] // math.prod(rest), *shape[at + 1 :])
    for place, axis in enumerate(axes):
        if axis in held:
            x = lax.all_gather(x, axis, axis=at + place)
    whole = shape[at] * math.prod(sizes[a] for a in axes if a in held)
    return x.reshape(*shape[:at], whole, *shape[at + 1 :])
