"""Stored schedules of real compilers: what explain makes of them, and what must come out.

Each is checked against two things that know nothing of explain: what the source of the program says
(`schedules/programs.py`), and a second model of the schedule (`second_model.py`).
"""

import functools
import json
import lzma
from pathlib import Path

import pytest
import second_model
from schedules.programs import PROGRAMS
from shmap_passes.cost.machine import Machine

from shmap_compiler import Target
from shmap_compiler.explain import hlo, schedule

HERE = Path(__file__).parent / "schedules"
STORED = sorted(HERE.glob("*/*.hlo.xz"))
CLOSE = 0.03


def name(path):
    return f"{path.parent.name}/{path.name.removesuffix('.hlo.xz')}"


def read(path):
    return lzma.decompress(path.read_bytes()).decode()


def program(path):
    return PROGRAMS[path.name.removesuffix(".hlo.xz").partition("_")[2].partition("+")[0]]


@functools.cache
def explained(path):
    text = read(path)
    header = json.loads(text.splitlines()[0].removeprefix("// "))
    places = [tuple(place) for place in header["places"]]
    target = Target.parse(path.parent.name.replace("-", ":"))
    machine = Machine(target.chip, target.network, tuple(places))
    return schedule.run(hlo.parse(text), machine, 8)


def stored(target, program, line="0.12"):
    return explained(HERE / target.replace(":", "-") / f"{line}_{program}.hlo.xz")


def sent(run):
    total = {}
    for o in run.occurrences:
        total[o.collective.kind] = total.get(o.collective.kind, 0) + o.trips * o.collective.sent
    return total


def kinds(run):
    """How often each kind of collective runs: while the device computes, or alone."""
    found = {}
    for o in run.occurrences:
        key = (o.collective.kind, "beside" if o.overlapped else "alone")
        found[key] = found.get(key, 0) + o.trips
    return found


def test_at_least_forty_schedules_are_stored():
    assert len(STORED) >= 40
    assert {path.name[:4] for path in STORED} == {"0.10", "0.12"}


@pytest.mark.parametrize("path", STORED, ids=name)
def test_operations_are_those_of_the_source(path):
    assert explained(path).flops == pytest.approx(program(path).flops, rel=CLOSE)


# The rows that a device keeps of a reduce-scatter, where libtpu makes them more than 2048.
PADDED_ROWS = {
    "tpu-v5e-2x4/0.12_two_layers": 2088,
    "tpu-v5e-2x4/0.12_two_layers_gradient": 2088,
    "tpu-v6e-2x4/0.12_sums_scattered": 2088,
    "tpu-v6e-2x4/0.12_two_layers": 2128,
    "tpu-v6e-2x4/0.12_two_layers_gradient": 2128,
}


@pytest.mark.parametrize("path", STORED, ids=name)
def test_bytes_sent_are_those_of_the_source(path):
    needed = dict(program(path).sent)
    if name(path) in PADDED_ROWS:
        needed["reduce-scatter"] *= PADDED_ROWS[name(path)] / 2048
    if path.parent.name == "tpu-v5p-2x2x2" and "reduce-scatter" in needed:
        # libtpu makes an all-reduce of it, and slices the result.
        needed["all-reduce"] = 2 * needed.pop("reduce-scatter")
    found = sent(explained(path))
    for kind, count in needed.items():
        assert found.pop(kind) == pytest.approx(count, rel=CLOSE), kind
    # What compilers add to bring unequal rows into place is less than that.
    assert sum(found.values()) <= CLOSE * sum(needed.values())


HOST_BYTES = {"offloaded_gradient": 2 * 8 * 4096 * 4096 * 2}


@pytest.mark.parametrize("path", STORED, ids=name)
def test_bytes_moved_to_the_host_are_those_of_the_source(path):
    assert explained(path).host_bytes == HOST_BYTES.get(program(path).body.__name__, 0)


def test_copies_to_the_host_take_time_on_gpus():
    """Each one is waited for at once."""
    run = stored("gpu:h100:8", "offloaded_gradient")
    one_way = HOST_BYTES["offloaded_gradient"] / 2 / 55e9
    assert run.host_usage == dict.fromkeys(("to the host", "from the host"), pytest.approx(one_way))
    assert run.seconds == pytest.approx(run.computing + run.host_exposed)
    assert run.host_exposed == pytest.approx(2 * one_way)
    assert not stored("tpu:v5e:2x4", "offloaded_gradient").host_usage


def test_arrays_on_the_host_are_not_in_the_memory_of_the_device():
    offloaded = 8 * 4096 * 4096 * 2
    for target in ("tpu:v5e:2x4", "gpu:h100:8"):
        assert stored(target, "offloaded_gradient").peak.bytes < offloaded


@pytest.mark.parametrize("path", STORED, ids=name)
def test_times_are_those_of_a_second_model(path):
    chip = path.parent.name.split("-")[1]
    # Where the source has eight trips, libtpu takes the first one out of the loop.
    loops = {"*": 7 if program(path).body.__name__ in HOST_BYTES else 8}
    other = second_model.Reader(read(path), chip, loops).run()
    run = explained(path)
    assert not run.unknown_loops
    assert run.flops == pytest.approx(other.flops, rel=CLOSE)
    assert run.computing == pytest.approx(other.computing, rel=CLOSE)
    assert run.sending == pytest.approx(other.wire, rel=CLOSE)
    assert run.seconds == pytest.approx(other.total, rel=CLOSE)


# ------------------------------------------------------------------------------- one construct each


def test_a_fused_reduce_scatter_sends_half_of_an_all_reduce():
    run = stored("tpu:v5e:2x4", "two_layers")
    assert kinds(run)["reduce-scatter", "alone"] == 1
    assert ("all-reduce", "alone") not in kinds(run)
    # 7/8 of 16704 rows, padded, over both directions of a ring; a megabyte of rows is moved beside.
    assert run.sending == pytest.approx(7 / 8 * (16384 + 16704) * 4096 * 2 / 100e9, rel=0.02)


def test_gathers_that_products_carry_on_run_beside_them():
    """Fusions that start, carry on and end one gather are one gather, which is not waited for."""
    run = stored("tpu:v5e:2x4", "layers_unrolled")
    assert kinds(run) == {("all-gather", "alone"): 1, ("all-gather", "beside"): 7}
    one = 7 / 8 * 4096 * 4096 * 2 / 100e9
    assert sum(o.exposed for o in run.occurrences) == pytest.approx(one)
    # The products between start and end have their full time.
    assert run.seconds == pytest.approx(run.computing + one)


def test_collectives_on_the_sparse_core_are_beside_what_follows():
    run = stored("tpu:v6e:2x4", "layers_unrolled+sc")
    assert kinds(run) == {("all-gather", "beside"): 8}
    assert sum(o.exposed for o in run.occurrences) == pytest.approx(run.sending / 8, rel=CLOSE)
    run = stored("tpu:v6e:2x4", "rows_gathered+sc")
    assert kinds(run) == {("all-gather", "beside"): 1}
    assert run.seconds == pytest.approx(run.computing + run.sending)


def test_gathers_on_v5p_use_two_links_and_sums_all_three():
    assert stored("tpu:v5p:2x2x2", "rows_gathered").sending == pytest.approx(
        7 / 8 * 16384 * 8192 * 2 / 200e9
    )
    assert stored("tpu:v5p:2x2x2", "sums").sending == pytest.approx(
        2 * 7 / 8 * 8192 * 8192 * 2 / 300e9
    )


def test_products_of_cublas_are_counted():
    assert stored("gpu:h100:8", "rows_gathered+cublas").flops == 2 * 16384 * 8192 * 2048


def test_permutes_of_gpus_share_their_ports():
    """Two permutes to different neighbors leave through one port: one after the other."""
    run = stored("gpu:h100:8", "opposite_shifts")
    assert run.sending == pytest.approx(sum(o.trips * o.cost.seconds for o in run.occurrences))


def test_copies_without_an_estimate_are_apart():
    """The two 64 MiB reshapes of the exchange on v5e are read and written in memory."""
    run = stored("tpu:v5e:2x4", "experts")
    moved = {w.opcode: w.traffic for w in run.works if w.unestimated}
    assert set(moved) == {"reshape"}
    assert run.unestimated == pytest.approx(
        sum(w.trips * w.traffic for w in run.works if w.unestimated) / 819e9
    )
    assert 0 < run.unestimated < 0.03 * run.seconds


def test_the_table_in_the_documentation_is_what_explain_says():
    text = (Path(__file__).parents[2] / "docs" / "explain.md").read_text()
    lines = text[text.index("## Seven programs") :].splitlines()
    header, _, *rows = [line.split(" | ") for line in lines if line.startswith("|")][:11]
    targets = [cell.strip("`| ") for cell in header[1:]]
    checked = 0
    for row in rows:
        for target, cell in zip(targets, row[1:], strict=True):
            run = stored(target, row[0].split("`")[1])
            times = (run.computing, run.sending, run.seconds)
            assert cell.strip(" |") == " / ".join(f"{1e3 * t:.2f}" for t in times)
            checked += 1
    assert checked == 9 * 4
