"""Rewrites programs with mutable references into programs of values.

A reference becomes the value that it holds: reading gives it or a part of it, writing gives a new
one. A program that is handed a reference takes the value, and returns the last one if it writes; so
written references become carries of loops, and results of branches and calls. What varies, what
hangs and what a derivative is then follows from the rules for values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core as jex_core
from jax.sharding import AbstractMesh

from shmap_compiler.base import ref_views
from shmap_compiler.base.errors import BodyError, Problem
from shmap_compiler.base.jax_compat import (
    Atom,
    Eqn,
    Jaxpr,
    is_ref,
    is_ref_effect,
    open_jaxpr,
    ref_view,
    replace_jaxpr,
    replace_jaxprs_in,
    scan_counts,
    value_type,
)
from shmap_compiler.base.source_lines import source_line
from shmap_compiler.jaxprs.held_programs import CUSTOM_RULES, called_program
from shmap_compiler.jaxprs.rewriting import Names, copy_equations, named

_SEES_VALUES = {"debug_callback", "debug_print"}
"""Primitives that take a reference for the value it holds."""


def discharge(closed: Jaxpr, mesh: AbstractMesh, who: str) -> tuple[Jaxpr, list[int]]:
    """(the program on values, the inputs that are references which it writes).

    The last values of these references are additional results, in this order.

    Args:
      closed: closed jaxpr without constants, some of whose inputs may be references.
      mesh: as the program sees it.

    Raises:
      BodyError: something is done with a reference for which there is no rule.
    """
    if not any(map(is_ref_effect, closed.effects)) and not any(map(is_ref, closed.in_avals)):
        return closed, []
    with jax.sharding.use_abstract_mesh(mesh):
        opened = _Discharged(who, closed)
        return opened.closed(opened.written), opened.written


class _Discharged:
    """A program of values, before it is known which last values of references it returns."""

    def __init__(self, who: str, jaxpr: Jaxpr):
        self.who = who
        self.jaxpr = jaxpr
        inner = open_jaxpr(jaxpr)
        self.atoms: dict[Atom, Atom] = {}  # what stands for a variable, if it is another atom
        self.refs: dict[Atom, Atom] = {}  # the value that each reference holds
        self.eqns: list[Eqn] = []
        self.invars = [self._input(v) for v in inner.invars]
        for eqn in inner.eqns:
            self.equation(eqn)
        self.outvars = [self._output(v) for v in inner.outvars]

    def _input(self, var: Atom) -> Atom:
        if not is_ref(var.aval):
            return var
        self.refs[var] = jex_core.Var(value_type(var.aval))
        return self.refs[var]

    def _output(self, atom: Atom) -> Atom:
        if not isinstance(atom, jex_core.Literal) and atom in self.refs:
            raise BodyError(self.who, [_returned(atom.aval)])
        return self.read(atom)

    @property
    def written(self) -> list[int]:
        """The inputs that are references which the program writes."""
        inner = open_jaxpr(self.jaxpr)
        return [
            k
            for k, var in enumerate(inner.invars)
            if var in self.refs and self.refs[var] is not self.invars[k]
        ]

    def closed(self, returned: Sequence[int]) -> Jaxpr:
        """The program, which returns the last values of the references at these inputs too."""
        inner = open_jaxpr(self.jaxpr)
        return replace_jaxpr(
            self.jaxpr,
            invars=self.invars,
            outvars=[*self.outvars, *(self.refs[inner.invars[k]] for k in returned)],
            eqns=self.eqns,
            effects={e for e in inner.effects if not is_ref_effect(e)},
            debug_info=inner.debug_info.with_unknown_names(),
        )

    def nested(self, jaxpr: Jaxpr) -> _Discharged:
        return _Discharged(self.who, jaxpr)

    # ------------------------------------------------------------------------------ equations

    def read(self, atom: Atom) -> Atom:
        """The atom of the new program: the value, for a reference."""
        if isinstance(atom, jex_core.Literal):
            return atom
        return self.refs[atom] if atom in self.refs else self.atoms.get(atom, atom)

    def equation(self, eqn: Eqn) -> None:
        name = eqn.primitive.name
        if name in _RULES:
            _RULES[name](self, eqn)
            return
        handed = any(not isinstance(v, jex_core.Literal) and v in self.refs for v in eqn.invars)
        if not handed and not any(map(is_ref_effect, eqn.effects)):
            self.put(eqn)
        elif name in _LOOPS_AND_BRANCHES:
            _LOOPS_AND_BRANCHES[name](self, eqn)
        elif not handed:
            # Its programs may make references of their own.
            params = replace_jaxprs_in(eqn.params, lambda held: self.nested(held).closed(()))
            self.put(eqn, params=params, effects=_without_refs(eqn))
        elif called_program(eqn) is not None:
            _call(self, eqn)
        elif name in _SEES_VALUES:
            self.put(eqn, effects=_without_refs(eqn))
        else:
            raise BodyError(self.who, [_unknown(eqn)])

    def put(self, eqn: Eqn, outvars: Sequence[Atom] = (), **fields: Any) -> None:
        """The equation on values, with more results."""
        for var in [v for v in eqn.invars if is_ref(v.aval)] if outvars else []:
            if eqn.invars.count(var) > 1:
                raise BodyError(self.who, [_unknown(eqn)])
        invars = [self.read(v) for v in eqn.invars]
        if fields or any(new is not old for new, old in zip(invars, eqn.invars, strict=True)):
            eqn = eqn.replace(invars=invars, outvars=[*eqn.outvars, *outvars], **fields)
        self.eqns.append(eqn)

    def put_program(
        self, eqn: Eqn, fun: Callable[..., Sequence[Any]], refs: Sequence[Atom]
    ) -> None:
        """The equations of `fun`, a function of the operands' values.

        Its results are those of the equation, then the new values of `refs`.
        """
        self.inline(eqn, fun, [self.read(v) for v in eqn.invars], list(eqn.outvars), refs)

    def inline(
        self,
        eqn: Eqn,
        fun: Callable[..., Sequence[Any]],
        operands: Sequence[Atom],
        outvars: Sequence[Atom],
        refs: Sequence[Atom],
    ) -> None:
        if len(set(refs)) < len(refs):
            raise BodyError(self.who, [_unknown(eqn)])
        types = [value_type(ref.aval) for ref in refs]

        def typed(*values):
            results = fun(*values)
            count = len(results) - len(refs)
            news = zip(results[count:], types, strict=True)
            return [*results[:count], *(_of_type(x, t) for x, t in news)]

        closed = jax.make_jaxpr(typed)(*[v.aval for v in operands])
        template = open_jaxpr(closed)
        names: Names = dict(zip(template.invars, operands, strict=True))
        constants = zip(template.constvars, closed.consts, strict=True)
        names.update((v, jex_core.Literal(value, v.aval)) for v, value in constants)
        self.eqns += copy_equations(template.eqns, names, source_info=eqn.source_info, ctx=eqn.ctx)
        results = [named(v, names) for v in template.outvars]
        self.atoms.update(zip(outvars, results[: len(outvars)], strict=True))
        self.refs.update(zip(refs, results[len(outvars) :], strict=True))


# ------------------------------------------------------------------------------------ references


def _new_ref(program: _Discharged, eqn: Eqn) -> None:
    _refuse_memory_space(program, eqn)
    program.inline(eqn, lambda x: [x], [program.read(v) for v in eqn.invars], [], eqn.outvars)


def _empty_ref(program: _Discharged, eqn: Eqn) -> None:
    _refuse_memory_space(program, eqn)
    t = value_type(eqn.outvars[0].aval)
    program.inline(eqn, lambda: [jnp.zeros(t.shape, t.dtype)], [], [], eqn.outvars)


def _free_ref(program: _Discharged, eqn: Eqn) -> None:
    """Nothing refers to the value any more."""


def _freeze(program: _Discharged, eqn: Eqn) -> None:
    (ref,), (out,) = eqn.invars, eqn.outvars
    program.atoms[out] = program.refs[ref]


def _get(program: _Discharged, eqn: Eqn) -> None:
    program.put_program(
        eqn, lambda x, *leaves: [ref_views.read(x, _steps(program, eqn, leaves))], []
    )


def _swap(program: _Discharged, eqn: Eqn) -> None:
    def swapped(x, value, *leaves):
        steps = _steps(program, eqn, leaves)
        return [ref_views.read(x, steps), ref_views.written(x, steps, value)]

    program.put_program(eqn, swapped, eqn.invars[:1])


def _addupdate(program: _Discharged, eqn: Eqn) -> None:
    def added(x, value, *leaves):
        return [ref_views.added(x, _steps(program, eqn, leaves), value)]

    program.put_program(eqn, added, eqn.invars[:1])


def _steps(program: _Discharged, eqn: Eqn, leaves: Sequence[Any]) -> list[ref_views.Step]:
    steps = ref_view(eqn.params["tree"], leaves)
    if steps is None:
        raise BodyError(program.who, [_unknown(eqn)])
    return steps


# ----------------------------------------------------------------------------- held programs


def _call(program: _Discharged, eqn: Eqn) -> None:
    parameter = called_program(eqn)
    assert parameter is not None
    inner = program.nested(eqn.params[parameter])
    if eqn.primitive.name in CUSTOM_RULES:
        _call_without_rule(program, eqn, inner)
        return
    written = inner.written
    refs = [eqn.invars[k] for k in written]
    params = {**eqn.params, parameter: inner.closed(written)}
    for of_results, of_operands in _PER_RESULT.items():
        if of_results in params:  # a reference comes out as it went in
            went_in = params[of_operands]
            params[of_results] = (*params[of_results], *(went_in[k] for k in written))
    if written and "out_memory_spaces" in params:
        raise BodyError(program.who, [_unknown(eqn)])
    results = [jex_core.Var(value_type(ref.aval)) for ref in refs]
    program.put(eqn, results, params=params, effects=_without_refs(eqn))
    program.refs.update(zip(refs, results, strict=True))


_PER_RESULT = {"out_shardings": "in_shardings", "out_layouts": "in_layouts"}


def _call_without_rule(program: _Discharged, eqn: Eqn, inner: _Discharged) -> None:
    """A function with a derivative rule, which takes references: the rule is not for values.

    Derivatives taken inside the function that is mapped have used the rule already.
    """
    written = inner.written
    refs = [eqn.invars[k] for k in written]
    run = jex_core.jaxpr_as_fun(inner.closed(written))
    refusal = BodyError(program.who, [_derivative_outside(eqn)])

    @jax.custom_jvp
    def without_rule(*values):
        return run(*values)

    @without_rule.defjvp
    def refuse(values, tangents):
        raise refusal

    program.put_program(eqn, without_rule, refs)


def _cond(program: _Discharged, eqn: Eqn) -> None:
    branches = [program.nested(b) for b in eqn.params["branches"]]
    written = sorted({k for b in branches for k in b.written})
    refs = [eqn.invars[1 + k] for k in written]
    params = {**eqn.params, "branches": tuple(b.closed(written) for b in branches)}
    results = [jex_core.Var(value_type(ref.aval)) for ref in refs]
    program.put(eqn, results, params=params, effects=_without_refs(eqn))
    program.refs.update(zip(refs, results, strict=True))


def _scan(program: _Discharged, eqn: Eqn) -> None:
    body = program.nested(eqn.params["jaxpr"])
    written = body.written
    run = jex_core.jaxpr_as_fun(body.closed(written))
    consts, carries = scan_counts(eqn.params)
    loop = [k for k in written if k < consts]  # the others are split along the steps
    sliced = [k for k in written if k >= consts]
    options = {k: eqn.params[k] for k in ("length", "reverse", "unroll")}
    if eqn.params.get("_split_transpose"):
        options["_split_transpose"] = True

    def scanned(*operands):
        first = list(operands[:consts])

        def step(carry, xs):
            values, held = carry
            for k, x in zip(loop, held, strict=True):
                first[k] = x
            results = run(*first, *values, *xs)
            last = dict(zip(written, results[len(results) - len(written) :], strict=True))
            ys = results[carries : len(results) - len(written)]
            held = [last[k] for k in loop]
            return (results[:carries], held), (ys, [last[k] for k in sliced])

        init = list(operands[consts : consts + carries]), [operands[k] for k in loop]
        end, (ys, slices) = lax.scan(step, init, list(operands[consts + carries :]), **options)
        return [*end[0], *ys, *end[1], *slices]

    program.put_program(eqn, scanned, [eqn.invars[k] for k in (*loop, *sliced)])


def _while(program: _Discharged, eqn: Eqn) -> None:
    test = program.nested(eqn.params["cond_jaxpr"])
    body = program.nested(eqn.params["body_jaxpr"])
    test_consts, body_consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    if test.written:
        raise BodyError(program.who, [_unknown(eqn)])
    refs = [eqn.invars[test_consts + k] for k in body.written]
    of_test, of_body = (
        {k: refs.index(v) for k, v in enumerate(constants) if v in refs}
        for constants in (
            eqn.invars[:test_consts],
            eqn.invars[test_consts : test_consts + body_consts],
        )
    )
    decide = jex_core.jaxpr_as_fun(test.closed(()))
    run = jex_core.jaxpr_as_fun(body.closed(body.written))

    def looped(*operands):
        for_test = operands[:test_consts]
        for_body = operands[test_consts : test_consts + body_consts]
        init = list(operands[test_consts + body_consts :])
        count = len(init)

        def with_held(constants, places, held):
            return [held[places[k]] if k in places else x for k, x in enumerate(constants)]

        def goes_on(carry):
            values, held = carry
            return decide(*with_held(for_test, of_test, held), *values)[0]

        def step(carry):
            values, held = carry
            results = run(*with_held(for_body, of_body, held), *values)
            return results[:count], results[count:]

        held = [operands[test_consts + k] for k in body.written]
        values, held = lax.while_loop(goes_on, step, (init, held))
        return [*values, *held]

    program.put_program(eqn, looped, refs)


def _optimization_barrier(program: _Discharged, eqn: Eqn) -> None:
    """Its results are the operands that are no references; these pass it too."""
    operands = list(eqn.invars)
    refs = [v for v in operands if not isinstance(v, jex_core.Literal) and v in program.refs]
    if not refs:
        program.put(eqn)
        return
    others = [k for k, v in enumerate(operands) if v not in refs]

    def barrier(*values):
        results = lax.optimization_barrier(list(values))
        passed = [results[k] for k, v in enumerate(operands) if v in refs]
        return [*(results[k] for k in others), *passed]

    program.put_program(eqn, barrier, refs)


_RULES: dict[str, Callable[[_Discharged, Eqn], None]] = {
    "new_ref": _new_ref,
    "empty_ref": _empty_ref,
    "free_ref": _free_ref,
    "freeze": _freeze,
    "get": _get,
    "swap": _swap,
    "addupdate": _addupdate,
    "optimization_barrier": _optimization_barrier,
}
_LOOPS_AND_BRANCHES = {"cond": _cond, "scan": _scan, "while": _while}


# ---------------------------------------------------------------------------------------- helpers


def _without_refs(eqn: Eqn) -> set[Any]:
    return {e for e in eqn.effects if not is_ref_effect(e)}


def _of_type(x: Any, wanted: Any) -> Any:
    """The value with exactly this type: a reference holds no value of weak type."""
    found = jax.typeof(x)
    if found.dtype == wanted.dtype and not found.weak_type:
        return x
    return lax.convert_element_type(x, wanted.dtype)


def _refuse_memory_space(program: _Discharged, eqn: Eqn) -> None:
    if eqn.params.get("memory_space") is not None:
        raise BodyError(program.who, [_unknown(eqn)])


def _unknown(eqn: Eqn) -> Problem:
    return Problem(
        f"{eqn.primitive} at {source_line(eqn)}",
        "a mutable reference used in a way that shmap_compiler does not know",
        "reads, writes and sums of parts of it, in loops, branches and calls",
        "read the value first, ref[...], and write the result back afterwards",
    )


def _returned(aval: Any) -> Problem:
    return Problem(
        "a result of the function, or of one that it calls",
        f"a mutable reference, {aval}",
        "an array",
        "return its value: ref[...], or jax.freeze(ref)",
    )


def _derivative_outside(eqn: Eqn) -> Problem:
    return Problem(
        f"{eqn.primitive} at {source_line(eqn)}",
        "a function with a derivative rule that takes a mutable reference, and a derivative taken"
        " outside of shard_map",
        "a function of arrays",
        "take the gradient inside shard_map, or pass the reference's value: ref[...]",
    )
