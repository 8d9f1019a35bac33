"""Mutable references (`jax.new_ref`) are not supported: refused in the user's terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from shmap_compiler._compat import is_jaxpr, is_ref, is_ref_effect
from shmap_compiler.errors import BodyError, Problem, SpecError
from shmap_compiler.graph import Graph, equations
from shmap_compiler.inputs import Input
from shmap_compiler.misuse import source_line


def refuse_arguments(who: str, inputs: Sequence[Input]) -> None:
    """Raises SpecError for arguments that are references."""
    problems = [
        Problem(
            i.path,
            f"a mutable reference, {i.type}",
            "an array: a reference cannot be split over devices",
            "pass its value, ref[...], and write the result back outside",
        )
        for i in inputs
        if is_ref(i.type)
    ]
    if problems:
        raise SpecError(who, problems)


def refuse_in_body(who: str, graph: Graph) -> None:
    """Raises BodyError if the program makes, reads or writes references."""
    if not any(map(is_ref_effect, graph.jaxpr.effects)):
        return
    eqn = next(
        e
        for e in equations(graph.jaxpr)
        if any(map(is_ref_effect, e.effects)) and not any(map(is_jaxpr, e.params.values()))
    )
    raise _refusal(who, eqn.primitive, source_line(eqn))


def refuse_results(who: str, primitive: Any, place: str, results: Sequence[Any]) -> None:
    """Raises BodyError if a primitive, applied at `place`, has made references."""
    if any(is_ref(jax.typeof(r)) for r in results):
        raise _refusal(who, primitive, place)


def _refusal(who: str, primitive: Any, place: str) -> BodyError:
    problem = Problem(
        f"{primitive} at {place}",
        "a mutable reference",
        "a body of arrays",
        "carry the value through the loop, or update it with x.at[...].set(...)",
    )
    return BodyError(who, [problem])
