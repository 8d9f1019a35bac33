"""Splits a `cond` so that it saves what the staged branches read, and nothing else.

JAX's rule passes all operands and all known results to the staged branches. They count as used, so
unused residuals survive dead-code elimination. Branches share residuals of equal types, since only
one of them runs; a branch that has fewer of a type fills the rest with zeros.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend import core as jex_core
from jax.interpreters import ad
from jax.interpreters import partial_eval as pe

from shmap_compiler.base.jax_compat import close_jaxpr, in_memory_space, open_jaxpr, replace_jaxpr
from shmap_compiler.base.untyped import AnyValue, Atom, Aval, Eqn, Function, Jaxpr
from shmap_compiler.jaxprs.building import where
from shmap_compiler.jaxprs.rewriting import Names, copy_equations, named
from shmap_compiler.transforms.split import Split, save_everything, split

cond_p = jex_core.Primitive("marked_cond")
"""Stands for the `cond` equation `eqn`; `branches` are its branches, marked in the same way."""
cond_p.multiple_results = True


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

    types, places = _shared([[v.aval for v in b.residuals] for b in found])
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
    if not staged_eqn.outvars and not staged_eqn.effects:
        return known_eqn, None, unknown_out, staged_out, []
    return known_eqn, staged_eqn, unknown_out, staged_out, [*missing([True, *reads]), *residuals]


pe.partial_eval_jaxpr_custom_rules[cond_p] = _split_cond


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


def _shared(types: Sequence[Sequence[Aval]]) -> tuple[list[Aval], list[list[int]]]:
    """(types of residuals that suffice for each branch, the positions that each branch uses)."""
    all_types: list[Any] = []
    by_type: dict[Any, list[int]] = {}
    places = []
    for row in types:
        taken: Counter[Any] = Counter()
        places.append([])
        for each in row:
            found = by_type.setdefault(each, [])
            if taken[each] == len(found):
                found.append(len(all_types))
                all_types.append(each)
            places[-1].append(found[taken[each]])
            taken[each] += 1
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
