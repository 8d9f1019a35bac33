"""Splits a `cond` so that it saves what the staged branches read, and nothing else.

JAX's rule passes all operands and all known results to the staged branches. They count as used, so
unused residuals survive dead-code elimination. Branches share residuals of equal types that vary
along the same axes, since only one of them runs; a branch that has fewer fills the rest with zeros.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend import core as jex_core
from jax.interpreters import ad
from jax.interpreters import partial_eval as pe

from shmap_compiler.base.jax_compat import close_jaxpr, in_memory_space, open_jaxpr, replace_jaxpr
from shmap_compiler.base.untyped import (
    AnyValue,
    Atom,
    Aval,
    Eqn,
    Function,
    Jaxpr,
    Parameter,
    Trace,
    Unchecked,
)
from shmap_compiler.jaxprs.building import where
from shmap_compiler.jaxprs.rewriting import Names, copy_equations, named
from shmap_compiler.transforms.split import Split, save_everything, split

cond_p = jex_core.Primitive("marked_cond")
"""Stands for the `cond` equation `eqn`; `branches` are its branches, marked in the same way.

`axes_of_results` gives for a part of a branch, and for which operands it takes, the axes along
which its results vary as results of the equation, or None if they are unknown.
"""
cond_p.multiple_results = True
cond_p.def_effectful_abstract_eval(
    lambda *_, eqn, **__: ([v.aval for v in eqn.outvars], eqn.effects)
)


@dataclass(frozen=True)
class _Branch:
    """
    Attributes:
      known: known operands -> known results, then `residuals`.
      staged: `residuals`, then all operands -> staged results.
      reads: which operands `staged` reads.
    """

    known: Jaxpr
    staged: Jaxpr
    residuals: list[Atom]
    reads: list[bool]


def _split_cond(
    saveable: Function,
    unknown_in: Sequence[bool],
    instantiated_in: Sequence[bool],
    eqn: Eqn,
):
    whole = eqn.params["eqn"].replace(invars=eqn.invars, outvars=eqn.outvars)
    _, *unknown_ops = unknown_in
    known_ops = [not u for u in unknown_ops]

    def missing(read: Sequence[bool]) -> list[Atom]:
        rows = zip(eqn.invars, read, instantiated_in, strict=True)
        return [v for v, r, there in rows if r and not there and isinstance(v, jex_core.Var)]

    if unknown_in[0]:
        everything = [True] * len(eqn.outvars)
        return None, whole, everything, everything, missing([True] * len(eqn.invars))

    branches = eqn.params["branches"]
    everywhere = [True] * len(unknown_ops)
    parts = [split(b, unknown_ops, everywhere, saveable) for b in branches]
    unknown_out = [any(column) for column in zip(*(p.unknown_out for p in parts), strict=True)]
    again = [
        saveable is not save_everything and all(column)
        for column in zip(*(p.instantiated_out for p in parts), strict=True)
    ]
    staged_out = [u or a for u, a in zip(unknown_out, again, strict=True)]
    found = [_branch(b, p, unknown_out, staged_out) for b, p in zip(branches, parts, strict=True)]

    kinds = _kinds(found, eqn.params["axes_of_results"], known_ops)
    types, places = _shared([[v.aval for v in b.residuals] for b in found], kinds)
    residuals = [jex_core.Var(t) for t in types]
    reads = [any(column) for column in zip(*(b.reads for b in found), strict=True)]
    known = [_with_all(b, types, at) for b, at in zip(found, places, strict=True)]
    staged = [_from_all(b, types, at, reads) for b, at in zip(found, places, strict=True)]
    known_eqn = _with_branches(
        whole,
        known,
        [v for v, u in zip(eqn.invars, unknown_in, strict=True) if not u],
        [*(v for v, u in zip(eqn.outvars, unknown_out, strict=True) if not u), *residuals],
    )
    staged_eqn = _with_branches(
        whole,
        staged,
        [eqn.invars[0], *residuals, *where(reads, eqn.invars[1:])],
        list(where(staged_out, eqn.outvars)),
    )
    axes_of_results = functools.partial(_of_taken, eqn.params["axes_of_results"], known_ops)
    known_eqn = _marked(known_eqn, axes_of_results)
    if not staged_eqn.outvars and not staged_eqn.effects:
        return known_eqn, None, unknown_out, staged_out, []
    return known_eqn, staged_eqn, unknown_out, staged_out, [*missing([True, *reads]), *residuals]


def _hoist(trace: Trace, *tracers: Unchecked, **params: Parameter) -> list[AnyValue]:
    """Splits a `cond` for JAX's rule of a loop, which computes before it what no step changes.

    If the rest is split again, as in a loop around the loop, its branches share nothing.
    """
    unknown_in = [not t.is_known() for t in tracers]
    eqn = params["eqn"].replace(
        primitive=cond_p,
        params=params,
        invars=[jex_core.Var(t.aval) for t in tracers],
        outvars=[jex_core.Var(v.aval) for v in params["eqn"].outvars],
    )
    known, staged, _, _, _ = _split_cond(save_everything, unknown_in, unknown_in, eqn)
    if known is None:
        return trace.default_process_primitive(cond_p, tracers, params)
    values = dict(zip(eqn.invars, tracers, strict=True))
    inputs = [values[v].pval.get_known() for v in known.invars]
    values.update(zip(known.outvars, cond_p.bind(*inputs, **known.params), strict=True))
    if staged is not None:
        staged = _marked(staged, lambda *_: None)
        operands = [
            values[v] if isinstance(values[v], pe.JaxprTracer) else trace.new_const(values[v])
            for v in staged.invars
        ]
        results = trace.default_process_primitive(cond_p, operands, staged.params)
        values.update(zip(staged.outvars, results, strict=True))
    return [values[v] for v in eqn.outvars]


def _dce(
    used_out: Sequence[bool], *version_dependent_and_eqn: Unchecked
) -> tuple[list[bool], Eqn | None]:
    *version_dependent, eqn = version_dependent_and_eqn
    whole = _with_branches(eqn.params["eqn"], eqn.params["branches"], eqn.invars, eqn.outvars)
    rule: Function = pe.dce_rules[whole.primitive]
    used_in, smaller = rule(list(used_out), *version_dependent, whole)
    if smaller is None:
        return used_in, None
    axes_of_results = functools.partial(_of_taken, eqn.params["axes_of_results"], used_in[1:])
    return used_in, _marked(smaller, axes_of_results)


pe.partial_eval_jaxpr_custom_rules[cond_p] = _split_cond
pe.custom_partial_eval_rules[cond_p] = _hoist
pe.dce_rules[cond_p] = _dce


def _marked(eqn: Eqn, axes_of_results: Function) -> Eqn:
    """A `cond` on marked branches as an equation of `cond_p`."""
    params = {"eqn": eqn, "branches": eqn.params["branches"], "axes_of_results": axes_of_results}
    return eqn.replace(primitive=cond_p, params=params)


def _of_taken(
    axes_of_results: Function, kept: Sequence[bool], branch: Jaxpr, taken: Sequence[bool]
) -> list[tuple[int, ...]] | None:
    """`axes_of_results` for an equation that has kept some of the operands."""
    rest = iter(taken)
    return axes_of_results(branch, [k and next(rest) for k in kept])


def _branch(
    branch: Jaxpr, parts: Split, unknown_out: Sequence[bool], staged_out: Sequence[bool]
) -> _Branch:
    """The halves of a branch, whose results are unknown or staged as those of the `cond` are."""
    outvars = open_jaxpr(branch).outvars
    known, staged = open_jaxpr(parts.known), open_jaxpr(parts.staged)
    saved = known.outvars[len(parts.unknown_out) - sum(parts.unknown_out) :]
    operands = staged.invars[len(saved) :]
    # Results that are known in this branch, but staged because they are unknown in another one.
    handed_on = [
        v
        for v, wanted, there in zip(outvars, staged_out, parts.instantiated_out, strict=True)
        if wanted and not there and isinstance(v, jex_core.Var)
    ]
    saved = list(dict.fromkeys([*saved, *handed_on]))
    staged, used = pe.dce_jaxpr(
        replace_jaxpr(staged, invars=[*saved, *operands], outvars=list(where(staged_out, outvars))),
        [True] * sum(staged_out),
    )
    residuals = list(where(used[: len(saved)], saved))
    results = [v for v, u in zip(outvars, unknown_out, strict=True) if not u]
    known, _ = pe.dce_jaxpr(
        replace_jaxpr(known, outvars=[*results, *residuals]),
        [True] * (len(results) + len(residuals)),
        instantiate=True,
    )
    staged = replace_jaxpr(staged, invars=[*residuals, *operands])
    return _Branch(known, staged, residuals, list(used[len(saved) :]))


def _kinds(
    branches: Sequence[_Branch], axes_of_results: Function, known_in: Sequence[bool]
) -> list[list[Hashable]]:
    """For the residuals of each branch, what those of two branches that share a place must have.

    They have equal types and vary along the same axes. If the axes are unknown, none are shared.
    """
    kinds: list[list[Hashable]] = [[v.aval for v in b.residuals] for b in branches]
    if max(Counter(kind for row in kinds for kind in set(row)).values(), default=1) == 1:
        return kinds
    for number, (branch, row) in enumerate(zip(branches, kinds, strict=True)):
        axes = axes_of_results(branch.known, known_in)
        own = [number] * len(row) if axes is None else axes[len(axes) - len(row) :]
        row[:] = zip(row, own, strict=True)
    return kinds


def _shared(
    types: Sequence[Sequence[Aval]], kinds: Sequence[Sequence[Hashable]]
) -> tuple[list[Aval], list[list[int]]]:
    """(types of residuals that suffice for each branch, the positions that each branch uses).

    Args:
      kinds: of the residuals of each branch. Those of one kind share positions.
    """
    all_types: list[Any] = []
    by_kind: dict[Hashable, list[int]] = {}
    places = []
    for row in zip(types, kinds, strict=True):
        taken: Counter[Hashable] = Counter()
        places.append([])
        for each, kind in zip(*row, strict=True):
            found = by_kind.setdefault(kind, [])
            if taken[kind] == len(found):
                found.append(len(all_types))
                all_types.append(each)
            places[-1].append(found[taken[kind]])
            taken[kind] += 1
    return all_types, places


def _with_all(branch: _Branch, types: Sequence[Aval], places: Sequence[int]) -> Jaxpr:
    """The known half of a branch, with residuals of all branches as results."""
    results = branch.known.outvars[: len(branch.known.outvars) - len(places)]
    own = dict(zip(places, branch.residuals, strict=True))
    eqns, filled = [], []
    for k, each in enumerate(types):
        if k not in own:
            zeros = open_jaxpr(jax.make_jaxpr(lambda t=each: _zeros(t))())
            names: Names = {}
            eqns += copy_equations(zeros.eqns, names)
            (out,) = zeros.outvars
            filled.append(named(out, names))
        else:
            filled.append(own[k])
    eqns = [*branch.known.eqns, *eqns]
    return close_jaxpr(replace_jaxpr(branch.known, eqns=eqns, outvars=[*results, *filled]))


def _zeros(type_: Aval) -> AnyValue:
    return in_memory_space(ad.instantiate_zeros(ad.Zero(type_)), type_)


def _from_all(
    branch: _Branch, types: Sequence[Aval], places: Sequence[int], reads: Sequence[bool]
) -> Jaxpr:
    """The staged half of a branch, on all residuals and the operands that any branch reads."""
    own = dict(zip(places, branch.residuals, strict=True))
    residuals = [own[k] if k in own else jex_core.Var(t) for k, t in enumerate(types)]
    operands = where(reads, branch.staged.invars[len(places) :])
    return close_jaxpr(replace_jaxpr(branch.staged, invars=[*residuals, *operands]))


def _with_branches(
    whole: Eqn, branches: Sequence[Jaxpr], invars: Sequence[Atom], outvars: Sequence[Atom]
) -> Eqn:
    return whole.replace(
        params={**whole.params, "branches": tuple(branches)},
        invars=list(invars),
        outvars=list(outvars),
        effects=set().union(*(open_jaxpr(b).effects for b in branches)),
    )
