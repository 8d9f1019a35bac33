"""What can be wrong with the arguments of a collective."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from jax.core import Tracer

from shmap_compiler.base.descriptions import show_value
from shmap_compiler.base.errors import Problem, TypeProblem
from shmap_compiler.base.untyped import DType, Unchecked
from shmap_compiler.collectives import RECORDS
from shmap_compiler.collectives.use import Use, listed


def unknown_axes(use: Use) -> Iterator[Problem]:
    """Axes that are not manual axes of the mesh."""
    known = ", ".join(f"{a!r} of size {n}" for a, n in use.sizes.items())
    for axis in dict.fromkeys(a for a in use.axes if a not in use.sizes):
        yield Problem(
            use.where,
            f"axis {axis!r}",
            f"a manual axis of the mesh: {known or 'there is none'}",
            f"use one of these names, or add {axis!r} to the mesh (and to axis_names, if given)",
        )


def repeated_axes(use: Use) -> Iterator[Problem]:
    """Axes that are named more than once."""
    for axis in dict.fromkeys(a for a in use.axes if use.axes.count(a) > 1):
        yield Problem(
            use.where,
            f"axis {axis!r} {use.axes.count(axis)} times",
            "each axis at most once in a collective",
            f"name {axis!r} once",
        )


def wrong_types(use: Use) -> Iterator[Problem]:
    """Positions that are not integers. A float such as 1.0 would compare equal to one."""
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
    use: Use, argument: str, lists: Unchecked, needed: str, fix: str, length: int | None = None
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


def _is_sequence(value: object) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_integer(value: Unchecked) -> bool:
    return _integer(value) is not None


def _integer(value: Unchecked) -> int | None:
    """The integer; None if it is not one, or is still being traced."""
    if isinstance(value, Tracer):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


_OF_SLICES = ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")
_ANY_SIZE = {name for record in RECORDS if record.unequal_groups for name in record.functions}
"""Functions, and primitives of these names, whose groups may differ in size."""


def wrong_groups(use: Use) -> Iterator[Problem]:
    """Groups that do not partition the positions along the axes."""
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


def wrong_perm(use: Use) -> Iterator[Problem]:
    """A permutation with sources or targets that do not exist, or that occur twice."""
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


def wrong_source(use: Use) -> Iterator[Problem]:
    """A source that does not exist."""
    source = _integer(use.arguments.get("source"))
    if source is not None and not 0 <= source < use.devices:
        yield Problem(
            use.where,
            f"source {source}",
            f"a source in 0..{use.devices - 1}: the axis has {use.devices} devices",
            f"take the index modulo the axis size, e.g. i % {use.devices}",
        )


def wrong_dimensions(use: Use, shape: tuple[int, ...]) -> Iterator[Problem]:
    """Dimensions that do not exist, or that cannot be divided among the devices of a group."""
    tiled = bool(use.arguments.get("tiled", False))
    rank = len(shape)
    if use.name == "all_gather" and not tiled:
        rank += 1  # `axis` counts in the result, which has the dimension of the group
    for argument in ("scatter_dimension", "split_axis", "concat_axis", "axis"):
        d = _integer(use.arguments.get(argument))
        if d is None:
            continue
        if not -rank <= d < rank:
            yield Problem(
                use.where,
                f"{argument}={d}, on blocks of shape {shape}",
                f"one of {rank} dimensions: {argument} in {-rank}..{rank - 1}",
                "choose another dimension, or reshape the block",
            )
        elif argument in ("scatter_dimension", "split_axis"):
            yield from _not_divisible(use, argument, d, shape, tiled)


def _not_divisible(use: Use, argument: str, d: int, shape, tiled: bool) -> Iterator[Problem]:
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


def wrong_slices(use: Use, dtypes: Sequence[DType]) -> Iterator[Problem]:
    """Slices of a ragged_all_to_all that are not given for each device, or do not fit the output.

    XLA rejects them where it has the operation.
    """
    if use.name != "ragged_all_to_all" or len(use.shapes) != len(_OF_SLICES) + 2:
        return
    operand, output, *vectors = use.shapes
    counts = [shape[0] for shape in vectors]
    if len({*counts}) > 1 or counts[0] % use.group_size:
        yield Problem(
            use.where,
            ", ".join(f"{name}[{n}]" for name, n in zip(_OF_SLICES, counts, strict=True)),
            f"as many of each, and for each device equally many: a multiple of {_arithmetic(use)}",
            "give the offsets and sizes of the slices for the first device of the group, then "
            "those for the second, and so on; recv_sizes is what each device sends here",
        )
    if not operand or not output or operand[1:] != output[1:] or dtypes[0] != dtypes[1]:
        found = [f"{dtype}{list(shape)}" for dtype, shape in zip(dtypes, use.shapes, strict=False)]
        yield Problem(
            use.where,
            f"an operand {found[0]} and an output {found[1]}",
            "rows of one type and shape: slices of the operand are written into the output",
            "convert or reshape one of both",
        )


def dimensions_from_the_end(use: Use) -> Iterator[Problem]:
    """JAX 0.10 inserts the dimension of an untiled all_to_all as if both were counted from 0."""
    split, concat = (use.arguments.get(name, 0) for name in ("split_axis", "concat_axis"))
    if not use.arguments.get("tiled", True) and min(split, concat) < 0 and split != concat:
        yield Problem(
            use.where,
            "a split_axis or concat_axis counted from the end, without tiled=True",
            "dimensions counted from the first: JAX 0.10 exchanges others",
            "write x.ndim - 1 for -1",
        )


def _arithmetic(use: Use) -> str:
    if use.groups:
        return f"{use.group_size}, the size of the groups"
    sizes = [use.sizes[a] for a in use.axes]
    if len(sizes) == 1:
        return f"{sizes[0]}, the size of axis {use.axes[0]!r}"
    return f"{'*'.join(map(str, sizes))} = {use.devices}, the size of axes ({listed(use.axes)})"
