"""Compares a generated source, the simulation of its module, and the jitted program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from shmap_compiler.base.errors import Problem, SimulationError
from shmap_compiler.base.random_keys import as_data
from shmap_compiler.base.untyped import AnyValue, Function, PyTree
from shmap_compiler.base.values import copied
from shmap_compiler.frontend.shard_mapped import ShardMapped
from shmap_compiler.simulate import agreement
from shmap_compiler.simulate.rounding import with_rounding
from shmap_compiler.simulate.simulate_module import simulate_module
from shmap_compiler.unjit.first_difference import first_difference
from shmap_compiler.unjit.gradients import differing_gradients
from shmap_compiler.unjit.random_arguments import filled
from shmap_compiler.unjit.rounding import coarsest, is_explained
from shmap_compiler.unjit.source import Source

_OF_XLA, _OF_ANOTHER_LIBRARY = 64, 1024
"""How many roundings apart results are that are computed by XLA twice, or differently each time."""


@dataclass(frozen=True)
class UnjitValidation:
    """How a generated source compares with its jitted program. Its text is a few lines.

    Attributes:
      who: The program.
      source: The largest difference between the results of the source and of the program, in units
        of the largest magnitude of a result.
      simulation: The same of the simulated module; None if it cannot be simulated.
      not_simulated: Why it cannot; "" if it was.
      difference: What differs by more than rounding; "" if nothing does.
      rounding: The first result of the simulation that is further off than those of most programs,
        but about as far as rounded arguments change the program's, while the source is bitwise
        equal; "" if none is.
      gradients: How the gradients of the source differ from those of the program because it has
        derivative rules, which are not compiled, or functions that are expanded; "" if they do not
        differ.
      rules: The lines with these rules and functions; none if gradients do not differ.

    Examples:
      >>> f = jax.jit(jnp.sin, in_shardings=NamedSharding(mesh, P("i")))
      >>> validation = unjit(f, x).validate()
      >>> validation.holds, validation.source
      (True, 0.0)
    """

    who: str
    source: float
    simulation: float | None
    not_simulated: str
    difference: str
    rounding: str = ""
    gradients: str = ""
    rules: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether nothing differs by more than rounding."""
        return not self.difference

    def problem(self) -> Problem:
        """What differs, as an error reports it."""
        return Problem(
            "the generated source",
            self.difference,
            "results equal to those of the jitted program, up to rounding",
            "report it with the program: nothing is shown that does not compute the same",
        )

    def __str__(self) -> str:
        if self.simulation is None:
            simulated = f"not simulated: {self.not_simulated}"
        elif self.rounding:
            simulated = (
                f"the simulated module: {self.simulation:.1e} apart, first in {self.rounding}, "
                "about as far as rounded arguments change the results"
            )
        else:
            simulated = f"the simulated module: {_shown(self.simulation)}"
        lines = [
            f"{self.who}, compared with the jitted program",
            f"  the source: {_shown(self.source)}",
            f"  {simulated}",
        ]
        if self.gradients:
            lines += [f"  its gradients {self.gradients}: it lacks the derivative rules of"]
            lines += [f"    {rule}" for rule in self.rules]
        passed = "PASS: values agree; gradients differ" if self.gradients else "PASS"
        return "\n".join([*lines, f"FAIL: {self.difference}" if self.difference else passed])


def _shown(relative: float) -> str:
    return "bitwise equal" if relative == 0 else f"equal up to rounding, {relative:.1e}"


def validate(
    *,
    who: str,
    jitted: Function,
    rules: tuple[str, ...],
    compiled: jax.stages.Compiled,
    body: str,
    source: Source,
    mapped: ShardMapped[..., PyTree],
    kept: Sequence[int],
    mesh: jax.sharding.Mesh,
    args: Sequence[PyTree],
    given: Callable[[Sequence[PyTree]], list[AnyValue]],
) -> UnjitValidation:
    """Runs all three, and compares gradients if there are `rules` that may be lacking."""
    inputs: Any = compiled.input_shardings
    full = filled(args, inputs[0])

    def run(*args: PyTree) -> list[np.ndarray]:
        # Of what is donated the program gets copies: the user's arrays stay, and are read again.
        own = jax.tree.map(copied, args) if compiled.donate_argnums else args
        return _numbers(compiled(*own))

    expected = run(*full)
    arrays = jax.tree.leaves(given(full))

    def compared(results: Sequence[np.ndarray], roundings: int) -> list[agreement.Agreement]:
        found = _of_equal_types(agreement.compare(list(results), expected), results, expected)
        if all(each.holds for each in found) or len(found) != len(expected):
            return found
        return with_rounding(found, run, full, expected, roundings)

    source_program = jax.jit(mapped)

    def run_source(*args: PyTree) -> list[np.ndarray]:
        return _numbers(source_program(*given(args)))

    simulated, why, difference, rounding = None, "", "", ""
    try:
        simulation = simulate_module(body, [np.asarray(arrays[k]) for k in kept], who=who)
    except SimulationError as error:
        why = error.problems[0].found
    else:
        if simulation.hang is not None:
            difference = f"the simulated module deadlocks\n{simulation.hang}"
        else:
            found = compared(simulation.arrays, _OF_ANOTHER_LIBRARY)
            simulated = max((each.relative for each in found), default=0.0)
            wrong = next((each for each in found if not each.holds), None)
            if wrong is not None:
                if is_explained(found, run, run_source, full, expected, body):
                    rounding = wrong.path
                else:
                    difference = f"{wrong.path} of the simulated module, {_how_far(wrong)}"
    found = compared(run_source(*full), _OF_XLA)
    ours = max((each.relative for each in found), default=0.0)
    wrong = next((each for each in found if not each.holds), None)
    if wrong is not None:
        where = first_difference(body, source, mapped, mesh, given(full), kept)
        difference = f"{wrong.path} of the source, {_how_far(wrong)}; {where}"
    gradients = ""
    if rules and not difference:
        gradients = differing_gradients(
            jitted, lambda *args: mapped(*given(args)), full, coarsest(body)
        )
    shown = rules if gradients else ()
    return UnjitValidation(who, ours, simulated, why, difference, rounding, gradients, shown)


def _of_equal_types(
    found: list[agreement.Agreement], results: Sequence[np.ndarray], expected: Sequence[np.ndarray]
) -> list[agreement.Agreement]:
    """The comparisons, in which results of other types do not agree."""
    if len(results) != len(expected):
        return found
    return [
        each if ours.dtype == theirs.dtype else replace(each, problem=f"of type {ours.dtype}")
        for each, ours, theirs in zip(found, results, expected, strict=True)
    ]


def _how_far(wrong: agreement.Agreement) -> str:
    return wrong.problem or f"by {wrong.relative:.1e}"


def _numbers(results: PyTree) -> list[np.ndarray]:
    jax.block_until_ready(results)
    return [np.asarray(as_data(leaf)) for leaf in jax.tree.leaves(results)]
