"""Mistakes in using a collective: those JAX refuses while it traces, and those it lets through.

Both are told in the words of what the user called: the function of `jax.lax`, its arguments, the
sizes of the axes. JAX's own message stands for whatever is not understood here.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from shmap_compiler.base.errors import (
    Problem,
    ShmapError,
    TypeProblem,
    UnknownAxisError,
    body_error,
    show_value,
)
from shmap_compiler.base.jax_compat import Eqn
from shmap_compiler.base.source_lines import is_internal, place_of, source_line
from shmap_compiler.collectives import JAX_FORMS, RECORDS, record_in_jax_form


@dataclass(frozen=True)
class Use:
    """One use of a collective.

    Attributes:
      name: the function of `jax.lax`, or the primitive.
      axes: the mesh axes it names, positional axes left out.
      place: the user's line: `file.py:12 (f)`.
      sizes: the size of every axis a collective may name here.
      shapes: the shapes of the operands, if these are arrays.
      arguments: the other arguments, by their names in `jax.lax`.
    """

    name: str
    axes: tuple[Any, ...]
    place: str
    sizes: Mapping[str, int]
    shapes: tuple[tuple[int, ...], ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return f"{self.name} over {_listed(self.axes) or 'no axis'} at {self.place}"

    @property
    def devices(self) -> int:
        """How many devices lie along the axes."""
        return math.prod(self.sizes[a] for a in self.axes)

    @property
    def groups(self) -> list[list[int]] | None:
        groups = self.arguments.get("axis_index_groups")
        return None if groups is None else [list(map(int, g)) for g in groups]

    @property
    def group_size(self) -> int:
        return len(self.groups[0]) if self.groups else self.devices


def refused(error: Exception, who: str, sizes: Mapping[str, int]) -> ShmapError | None:
    """What JAX said of a collective in the user's function, in our words; None for other errors."""
    use = _use_in_traceback(error.__traceback__, sizes)
    if use is None:
        return None
    unknown = list(_unknown_axes(use))
    if unknown and (isinstance(error, NameError) or use.name == "pcast"):
        return UnknownAxisError(who, unknown)
    # An axis that is unknown to us but not to JAX belongs to a vmap inside the function.
    problems = [] if unknown else list(_problems(use))
    return body_error(who, problems or [_as_jax_says(use, error)])


def let_through(eqn: Eqn, sizes: Mapping[str, int]) -> list[Problem]:
    """What XLA would refuse, abort or hang on, though JAX traced it into an equation."""
    named = eqn.params["axes"] if "axes" in eqn.params else eqn.params["axis_name"]
    named = named if isinstance(named, (tuple, list)) else (named,)
    use = Use(
        name=eqn.primitive.name,
        axes=tuple(a for a in named if not isinstance(a, int)),
        place="",
        sizes=sizes,
        arguments={k: v for k, v in eqn.params.items() if k not in ("axes", "axis_name")},
    )
    positional = [a for a in named if isinstance(a, int)]
    form = JAX_FORMS.get(use.name)
    if positional and not (form and form.positional):
        return list(_no_names(dataclasses.replace(use, place=source_line(eqn)), positional))
    dtypes = [getattr(v.aval, "dtype", None) for v in eqn.invars]
    if not refusals(use, dtypes):
        return []  # the usual case: looking up the line takes longer than all checks
    return refusals(dataclasses.replace(use, place=source_line(eqn)), dtypes)


def _no_names(use: Use, dimensions: Sequence[int]) -> Iterator[Problem]:
    known = ", ".join(map(repr, use.sizes))
    yield Problem(
        f"{use.name} over {_listed(dimensions)} at {use.place}",
        f"dimension {_listed(dimensions)} of the block",
        f"names of manual axes of the mesh: {known}",
        "write the name of a mesh axis",
    )


def refusals(use: Use, dtypes: Sequence[Any]) -> list[Problem]:
    """The same for one use, on operands of these types."""
    return [*_wrong_types(use), *_repeated_axes(use)] or [
        *_wrong_groups(use),
        *_wrong_perm(use),
        *_wrong_source(use),
        *_dimensions_from_the_end(use),
        *_refused_types(use, dtypes),
    ]


def _dimensions_from_the_end(use: Use) -> Iterator[Problem]:
    """JAX 0.10 inserts the dimension of an untiled all_to_all as if both were counted from 0."""
    split, concat = (use.arguments.get(name, 0) for name in ("split_axis", "concat_axis"))
    if not use.arguments.get("tiled", True) and min(split, concat) < 0 and split != concat:
        yield Problem(
            use.where,
            "a split_axis or concat_axis counted from the end, without tiled=True",
            "dimensions counted from the first: JAX 0.10 exchanges others",
            "write x.ndim - 1 for -1",
        )


def _refused_types(use: Use, dtypes: Sequence[Any]) -> Iterator[Problem]:
    record = record_in_jax_form(use.name)
    if record is None or not record.refused_types:
        return
    kinds = {np.dtype(d).kind for d in dtypes if _numeric(d)}
    for kind, refusal in record.refused_types.items():
        if kind in kinds:
            where = dataclasses.replace(use, name=record.functions[0]).where
            yield Problem(where, refusal.found, refusal.needed, refusal.fix)


def _numeric(dtype: Any) -> bool:
    """Not so are the types of random keys, which NumPy does not know."""
    return dtype is not None and not jnp.issubdtype(dtype, jax.dtypes.extended)


# ------------------------------------------------------ what the user called, from a traceback

_FUNCTIONS = (*(name for record in RECORDS for name in record.functions), "axis_size", "pcast")
_NAMES = {inspect.unwrap(getattr(lax, name)).__code__: name for name in _FUNCTIONS}


def _use_in_traceback(trace: TracebackType | None, sizes: Mapping[str, int]) -> Use | None:
    """The outermost function of `jax.lax` in the traceback, with the arguments it was called on."""
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


# ------------------------------------------------------------------------------------ the mistakes


def _problems(use: Use) -> Iterator[Problem]:
    at_first = [*_wrong_types(use), *_repeated_axes(use)]
    if at_first:
        yield from at_first
        return
    groups = list(_wrong_groups(use))
    yield from groups
    if not groups:
        for shape in use.shapes:
            yield from _wrong_dimensions(use, shape)
    yield from _wrong_perm(use)
    yield from _wrong_source(use)


def _unknown_axes(use: Use) -> Iterator[Problem]:
    known = ", ".join(f"{a!r} of size {n}" for a, n in use.sizes.items())
    for axis in dict.fromkeys(a for a in use.axes if a not in use.sizes):
        yield Problem(
            use.where,
            f"axis {axis!r}",
            f"a manual axis of the mesh: {known or 'there is none'}",
            f"use one of these names, or add {axis!r} to the mesh (and to axis_names, if given)",
        )


def _repeated_axes(use: Use) -> Iterator[Problem]:
    for axis in dict.fromkeys(a for a in use.axes if use.axes.count(a) > 1):
        yield Problem(
            use.where,
            f"axis {axis!r} {use.axes.count(axis)} times",
            "each axis at most once in a collective",
            f"name {axis!r} once",
        )


def _wrong_types(use: Use) -> Iterator[Problem]:
    """Positions that are no integers. A float such as 1.0 would count as equal to one."""
    perm, groups = use.arguments.get("perm"), use.arguments.get("axis_index_groups")
    if perm is not None and use.name == "ppermute":
        yield from _no_lists_of_integers(
            use,
            "perm",
            perm,
            "a list of (source, target) pairs of integers",
            "write it as in [(0, 1), (1, 0)]",
            length=2,
        )
    if perm is not None and use.name == "pshuffle":
        yield from _no_lists_of_integers(
            use, "perm", [perm], "a list of integers", "write it as in [1, 0]"
        )
    if groups is not None:
        yield from _no_lists_of_integers(
            use,
            "axis_index_groups",
            groups,
            "a list of lists of integers",
            "write it as in [[0, 1], [2, 3]]",
        )


def _no_lists_of_integers(
    use: Use, argument: str, lists: Any, needed: str, fix: str, length: int | None = None
) -> Iterator[Problem]:
    for each in lists if _is_sequence(lists) else [lists]:
        if not _is_sequence(each) or (length is not None and len(each) != length):
            found = show_value(each)
        else:
            wrong = next((entry for entry in each if not _is_integer(entry)), None)
            if wrong is None:
                continue
            traced = isinstance(wrong, Tracer)
            found = "a value being traced" if traced else show_value(wrong)
        yield TypeProblem(use.where, f"{argument} with {found}", needed, fix)
        return


def _is_sequence(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_integer(value: Any) -> bool:
    if isinstance(value, Tracer):
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


_ANY_SIZE = {name for record in RECORDS if record.unequal_groups for name in record.functions}
"""Functions, and primitives of these names, whose groups may differ in size."""


def _wrong_groups(use: Use) -> Iterator[Problem]:
    if use.groups is None:
        return
    members = sorted(i for group in use.groups for i in group)
    any_size = use.name in _ANY_SIZE
    one_size = len({len(g) for g in use.groups}) == 1
    if members != list(range(use.devices)) or not (any_size or one_size):
        yield Problem(
            use.where,
            f"axis_index_groups={use.groups}",
            f"each of 0..{use.devices - 1} in exactly one group"
            + ("" if any_size else ", all groups of one size"),
            "list every index of the axis once, or use two mesh axes instead of groups",
        )


def _wrong_perm(use: Use) -> Iterator[Problem]:
    perm = use.arguments.get("perm")
    if perm is None:
        return
    if use.name == "pshuffle":
        yield Problem(
            use.where,
            f"perm={list(perm)}",
            f"a permutation of 0..{use.devices - 1}: the axis has {use.devices} devices",
            "name each source once, or use ppermute with (source, target) pairs",
        )
        return
    pairs = [(int(source), int(target)) for source, target in perm]
    for position, role in enumerate(("source", "target")):
        yield from _wrong_ends(use, pairs, position, role)


def _wrong_ends(use: Use, pairs: Sequence[tuple[int, int]], position: int, role: str):
    size, ends = use.devices, [pair[position] for pair in pairs]
    outside = sorted({e for e in ends if not 0 <= e < size})
    if outside:
        yield Problem(
            use.where,
            f"{role} {', '.join(map(str, outside))}",
            f"each {role} in 0..{size - 1}: the axis has {size} devices",
            f"take indices modulo the axis size, e.g. (i + 1) % {size}",
        )
    repeated = sorted(e for e, count in Counter(ends).items() if count > 1)
    if repeated:
        yield Problem(
            use.where,
            f"{role} {', '.join(map(str, repeated))} more than once, in "
            f"{[pair for pair in pairs if pair[position] in repeated]}",
            f"each device at most once as {role}",
            "use several ppermutes, or all_gather, to send a block to many devices"
            if role == "source"
            else "use several ppermutes, or psum, to combine blocks from many devices",
        )


def _wrong_source(use: Use) -> Iterator[Problem]:
    source = use.arguments.get("source")
    if isinstance(source, int) and not 0 <= source < use.devices:
        yield Problem(
            use.where,
            f"source {source}",
            f"a source in 0..{use.devices - 1}: the axis has {use.devices} devices",
            f"take the index modulo the axis size, e.g. i % {use.devices}",
        )


def _wrong_dimensions(use: Use, shape: tuple[int, ...]) -> Iterator[Problem]:
    """Dimensions that are not there, or that the devices of a group cannot share out."""
    tiled = bool(use.arguments.get("tiled", False))
    rank = len(shape)
    if use.name == "all_gather" and not tiled:
        rank += 1  # `axis` counts in the result, which has the dimension of the group
    for argument in ("scatter_dimension", "split_axis", "concat_axis", "axis"):
        d = use.arguments.get(argument)
        if not isinstance(d, int):
            continue
        if not -rank <= d < rank:
            yield Problem(
                use.where,
                f"{argument}={d}, on blocks of shape {shape}",
                f"one of {rank} dimensions: {argument} in {-rank}..{rank - 1}",
                "choose another dimension, or reshape the block",
            )
        elif argument in ("scatter_dimension", "split_axis"):
            yield from _not_shared_out(use, argument, d, shape, tiled)


def _not_shared_out(use: Use, argument: str, d: int, shape, tiled: bool) -> Iterator[Problem]:
    parts = use.group_size
    found = f"{argument}={d} of size {shape[d]}, in blocks of shape {shape}"
    if tiled and shape[d] % parts:
        yield Problem(
            use.where,
            found,
            f"a multiple of {_arithmetic(use)}: {parts} does not divide {shape[d]}",
            f"pad the dimension to {-(-shape[d] // parts) * parts}, or choose another one",
        )
    if not tiled and shape[d] != parts:
        yield Problem(
            use.where,
            found,
            f"size {_arithmetic(use)}, because tiled=False removes the dimension",
            "pass tiled=True to keep the dimension, or reshape the block",
        )


def _as_jax_says(use: Use, error: Exception) -> Problem:
    kind = TypeProblem if isinstance(error, TypeError) else Problem
    return kind(
        use.where,
        f"{error}" or type(error).__name__,
        f"arguments that JAX accepts for {use.name} on blocks of shape "
        f"{', '.join(map(str, use.shapes)) or 'unknown'}",
        f"see the documentation of jax.lax.{use.name}",
    )


def _arithmetic(use: Use) -> str:
    if use.groups:
        return f"{use.group_size}, the size of the groups"
    sizes = [use.sizes[a] for a in use.axes]
    if len(sizes) == 1:
        return f"{sizes[0]}, the size of axis {use.axes[0]!r}"
    return f"{'*'.join(map(str, sizes))} = {use.devices}, the size of axes ({_listed(use.axes)})"


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(map(repr, names))
