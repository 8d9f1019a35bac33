"""The time of copies to the memory of the host and back, on GPUs."""

import dataclasses
from types import SimpleNamespace

import pytest
from shmap_passes.cost.chips import H100_SXM, TPU_V5E
from shmap_passes.cost.machine import Machine
from shmap_passes.cost.networks import Nodes

from shmap_compiler.explain import explanation, hlo, schedule, text

COUNT = 1024 * 1024
COPY = 4 * COUNT / 55e9  # seconds
PRODUCT = 3e-6 + 2 * 1024**3 / (0.7 * 494.5e12)
HERE, THERE = "f32[1024,1024]{1,0}", "f32[1024,1024]{1,0:S(5)}"


def machine(chip):
    return Machine(chip, Nodes(1, 8, 450e9, 400e9), tuple((0, k) for k in range(8)))


def run(*lines, chip=H100_SXM):
    entry = "\n".join(
        [
            f"ENTRY %main (p: f32[1024,1024], q: f32[1024,1024]) -> {HERE} {{",
            f"  %p = {HERE} parameter(0)",
            f"  %q = {THERE} parameter(1)",
            *(f"  {line}" for line in lines),
            "}",
        ]
    )
    return schedule.run(hlo.parse(f"HloModule m, is_scheduled=true\n\n{entry}\n"), machine(chip), 8)


def to_host(name, source="p"):
    return f"%{name} = ({THERE}, {HERE}, u32[]) copy-start(%{source})"


def from_host(name, source="q"):
    return f"%{name} = ({HERE}, {THERE}, u32[]) copy-start(%{source})"


def done(name, type_):
    return f"%{name}.done = {type_} copy-done(%{name})"


def product(name):
    return f"%{name} = {HERE} dot(%p, %p), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"


def test_a_copy_runs_beside_what_is_computed():
    found = run(to_host("a"), product("x"), done("a", THERE))
    assert found.host_bytes == 4 * COUNT
    assert found.host_usage == {"to the host": pytest.approx(COPY)}
    assert found.host_exposed == pytest.approx(COPY - PRODUCT)
    assert found.seconds == pytest.approx(COPY)
    assert found.computing == pytest.approx(PRODUCT)
    (wait,) = (event for event in found.events if event.lane == "wait")
    assert (wait.name, wait.what) == ("a", "copy to the host")
    (copy,) = found.transfers
    assert (copy.lane, copy.start, copy.seconds) == ("to the host", 0.0, pytest.approx(COPY))


def test_copies_in_one_direction_wait_for_each_other():
    found = run(to_host("a"), to_host("b"), done("b", THERE), done("a", THERE))
    assert found.seconds == found.host_exposed == pytest.approx(2 * COPY)


def test_copies_in_both_directions_run_at_once():
    found = run(to_host("a"), from_host("b"), done("a", THERE), done("b", HERE))
    assert found.host_usage == dict.fromkeys(("to the host", "from the host"), pytest.approx(COPY))
    assert found.seconds == pytest.approx(COPY)


def test_a_copy_that_is_one_instruction_keeps_the_device_waiting():
    found = run(f"%a = {THERE} copy(%p)", product("x"))
    assert found.host_exposed == pytest.approx(COPY)
    assert found.seconds == pytest.approx(COPY + PRODUCT)
    assert found.computing == pytest.approx(PRODUCT)


def test_a_copy_that_nothing_waits_for_ends_before_the_program():
    assert run(to_host("a"), product("x")).seconds == pytest.approx(COPY)


def test_copies_take_no_time_where_the_figure_is_not_known():
    found = run(to_host("a"), done("a", THERE), chip=TPU_V5E)
    assert found.host_bytes == 4 * COUNT
    assert (found.host_usage, found.host_exposed, found.seconds) == ({}, 0.0, 0.0)


def totals(found, chip):
    compiled = SimpleNamespace(cost_analysis=lambda: None)
    return explanation._totals(compiled, found, machine(chip))


def test_totals_have_the_times_of_copies():
    found = run(to_host("a"), from_host("b"), product("x"), done("a", THERE), done("b", HERE))
    figures = totals(found, H100_SXM)
    assert figures.host_seconds == pytest.approx(2 * COPY)
    assert figures.host_exposed_seconds == pytest.approx(COPY - PRODUCT)
    assert (figures.bound, figures.bound_seconds) == ("host", pytest.approx(COPY))
    assert figures.exposed_seconds == 0.0
    unknown = totals(found, TPU_V5E)
    assert (unknown.host_seconds, unknown.host_exposed_seconds) == (None, None)


@pytest.mark.parametrize(
    ("chip", "says"), [(H100_SXM, "55 GB/s each way"), (TPU_V5E, "no time includes that")]
)
def test_a_note_says_how_much_moves(chip, says):
    found = run(to_host("a"), done("a", THERE), chip=chip)
    (note,) = (n for n in explanation._notes(None, machine(chip), found) if "of the host" in n)
    assert note.startswith("4.00 MiB move between the memories")
    assert says in note


@pytest.mark.parametrize(("waits", "is_shown"), [(2e-3, True), (0.0, True), (None, False)])
def test_the_table_has_copies_if_there_are_some(waits, is_shown):
    figures = totals(run(product("x")), H100_SXM)
    seconds = None if waits is None else 3e-3
    figures = dataclasses.replace(figures, host_seconds=seconds, host_exposed_seconds=waits)
    rows = dict(text.totals_rows(SimpleNamespace(totals=figures)))
    assert rows.get("copies to and from the host") == ("3 ms" if is_shown else None)
    assert ("waiting for the host" in rows) == is_shown
