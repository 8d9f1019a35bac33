"""The arguments of a user's function as those of its module."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from shmap_compiler.base.descriptions import show_value
from shmap_compiler.base.errors import Problem, SimulationError
from shmap_compiler.base.untyped import AnyValue
from shmap_compiler.base.values import is_compared_by_identity, is_same_value
from shmap_compiler.graph.structural_keys import is_same_tree
from shmap_compiler.records.signature import Signature
from shmap_compiler.simulate.simulate_module import simulate_module
from shmap_compiler.simulate.simulation import Simulation


def simulate(signature: Signature, text: str, args: Sequence[AnyValue]) -> Simulation:
    """Simulates a module of a program on the arguments of the user's function.

    Raises:
      SimulationError: they are not those of the program, or it cannot be simulated.
    """
    inputs = flat_inputs(signature, args)
    axes = dict(signature.mesh.shape)
    tree = signature.out_tree
    return simulate_module(text, inputs, axes=axes, who=signature.who, out_tree=tree)


def flat_inputs(signature: Signature, args: Sequence[AnyValue]) -> list[AnyValue]:
    """The inputs of a program: what the function closed over, then its arguments.

    Raises:
      SimulationError: the arguments have another structure.
    """
    leaves, tree = jax.tree.flatten(tuple(args))
    if not is_same_tree(tree, signature.in_tree):
        problem = Problem(
            "args",
            f"arguments with the structure {tree}",
            f"{signature.in_tree}, for which the program was lowered",
            "pass the arguments given to lower(), or lower again",
        )
        raise SimulationError(signature.who, [problem])
    problems = [
        Problem(path, show_value(leaves[position]), _needed(value), "lower again")
        for position, path, value in signature.static
        if not is_same_value(leaves[position], value)
    ]
    if problems:
        raise SimulationError(signature.who, problems)
    return [*signature.constants, *signature.select(leaves)]


def _needed(value: object) -> str:
    kind = "same object" if is_compared_by_identity(value) else "value"
    return f"{show_value(value)}, the {kind} for which the program was lowered"
