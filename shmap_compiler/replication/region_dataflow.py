"""How values flow through an equation that holds programs: loops, branches, calls (R9 to R14).

A `Wiring` lists the sources from which each input of the held programs, and each result of the
equation, may get its value. Inference, provenance and the search for deadlocks all follow it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from shmap_compiler.base import specs
from shmap_compiler.base.jax_compat import jaxprs_in, open_jaxpr, scan_counts
from shmap_compiler.base.untyped import Atom, Eqn, Jaxpr
from shmap_compiler.jaxprs.held_programs import ALWAYS_RUN, KERNELS, LINEAR_CALL, called_program


@dataclass(frozen=True)
class Out:
    """Source: result `index` of the held program number `program`."""

    program: int
    index: int


@dataclass(frozen=True)
class Anything:
    """Source: any value inside the held program number `program`."""

    program: int


@dataclass(frozen=True)
class BlockPosition:
    """Source: the position along `axes`, over which a nested shard_map splits an argument."""

    axes: tuple[str, ...]


# Any other source is an atom of the program that contains the equation.
Source = Atom
Sources = tuple[Source, ...]


@dataclass(frozen=True)
class HeldProgram:
    """A program held by an equation.

    Attributes:
      inputs: for each input, the sources of its value.
      control: the sources of what decides whether, or how often, a device runs the program.
      runs: whether the equation runs it; otherwise derivatives of the equation do.
      manual_axes: the manual axes inside, if they differ from those outside.
    """

    jaxpr: Jaxpr
    inputs: tuple[Sources, ...]
    control: Sources = ()
    manual_axes: tuple[str, ...] | None = None
    runs: bool = True


@dataclass(frozen=True)
class Wiring:
    """
    Attributes:
      programs: the held programs.
      results: for each result of the equation, the sources of its value.
      ends: axes that are manual inside only, so that results do not vary along them.
    """

    programs: tuple[HeldProgram, ...]
    results: tuple[Sources, ...]
    ends: tuple[str, ...] = ()


def wiring_of(eqn: Eqn) -> Wiring | None:
    """None for an equation that holds no program."""
    name = eqn.primitive.name
    if name in _WIRINGS:
        return _WIRINGS[name](eqn)
    parameter = called_program(eqn)
    if parameter is not None:
        return _call(eqn, parameter)
    programs = [open_jaxpr(each) for each in jaxprs_in(eqn.params)]
    return _unknown(eqn, programs) if programs else None


def _call(eqn: Eqn, parameter: str) -> Wiring:
    """R9: inputs are the operands, results are the program's."""
    program = open_jaxpr(eqn.params[parameter])
    results = tuple((Out(0, k),) for k in range(len(eqn.outvars)))
    return Wiring((HeldProgram(program, tuple((v,) for v in eqn.invars)),), results)


def _scan(eqn: Eqn) -> Wiring:
    """R10: a carry comes from outside or from the previous step; all devices run equal steps."""
    consts, carries = scan_counts(eqn.params)
    inputs: list[Sources] = [(v,) for v in eqn.invars]
    results: list[Sources] = [(Out(0, k),) for k in range(len(eqn.outvars))]
    for k in range(carries):
        inputs[consts + k] = results[k] = (eqn.invars[consts + k], Out(0, k))
    body = HeldProgram(open_jaxpr(eqn.params["jaxpr"]), tuple(inputs))
    return Wiring((body,), tuple(results))


def _while(eqn: Eqn) -> Wiring:
    """R11: the condition decides the number of steps, and so which step's carry is the result.

    Devices in the same step have evaluated the same conditions, so inside the loop these do not
    make a carry vary. A carry that no step changes keeps its initial value.
    """
    test, body = open_jaxpr(eqn.params["cond_jaxpr"]), open_jaxpr(eqn.params["body_jaxpr"])
    test_consts, body_consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    first = eqn.invars[test_consts + body_consts :]
    carries: list[Sources] = [(v, Out(1, k)) for k, v in enumerate(first)]
    again = (Out(0, 0),)
    test_inputs = [*((v,) for v in eqn.invars[:test_consts]), *carries]
    constants = eqn.invars[test_consts : test_consts + body_consts]
    body_inputs = [*((v,) for v in constants), *carries]
    results = [
        (first[k],) if _passes_on(body, body_consts + k, k) else (*carries[k], *again)
        for k in range(len(first))
    ]
    return Wiring(
        (
            HeldProgram(test, tuple(test_inputs), control=again),
            HeldProgram(body, tuple(body_inputs), control=again),
        ),
        tuple(results),
    )


def _cond(eqn: Eqn) -> Wiring:
    """R12: a result depends on all branches and on the predicate, unless all return one operand."""
    predicate, *operands = eqn.invars
    inputs = tuple((v,) for v in operands)
    branches = [open_jaxpr(b) for b in eqn.params["branches"]]
    results: list[Sources] = []
    for k in range(len(eqn.outvars)):
        passed_on = [p for p in range(len(operands)) if all(_passes_on(b, p, k) for b in branches)]
        if passed_on:
            results.append((operands[passed_on[0]],))
        else:
            results.append((*(Out(n, k) for n in range(len(branches))), predicate))
    programs = tuple(HeldProgram(b, inputs, control=(predicate,)) for b in branches)
    return Wiring(programs, tuple(results))


def _passes_on(jaxpr: Jaxpr, k_in: int, k_out: int) -> bool:
    return jaxpr.outvars[k_out] is jaxpr.invars[k_in]


def _shard_map(eqn: Eqn) -> Wiring:
    """R13: inside, arguments also vary along the axes that split them; results do not outside.

    The results of the inner program are full arrays over its own axes.
    """
    graph = eqn.params.get("graph")
    if graph is None:  # JAX's own
        return _unknown(eqn, [open_jaxpr(each) for each in jaxprs_in(eqn.params)])
    inputs = tuple(
        (v, BlockPosition(specs.varying_axes(s)))
        for v, s in zip(eqn.invars, graph.in_specs, strict=True)
    )
    program = HeldProgram(open_jaxpr(graph.jaxpr), inputs, manual_axes=graph.all_manual_axes)
    results = tuple((Out(0, k),) for k in range(len(eqn.outvars)))
    return Wiring((program,), results, ends=graph.manual_axes)


def _xmap(eqn: Eqn) -> Wiring:
    """R13 for logical axes: inside, arguments also vary along the names of their dimensions."""
    program = eqn.params["program"]
    names: list[tuple[str, ...]] = [()] * len(program.constants)
    names += [mapping.names for mapping in program.in_mappings]
    inputs = tuple((v, BlockPosition(n)) for v, n in zip(eqn.invars, names, strict=True))
    inner = HeldProgram(open_jaxpr(program.jaxpr), inputs, manual_axes=program.names_in_scope)
    results = tuple((Out(0, k),) for k in range(len(eqn.outvars)))
    return Wiring((inner,), results, ends=tuple(program.placements))


def _linear_solve(eqn: Eqn) -> Wiring:
    """R9: the results are those of `solve`, given its constants and the right-hand sides.

    Derivatives apply the other programs to values of the same types: solutions and their tangents.
    """
    lengths, programs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    constants = iter(eqn.invars[: sum(lengths)])
    known = [tuple((v,) for v in itertools.islice(constants, n)) for n in lengths]
    sides = eqn.invars[sum(lengths) :]
    solve = programs._fields.index("solve")
    held: list[HeldProgram] = []
    position = sum(program is not None for program in programs[:solve])
    for number, program in enumerate(programs):
        if program is None:  # the transpose of an operator that is not transposed
            continue
        vectors: list[Sources] = [(v,) for v in sides]
        if number != solve:
            vectors = [(v, Out(position, k)) for k, v in enumerate(sides)]
        inputs = (*known[number], *vectors)
        held.append(HeldProgram(open_jaxpr(program), inputs, runs=number == solve))
    return Wiring(tuple(held), tuple((Out(position, k),) for k in range(len(eqn.outvars))))


def _linear_call(eqn: Eqn) -> Wiring:
    """R9: a call whose transpose, which it holds as a function, is the user's."""
    return _call(eqn, "callee")


def _unknown(eqn: Eqn, programs: list[Jaxpr]) -> Wiring:
    """R14: any value may flow anywhere, and decide which programs run, and how often."""
    anything: Sources = (*eqn.invars, *(Anything(n) for n in range(len(programs))))
    outs = (Out(n, k) for n, program in enumerate(programs) for k in range(len(program.outvars)))
    always = eqn.primitive.name in ALWAYS_RUN or eqn.primitive.name in KERNELS
    control = () if always else (*eqn.invars, *outs)
    return Wiring(
        tuple(HeldProgram(p, (anything,) * len(p.invars), control) for p in programs),
        (anything,) * len(eqn.outvars),
    )


_WIRINGS = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "custom_linear_solve": _linear_solve,
    LINEAR_CALL: _linear_call,
    "shard_map": _shard_map,
    "xmap": _xmap,
}

HOLDERS = frozenset(_WIRINGS)
"""Names of the primitives whose equations hold programs, in wirings of their own."""
