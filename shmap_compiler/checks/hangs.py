"""Finds collectives that could deadlock (R18), and other suspicious communication.

Devices synchronize at a collective. If it is inside a branch or loop that some devices do not
enter, or enter less often, the other devices wait forever, or the first round of one device is
combined with the second round of another.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from shmap_passes.ir.axis_set import AxisSet

from shmap_compiler.base.descriptions import show_names
from shmap_compiler.base.errors import HangError, Problem
from shmap_compiler.base.jax_compat import open_jaxpr
from shmap_compiler.base.source_lines import source_line
from shmap_compiler.base.untyped import Eqn, Jaxpr
from shmap_compiler.checks.provenance import Path, ValueRef, format_provenance, provenance
from shmap_compiler.collectives import ppermute_p
from shmap_compiler.graph.graph import Graph, HangCheck
from shmap_compiler.graph.nested_graphs import holds_graph, nested_graphs
from shmap_compiler.jaxprs.contents import equations, holders, names_any, once_per_jaxpr
from shmap_compiler.replication.collective_rules import all_devices_wait, communicates_over
from shmap_compiler.replication.frames import Frame, Replication
from shmap_compiler.replication.inference import infer_program
from shmap_compiler.replication.region_dataflow import HOLDERS, HeldProgram, Out


def check_hangs(graph: Graph, who: str, in_paths: Sequence[str]) -> None:
    """Raises HangError for every collective that only some of its devices would reach.

    The graph says which of them it is checked for.

    Args:
      who: the user's function.
      in_paths: the last inputs of the graph, as the user names them.
    """
    holds_programs = bool(holders(graph.jaxpr)) or names_any(graph.jaxpr, HOLDERS)
    if graph.hang_check is HangCheck.NONE or not holds_programs:
        return  # all devices reach an equation that no other one holds
    names = ["an array closed over"] * (len(graph.in_specs) - len(in_paths)) + list(in_paths)
    replication = _replication(graph)
    everywhere = replication.axes.mask(graph.all_manual_axes)
    suspects = _suspects(replication.frame, (), (), (), replication.axes, everywhere, set())
    found = {
        (id(m.eqn), id(m.control.eqn)): m
        for m in suspects
        if m.clash & replication.axes.mask(_checked_axes(graph, m.around))
    }
    # A program that several equations hold gives the same lines for each.
    problems = {str(p): p for p in (_hang(graph, replication, m, names) for m in found.values())}
    if problems:
        raise HangError(who, list(problems.values()))


def _replication(graph: Graph) -> Replication:
    if graph.hang_check is HangCheck.ALL:
        return graph.replication
    return infer_program(graph.region, graph.jaxpr, [()] * len(graph.in_specs))


def _checked_axes(graph: Graph, around: Sequence[Eqn]) -> list[str]:
    """The axes along which an equation may not deadlock: those of the graphs that hold it.

    Axes further out are checked with the graph that makes them manual, and those of a graph whose
    inputs count as equal with that graph alone: this one splits them.
    """
    nested = [eqn.params["graph"] for eqn in around if holds_graph(eqn)]
    checked = [graph, *(each for each in nested if each.hang_check is HangCheck.ALL)]
    return [axis for each in checked for axis in each.manual_axes]


@dataclass(frozen=True)
class _Control:
    """An equation that decides which devices run the programs that it holds.

    Attributes:
      predicate: the value by which it decides.
      around: the equations that hold it, the innermost last.
    """

    eqn: Eqn
    mask: int
    predicate: ValueRef
    around: tuple[Eqn, ...]


@dataclass(frozen=True)
class _Suspect:
    """A collective under a control that varies between devices that synchronize at it.

    Attributes:
      clash: the axes along which the control varies and devices synchronize.
      around: the equations that hold it, the innermost last.
    """

    eqn: Eqn
    control: _Control
    clash: int
    around: tuple[Eqn, ...]


def _suspects(
    frame: Frame,
    path: Path,
    around: tuple[Eqn, ...],
    controls: tuple[_Control, ...],
    axes: AxisSet,
    everywhere: int,
    entered: set[Hashable],
) -> Iterator[_Suspect]:
    """Those of a program and of those that it holds; none if it was entered in the same way."""
    deciding = tuple((id(each.eqn), each.mask, each.predicate) for each in controls)
    graphs = tuple(id(each) for each in around if holds_graph(each))
    entrance = id(frame), deciding, everywhere, graphs
    if entrance in entered:  # Several equations hold it.
        return
    entered.add(entrance)
    # Without controls, all devices reach these equations; only nested programs matter.
    positions = range(len(frame.jaxpr.eqns)) if controls else sorted(frame.nested)
    for position in positions:
        eqn = frame.jaxpr.eqns[position]
        over = communicates_over(eqn)
        if over:
            synchronized = everywhere if all_devices_wait(eqn) else axes.mask(over)
            for control in controls:
                if clash := control.mask & synchronized:
                    yield _Suspect(eqn, control, clash, around)
        if position in frame.nested:
            wiring, frames = frame.nested[position]
            for number, (program, inner) in enumerate(zip(wiring.programs, frames, strict=True)):
                if not program.runs:
                    continue
                inner_path = (*path, (position, number))
                new = _controls(eqn, program, frame, frames, path, position, around)
                held = (*around, eqn)
                here = everywhere | axes.mask(program.manual_axes or ())
                inside = (*controls, *new)
                yield from _suspects(inner, inner_path, held, inside, axes, here, entered)


def _controls(
    eqn: Eqn,
    program: HeldProgram,
    frame: Frame,
    frames: tuple[Frame, ...],
    path: Path,
    position: int,
    around: tuple[Eqn, ...],
) -> Iterator[_Control]:
    for source in program.control:
        if isinstance(source, Out):
            inner = frames[source.program]
            var = inner.jaxpr.outvars[source.index]
            predicate = ValueRef((*path, (position, source.program)), var)
            mask = inner.mask(var)
        else:
            mask, predicate = frame.mask(source), ValueRef(path, source)
        if mask:
            yield _Control(eqn, mask, predicate, around)


def _hang(
    graph: Graph, replication: Replication, suspect: _Suspect, names: Sequence[str]
) -> Problem:
    clash = replication.axes.names(suspect.clash)
    axes = ", ".join(map(repr, clash))
    collective, control = suspect.eqn.primitive.name, suspect.control.eqn
    loop = control.primitive.name == "while"
    decides = "whose number of steps varies" if loop else "whose predicate varies"
    found = provenance(replication, suspect.control.predicate, clash[0])
    lines = format_provenance(graph, found, names)
    group = "all devices" if all_devices_wait(suspect.eqn) else f"all devices along {axes}"
    return Problem(
        f"{collective} over {', '.join(map(repr, communicates_over(suspect.eqn)))}"
        f" at {_line(suspect.eqn, suspect.around)}",
        f"it is inside the {control.primitive.name} at"
        f" {_line(control, suspect.control.around)}, {decides} along"
        f" {axes}; this last became varying along {clash[0]!r} at{lines}",
        f"{group} to execute it the same number of times; otherwise the program deadlocks",
        _repair(collective, clash, loop),
    )


def _line(eqn: Eqn, around: Sequence[Eqn]) -> str:
    """The user's line of an equation, or of the nearest equation around it that has one."""
    lines = map(source_line, (eqn, *reversed(around)))
    return next(filter(None, lines), "an unknown line")


def _repair(collective: str, clash: Sequence[str], loop: bool) -> str:
    over = show_names(clash)
    allow = "check_hangs=False allows it"
    if loop:
        return f"continue until all devices are done: jax.lax.pmax(condition, {over}); {allow}"
    return (
        f"run {collective} before the branches and select its result with jnp.where, or decide the "
        f"same way on all devices: jax.lax.pmax(predicate, {over}); {allow}"
    )


# ------------------------------------------------------------------------------------ warnings


def warnings(graph: Graph) -> list[Problem]:
    """A problem for each collective that is legal but suspicious, also in nested Graphs."""
    found: dict[Any, Problem] = {}
    for each in nested_graphs(graph):
        for eqn in equations(each.jaxpr):
            for problem in (*_without_data(eqn, each), *_other_order(eqn)):
                found.setdefault(str(problem), problem)
    return list(found.values())


def _without_data(eqn: Eqn, graph: Graph) -> Iterator[Problem]:
    if eqn.primitive is not ppermute_p:
        return
    axes, perm = eqn.params["axes"], eqn.params["perm"]
    size = math.prod(graph.mesh.shape[a] for a in axes)
    empty = sorted(set(range(size)) - {target for _, target in perm})
    unread = sorted(set(range(size)) - {source for source, _ in perm})
    if empty:
        close = ", ".join(map(str, zip(unread, empty, strict=True)))
        yield Problem(
            f"ppermute over {', '.join(map(repr, axes))} at {source_line(eqn)}",
            f"no pair sends to {', '.join(map(str, empty))}: there the result is zeros",
            f"each of 0..{size - 1} as a target once, unless zeros are meant",
            f"close the ring by {close}",
        )


def _other_order(eqn: Eqn) -> Iterator[Problem]:
    if eqn.primitive.name != "cond":
        return
    sequences = [_collectives(branch) for branch in eqn.params["branches"]]
    for number, sequence in enumerate(sequences[1:], start=1):
        common = Counter(sequences[0]) & Counter(sequence)
        one, other = _shared(sequences[0], common), _shared(sequence, common)
        if one != other:
            yield Problem(
                f"cond at {source_line(eqn)}",
                f"branch 0 runs {_listed(one)}; branch {number} runs {_listed(other)}",
                "the same collectives in the same order in all branches",
                "use the same order in all branches, or move them before the branches",
            )


_Collective: TypeAlias = tuple[str, tuple[str, ...]]
"""(name, axes)."""

_MOST_COMPARED = 1000
"""Functions that share functions run exponentially many collectives. Branches with the same order
have the same order up to here, too."""


def _collectives(program: Jaxpr) -> list[_Collective]:
    """The first collectives of a program, in order, each as often as equations hold it."""
    return list(itertools.islice(_all_collectives(program), _MOST_COMPARED))


def _all_collectives(program: Jaxpr) -> Iterator[_Collective]:
    held = holders(program)
    for position, eqn in enumerate(open_jaxpr(program).eqns):
        if axes := communicates_over(eqn):
            yield eqn.primitive.name, axes
        for inner in map(open_jaxpr, held.get(position, ())):
            if _communicates(inner):
                yield from _all_collectives(inner)


@once_per_jaxpr
def _communicates(program: Jaxpr) -> bool:
    return any(map(communicates_over, equations(program)))


def _shared(sequence: Sequence[_Collective], common: Counter[_Collective]) -> list[_Collective]:
    """The collectives of a sequence that both branches have, each as often as both have it."""
    left = Counter(common)
    kept = []
    for each in sequence:
        if left[each] > 0:
            left[each] -= 1
            kept.append(each)
    return kept


def _listed(sequence: Sequence[_Collective]) -> str:
    return ", ".join(f"{name} over {', '.join(map(repr, axes))}" for name, axes in sequence)
