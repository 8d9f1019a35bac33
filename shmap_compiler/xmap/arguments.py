"""The arguments of `xmap`, read, and mistakes in them and in what its functions take and return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shmap_compiler.base.common_mistakes import not_positions
from shmap_compiler.base.descriptions import show_value
from shmap_compiler.base.errors import Problem, ResultTypeError, TypeProblem
from shmap_compiler.base.untyped import Leaf, Unchecked
from shmap_compiler.base.values import type_of
from shmap_compiler.xmap.axes import AxisMapping, Mappings
from shmap_compiler.xmap.resources import SerialLoop


def read_resources(given: object, problems: list[Problem]) -> dict[str, tuple[Unchecked, ...]]:
    """What each axis is assigned to, as tuples; appends what is wrong to `problems`."""
    resources: dict[str, tuple[Any, ...]] = {}
    for name, value in _entries("axis_resources", given, problems):
        where = f"axis_resources[{name!r}]"
        assigned = tuple(value) if isinstance(value, (tuple, list)) else (value,)
        resources[name] = assigned
        wrong = [r for r in assigned if not isinstance(r, (str, SerialLoop))]
        if wrong:
            problems.append(
                TypeProblem(
                    where,
                    show_value(wrong[0]),
                    "the name of a mesh axis or loop, a SerialLoop, or a tuple of these",
                    "write e.g. {'batch': 'x'} or {'batch': ('x', 'y')}",
                )
            )
        elif len({r if isinstance(r, str) else id(r) for r in assigned}) < len(assigned):
            problems.append(
                Problem(
                    where,
                    f"{assigned!r}, which repeats a resource",
                    "a tuple of distinct resources",
                    "name each resource once for an axis",
                )
            )
    return resources


def read_sizes(given: object, problems: list[Problem]) -> dict[str, int]:
    """The sizes of axes; appends what is wrong to `problems`."""
    sizes = dict(_entries("axis_sizes", given, problems))
    for name, size in sizes.items():
        if not isinstance(name, str) or not isinstance(size, (int, np.integer)) or size < 0:
            problems.append(
                TypeProblem(
                    f"axis_sizes[{name!r}]",
                    show_value(size),
                    "a size for the name of an axis",
                    "write e.g. axis_sizes={'batch': 8}",
                )
            )
    return {name: int(size) for name, size in sizes.items() if isinstance(size, (int, np.integer))}


def read_positions(given: Unchecked, problems: list[Problem]) -> tuple[int, ...]:
    """`donate_argnums` as a tuple; appends what is wrong to `problems`."""
    positions = given if isinstance(given, (tuple, list)) else (given,)
    if all(type(k) is int for k in positions):
        return tuple(positions)
    problems.append(not_positions("donate_argnums", given))
    return ()


def _entries(
    where: str, given: object, problems: list[Problem]
) -> list[tuple[Unchecked, Unchecked]]:
    """What a dict that may be None holds."""
    if given is None or isinstance(given, Mapping):
        return list((given or {}).items())
    problems.append(
        TypeProblem(
            where,
            show_value(given),
            "a dict by names of axes, or None",
            f"write {where}={{'batch': ...}}, or omit it",
        )
    )
    return []


def undefined_names(
    ins: Mappings, outs: Mappings, sizes: Mapping[str, int], resources: Mapping[str, Unchecked]
) -> Iterator[Problem]:
    """Of names that `out_axes` or `axis_resources` use and nothing defines."""
    defined = {n for m in ins.leaves for n in m.names} | set(sizes)
    known = ", ".join(map(repr, sorted(defined))) or "there is none"
    uses = [(m.where, n) for m in outs.leaves for n in m.names]
    uses += [(f"axis_resources[{n!r}]", n) for n in resources]
    for where, name in uses:
        if name not in defined:
            yield Problem(
                where,
                f"axis {name!r}, which appears neither in in_axes nor in axis_sizes",
                f"a name that in_axes or axis_sizes define: {known}",
                f"name a dimension of an argument {name!r}, or give it a size in axis_sizes",
            )


NO_RESULTS = Problem(
    "out_axes",
    "(), for no results",
    "at least one mapping: xmapped functions cannot have no return values",
    "return a result; if it has no named dimensions, write out_axes=[...]",
)


def has_backend(backend: object) -> Problem:
    return Problem(
        "backend",
        show_value(backend),
        "None: the mesh determines the devices",
        "make a mesh of devices of that platform, e.g. with jax.devices('cpu')",
    )


def no_array(path: str, leaf: object) -> Problem:
    return TypeProblem(
        path,
        show_value(leaf),
        "an array, or a pytree of arrays",
        "pass arrays; bind other values with functools.partial",
    )


def shadows(name: str) -> Problem:
    return Problem(
        f"axis {name!r}",
        "a name that an enclosing xmap has given to an axis",
        "names that differ from those of enclosing xmaps",
        "rename the axis of the inner xmap",
    )


def check_results(who: str, paths: Sequence[str], leaves: Sequence[Leaf]) -> None:
    """Raises ResultTypeError if a result is no array."""
    problems = [
        Problem(path, show_value(leaf), "an array, or a pytree of arrays", "return arrays only")
        for path, leaf in zip(paths, leaves, strict=True)
        if type_of(leaf) is None
    ]
    if problems:
        raise ResultTypeError(who, problems)


def wrong_rank(path: str, rank: int, mapping: AxisMapping) -> Iterator[Problem]:
    """Of a result whose rank its mapping does not take."""
    needed = mapping.least_rank - len(mapping.positions)
    whole = rank + len(mapping.positions)
    if rank < needed:
        yield Problem(
            path,
            f"a result of rank {rank}, without its named axes",
            f"at least {needed} positional dimensions, which {mapping.shown} requires",
            "put named axes at dimensions that the result has with them",
        )
    elif mapping.rank is not None and mapping.rank != whole:
        yield Problem(
            path,
            f"a result of rank {whole}, its {len(mapping.positions)} named axes included",
            f"rank {mapping.rank}, which {mapping.shown} asserts",
            "end the list with `...` to accept further dimensions",
        )
