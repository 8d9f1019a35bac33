"""Which of two compiled programs `overlap="measure"` keeps, and what its note says."""

import re
from dataclasses import dataclass
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P
from shmap_passes.overlap.choose.chosen_forms import ChosenForm
from shmap_passes.overlap.form import Form

from shmap_compiler import Target, TargetError, shard_map
from shmap_compiler.base.errors import Problem
from shmap_compiler.lowering.overlap import OverlapSetting
from shmap_compiler.stages import compile_overlapped, measured
from shmap_compiler.stages.compile_for_target import compile_for_target
from shmap_compiler.stages.compiled import CompiledForTarget

PROBLEM = Problem("memory", "20 GiB needed\nof HBM", "16 GiB", "split it")
OTHER_PROBLEM = Problem("memory", "18 GiB needed", "16 GiB", "split it")
LOOP = ChosenForm(Form("unroll"), "gathering-loop", received=70, count=8)
RING = ChosenForm(Form("ring"), "gather-product", received=700, count=8)


@dataclass(frozen=True, repr=False)
class Judged(CompiledForTarget):
    """A program of which only the costs are known."""

    explanation: SimpleNamespace | None = None

    def explain(self):
        return self.explanation


def judged(seconds, unestimated=0.0, memory=100):
    totals = SimpleNamespace(step_seconds=seconds, unestimated_seconds=unestimated)
    used = SimpleNamespace(total=memory, temporaries=memory // 2, capacity=1000)
    explanation = SimpleNamespace(totals=totals, memory=used)
    return Judged(None, None, None, explanation=explanation)


@pytest.mark.parametrize(
    ("changed", "is_kept", "note"),
    [
        (judged(0.9), True, "the rewritten program takes 900 ms instead of 1 s, and 100 B"),
        (judged(0.9, memory=102), True, "102 B of memory instead of 100 B"),
        (judged(1.0), False, "the plain program was kept: .* would take 1 s instead of 1 s"),
        (judged(1.1), False, "would take 1.1 s instead of 1 s"),
        # Work moved to what nobody estimates.
        (judged(0.9, unestimated=0.2), False, "would take 1.1 s instead of 1 s"),
        (judged(0.9, memory=103), False, "but need 103 B of memory instead of 100 B; .*'auto'"),
        (judged(None), False, "times on this target are not known"),
    ],
)
def test_the_faster_program_is_kept(changed, is_kept, note):
    plain = judged(1.0)
    kept = measured.better(plain, changed, [RING]).kept
    assert kept.explanation is (changed if is_kept else plain).explanation
    (found,) = kept.notes
    assert re.search(note, found)


def test_an_unrolled_loop_may_need_what_three_steps_gather():
    plain = judged(1.0, memory=1000)
    for memory, is_kept in ((1020 + 3 * 80, True), (1021 + 3 * 80, False)):
        changed = judged(0.9, memory=memory)
        kept = measured.better(plain, changed, [LOOP, RING]).kept
        assert (kept.explanation is changed.explanation) == is_kept
    verdict = measured.better(plain, judged(0.9, memory=1021), [RING])
    assert verdict.kept.explanation is plain.explanation
    assert verdict.is_large


def test_a_program_that_does_not_compile():
    kept = measured.not_compiled(judged(1.0), TargetError("f", [PROBLEM])).kept
    (note,) = kept.notes
    assert note == (
        "overlap: the plain program was kept: compiling the rewritten one ends with 20 GiB needed"
    )


def test_a_plain_program_that_does_not_compile():
    changed = judged(1.0)
    kept = measured.plain_not_compiled(changed, TargetError("f", [PROBLEM]))
    assert kept.explanation is changed.explanation
    assert kept.notes == (
        "overlap: the rewritten program was kept: compiling the plain one ends with 20 GiB needed",
    )


LIMIT = "xla_tpu_scheduler_percent_shared_memory_limit"


class Compiling:
    """Compiles programs to what is said of them, by their names and what memory is limited to."""

    def __init__(self, monkeypatch, programs, sums=(RING,)):
        self.programs, self.sums = programs, sums
        self.tried = []
        monkeypatch.setattr(compile_overlapped, "compile_for_target", self.compile)
        monkeypatch.setattr(compile_overlapped, "machine_for", lambda signature, target: None)

    def lower(self, platform, setting, machine):
        if setting.mode == "off":
            return "plain", SimpleNamespace(chosen=())
        name = "sums" if setting.only_sums else "all"
        return name, SimpleNamespace(chosen=self.sums if setting.only_sums else (RING,))

    def compile(self, program, target, progress, graph, options, *, apart):
        self.tried.append((program, options.of_target.get(LIMIT)))
        found = self.programs.get(self.tried[-1], self.programs.get(program))
        if isinstance(found, Exception):
            raise found
        return found

    def kept(self, target="tpu:v6e:2x4"):
        setting = OverlapSetting("measure")
        arguments = (Target.parse(target), {}, lambda phase: None, None, None)
        return compile_overlapped.compile_overlapped(self.lower, setting, *arguments)


LARGE = {"plain": judged(1.0, memory=200), "all": judged(0.7, memory=300)}


@pytest.mark.parametrize(
    ("programs", "seconds", "tried"),
    [
        ({"all": judged(0.8, memory=200)}, 0.8, []),
        ({"all": judged(1.1, memory=200)}, 1.0, []),
        ({"sums": judged(0.9, memory=200)}, 0.9, ["20"]),
        ({("sums", "20"): judged(0.8, memory=250), "sums": judged(0.9)}, 0.9, ["20", "7"]),
        ({"sums": judged(0.8, memory=250)}, 1.0, ["20", "7"]),
        ({"sums": judged(1.1, memory=100)}, 1.0, ["20", "7"]),
        ({"sums": TargetError("f", [PROBLEM])}, 1.0, ["20", "7"]),
        ({"all": TargetError("f", [PROBLEM]), "sums": judged(0.9)}, 0.9, ["20"]),
    ],
)
def test_sums_alone_are_tried_if_all_forms_need_too_much_memory(
    monkeypatch, programs, seconds, tried
):
    """Within 20% of the memory, as the plain program, then within 3/4 of its temporaries."""
    compiling = Compiling(monkeypatch, {**LARGE, **programs})
    kept = compiling.kept()
    assert kept.explanation.totals.step_seconds == seconds
    assert compiling.tried == [("plain", None), ("all", None), *(("sums", t) for t in tried)]


def test_sums_alone_are_not_tried_where_there_are_none_or_memory_has_no_limit(monkeypatch):
    for sums, target in (((), "tpu:v6e:2x4"), ((RING,), "gpu:h100:8")):
        compiling = Compiling(monkeypatch, LARGE, sums)
        (note,) = compiling.kept(target).notes
        assert "but need 300 B of memory" in note
        assert len(compiling.tried) == 2


def test_the_rewritten_program_is_kept_if_the_plain_one_does_not_compile(monkeypatch):
    compiling = Compiling(monkeypatch, {**LARGE, "plain": TargetError("f", [PROBLEM])})
    kept = compiling.kept()
    assert kept.explanation.totals.step_seconds == 0.7
    (note,) = kept.notes
    assert note.endswith("compiling the plain one ends with 20 GiB needed")
    assert compiling.tried == [("plain", None), ("all", None)]


def test_the_error_is_that_of_the_plain_program_if_none_compiles(monkeypatch):
    plain, rewritten = TargetError("f", [PROBLEM]), TargetError("f", [OTHER_PROBLEM])
    compiling = Compiling(monkeypatch, {"plain": plain, "all": rewritten})
    with pytest.raises(TargetError, match="20 GiB needed") as raised:
        compiling.kept()
    assert raised.value is plain
    assert compiling.tried == [("plain", None), ("all", None)]


@pytest.mark.parametrize("apart", [False, True])
def test_an_explanation_repeats_the_notes(apart):
    """That of an `Executable`, and of a `CompiledForTarget`."""
    mesh = jax.make_mesh((8,), ("i",))
    f = shard_map(jnp.sin, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    program, target = f.lower(jnp.ones(8)).portable("cpu"), Target.parse("cpu:8")
    compiled = compile_for_target(program, target, lambda phase: None, apart=apart)
    assert isinstance(compiled, CompiledForTarget) == apart
    failed = measured.not_compiled(compiled, TargetError("f", [PROBLEM])).kept
    assert failed.explain().notes == (*failed.notes, *compiled.explain().notes)
    assert failed.as_text() == compiled.as_text()
