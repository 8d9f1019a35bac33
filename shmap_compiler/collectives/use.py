"""One use of a collective in the user's words: the function of `jax.lax` and its arguments."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType, TracebackType

import jax
from jax import lax

from shmap_compiler.base.source_lines import is_internal, place_of
from shmap_compiler.base.untyped import AxisName, Parameter
from shmap_compiler.collectives import RECORDS, function_of_lax


@dataclass(frozen=True)
class Use:
    """One use of a collective.

    Attributes:
      name: the function of `jax.lax`, or the primitive.
      axes: the mesh axes it names, positional axes left out.
      place: the user's line: `file.py:12 (f)`.
      sizes: the size of every axis that a collective may name here.
      shapes: the shapes of the operands, if these are arrays.
      arguments: the other arguments, by their names in `jax.lax`.
    """

    name: str
    axes: tuple[AxisName, ...]
    place: str
    sizes: Mapping[str, int]
    shapes: tuple[tuple[int, ...], ...] = ()
    arguments: Mapping[str, Parameter] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return f"{function_of_lax(self.name)} over {listed(self.axes) or 'no axis'} at {self.place}"

    @property
    def devices(self) -> int:
        """The number of devices along the axes."""
        return math.prod(self.sizes[a] for a in self.axes)

    @property
    def groups(self) -> list[list[int]] | None:
        groups = self.arguments.get("axis_index_groups")
        return None if groups is None else [list(map(int, g)) for g in groups]

    @property
    def group_size(self) -> int:
        return len(self.groups[0]) if self.groups else self.devices


def listed(names: Sequence[AxisName]) -> str:
    """Names for a message."""
    return ", ".join(map(repr, names))


_FUNCTIONS = (*(name for record in RECORDS for name in record.functions), "axis_size", "pcast")
_NAMES = {inspect.unwrap(getattr(lax, name)).__code__: name for name in _FUNCTIONS}


def use_in_traceback(trace: TracebackType | None, sizes: Mapping[str, int]) -> Use | None:
    """The outermost call of a collective of `jax.lax` in a traceback; None if there is none."""
    caller = None
    while trace is not None:
        frame = trace.tb_frame
        name = _NAMES.get(frame.f_code)
        if name is not None:
            place = place_of(*caller) if caller else "an unknown line"
            return _use_of_frame(name, frame, place, sizes)
        if not is_internal(frame):
            caller = frame, trace.tb_lineno
        trace = trace.tb_next
    return None


def _use_of_frame(name: str, frame: FrameType, place: str, sizes: Mapping[str, int]) -> Use:
    parameters = inspect.signature(getattr(lax, name)).parameters
    arguments = {p: frame.f_locals[p] for p in parameters if p in frame.f_locals}
    axes = arguments.pop("axis_name", ())
    axes = tuple(axes) if isinstance(axes, (tuple, list, set, frozenset)) else (axes,)
    operand = arguments.pop("x", arguments.pop("operand", ()))
    return Use(
        name=name,
        axes=tuple(a for a in axes if not isinstance(a, int)),
        place=place,
        sizes=sizes,
        shapes=tuple(leaf.shape for leaf in jax.tree.leaves(operand) if hasattr(leaf, "shape")),
        arguments=arguments,
    )
