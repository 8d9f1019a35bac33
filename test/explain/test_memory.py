"""The arrays in memory over time: hand-counted modules, and the stored schedules of compilers."""

import json

import pytest
from schedules.programs import PROGRAMS
from test_schedules import STORED, explained, name, read

from shmap_compiler.explain import hlo, schedule
from shmap_compiler.explain.liveness import array_bytes, liveness
from shmap_compiler.explain.memory_use import memory_use

MIB = 2**20


def entry(body, header=""):
    module = hlo.parse(f"HloModule m{header}\n\nENTRY %main (p: f32[4]) -> f32[4] {{\n{body}\n}}\n")
    return module, liveness(module, module.entry)


@pytest.mark.parametrize(
    ("type_", "size"),
    [
        ("f32[16,8]{1,0}", 512),
        ("bf16[16,8]{1,0:T(8,128)(2,1)}", 16 * 128 * 2),
        ("bf16[3,4,256]{2,0,1:T(8,128)(2,1)}", 8 * 4 * 256 * 2),
        ("bf16[8192,1,4096]{2,1,0:T(2,128)(2,1)}", 8192 * 2 * 4096 * 2),
        ("f32[1000]{0:T(1024)}", 4096),
        ("bf16[16,128]{1,0:T(8,128)(2,1)S(1)}", 0),
        ("f32[0,8]{1,0:T(8,128)}", 0),
        ("f32[]", 4),
    ],
)
def test_bytes_in_memory_are_those_of_whole_tiles(type_, size):
    assert array_bytes(type_) == size


def test_an_array_is_live_from_its_first_write_to_its_last_read():
    _, live = entry(
        """  %p = f32[4] parameter(0)
  %a = f32[8] pad(%p), padding=0_4
  %b = f32[16] pad(%a), padding=0_8
  %c = f32[4] slice(%b), slice={[0:4]}
  ROOT %d = f32[4] slice(%a), slice={[0:4]}"""
    )
    # The result lives to the end; %c is never read; the argument is counted elsewhere.
    assert live.bytes == (0, 32, 32 + 64, 32 + 64 + 16, 32 + 16)


def test_buffers_are_shared_where_nothing_reads_the_operand_later():
    _, live = entry(
        """  %p = f32[4] parameter(0)
  %a = f32[8] pad(%p), padding=0_4
  %b = f32[8] add(%a, %a)
  %c = f32[8] multiply(%b, %a)
  ROOT %d = f32[8] tanh(%c)"""
    )
    # %c reads %a after %b is written, so %b cannot replace it; %c replaces one of them.
    assert live.bytes == (0, 32, 64, 64, 32)


def test_tuples_and_their_elements_are_names_for_buffers():
    _, live = entry(
        """  %p = f32[4] parameter(0)
  %a = f32[8] pad(%p), padding=0_4
  %b = f32[16] pad(%p), padding=0_12
  %t = (f32[8], f32[16]) tuple(%a, %b)
  %x = f32[8] get-tuple-element(%t), index=0
  %y = f32[16] get-tuple-element(%t), index=1
  %s = f32[4] slice(%y), slice={[0:4]}
  ROOT %r = f32[4] slice(%x), slice={[0:4]}"""
    )
    # Of the tuple, %b is read for the last time at %s, and %a at the end.
    assert live.bytes == (0, 32, 96, 96, 96, 96, 96 + 16, 32 + 16)


def test_results_in_the_place_of_arguments_take_no_memory():
    body = """  %p = f32[4] parameter(0)
  ROOT %r = f32[4] tanh(%p)"""
    assert entry(body)[1].bytes == (0, 16)
    alias = ", input_output_alias={ {}: (0, {}, may-alias) }, is_scheduled=true"
    assert entry(body, alias)[1].bytes == (0, 0)


def test_a_started_collective_holds_its_result_until_that_is_read():
    _, live = entry(
        """  %p = f32[4] parameter(0)
  %s = (f32[4], f32[32]) all-gather-start(%p), dimensions={0}
  %w = f32[8] pad(%p), padding=0_4
  %d = f32[32] all-gather-done(%s)
  ROOT %r = f32[4] slice(%d), slice={[0:4]}"""
    )
    assert live.bytes == (0, 128, 128 + 32, 128, 128 + 16)


# ------------------------------------------------------------------------------- stored schedules


def figures(path):
    return json.loads(read(path).splitlines()[0].removeprefix("// "))["memory"]


@pytest.mark.parametrize("path", STORED, ids=name)
def test_no_more_is_in_use_than_the_compiler_reserves(path):
    compilers = figures(path)
    reserved = compilers["output_size_in_bytes"] + compilers["temp_size_in_bytes"]
    peak = explained(path).peak
    assert 0.49 * reserved <= peak.bytes <= 1.001 * reserved
    assert sum(buffer.bytes for buffer in peak.buffers) == peak.bytes


@pytest.mark.parametrize(
    "path", [p for p in STORED if "rows_gathered" in p.name and "cublas" not in p.name], ids=name
)
def test_the_gathered_rows_and_the_result_are_in_memory_at_the_peak(path):
    run = explained(path)
    use = memory_use(run, 2, 64 * MIB, True)
    assert use.peak_bytes == pytest.approx((64 + 256 + 64) * MIB, rel=0.001)
    found = {(a.type, a.count): a for a in use.live if a.bytes > MIB}
    assert set(found) == {("", 2), ("bf16[16384,8192]", 1), ("bf16[16384,2048]", 1)}
    # The array is named after the line that gathers it.
    source = found["bf16[16384,8192]", 1].source
    file, line = source.rsplit(":", 1)
    assert file.endswith("programs.py")
    with open(PROGRAMS["rows_gathered"].body.__code__.co_filename) as lines:
        assert "lax.all_gather" in lines.readlines()[int(line) - 1]


def test_a_scan_keeps_what_its_gradient_needs():
    """Three arrays of each of eight layers are saved, and the loops add to them."""
    path = next(p for p in STORED if name(p) == "gpu-h100-8/0.12_layers_gradient")
    run = explained(path)
    saved = [b for b in run.peak.buffers if b.type == "bf16[8,4096,4096]"]
    assert sum(b.bytes for b in saved) == 3 * 8 * 32 * MIB
    # The weights of one layer travel, and their gradient: in the loop, on top of what is saved.
    inside = {b.source.rpartition("/")[2] for b in run.peak.buffers if b not in saved}
    assert any(source.startswith("programs.py") for source in inside)
    assert max(held for _, held in run.memory) == run.peak.bytes


def test_memory_in_a_loop_is_on_top_of_what_is_around_it():
    part = schedule.Schedule(seconds=1.0, memory=[(0.0, 5), (0.5, 7)])
    part.peak = schedule.Peak(0.5, 7, ())
    _, live = entry("  %p = f32[4] parameter(0)\n  ROOT %a = f32[8] pad(%p), padding=0_4")
    whole = schedule.Schedule(seconds=10.0)
    schedule._append(whole, part, 3, live, 1)
    assert whole.memory[:3] == [(10.0, 37), (10.5, 39), (11.0, 37)]
    assert (whole.peak.start, whole.peak.bytes) == (10.5, 39)
    assert [b.type for b in whole.peak.buffers] == ["f32[8]"]
