"""Mutable references (`jax.new_ref`) as arguments, and as values that a function closes over.

A Graph has no references: it takes the value that each holds, and returns the last values of those
that the function writes. They are read and written here, around the program, by JAX's own
operations; so under `jit` their memory is updated in place, and derivatives and vmap are JAX's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import jax

from shmap_compiler.base.errors import Problem, SpecError
from shmap_compiler.base.jax_compat import is_ref, replace_jaxpr
from shmap_compiler.base.untyped import AnyValue
from shmap_compiler.graph.graph import Graph


def is_reference(x: object) -> bool:
    """Whether an argument or a constant is a mutable reference."""
    try:
        return is_ref(jax.typeof(x))
    except TypeError:
        return False


def apply(
    run: Callable[..., Sequence[AnyValue]], operands: Sequence[AnyValue], written: Sequence[int]
) -> Sequence[AnyValue]:
    """The results of `run` on the operands, where references stand for their values.

    Args:
      run: a function of values. Its last results are new values of the operands in `written`.
    """
    results = run(*[x[...] if is_reference(x) else x for x in operands])
    count = len(results) - len(written)
    for position, value in zip(written, results[count:], strict=True):
        operands[position][...] = value
    return results[:count]


def refuse_aliases(who: str, named: Sequence[tuple[str, AnyValue]]) -> None:
    """Raises SpecError if a reference comes twice.

    Args:
      named: the references, as the user names them.
    """
    first: dict[int, str] = {}
    problems = []
    for name, ref in named:
        other = first.setdefault(id(ref), name)
        if other is not name:
            problems.append(
                Problem(
                    name,
                    f"the same mutable reference as {other}",
                    "each reference once: a write to one would not be seen through the other",
                    "pass it once, or pass its value, ref[...]",
                )
            )
    if problems:
        raise SpecError(who, problems)


def refuse_lowered(who: str, paths: Sequence[str]) -> None:
    """Raises SpecError for references in a program that is lowered by itself."""
    problems = [
        Problem(
            path,
            "a mutable reference",
            "an array: an executable takes and returns arrays",
            "lower the call with jax.jit(f).lower(...), or pass the value, ref[...]",
        )
        for path in paths
    ]
    raise SpecError(who, problems)


def without_unwritten(graph: Graph, first: int, inputs: Sequence[int]) -> tuple[Graph, list[int]]:
    """(the graph without last values that are the first ones, the inputs that are written).

    Args:
      first: the first output that is the last value of a reference.
      inputs: the inputs that hold the first values.
    """
    jaxpr = graph.jaxpr.jaxpr
    unwritten = {
        first + k for k, i in enumerate(inputs) if jaxpr.outvars[first + k] is jaxpr.invars[i]
    }
    written = [i for k, i in enumerate(inputs) if first + k not in unwritten]
    if not unwritten:
        return graph, written

    kept = [k for k in range(len(jaxpr.outvars)) if k not in unwritten]
    return (
        replace(
            graph,
            jaxpr=replace_jaxpr(
                graph.jaxpr,
                outvars=[jaxpr.outvars[k] for k in kept],
                debug_info=jaxpr.debug_info.with_unknown_names(),
            ),
            out_specs=tuple(graph.out_specs[k] for k in kept),
        ),
        written,
    )
