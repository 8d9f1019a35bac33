"""Rejects backward rules that combine, over devices, cotangents that are already whole.

Where the result of a `custom_vjp` function does not vary along an axis, all devices along it have
the same cotangent, the sum of all their shares. A rule written for shares, which sums them itself,
multiplies such a cotangent by the number of devices. JAX rejects some of these rules, by the types
that they return, and calls others.

A sum divided by the number of devices is a mean of equal values, which equals each of them: it is
rejected only where JAX's types reject what the rule returns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from jax.extend import core as jex_core

from shmap_compiler import collectives as coll
from shmap_compiler.base.descriptions import show_names
from shmap_compiler.base.errors import BodyError, Problem
from shmap_compiler.base.meshes import Axes
from shmap_compiler.base.source_lines import shown_source
from shmap_compiler.base.untyped import Atom, Eqn
from shmap_compiler.replication.frames import Replication
from shmap_compiler.transforms.backward_rules import BackwardRule, is_transposed

_COMBINES = {r.primitive for r in coll.RECORDS if r.combines is not coll.Combines.NOTHING}
"""Collectives with which a rule may combine the values of several devices."""

_SUMS = {r.primitive for r in coll.RECORDS if r.combines is coll.Combines.SUM}


def refuse_sums_of_whole(rule: BackwardRule, cotangents: Sequence[Axes]) -> None:
    """Raises BodyError for each collective of `rule` that combines whole cotangents.

    Args:
      cotangents: for each result of the function, the axes along which its cotangent is a share of
        each device's own.
    """
    if not any(eqn.primitive in _COMBINES for eqn in rule.equations()):
        return
    types = rule.types(cotangents)
    problems = list(_problems(rule, types))
    if problems:
        raise BodyError(f"`{rule.graph.name}`", problems)


def _problems(rule: BackwardRule, types: Replication) -> Iterator[Problem]:
    sizes = rule.graph.mesh.shape
    refused = _refused_by_types(rule, types)
    for eqn in rule.equations():
        if eqn.primitive not in _COMBINES or not rule.depends_on_cotangents(eqn.invars[0]):
            continue
        if rule.has_types and is_transposed(eqn):  # sums what a cast made each device's own
            continue
        whole = {a for a in eqn.params["axes"] if sizes[a] > 1} - types.of(eqn.invars[0])
        if not whole:
            continue
        uncorrected = eqn.primitive in _SUMS and not _divides(rule, eqn.params["size"])
        if uncorrected or whole & refused:
            yield _problem(rule, eqn, sorted(whole))


def _refused_by_types(rule: BackwardRule, types: Replication) -> Axes:
    """The axes along which either a returned cotangent or its operand varies, but not both."""
    axes: Axes = frozenset()
    for operand, returned in zip(rule.operands or (), rule.returns, strict=True):
        if rule.depends_on_cotangents(returned):
            axes |= operand ^ types.of(returned)
    return axes


def _divides(rule: BackwardRule, devices: int) -> bool:
    """Whether a rule divides a cotangent by the number of devices."""
    return any(
        eqn.primitive.name in ("div", "mul")
        and rule.depends_on_cotangents(eqn.outvars[0])
        and any(_is_number(v, eqn.primitive.name, devices) for v in eqn.invars)
        for eqn in rule.equations()
    )


def _is_number(atom: Atom, operation: str, devices: int) -> bool:
    if not isinstance(atom, jex_core.Literal) or np.ndim(atom.val):
        return False
    wanted = devices if operation == "div" else 1 / devices
    return math.isclose(abs(complex(atom.val)), wanted, rel_tol=1e-2)


def _problem(rule: BackwardRule, eqn: Eqn, whole: Sequence[str]) -> Problem:
    name = eqn.primitive.name
    axes = ", ".join(map(repr, whole))
    devices = math.prod(rule.graph.mesh.shape[a] for a in whole)
    function = shown_source(rule.eqn.source_info)
    return Problem(
        f"{name} over {axes} at {rule.line(eqn)}, in the backward rule of the custom_vjp"
        f" function called at {function}",
        f"a cotangent that is equal on all {devices} devices along {axes}, as is the result of the"
        f" function: a sum over them is {devices} times the cotangent",
        "a rule that uses the cotangent of such a result unchanged: the devices' shares are summed"
        " before the rule is called",
        f"drop this {name}; or make the cotangent a share of each device's own: let the function"
        f" and its forward rule return jax.lax.pcast(result, {show_names(whole)}, to='varying')",
    )
