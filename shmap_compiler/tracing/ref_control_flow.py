"""What takes the place of calls, loops and branches with mutable references among their operands.

References that a loop writes become carries; if the loop takes slices of a reference, the slices
become results of its steps. References that a branch or call writes become results.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import lax
from jax.extend import core as jex_core

from shmap_compiler.base.errors import BodyError, Problem
from shmap_compiler.base.jax_compat import scan_counts, value_type
from shmap_compiler.base.source_lines import source_line
from shmap_compiler.base.untyped import Eqn
from shmap_compiler.jaxprs.held_programs import CUSTOM_RULES, called_program
from shmap_compiler.tracing.ref_program import ValueProgram, unknown_use, without_ref_effects


def call(program: ValueProgram, eqn: Eqn) -> None:
    """Calls a program that returns the last values of the references that it writes."""
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
        if of_results in params:  # of the last value, as of the operand
            went_in = params[of_operands]
            params[of_results] = (*params[of_results], *(went_in[k] for k in written))
    if written and "out_memory_spaces" in params:
        raise BodyError(program.who, [unknown_use(eqn)])
    results = [jex_core.Var(value_type(ref.aval)) for ref in refs]
    program.put(eqn, results, params=params, effects=without_ref_effects(eqn))
    program.refs.update(zip(refs, results, strict=True))


_PER_RESULT = {"out_shardings": "in_shardings", "out_layouts": "in_layouts"}


def _call_without_rule(program: ValueProgram, eqn: Eqn, inner: ValueProgram) -> None:
    """Calls a function with a derivative rule that takes references, without its rule.

    The rule is for references, and so cannot be used on values. Derivatives that are taken inside
    the user's function have used it already.
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


def _cond(program: ValueProgram, eqn: Eqn) -> None:
    branches = [program.nested(b) for b in eqn.params["branches"]]
    written = sorted({k for b in branches for k in b.written})
    refs = [eqn.invars[1 + k] for k in written]
    params = {**eqn.params, "branches": tuple(b.closed(written) for b in branches)}
    results = [jex_core.Var(value_type(ref.aval)) for ref in refs]
    program.put(eqn, results, params=params, effects=without_ref_effects(eqn))
    program.refs.update(zip(refs, results, strict=True))


def _scan(program: ValueProgram, eqn: Eqn) -> None:
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


def _while(program: ValueProgram, eqn: Eqn) -> None:
    test = program.nested(eqn.params["cond_jaxpr"])
    body = program.nested(eqn.params["body_jaxpr"])
    test_consts, body_consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    if test.written:
        raise BodyError(program.who, [unknown_use(eqn)])
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


LOOPS_AND_BRANCHES: dict[str, Callable[[ValueProgram, Eqn], None]] = {
    "cond": _cond,
    "scan": _scan,
    "while": _while,
}
"""By the names of their primitives."""


def _derivative_outside(eqn: Eqn) -> Problem:
    return Problem(
        f"{eqn.primitive} at {source_line(eqn)}",
        "a function with a derivative rule that takes a mutable reference, and a derivative taken"
        " outside of shard_map",
        "a function of arrays",
        "take the gradient inside shard_map, or pass the reference's value: ref[...]",
    )
