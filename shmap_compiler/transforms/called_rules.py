"""The types of cotangents where a linear program calls a backward rule of the user's.

A rule takes and returns cotangents as the types of its function say (`backward_rules`). If it
returns shares of what should be whole, they are summed. Where not all devices call it, what each
device passes and gets is its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from shmap_compiler import collectives as coll
from shmap_compiler.base.errors import BodyError, Problem
from shmap_compiler.base.meshes import Axes
from shmap_compiler.base.source_lines import shown_source
from shmap_compiler.base.untyped import Eqn
from shmap_compiler.tracing.vma_typing import REFUSALS, refused_by_types
from shmap_compiler.transforms.backward_rules import BackwardRule
from shmap_compiler.transforms.promotion import NONE, GraphAxes, Promoter, Value
from shmap_compiler.transforms.whole_cotangents import refuse_sums_of_whole


def put_rule(program: Promoter, eqn: Eqn, operands: Sequence[Value]) -> None:
    """Adds the call of a backward rule to a program.

    Raises:
      BodyError: the rule sums over devices both by itself and through a transposed psum, or sums
        cotangents that are whole.
    """
    rule = BackwardRule(program.axes.graph, eqn)
    if rule.operands is not None and (
        rule.asks_types or rule.fails_without_types or rule.uses_derivatives
    ):
        rule = _with_types(rule)
        eqn = rule.eqn
    count = eqn.params["num_res"]
    residuals = [v.axes for v in operands[:count]]
    if rule.operands is None or rule.results is None:
        _refuse_unknown_types(rule)
        _put_rule_of_shares(program, eqn, operands, rule, residuals)
        return
    if rule.sums_shares:
        if summed := rule.sums_whole() & NONE.union(*rule.results):
            where = shown_source(eqn.source_info)
            raise BodyError(f"`{program.axes.graph.name}`", [_sums_in_two_ways(where, summed)])
        _put_rule_of_shares(program, eqn, operands, rule, residuals)
        return
    results = [axes | program.control for axes in rule.results]
    refuse_sums_of_whole(rule, results)
    returned = rule.returned(rule.residuals_inside(residuals), results)
    differentiated = [
        program.of_type(v, own | found | program.control, eqn)
        for v, own, found in zip(eqn.invars[count:], rule.operands, returned, strict=True)
    ]
    program.put(eqn.replace(invars=[*eqn.invars[:count], *differentiated]))
    program.define(eqn.outvars, [Value(True, axes) for axes in results])


def _with_types(rule: BackwardRule) -> BackwardRule:
    """A rule that queries JAX's types, or computes with derivatives, whose meaning they determine.

    Where all that may be differentiated is each device's own, they mean the same without types. One
    that only queries is traced without types if they reject it, as a body is.
    """
    try:
        return rule.with_types()
    except REFUSALS as error:
        if rule.fails_without_types:  # a mistake of the user's, with types and without
            raise
        if rule.is_of_own_values or not rule.uses_derivatives:
            return rule
        where = shown_source(rule.eqn.source_info)
        problem = dataclasses.replace(
            refused_by_types(error, _IN_RULE),
            where="a derivative taken in the backward rule of the custom_vjp function called at "
            f"{where}",
        )
        raise BodyError(f"`{rule.graph.name}`", [problem]) from error


_IN_RULE = (
    "differentiate only values that are each device's own, as jax.lax.pcast(x, axes, to='varying') "
    "returns them, and sum the gradients with jax.lax.psum; or write the derivative by hand"
)


def _refuse_unknown_types(rule: BackwardRule) -> None:
    """Rejects a rule that depends on the types of its function, which are unknown."""
    where = shown_source(rule.eqn.source_info)
    communicates = any(e.primitive in coll.COLLECTIVES for e in rule.equations())
    if communicates or rule.uses_derivatives:
        raise BodyError(f"`{rule.graph.name}`", [_unknown_types(where)])


def _unknown_types(where: str) -> Problem:
    return Problem(
        f"the custom_vjp function called at {where}, in a derivative rule",
        "a call of which JAX's types are not known, and a backward rule that combines values of "
        "several devices",
        "a call in the function itself, or in a rule that JAX's varying-type checks accept",
        "call the function outside of the rule; or write the derivative by hand",
    )


def _put_rule_of_shares(
    program: Promoter,
    eqn: Eqn,
    operands: Sequence[Value],
    rule: BackwardRule,
    residuals: list[Axes],
) -> None:
    """Adds a rule that takes and returns shares.

    It returns shares along the axes of its operands, and along those it adds itself. It takes
    shares where results vary: devices that have different results have different cotangents of
    them, which must not be summed.
    """
    axes = NONE.union(*(v.axes for v in operands), *_result_axes(program.axes, rule))
    results = len(eqn.outvars)
    while not (found := NONE.union(*rule.returned(residuals, [axes] * results))) <= axes:
        axes |= found
    program.join_types(eqn, axes)


def _result_axes(axes: GraphAxes, rule: BackwardRule) -> list[Axes]:
    """The axes along which results may vary."""
    if rule.results is not None:
        return rule.results
    return [axes.over(eqn) for eqn in rule.equations() if eqn.primitive in coll.COLLECTIVES]


def _sums_in_two_ways(where: str, summed: Axes) -> Problem:
    axes = ", ".join(map(repr, sorted(summed)))
    return Problem(
        f"the backward rule of the custom_vjp function called at {where}",
        f"psum of a cotangent over {axes}, and a derivative by jax.vjp of a function with psum",
        "a rule in which either jax.vjp or the rule itself sums over devices",
        "remove the psum from the function that jax.vjp differentiates, or write its derivative "
        "by hand",
    )
