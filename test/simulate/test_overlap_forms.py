"""Every form of every pass of overlap, simulated: equal to the stage before, as the pass promises.

From body form to the last module of both partitioners.
"""

import json
from pathlib import Path

import pytest
from overlap_programs import FORMS, lowered_in

TABLE = Path(__file__).parents[2] / "docs" / "overlap_validation.json"

SHORT = {"4 chunks into an allocated buffer", "4 partial sums in f32"}
"""Others are validated in test/passes/overlap."""


def assert_valid(form, dtype, partitioner):
    _, program, pass_, op_name, options = form
    lowered, args = lowered_in(program, pass_, op_name, options, dtype, partitioner)
    states = {state.name: state for state in lowered.snapshots.stages}
    names = list(states)
    rewritten = f"shmap-{pass_}"
    assert states[rewritten].text != states[names[names.index(rewritten) - 1]].text
    assert "shmap.overlap" not in states[rewritten].text
    validation = lowered.validate(*args, xla=False)
    assert validation.holds, str(validation)


def named(forms):
    return [pytest.param(form, id=f"{form[2]}, {form[1]}: {form[0]}") for form in forms]


@pytest.mark.parametrize("form", named(form for form in FORMS if form[0] in SHORT))
def test_some_forms(form):
    assert_valid(form, "bfloat16", "shardy")


@pytest.mark.long
@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", named(FORMS))
def test_all_forms(form, dtype, partitioner):
    assert_valid(form, dtype, partitioner)


def test_the_table_in_the_documentation_has_every_form_and_no_difference():
    rows = json.loads(TABLE.read_text())
    listed = [(row["form"], row["program"], row["pass"]) for row in rows]
    known = [(name, program, f"shmap-{pass_}") for name, program, pass_, *_ in FORMS]
    assert listed == known, "python docs/make_validation.py overlap"
    assert {row["unequal"] for row in rows} == {0}
