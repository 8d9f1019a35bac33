"""Splits programs that hold `jax.checkpoint` regions, each region under its own policy.

A derivative saves every value that its tangents need. Inside a region it saves only what the
region's policy allows, and recomputes the rest: the staged half of a region is a region itself,
whose operands are the residuals and the inputs. JAX lowers it behind an optimization barrier, so
that XLA does not merge the recomputation with the first computation.

Before:  y, dy = checkpoint[policy, program](x, dx)
Known:   y, residuals = the known equations of program, inlined
Staged:  dy = checkpoint[policy, differentiated, what dy needs](residuals, x, dx)

JAX's rules for loops, branches and calls apply one policy to everything inside them. During a split
for a derivative, each region is therefore replaced by a primitive with a rule of its own, at any
depth.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core as jex_core
from jax.interpreters import partial_eval as pe

from shmap_compiler.base.jax_compat import close_jaxpr, open_jaxpr, replace_jaxpr
from shmap_compiler.base.untyped import AnyValue, Atom, DType, Eqn, Function, Jaxpr, Parameter
from shmap_compiler.graph.graph import Graph
from shmap_compiler.jaxprs.building import is_dropped, where
from shmap_compiler.jaxprs.contents import names_any
from shmap_compiler.jaxprs.held_programs import REGIONS, RULE_FOLLOWING
from shmap_compiler.jaxprs.rewriting import (
    Names,
    Rewriter,
    copy_equations,
    named,
    without_constants,
)
from shmap_compiler.transforms.branch_axes import UNKNOWN_AXES, AxesOfProgram, BranchAxes
from shmap_compiler.transforms.branches import cond_p
from shmap_compiler.transforms.loops import carried_p, scan_p
from shmap_compiler.transforms.split import Split, save_everything, split

_region_p = jex_core.Primitive("checkpoint_region")
"""Stands for the `jax.checkpoint` equation that is its parameter `eqn`. Its parameter `marking`
replaces the branches in the program of the region."""
_region_p.multiple_results = True
_region_p.def_effectful_abstract_eval(
    lambda *_, eqn, marking: ([v.aval for v in eqn.outvars], eqn.effects)
)


def split_for_derivative(graph: Graph, unknown_in: Sequence[bool]) -> Split:
    """Splits a program into one of values and one of tangents.

    Args:
      unknown_in: which inputs are tangents.
    """
    return split_program(graph, unknown_in, unknown_in, save_everything)


def split_program(
    graph: Graph,
    unknown_in: Sequence[bool],
    instantiated_in: Sequence[bool],
    saveable: Function,
) -> Split:
    """Splits a program under a policy. If that saves everything, regions use their own policies.

    See `split`.
    """
    axes = UNKNOWN_AXES
    if names_any(graph.jaxpr, ("cond",)):
        axes = AxesOfProgram(graph.region, graph.replication)
    with jax.sharding.use_abstract_mesh(graph.body_mesh):  # this may be inside another body
        return _split_marked(graph.jaxpr, unknown_in, instantiated_in, saveable, axes)


def split_in_scope(closed: Jaxpr, unknown_in: Sequence[bool], axes: BranchAxes) -> Split:
    """Like `split_for_derivative`, with the mesh that is in scope.

    Args:
      axes: of the branches of the program.
    """
    return _split_marked(closed, unknown_in, unknown_in, save_everything, axes)


def _split_marked(
    closed: Jaxpr,
    unknown_in: Sequence[bool],
    instantiated_in: Sequence[bool],
    saveable: Function,
    axes: BranchAxes,
) -> Split:
    if not names_any(closed, ("cond", "scan", *REGIONS)):
        return split(closed, unknown_in, instantiated_in, saveable)
    marking = axes.rewriter(_Marking if saveable is save_everything else _MarkingBranches)
    parts = split(marking.jaxpr(closed), unknown_in, instantiated_in, saveable)
    restore = _RESTORING.jaxpr
    return dataclasses.replace(parts, known=restore(parts.known), staged=restore(parts.staged))


def _split_region(
    _: AnyValue, unknown_in: Sequence[bool], instantiated_in: Sequence[bool], eqn: Eqn
):
    """The rule of a region for partial evaluation, which asks the region's policy."""
    if not any(unknown_in):
        return eqn, None, [False] * len(eqn.outvars), [False] * len(eqn.outvars), []
    region = eqn.params["eqn"]
    policy = region.params["policy"] or jax.checkpoint_policies.nothing_saveable
    program = eqn.params["marking"].jaxpr(close_jaxpr(region.params["jaxpr"]))
    everywhere = [True] * len(eqn.invars)
    parts = split(program, unknown_in, everywhere, policy).with_unknown_outputs_only()
    unknown_out = parts.unknown_out
    results = len(unknown_out) - sum(unknown_out)

    # What the staged half needs, and what the known half must compute for it.
    staged, used = pe.dce_jaxpr(open_jaxpr(parts.staged), [True] * sum(unknown_out))
    used_residuals, used_in = used[: -len(eqn.invars)], used[-len(eqn.invars) :]
    known, used_known = pe.dce_jaxpr(open_jaxpr(parts.known), [True] * results + used_residuals)
    known = _rounded(known, known.outvars[results:])

    # A residual that is a result is not returned twice.
    known_outvars = [_undropped(v) for v, u in zip(eqn.outvars, unknown_out, strict=True) if not u]
    place = {
        inner: outer
        for inner, outer in zip(known.outvars, known_outvars, strict=False)
        if isinstance(inner, jex_core.Var)
    }
    new = [v for v in known.outvars[results:] if v not in place]
    place.update({v: jex_core.Var(v.aval) for v in new})
    residuals = [place[v] for v in known.outvars[results:]]
    known = replace_jaxpr(known, outvars=[*known.outvars[:results], *new])

    known_in = [v for v, u in zip(eqn.invars, unknown_in, strict=True) if not u]
    known_eqn = jex_core.new_jaxpr_eqn(
        list(where(used_known, known_in)),
        [*known_outvars, *[place[v] for v in new]],
        jex_core.primitives.closed_call_p,
        {"call_jaxpr": close_jaxpr(known)},
        known.effects,
        region.source_info,
        region.ctx,
    )
    staged_eqn = region.replace(
        params=_staged_parameters(region.params, staged, len(residuals), used_in),
        invars=[*residuals, *where(used_in, eqn.invars)],
        outvars=list(where(unknown_out, eqn.outvars)),
        effects=staged.effects,
    )
    missing = [
        v
        for v, used, there in zip(eqn.invars, used_in, instantiated_in, strict=True)
        if used and not there and isinstance(v, jex_core.Var)
    ]
    return known_eqn, staged_eqn, unknown_out, unknown_out, [*missing, *residuals]


pe.partial_eval_jaxpr_custom_rules[_region_p] = _split_region


def _staged_parameters(
    params: dict[str, Parameter], staged: Jaxpr, residuals: int, used_in: Sequence[bool]
) -> dict[str, Parameter]:
    barriers = params["prevent_cse"]
    if isinstance(barriers, tuple):  # one for each operand
        barriers = (True,) * residuals + where(used_in, barriers)
    return {**params, "jaxpr": staged, "prevent_cse": barriers, "differentiated": True}


def _undropped(var: Atom) -> Atom:
    return jex_core.Var(var.aval) if is_dropped(var) else var


def _rounded(jaxpr: Jaxpr, residuals: Sequence[Atom]) -> Jaxpr:
    """The program with residuals of 16 bits and less rounded where it also uses them itself.

    XLA may compute with more precision than the types have, but stored values are rounded: values
    that the program computes from a residual would differ from the recomputed ones.
    """
    used = {v for eqn in jaxpr.eqns for v in eqn.invars if isinstance(v, jex_core.Var)}
    narrow = {v for v in residuals if v in used and _is_narrow(v.aval.dtype)}
    eqns = []
    for eqn in jaxpr.eqns:
        exact = {v: jex_core.Var(v.aval) for v in eqn.outvars if v in narrow}
        eqns.append(eqn.replace(outvars=[exact.get(v, v) for v in eqn.outvars]) if exact else eqn)
        eqns += [_round(x, v, eqn) for v, x in exact.items()]
    return replace_jaxpr(jaxpr, eqns=eqns)


def _is_narrow(dtype: DType) -> bool:
    return jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32


def _round(x: Atom, out: Atom, near: Eqn) -> Eqn:
    info = jnp.finfo(x.aval.dtype)
    params = {"exponent_bits": info.nexp, "mantissa_bits": info.nmant}
    primitive = lax.reduce_precision_p
    return jex_core.new_jaxpr_eqn([x], [out], primitive, params, set(), near.source_info, near.ctx)


# --------------------------------------------------------------------------- regions, marked


class _MarkingBranches(Rewriter):
    """Replaces branches by a primitive with its own rule.

    Only where JAX's rules are made from those of the held equations: the program of a while loop,
    for example, is evaluated instead.

    Args:
      axes: of the branches.
    """

    def __init__(self, axes: BranchAxes):
        super().__init__()
        self._axes = axes

    def equation(self, eqn: Eqn, names: Names) -> list[Eqn]:
        if eqn.primitive.name == "cond":
            branches = tuple(map(without_constants, eqn.params["branches"]))
            params = {
                "eqn": eqn.replace(params={**eqn.params, "branches": branches}),
                "branches": tuple(map(self.jaxpr, branches)),
                "axes_of_results": functools.partial(self._axes_of_results, eqn),
            }
            return [eqn.replace(primitive=cond_p, params=params)]
        return super().equation(eqn, names) if eqn.primitive.name in RULE_FOLLOWING else [eqn]

    def _axes_of_results(
        self, cond: Eqn, branch: Jaxpr, taken: Sequence[bool]
    ) -> list[tuple[int, ...]] | None:
        return self._axes.of_results(cond, _RESTORING.jaxpr(branch), taken)


class _Marking(_MarkingBranches):
    """Replaces branches, regions and loops by primitives with their own rules."""

    def __init__(self, axes: BranchAxes):
        super().__init__(axes)
        self._branches = axes.rewriter(_MarkingBranches)

    def equation(self, eqn: Eqn, names: Names) -> list[Eqn]:
        name = eqn.primitive.name
        if name == "scan":
            params = {"eqn": eqn, "jaxpr": self.jaxpr(eqn.params["jaxpr"])}
            return [eqn.replace(primitive=scan_p, params=params)]
        if name in REGIONS:
            params = {"eqn": eqn, "marking": self._branches}
            return [eqn.replace(primitive=_region_p, params=params)]
        return super().equation(eqn, names)


class _Restoring(Rewriter):
    """Restores regions to equations of JAX, and inlines the calls of known halves."""

    def concerned(self, eqns: Sequence[Eqn]) -> list[int]:
        mine = (carried_p, _region_p)
        return [position for position, eqn in enumerate(eqns) if eqn.primitive in mine]

    def equation(self, eqn: Eqn, names: Names) -> list[Eqn]:
        if eqn.primitive is carried_p:
            names[eqn.outvars[0]] = eqn.invars[0]
            return []
        if eqn.primitive in (_region_p, cond_p, scan_p):
            eqn = eqn.params["eqn"].replace(invars=eqn.invars, outvars=eqn.outvars)
        elif eqn.primitive is jex_core.primitives.closed_call_p:
            return self.inlined(eqn, names)
        return super().equation(eqn, names)

    def inlined(self, call: Eqn, names: Names) -> list[Eqn]:
        closed = self.jaxpr(call.params["call_jaxpr"])
        if closed.consts:
            return [call.replace(params={**call.params, "call_jaxpr": closed})]
        inner = open_jaxpr(closed)
        values: Names = dict(zip(inner.invars, call.invars, strict=True))
        eqns = copy_equations(inner.eqns, values)
        for outer, v in zip(call.outvars, inner.outvars, strict=True):
            names[outer] = named(v, values)
        return eqns


_RESTORING = _Restoring()
