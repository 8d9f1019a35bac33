"""Rules for vmap of the user's, which JAX calls when it vmaps the placed program.

A rule knows nothing of the names that the placed program has instead of logical axes, so it is
traced with the logical names in scope and placed. And it cannot compute a collective over the axis
whose positions it is given: over an axis that the function itself names, the function is vmapped as
if it had no rule.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.custom_batching  # registers the rule that is wrapped below
from jax.interpreters import batching

from shmap_compiler.base.errors import BodyError, Problem
from shmap_compiler.base.jax_compat import constants_to_inputs, trace_in_scope
from shmap_compiler.base.source_lines import source_line
from shmap_compiler.base.untyped import AnyValue, AxisName, Eqn, Function, Jaxpr
from shmap_compiler.collectives import function_of_lax, vmapped_axes
from shmap_compiler.collectives.jax_params import named_axes
from shmap_compiler.graph.nested_graphs import all_equations
from shmap_compiler.jaxprs.held_programs import CUSTOM_VMAP
from shmap_compiler.xmap.late_rules import RuleScope, Vmapped


class PlacedRule:
    """The rule of a `custom_vmap` function in a placed program, where it has the place of `rule`.

    Attributes:
      rule: JAX's, from the size of a batch, which arguments are batched, and the arguments, to the
        results and which of them are batched.
      scope: where it is traced, and how it is placed.
    """

    def __init__(self, rule: Function, scope: RuleScope) -> None:
        functools.update_wrapper(self, rule, updated=())
        self.rule, self.scope = rule, scope

    def __call__(
        self, size: int, is_batched: AnyValue, *args: AnyValue, over: AxisName | None = None
    ) -> tuple[AnyValue, AnyValue]:
        """
        Args:
          over: the vmapped axis.
        """
        leaves, tree = jax.tree.flatten(args)
        found: list[Any] = []

        def fun(*leaves: AnyValue) -> Sequence[AnyValue]:
            results, are_batched = self.rule(size, is_batched, *jax.tree.unflatten(tree, leaves))
            flat, out_tree = jax.tree.flatten(results)
            found[:] = [out_tree, are_batched]
            return flat

        with vmapped_axes.body(self.scope.who):
            traced = trace_in_scope(fun, self.scope.logical, [jax.typeof(x) for x in leaves])
            named, constants = constants_to_inputs(traced)
            if over is not None:
                self._check(named, over)
            results = self.scope.run(named, [*constants, *leaves])
        out_tree, are_batched = found
        return jax.tree.unflatten(out_tree, results), are_batched

    def _check(self, named: Jaxpr, over: AxisName) -> None:
        for axis in (name for name, p in self.scope.placements.items() if p.vmapped == over):
            for eqn in naming(named):
                if axis in named_axes(eqn.params):
                    raise BodyError(self.scope.who, [_named_by_its_rule(eqn, axis)])


def _named_by_its_rule(eqn: Eqn, axis: str) -> Problem:
    return Problem(
        f"{function_of_lax(eqn.primitive.name)} over {axis!r} at {source_line(eqn)}",
        f"a rule for vmap that names axis {axis!r}, whose positions it is given as a batch",
        f"a collective over {axis!r} in the custom_vmap function itself, or none",
        f"let the function name {axis!r}: over this axis it is then vmapped without its rule",
    )


def _batch(ordinary, axis, args, dims, *, call, rule, **params):
    if isinstance(rule, PlacedRule):
        if names_axis(call, axis.name):
            vmapped = Vmapped(call, axis, dims)
            return vmapped(*args), vmapped.dims
        if any(d is not None for d in dims):
            rule = functools.partial(rule, over=axis.name)
    return ordinary(axis, args, dims, call=call, rule=rule, **params)


def names_axis(program: Jaxpr, axis: AxisName) -> bool:
    """Whether a program, or one nested in it, contains a collective over an axis."""
    return any(axis in named_axes(eqn.params) for eqn in naming(program))


def naming(program: Jaxpr) -> Iterator[Eqn]:
    """The equations of a program, and of those nested in it, that name axes or dimensions."""
    return (e for e in all_equations(program) if "axes" in e.params or "axis_name" in e.params)


def _register() -> None:
    for primitive, ordinary in list(batching.fancy_primitive_batchers.items()):
        if primitive.name == CUSTOM_VMAP:
            batching.fancy_primitive_batchers[primitive] = functools.partial(_batch, ordinary)


_register()
