"""Splits a `scan` so that each step saves what its staged step reads of the known carry.

JAX's rule passes the known carry to the staged loop, which recomputes it step by step from saved
values that nothing else may need. Here the staged step reads the saved value of the carry, as it
reads other values that the known step computed, and equations and residuals that only update the
known carry are dropped.

Before:  c, y, dy = scan(c, x, dx) { known step and staged step }
Known:   c, y, residuals = scan(c, x) { known step; its residuals are the carry's value, ... }
Staged:  dy = scan(dx, residuals) { staged step }
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from jax.extend import core as jex_core
from jax.interpreters import partial_eval as pe

from shmap_compiler.base.jax_compat import close_jaxpr, open_jaxpr, replace_jaxpr, scan_counts
from shmap_compiler.base.untyped import Atom, Eqn, Function, Jaxpr
from shmap_compiler.jaxprs.building import is_dropped, where, with_equations
from shmap_compiler.jaxprs.rewriting import renamed

scan_p = jex_core.Primitive("marked_scan")
"""Stands for the `scan` equation `eqn`, all of whose residuals are saved; `jaxpr` is its step,
marked in the same way."""
scan_p.multiple_results = True

carried_p = jex_core.Primitive("carried")
"""The value of a carry, as if the step computed it: it is saved if it is needed later."""
carried_p.def_abstract_eval(lambda x: x)


def _split_scan(
    saveable: Function,
    unknown_in: Sequence[bool],
    instantiated_in: Sequence[bool],
    eqn: Eqn,
):
    whole = eqn.params["eqn"].replace(invars=eqn.invars, outvars=eqn.outvars)
    if not any(unknown_in):
        return whole, None, [False] * len(eqn.outvars), [False] * len(eqn.outvars), []
    step = _with_computed_carry(eqn.params["jaxpr"], *scan_counts(whole.params))
    rule = pe.partial_eval_jaxpr_custom_rules[whole.primitive]
    marked = whole.replace(params={**whole.params, "jaxpr": step})
    known, staged, unknown_out, _, _ = rule(saveable, unknown_in, instantiated_in, marked)
    staged = _without_unused(step, staged, set(where(unknown_out, eqn.outvars)))
    read = [] if staged is None else [v for v in staged.invars if isinstance(v, jex_core.Var)]
    known_outvars = [v for v, u in zip(eqn.outvars, unknown_out, strict=True) if not u]
    known = _call_without_unused(known, {*known_outvars, *read})
    there = {
        v
        for v, is_there in zip(eqn.invars, instantiated_in, strict=True)
        if is_there and isinstance(v, jex_core.Var)
    }
    return known, staged, unknown_out, unknown_out, [v for v in read if v not in there]


pe.partial_eval_jaxpr_custom_rules[scan_p] = _split_scan


def _with_computed_carry(step: Jaxpr, constants: int, carries: int) -> Jaxpr:
    """The step, which reads its carry through `carried_p`."""
    jaxpr = open_jaxpr(step)
    carry = jaxpr.invars[constants : constants + carries]
    copies = {v: jex_core.Var(v.aval) for v in carry}
    if not jaxpr.eqns:
        return step
    near = jaxpr.eqns[0]
    marks = [
        jex_core.new_jaxpr_eqn([v], [copy], carried_p, {}, set(), near.source_info, near.ctx)
        for v, copy in copies.items()
    ]
    return replace_jaxpr(step, eqns=[*marks, *(renamed(eqn, copies) for eqn in jaxpr.eqns)])


def _without_unused(step: Jaxpr, loop: Eqn, wanted: Set[Atom]) -> Eqn | None:
    """The loop without what only unwanted results need; None if nothing is left."""
    invars = list(dict.fromkeys(v for v in loop.invars if isinstance(v, jex_core.Var)))
    outvars = [v for v in loop.outvars if v in wanted and not is_dropped(v)]
    jaxpr, _ = pe.dce_jaxpr(
        open_jaxpr(with_equations(step, invars, outvars, [loop])), [True] * len(outvars)
    )
    return jaxpr.eqns[0] if jaxpr.eqns else None


def _call_without_unused(call: Eqn, wanted: Set[Atom]) -> Eqn | None:
    """The call, to be inlined, without what only unwanted results need."""
    closed = call.params["call_jaxpr"]
    if closed.consts:
        return call
    used = [v in wanted and not is_dropped(v) for v in call.outvars]
    jaxpr, used_in = pe.dce_jaxpr(open_jaxpr(closed), used)
    if not jaxpr.eqns and not any(used):
        return None
    return jex_core.new_jaxpr_eqn(
        list(where(used_in, call.invars)),
        list(where(used, call.outvars)),
        jex_core.primitives.closed_call_p,
        {"call_jaxpr": close_jaxpr(jaxpr)},
        jaxpr.effects,
        call.source_info,
        call.ctx,
    )
