"""What the passes save of the collectives that XLA's partitioner chose."""

from jitted_programs import PROGRAMS

from shmap_compiler import unjit
from shmap_compiler.unjit.savings import Saving, show_savings


def test_passes_that_save_communication_are_named_with_what_they_save():
    program = PROGRAMS["fsdp"]
    made = unjit(program.jitted(), *program.args)
    merged, formed = made.savings()
    assert merged.name == "shmap-merge-equal-collectives"
    assert merged.counts == "all-gather 3 -> 2"
    assert formed.name == "shmap-form-reduce-scatter"
    assert formed.counts == "all-reduce 4 -> 2, reduce-scatter 0 -> 2"
    # A weight has 2 KiB: a gather along "j" sends half of that, one along "i" three quarters.
    whole = 16 * 32 * 4
    assert merged.sent_before - merged.sent_after == whole / 2 * 3 / 4
    assert formed.sent_before == merged.sent_after
    assert formed.sent_before - formed.sent_after == 2 * whole / 2 * 3 / 4
    assert str(merged).startswith("shmap-merge-equal-collectives: all-gather 3 -> 2, 5.38 KiB -> ")
    _, ours = made.prices()
    assert ours.totals.sent_bytes == formed.sent_after


def test_savings_are_a_table():
    saving = Saving(
        "shmap-fold", {"all-gather": 2, "all-reduce": 1}, {"all-gather": 2}, 2048.0, 0.0
    )
    heads, row = show_savings((saving,)).splitlines()
    assert heads.split("  ")[0] == "what the passes save"
    assert row.split() == ["shmap-fold", "all-reduce", "1", "->", "0", "2.00", "KiB", "0", "B"]
    assert show_savings(()) == "what the passes save: nothing"
