"""Mistakes that can be made with each front end."""

from __future__ import annotations

from collections.abc import Iterable

from shmap_compiler.base.descriptions import show_value
from shmap_compiler.base.errors import Problem, TypeProblem
from shmap_compiler.base.untyped import Function


def not_a_function(fun: Function, needed: str, example: str) -> Problem:
    """The problem that a front end got something that cannot be called.

    Args:
      fun: what it got.
      needed: what it maps, as in "a function of one device's blocks".
      example: a correct call, which begins with the name of the front end.
    """
    front_end = example.partition("(")[0]
    return TypeProblem(
        f"the first argument of {front_end}",
        show_value(fun),
        needed,
        f"pass the function itself: {example}",
    )


def keyword_arguments(names: Iterable[str], axes: str) -> Problem:
    """The problem of a call by keyword where `axes` (in_specs or in_axes) describes a tuple."""
    return Problem(
        "the arguments",
        f"keyword arguments: {', '.join(names)}",
        f"positional arguments only, as {axes} describes a tuple of arguments",
        "pass the arguments by position",
    )


def not_positions(where: str, given: object) -> Problem:
    """The problem of a `donate_argnums`, or the like, that does not list positions of arguments."""
    return TypeProblem(
        where,
        show_value(given),
        "a position of an argument, or a sequence of them",
        f"write {where}=0 for the first argument, or omit it",
    )
