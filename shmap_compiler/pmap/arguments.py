"""The arguments of a pmapped call: matched with in_axes, and counted in rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import jax

from shmap_compiler.base import specs
from shmap_compiler.base.descriptions import show_value
from shmap_compiler.base.errors import Problem, TypeProblem, spec_error
from shmap_compiler.base.jax_compat import is_ref
from shmap_compiler.base.untyped import PyTree, Unchecked
from shmap_compiler.base.values import is_hashable, type_of

_MOST_LISTED = 3


@dataclass(frozen=True)
class Rows:
    """How a call is divided among devices.

    Attributes:
      count: the number of rows, one per device.
      axes: for each leaf of `(args, kwargs)`, the static arguments left out, its mapped dimension,
        counted from the first; None for one that all devices get whole.
      show_source: what the rows were counted in, for error messages.
    """

    count: int
    axes: tuple[int | None, ...]
    show_source: Callable[[], str] = field(compare=False)


@dataclass(frozen=True)
class Argument:
    """A leaf of the arguments.

    Attributes:
      path: as the user names it: `args[0]['w']`.
      axis: as given in in_axes.
      axis_path: where it is given: `in_axes[0]`.
    """

    path: str
    value: Unchecked
    axis: int | None
    axis_path: str


def read_arguments(
    who: str,
    in_axes: PyTree,
    axis_size: int | None,
    static: Sequence[int],
    args: Sequence[PyTree],
    kwargs: dict[str, PyTree],
) -> Rows:
    """Raises SpecError for all that is wrong with the arguments of a call.

    Args:
      static: the positions of static arguments.
      args: all positional arguments, the static ones included.
    """
    problems = list(_static_problems(static, args))
    if isinstance(in_axes, int) and not problems:  # the usual case: paths are for messages only
        found = _all_alike(in_axes, axis_size, static, args, kwargs)
        if found is not None:
            return found
    arguments, mismatches = _matched(in_axes, static, args, kwargs)
    problems += mismatches
    axes: list[int | None] = []
    sizes: dict[int, list[str]] = {}
    for argument in arguments:
        type_ = type_of(argument.value)
        if type_ is None or is_ref(type_):
            problems.append(_not_an_array(argument))
        elif argument.axis is None:
            axes.append(None)
        elif not -len(type_.shape) <= argument.axis < len(type_.shape):
            problems.append(_wrong_rank(argument, type_.shape))
        else:
            axis = argument.axis % len(type_.shape)
            axes.append(axis)
            sizes.setdefault(type_.shape[axis], []).append(_place(argument, axis, type_.shape))
    if axis_size is not None:
        sizes.setdefault(axis_size, []).insert(0, f"axis_size={axis_size}")
    if len(sizes) > 1:
        problems.append(_different_sizes(sizes))
    if list(sizes) == [0]:
        problems.append(_no_rows(sizes[0]))
    if not sizes and not problems:
        problems.append(_nothing_mapped(arguments))
    if problems:
        raise spec_error(who, problems)
    ((count, places),) = sizes.items()
    return Rows(count, tuple(axes), lambda: places[0])


def split_static(args: Sequence[PyTree], static: Sequence[int]) -> tuple[PyTree, ...]:
    """The arguments that are not static."""
    return tuple(x for k, x in enumerate(args) if k not in static)


def _all_alike(
    axis: int,
    axis_size: int | None,
    static: Sequence[int],
    args: Sequence[PyTree],
    kwargs: dict[str, PyTree],
) -> Rows | None:
    """The rows of arguments that are all mapped over one dimension; None if something is wrong."""
    if kwargs and axis != 0:
        return None
    leaves = jax.tree.leaves((split_static(args, static), kwargs))
    found = [type_of(leaf) for leaf in leaves]
    if axis < 0 or any(t is None or is_ref(t) or len(t.shape) <= axis for t in found):
        return None
    shapes = [t.shape for t in found]
    sizes = {shape[axis] for shape in shapes}
    if axis_size is not None:
        sizes.add(axis_size)
    if len(sizes) != 1 or 0 in sizes or not leaves:
        return None

    def show_source() -> str:
        arguments, _ = _matched(axis, static, args, kwargs)
        return _place(arguments[0], axis, shapes[0])

    return Rows(sizes.pop(), (axis,) * len(leaves), show_source)


def _matched(
    in_axes: PyTree, static: Sequence[int], args: Sequence[PyTree], kwargs: dict[str, PyTree]
) -> tuple[list[Argument], list[Problem]]:
    """The leaves that are not static, and where in_axes does not fit the arguments."""
    in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    dynamic = tuple(None if k in static else x for k, x in enumerate(args))
    if static and isinstance(in_axes, tuple):
        # As in jax.pmap, in_axes is only read at the positions of the others: it may end before
        # the last static arguments, or go on after the last argument.
        count = max((k + 1 for k in range(len(args)) if k not in static), default=0)
        dynamic = dynamic[:count]
        in_axes = tuple(None if k in static else axis for k, axis in enumerate(in_axes[:count]))
    matched, problems = specs.broadcast_specs(in_axes, dynamic, "in_axes", "args", "dimension")
    if problems and kwargs:
        problems.append(_axes_and_keywords(kwargs))
    arguments = [Argument(path, x, axis, at) for path, x, at, axis in matched]
    keywords, _ = jax.tree_util.tree_flatten_with_path(kwargs)
    arguments += [
        Argument(f"kwargs{jax.tree_util.keystr(path)}", x, 0, "keyword arguments")
        for path, x in keywords
    ]
    return arguments, problems


# ------------------------------------------------------------------------------------- mistakes


def _static_problems(static: Sequence[int], args: Sequence[PyTree]) -> Iterator[Problem]:
    missing = [k for k in static if k >= len(args)]
    if missing:
        yield Problem(
            f"static_broadcasted_argnums={tuple(static)}",
            f"a call with {len(args)} positional arguments",
            f"at least {max(missing) + 1}: static arguments are passed by position",
            f"pass argument {max(missing)} by position, or leave it out of "
            "static_broadcasted_argnums",
        )
    for k in static:
        if k < len(args) and not is_hashable(args[k]):
            yield Problem(
                f"args[{k}], which static_broadcasted_argnums lists",
                f"{show_value(args[k])}, which is not hashable",
                "a hashable value: programs are compiled for each static value, and found by it",
                f"pass a hashable value, or remove {k} from static_broadcasted_argnums",
            )


def _not_an_array(argument: Argument) -> Problem:
    type_ = type_of(argument.value)
    return (Problem if type_ is not None else TypeProblem)(
        argument.path,
        f"a mutable reference, {type_}" if type_ is not None else show_value(argument.value),
        "an array, a NumPy array or a number",
        "close over the reference, or pass its value"
        if type_ is not None
        else "pass an array by this name, or list the argument's position in "
        "static_broadcasted_argnums",
    )


def _wrong_rank(argument: Argument, shape: tuple[int, ...]) -> Problem:
    is_keyword = argument.axis_path == "keyword arguments"
    at = "mapped over dimension 0" if is_keyword else f"with {argument.axis_path}={argument.axis}"
    return Problem(
        f"{argument.path} {at}",
        f"an array of rank {len(shape)}, shape {shape}",
        f"an array with a dimension {argument.axis}, which has one entry for each device",
        "pass it by position, with in_axes None, to give all devices the whole"
        if is_keyword
        else "add the dimension, or give in_axes None for it: then all devices get the whole",
    )


def _place(argument: Argument, axis: int, shape: tuple[int, ...]) -> str:
    return f"{argument.path} (dimension {axis} of shape {shape})"


def _different_sizes(sizes: dict[int, list[str]]) -> Problem:
    def listed(places: list[str]) -> str:
        more = len(places) - _MOST_LISTED
        return ", ".join(places[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")

    return Problem(
        "the number of rows, one for each device",
        "; ".join(f"{count} in {listed(places)}" for count, places in sizes.items()),
        "the same number in all arguments that are mapped, and as axis_size if it is given",
        "pass arrays with equally many rows; in_axes None is for arguments that all devices get "
        "whole",
    )


def _no_rows(places: list[str]) -> Problem:
    return Problem(
        "the number of rows, one for each device",
        f"0 in {places[0]}",
        "at least one row",
        "pass an array with rows, or map another dimension with in_axes",
    )


def _nothing_mapped(arguments: Sequence[Argument]) -> Problem:
    return Problem(
        "the arguments",
        "no array with a mapped dimension"
        + (": in_axes is None for all of them" if arguments else ""),
        "at least one, whose size is the number of devices; or axis_size",
        f"write pmap(f, ..., axis_size={jax.local_device_count()})",
    )


def _axes_and_keywords(kwargs: dict[str, PyTree]) -> Problem:
    names = ", ".join(map(repr, kwargs))
    return Problem(
        "in_axes against args",
        f"keyword arguments {names}",
        "positional arguments for in_axes: each argument passed by keyword is mapped over "
        "dimension 0",
        "pass them by position, or leave them out of in_axes",
    )
