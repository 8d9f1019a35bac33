"""What a compiled program costs: reading HLO, the model of the wire, schedules, explanations."""

import functools
import itertools
import json
import math
import operator
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import needs_gpu_compiler, needs_tpu_compiler
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P
from shmap_passes.cost import collective_time, nccl
from shmap_passes.cost.chips import H100_SXM, H200_SXM, TPU_V5E, TPU_V6E
from shmap_passes.cost.machine import Machine

from shmap_compiler import PARTITIONERS, Target, shard_map
from shmap_compiler.base.device_groups import group_axes
from shmap_compiler.explain import (
    hlo,
    replica_groups,
    roofline,
    schedule,
    trip_count,
)
from shmap_compiler.explain.collective import read_collective
from shmap_compiler.explain.roofline import _meetings, _Window
from shmap_compiler.targets import Nodes, Torus

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
SIZES = {"i": 4, "j": 2}


ADD = """%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}"""


def module_text(entry, *computations):
    """A module of these computations, the last lines of which are the entry."""
    return "\n".join(["HloModule m, is_scheduled=true", *computations, ADD, entry])


def module(entry, *computations):
    return hlo.parse(module_text(entry, *computations))


def only(opcode, parsed):
    (found,) = [i for c in parsed.computations.values() for i in c if i.opcode == opcode]
    return found


# ------------------------------------------------------------------------------------ reading HLO


def test_types_operands_and_attributes_are_read():
    parsed = module(
        """ENTRY %main (p: bf16[8,4]) -> (bf16[8,4], u32[]) {
  %p = bf16[8,4]{1,0:T(8,128)(2,1)S(1)} parameter(0), metadata={op_name="args[0]"}
  %start = (bf16[8,4]{1,0:T(8,128)(2,1)}, /*index=1*/u32[]{:S(2)}) copy-start(%p), x={1,2}
  ROOT %t = (bf16[8,4]{1,0}, u32[]) tuple(%p, %p)
}"""
    )
    start = only("copy-start", parsed)
    assert start.operands == ("p",)
    assert start.bytes == 8 * 4 * 2 + 4
    assert start.attribute(r"\bx=(\S+)") == "{1,2}"
    assert parsed.entry.root == "t"
    assert parsed.entry.parameters == {"p": 0}


def test_text_without_an_entry_is_refused():
    with pytest.raises(ValueError, match="has no ENTRY computation"):
        hlo.parse("module @jit_f {}")


@pytest.mark.parametrize(
    ("type_", "size"),
    [
        ("f32[8,16]{1,0}", 512),
        ("(f32[2]{0}, s8[3]{0})", 11),
        ("pred[5]", 5),
        ("s4[3]{0:E(4)}", 2),
        ("bf16[]", 2),
        ("f8e4m3fn[16]", 16),
        ("c64[2]", 16),
        ("token[]", 0),
    ],
)
def test_bytes_of_types(type_, size):
    assert hlo.type_bytes(type_) == size


def test_source_lines_come_from_the_frames():
    parsed = module(
        """ENTRY %main () -> f32[] {
  ROOT %c = f32[] constant(1), metadata={op_name="jit(f)/c" stack_frame_id=2}
}""",
        'FileNames\n1 "a.py"\n2 "b.py"\n',
        "FileLocations\n1 {file_name_id=1 function_name_id=1 line=3 end_line=3}\n"
        "2 {file_name_id=2 function_name_id=1 line=7 end_line=9 column=1}\n",
        "StackFrames\n1 {file_location_id=1 parent_frame_id=1}\n"
        "2 {file_location_id=2 parent_frame_id=2}\n",
    )
    assert parsed.source(only("constant", parsed)) == "b.py:7"


# ----------------------------------------------------------------------------------------- groups


@pytest.mark.parametrize(
    ("text", "expected", "axes"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}, x", [(0, 1), (2, 3), (4, 5), (6, 7)], ("j",)),
        ("[2,4]<=[4,2]T(1,0), x", [(0, 2, 4, 6), (1, 3, 5, 7)], ("i",)),
        ("[4,2]<=[8]", [(0, 1), (2, 3), (4, 5), (6, 7)], ("j",)),
        ("mesh['i'=4,'j'=2] {'i'}, x", [(0, 2, 4, 6), (1, 3, 5, 7)], ("i",)),
        ("mesh['i'=4,'j'=2] {'i','j'}", [tuple(range(8))], ("i", "j")),
        ("mesh['i'=4,'j'=2] {'i':(1)2}", [(0, 4), (1, 5), (2, 6), (3, 7)], None),
        ("mesh['i'=4,'j'=2] {'i':(2)2}", [(0, 2), (1, 3), (4, 6), (5, 7)], None),
        (
            "mesh['i'=4,'j'=2], device_ids=([2,4]T(1,0)) {'i'}",
            [(0, 1, 2, 3), (4, 5, 6, 7)],
            None,
        ),
        ("mesh['i'=4,'j'=2], device_ids=([8]) {'j'}", [(0, 1), (2, 3), (4, 5), (6, 7)], ("j",)),
        (
            "mesh['i'=4,'j'=2], device_ids=(1,0,3,2,5,4,7,6) {'i'}",
            [(1, 3, 5, 7), (0, 2, 4, 6)],
            ("i",),
        ),
        ("{}, x", [tuple(range(8))], ("i", "j")),
        ("{{0,1,2},{3,4,5},{6},{7}}", [(0, 1, 2), (3, 4, 5), (6,), (7,)], None),
    ],
)
def test_groups(text, expected, axes):
    instruction = hlo.Instruction("x", "f32[]", "all-reduce", (), "", f", replica_groups={text}")
    found = replica_groups.read_groups(instruction, 8)
    assert sorted(found) == sorted(expected)
    assert group_axes(found, SIZES) == axes


def test_groups_in_an_unknown_form_are_refused():
    instruction = hlo.Instruction("x", "f32[]", "all-reduce", (), "", ", replica_groups=<0>")
    with pytest.raises(ValueError, match="groups in a form that is not known: <0>"):
        replica_groups.read_groups(instruction, 8)


# ------------------------------------------------------------------------------------------ loops


def loop_text(direction, first, bound, step, known="", operands="%a, %b"):
    return module_text(
        f"""ENTRY %main (p: f32[4]) -> f32[4] {{
  %p = f32[4] parameter(0)
  %zero = s32[] constant({first})
  %bound = s32[] constant({bound})
  %init = (s32[], f32[4], s32[]) tuple(%zero, %p, %bound)
  %while = (s32[], f32[4], s32[]) while(%init), condition=%cond, body=%body{known}
  ROOT %out = f32[4] get-tuple-element(%while), index=1
}}""",
        f"""%fused (a: s32[], b: s32[]) -> pred[] {{
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  ROOT %less = pred[] compare({operands}), direction={direction}
}}

%cond (c: (s32[], f32[4], s32[])) -> pred[] {{
  %c = (s32[], f32[4], s32[]) parameter(0)
  %count = s32[] get-tuple-element(%c), index=0
  %limit = s32[] get-tuple-element(%c), index=2
  ROOT %test = pred[] fusion(%count, %limit), kind=kLoop, calls=%fused
}}

%body (d: (s32[], f32[4], s32[])) -> (s32[], f32[4], s32[]) {{
  %d = (s32[], f32[4], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%d), index=0
  %x = f32[4] get-tuple-element(%d), index=1
  %n = s32[] get-tuple-element(%d), index=2
  %by = s32[] constant({step})
  %next = s32[] add(%i, %by)
  %kept = s32[] copy(%n)
  %sum = f32[4] all-reduce(%x), replica_groups={{{{0,1}}}}, to_apply=%add
  ROOT %carry = (s32[], f32[4], s32[]) tuple(%next, %sum, %kept)
}}""",
    )


def loop(direction, first, bound, step, known="", operands="%a, %b"):
    return hlo.parse(loop_text(direction, first, bound, step, known, operands))


@pytest.mark.parametrize(
    ("direction", "first", "bound", "step", "count"),
    [
        ("LT", 0, 7, 1, 7),
        ("LT", 1, 8, 3, 3),
        ("LE", 0, 7, 1, 8),
        ("GT", 7, 0, -1, 7),
        ("GE", 7, 0, -2, 4),
        ("NE", 0, 5, 1, 5),
        ("LT", 9, 7, 1, 0),
        ("LT", 0, 7, -1, None),
        ("EQ", 0, 7, 1, None),
    ],
)
def test_trips_of_a_counted_loop(direction, first, bound, step, count):
    parsed = loop(direction, first, bound, step)
    found = trip_count.trips(parsed, parsed.entry, parsed.entry["while"], {})
    assert found.count == count
    assert found.carried == {2: bound}


HOLDS = {
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "NE": operator.ne,
    "EQ": operator.eq,
}


def counted(holds, first, step):
    """The trips of a loop by running it; None if it goes on until the counter overflows."""
    counter, trips = first, 0
    while holds(counter):
        counter, trips = counter + step, trips + 1
        if trips > 50:
            return None
    return trips


@pytest.mark.parametrize("operands", ["%a, %b", "%b, %a"])
@pytest.mark.parametrize("direction", ["LT", "LE", "GT", "GE", "NE"])
def test_trips_are_those_of_the_loop_that_runs(direction, operands):
    """With the counter on either side, and bounds that the steps meet or pass."""
    holds = HOLDS[direction]
    for first, bound, step in itertools.product((0, 3, 6), (0, 3, 5, 6), (-3, -2, -1, 1, 2, 3)):
        parsed = loop(direction, first, bound, step, operands=operands)
        found = trip_count.trips(parsed, parsed.entry, parsed.entry["while"], {}).count
        if operands == "%a, %b":
            expected = counted(lambda i, b=bound: holds(i, b), first, step)
        else:
            expected = counted(lambda i, b=bound: holds(b, i), first, step)
        # What is not entered at all is told of some loops only that would never end.
        assert found == expected or (expected == 0 and found is None), (first, bound, step)


def test_trips_that_xla_wrote_down():
    known = ', backend_config={"known_trip_count":{"n":"11"}}'
    parsed = loop("EQ", 0, 7, 1, known)
    assert trip_count.trips(parsed, parsed.entry, parsed.entry["while"], {}).count == 11


@pytest.mark.parametrize(("links", "kind"), [(3000, "copy(%{0})"), (60, "add(%{0}, %{0})")])
def test_counters_that_are_computed_in_long_chains(links, kind):
    names = ["by", *(f"n{k}" for k in range(links))]
    chain = "\n".join(
        f"  %{name} = s32[] {kind.format(before)}" for before, name in itertools.pairwise(names)
    )
    text = loop_text("LT", 0, 2 ** (links + 2) if "add" in kind else 7, 1)
    last = f"  %next = s32[] add(%i, %{names[-1]})"
    parsed = hlo.parse(text.replace("  %next = s32[] add(%i, %by)", f"{chain}\n{last}"))
    found = trip_count.trips(parsed, parsed.entry, parsed.entry["while"], {})
    assert found.count == (4 if "add" in kind else 7)


def test_collectives_in_a_loop_count_its_trips():
    (occurrence,) = schedule.run(loop("LT", 0, 7, 1), None, 2).occurrences
    assert occurrence.trips == 7


def test_a_loop_of_unknown_trips_is_told():
    found = schedule.run(loop("EQ", 0, 7, 1), None, 2)
    assert found.unknown_loops == [""]
    assert found.occurrences[0].trips == 1


def test_collectives_in_a_condition_run_once_more_than_those_in_the_body():
    known = ', backend_config={"known_trip_count":{"n":"11"}}'
    tested = "%count = s32[] get-tuple-element(%c), index=0\n"
    summed = "  %count = s32[] all-reduce(%own), replica_groups={{0,1}}, to_apply=%add\n"
    for attribute, in_condition, in_body in ((known, 12, 11), ("", 2, 1)):
        text = loop_text("LT", 0, 7, 1, attribute)
        parsed = hlo.parse(text.replace(tested, tested.replace("%count", "%own") + summed))
        found = schedule.run(parsed, V5E, 2)
        counts = {each.collective.name: 0 for each in found.occurrences}
        for each in found.occurrences:
            counts[each.collective.name] += each.trips
        assert counts == {"count": in_condition, "sum": in_body}
        assert found.unknown_loops == ([] if attribute else [""])
        assert found.seconds >= found.sending > 0
        wires = [event.name for event in found.events if event.lane == "wire"]
        assert wires == ["count", "sum"] * in_body + ["count"] * (in_condition - in_body)


def test_the_condition_of_a_loop_communicates():
    def doubled(block):
        return lax.while_loop(lambda s: lax.pmax(s.max(), "i") < 100.0, lambda s: s * 2, block)

    program = shard_map(doubled, mesh=MESH, in_specs=P("i"), out_specs=P("i"))
    explanation = program.lower(np.ones((8, 16), np.float32)).compile().explain()
    ((kind, axes, count),) = [(c.kind, c.axes, c.count) for c in explanation.collectives]
    assert (kind, axes, count) == ("all-reduce", ("i",), 2)  # of one trip
    assert explanation.totals.sent_bytes == explanation.collectives[0].sent_bytes > 0
    assert any("how often it runs is not known" in note for note in explanation.notes)


# -------------------------------------------------------------------------------------- operations


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}", 2 * 8 * 4 * 16),
        ("convolution(%a, %b), dim_labels=bf_io->bf", 2 * 8 * 4 * 16),
        (
            'custom-call(%a, %b), custom_call_target="__cublas$gemm", backend_config={"x":'
            '{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}',
            2 * 8 * 4 * 16,
        ),
        ('custom-call(%a, %b), custom_call_target="other"', 0),
    ],
)
def test_operations_of_matrix_products(line, count):
    parsed = module(
        f"""ENTRY %main (a: f32[8,16], b: f32[16,4]) -> f32[8,4] {{
  %a = f32[8,16] parameter(0)
  %b = f32[16,4] parameter(1)
  ROOT %product = f32[8,4] {line}
}}"""
    )
    assert roofline.flops(parsed, parsed.entry, parsed.entry["product"]) == count


@pytest.mark.parametrize(
    "line",
    [
        "dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={}, rhs_batch_dims={0}, "
        "rhs_contracting_dims={}",
        'custom-call(%a, %b), custom_call_target="__cublas$gemm", backend_config={"x":'
        '{"lhs_contracting_dimensions":[],"rhs_contracting_dimensions":[]}}',
    ],
)
def test_operations_of_outer_products(line):
    parsed = module(
        f"""ENTRY %main (a: f32[3,8], b: f32[3,16]) -> f32[3,8,16] {{
  %a = f32[3,8] parameter(0)
  %b = f32[3,16] parameter(1)
  ROOT %product = f32[3,8,16] {line}
}}"""
    )
    assert roofline.flops(parsed, parsed.entry, parsed.entry["product"]) == 2 * 3 * 8 * 16


def test_operations_of_a_convolution_over_space():
    parsed = module(
        """ENTRY %main (a: f32[2,9,9,3], b: f32[3,3,3,5]) -> f32[2,7,7,5] {
  %a = f32[2,9,9,3] parameter(0)
  %b = f32[3,3,3,5] parameter(1)
  ROOT %c = f32[2,7,7,5] convolution(%a, %b), window={size=3x3}, dim_labels=b01f_01io->b01f
}"""
    )
    expected = 2 * (2 * 7 * 7 * 5) * (3 * 3 * 3)
    assert roofline.flops(parsed, parsed.entry, parsed.entry["c"]) == expected


def windows():
    """(input, kernel, stride, padding, dilations of both) of small convolutions."""
    random = np.random.default_rng(0)
    for _ in range(200):
        left, kernel, stride, input_dilation, kernel_dilation = map(int, random.integers(1, 5, 5))
        low, high = map(int, random.integers(-1, 5, 2))
        room = (left - 1) * input_dilation + low + high - (kernel - 1) * kernel_dilation
        if room >= 0:
            sizes = (left, kernel, room // stride + 1)
            yield sizes, _Window(stride, low, input_dilation, kernel_dilation)


def test_positions_of_a_window_that_meet_the_input():
    """Against counting one by one."""
    checked = 0
    for (left, kernel, result), window in windows():
        taken = [
            r * window.stride - window.padding + k * window.kernel_dilation
            for r in range(result)
            for k in range(kernel)
        ]
        dilated = range(0, (left - 1) * window.input_dilation + 1, window.input_dilation)
        expected = sum(position in dilated for position in taken)
        assert _meetings(left, kernel, result, window) == expected, (left, kernel, result, window)
        checked += 1
    assert checked > 100


def test_operations_of_a_product_with_batch_dimensions_that_became_a_convolution():
    """Batched products of [4, 64, 32] and [4, 32, 16], as libtpu writes them."""
    text = """HloModule m

ENTRY %main (a: f32[4,64,32], b: f32[4,32,16]) -> f32[4,64,16] {
  %a = f32[4,64,32] parameter(0)
  %b = f32[4,32,16] parameter(1)
  ROOT %c = f32[4,64,16] convolution(%a, %b), WINDOW, dim_labels=0bf_0io->0bf
}
"""
    module = hlo.parse(text.replace("WINDOW", "window={size=4 stride=3 pad=0_0 lhs_dilate=4}"))
    counted = roofline.flops(module, module.entry, module.entry["c"])
    assert counted == 4 * 2 * 64 * 32 * 16


def test_time_of_compute_is_the_compilers_estimate_or_a_roofline():
    parsed = module(
        """ENTRY %main (a: bf16[8,16]) -> bf16[8,16] {
  %a = bf16[8,16] parameter(0)
  ROOT %b = bf16[8,16] negate(%a), backend_config={"estimated_cycles":"3000"}
}"""
    )
    negate = parsed.entry["b"]

    def work(chip, instruction=negate):
        return roofline.work(parsed, parsed.entry, instruction, chip)

    assert work(TPU_V5E).seconds == 3000 / 1.5e9
    moved = 2 * 8 * 16 * 2
    assert work(H100_SXM).seconds == pytest.approx(3e-6 + moved / (0.85 * 3.35e12))
    assert work(H200_SXM).seconds == pytest.approx(3e-6 + moved / (0.69 * 4.8e12))
    assert work(None).seconds == 0
    assert work(H100_SXM, parsed.entry["a"]) is None


def test_an_estimate_without_end_is_replaced_by_a_roofline():
    """As libtpu makes for a product of 64 sequences on v6e."""
    parsed = module(
        """ENTRY %main (a: bf16[512,256], b: bf16[256,512]) -> bf16[512,512] {
  %a = bf16[512,256] parameter(0)
  %b = bf16[256,512] parameter(1)
  ROOT %c = bf16[512,512] convolution(%a, %b), dim_labels=bf_io->bf, backend_config=CYCLES
}""".replace("CYCLES", '{"estimated_cycles":"9223372036854775807"}')
    )
    found = roofline.work(parsed, parsed.entry, parsed.entry["c"], TPU_V6E)
    moved = 2 * (2 * 512 * 256 + 512 * 512)
    assert found.seconds == pytest.approx(moved / (TPU_V6E.hbm_bandwidth * TPU_V6E.hbm_share))
    assert found.unestimated == 0


def test_slices_cost_what_they_move():
    parsed = module(
        """ENTRY %main (a: f32[64,64], b: f32[1,64], i: s32[]) -> f32[64,64] {
  %a = f32[64,64] parameter(0)
  %b = f32[1,64] parameter(1)
  %i = s32[] parameter(2)
  %slice = f32[1,64] dynamic-slice(%a, %i, %i)
  ROOT %fused = f32[64,64] fusion(%a, %b, %i), kind=kLoop, calls=%update
}""",
        """%update (p: f32[64,64], q: f32[1,64], r: s32[]) -> f32[64,64] {
  %p = f32[64,64] parameter(0)
  %q = f32[1,64] parameter(1)
  %r = s32[] parameter(2)
  ROOT %u = f32[64,64] dynamic-update-slice(%p, %q, %r, %r)
}""",
    )
    row, index = 64 * 4, 4
    assert roofline.traffic(parsed, parsed.entry, parsed.entry["slice"]) == 2 * row
    assert roofline.traffic(parsed, parsed.entry, parsed.entry["fused"]) == 2 * row + index


# ----------------------------------------------------------------------------------------- the wire

W = 50e9
LINE = Torus((4,), (False,), W, 0.0)
RING = Torus((4,), (True,), W, 0.0)
GRID = Torus((2, 4), (False, False), W, 0.0)
PLACES = {
    LINE: [(k,) for k in range(4)],
    RING: [(k,) for k in range(4)],
    GRID: [(x, y) for x in range(2) for y in range(4)],
}
V5E = Machine(TPU_V5E, Target.parse("tpu:v5e:2x4").network, tuple(PLACES[GRID]))
MIB = 2**20


@pytest.mark.parametrize(
    ("kind", "network", "group", "seconds"),
    [
        # The device at the end of a line has one link, one on a ring has two.
        ("all-gather", LINE, (0, 1, 2, 3), 3 / 4 * MIB / W),
        ("all-gather", RING, (0, 1, 2, 3), 3 / 4 * MIB / (2 * W)),
        ("reduce-scatter", RING, (0, 1, 2, 3), 3 / 4 * MIB / (2 * W)),
        ("all-reduce", RING, (0, 1, 2, 3), 2 * 3 / 4 * MIB / (2 * W)),
        # A corner of a grid has a link in each dimension.
        ("all-gather", GRID, tuple(range(8)), 7 / 8 * MIB / (2 * W)),
        # Every second device: two such groups share the links.
        ("all-gather", LINE, (0, 2), 1 / 2 * MIB / (W / 2)),
        # Half of the devices send half of their bytes over the link in the middle.
        ("all-to-all", LINE, (0, 1, 2, 3), 2 * MIB / 2 / W),
        ("all-to-all", RING, (0, 1, 2, 3), 2 * MIB / 2 / (2 * W)),
        # Two links cross the middle of the long side.
        ("all-to-all", GRID, tuple(range(8)), 4 * MIB / 2 / (2 * W)),
        ("all-reduce", RING, (1,), 0.0),
    ],
)
def test_time_of_groups_on_a_torus(kind, network, group, seconds):
    cost = collective_time.cost_of_groups(kind, MIB, (group,), PLACES[network], network)
    assert cost.seconds == pytest.approx(seconds, rel=1e-12)


def test_time_of_groups_over_nodes():
    network = Nodes(2, 4, 400e9, 100e9)
    places = [divmod(k, 4) for k in range(8)]
    inside = collective_time.cost_of_groups("all-gather", MIB, (tuple(range(4)),), places, network)
    assert inside.seconds == pytest.approx(3 / 4 * MIB / 400e9)
    # Half of the result comes from the other node.
    across = collective_time.cost_of_groups("all-gather", MIB, (tuple(range(8)),), places, network)
    assert across.seconds == pytest.approx(1 / 2 * MIB / 100e9)
    # Four groups at once leave each node.
    pairs = tuple((k, k + 4) for k in range(4))
    shared = collective_time.cost_of_groups("all-gather", MIB, pairs, places, network)
    assert shared.seconds == pytest.approx(1 / 2 * MIB * 4 / 100e9)


def test_a_permute_takes_as_long_as_its_fullest_link():
    ring = tuple((k, (k + 1) % 4) for k in range(4))
    around = collective_time.cost_of_pairs(MIB, ring, PLACES[RING], RING)
    assert around.seconds == pytest.approx(MIB / W)
    assert (len(around.links or ()), around.hops) == (4, 1)
    # On a line the last device sends back over all links, which the others use the other way.
    line = collective_time.cost_of_pairs(MIB, ring, PLACES[LINE], LINE)
    assert line.seconds == pytest.approx(MIB / W)
    assert (len(line.links or ()), line.hops) == (6, 3)
    # Two places further: each link carries two.
    far = collective_time.cost_of_pairs(MIB, ((0, 2), (1, 3)), PLACES[LINE], LINE)
    assert far.seconds == pytest.approx(2 * MIB / W)
    assert collective_time.cost_of_pairs(MIB, ((1, 1),), PLACES[LINE], LINE).seconds == 0


def test_nothing_is_faster_than_a_message():
    network = Torus((4,), (False,), W)
    assert collective_time.cost_of_pairs(4, ((0, 3),), PLACES[LINE], network).seconds == 3e-6
    assert collective_time.cost_of_groups(
        "all-reduce", 4, ((0, 1, 2, 3),), PLACES[LINE], network
    ).seconds == (3e-6)


# ---------------------------------------------------------------------------------------- schedules


def scheduled(lines, **more):
    """The schedule of these lines on 2x4 chips of v5e, in order of the mesh."""
    body = "\n".join(f"  {line}" for line in lines)
    entry = f"ENTRY %main (p: bf16[4096,1024]) -> bf16[4096,1024] {{\n{body}\n}}"
    return schedule.run(module(entry), V5E, 8)


P_LINE = "%p = bf16[4096,1024] parameter(0)"
EIGHT_MIB = 8 * MIB / W
WORK = 'negate(%p), backend_config={"estimated_cycles":"150000"}'  # 0.1 ms
RIGHT = "source_target_pairs={{0,1}}"
LEFT = "source_target_pairs={{1,0}}"


def test_a_collective_of_one_instruction_is_exposed():
    found = scheduled([P_LINE, f"ROOT %c = bf16[4096,1024] collective-permute(%p), {RIGHT}"])
    assert found.seconds == pytest.approx(EIGHT_MIB)
    (occurrence,) = found.occurrences
    assert not occurrence.overlapped
    assert occurrence.exposed == pytest.approx(EIGHT_MIB)


def test_a_permute_to_itself_sends_nothing():
    def sent(pairs):
        line = f"ROOT %c = bf16[4096,1024] collective-permute(%p), source_target_pairs={pairs}"
        (occurrence,) = scheduled([P_LINE, line]).occurrences
        return occurrence.collective.sent

    assert sent("{{0,0},{1,1}}") == sent("{}") == 0
    assert sent("{{0,0},{0,1}}") == 8 * MIB


def test_only_a_fusion_of_a_sum_and_a_slice_is_a_reduce_scatter():
    lines = [
        P_LINE,
        "%k = s32[] constant(3)",
        "%s = bf16[4096,1024] all-reduce(%p), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add",
        "ROOT %c = bf16[512,1024] dynamic-slice(%s, %k, %k), dynamic_slice_sizes={512,1024}",
    ]
    assert [each.collective.kind for each in scheduled(lines).occurrences] == ["all-reduce"]


def test_a_started_collective_hides_behind_compute():
    found = scheduled(
        [
            P_LINE,
            f"%s = (bf16[4096,1024], bf16[4096,1024]) collective-permute-start(%p), {RIGHT}",
            f"%w = bf16[4096,1024] {WORK}",
            "ROOT %d = bf16[4096,1024] collective-permute-done(%s)",
        ]
    )
    (occurrence,) = found.occurrences
    assert occurrence.overlapped
    assert occurrence.exposed == pytest.approx(EIGHT_MIB - 1e-4)
    assert found.seconds == pytest.approx(EIGHT_MIB)
    assert found.computing == pytest.approx(1e-4)
    assert [e.lane for e in found.events] == ["wire", "compute", "wait"]


def test_collectives_share_no_links():
    def both(second):
        return scheduled(
            [
                P_LINE,
                f"%s = (bf16[4096,1024], bf16[4096,1024]) collective-permute-start(%p), {RIGHT}",
                f"%t = (bf16[4096,1024], bf16[4096,1024]) collective-permute-start(%p), {second}",
                "%d = bf16[4096,1024] collective-permute-done(%s)",
                "ROOT %e = bf16[4096,1024] collective-permute-done(%t)",
            ]
        )

    assert both(LEFT).seconds == pytest.approx(EIGHT_MIB)
    assert both(LEFT).sending == pytest.approx(EIGHT_MIB)
    assert both(RIGHT).seconds == pytest.approx(2 * EIGHT_MIB)


def test_transfers_wait_for_their_own_links_only():
    """Two of the first permute share a link; the second needs another, which is free earlier."""
    found = scheduled(
        [
            P_LINE,
            "%s = (bf16[4096,1024], bf16[4096,1024]) collective-permute-start(%p), "
            "source_target_pairs={{0,2},{1,3}}",
            f"%t = (bf16[4096,1024], bf16[4096,1024]) collective-permute-start(%p), {RIGHT}",
            "%d = bf16[4096,1024] collective-permute-done(%s)",
            "ROOT %e = bf16[4096,1024] collective-permute-done(%t)",
        ]
    )
    assert found.seconds == pytest.approx(2 * EIGHT_MIB)


def test_combined_permutes_count_all_operands():
    combined = (
        "%c = (bf16[4096,1024], bf16[4096,1024]) collective-permute(%p, %p), "
        "source_target_pairs={{0,1}}"
    )
    (found,) = scheduled([P_LINE, combined]).occurrences
    assert found.collective.payload == 2 * 8 * MIB
    started = (
        "%s = ((bf16[4096,1024], bf16[4096,1024]), (bf16[4096,1024], bf16[4096,1024])) "
        "collective-permute-start(%p, %p), source_target_pairs={{0,1}}"
    )
    (found,) = scheduled([P_LINE, started]).occurrences
    assert found.collective.payload == 2 * 8 * MIB
    # A place for the result, and offsets in it, are not sent.
    placed = "%d = bf16[4096,1024] collective-permute(%p, %p), source_target_pairs={{0,1}}"
    (found,) = scheduled([P_LINE, placed]).occurrences
    assert found.collective.payload == 8 * MIB


def test_a_start_that_is_synchronous_is_exposed():
    found = scheduled(
        [
            P_LINE,
            f"%s = (bf16[4096,1024], bf16[4096,1024]) collective-permute-start(%p), {RIGHT}, "
            'backend_config={"is_sync":true}',
            f"%w = bf16[4096,1024] {WORK}",
            "ROOT %d = bf16[4096,1024] collective-permute-done(%s)",
        ]
    )
    (occurrence,) = found.occurrences
    assert not occurrence.overlapped
    assert found.seconds == pytest.approx(EIGHT_MIB + 1e-4)


def test_devices_of_one_chip_share_its_links():
    network = Torus((2, 2, 1), (False,) * 3, W, 0.0, cores=2, core_bandwidth=6 * W)
    places = [(x, y, 0, c) for x in range(2) for y in range(2) for c in range(2)]

    def gather(*groups):
        return collective_time.cost_of_groups("all-gather", MIB, groups, places, network).seconds

    everyone = gather(tuple(range(8)))
    assert everyone == pytest.approx(7 / 8 * MIB / (2 * W))
    # One device of each chip: two groups share the links.
    assert gather((0, 2, 4, 6), (1, 3, 5, 7)) == pytest.approx(2 * 3 / 4 * MIB / (2 * W))
    assert gather((0, 1), (2, 3)) == pytest.approx(1 / 2 * MIB / (6 * W))
    # Both devices of a chip send to the same neighbor, then one to the other.
    across = collective_time.cost_of_pairs(MIB, ((0, 4), (1, 5)), places, network)
    assert across.seconds == pytest.approx(2 * MIB / W)
    beside = collective_time.cost_of_pairs(MIB, ((0, 1), (2, 3)), places, network)
    assert beside.seconds == pytest.approx(MIB / (6 * W))


def test_measured_times_of_gpus():
    # 256 MiB among eight at 368 GB/s; half way between two sizes, half the way between their times.
    assert nccl.seconds("all-gather", 2**28, 8) == pytest.approx(2**28 / 368e9)
    middle = (nccl.seconds("all-gather", 2**27, 8) + nccl.seconds("all-gather", 2**28, 8)) / 2
    assert nccl.seconds("all-gather", 1.5 * 2**27, 8) == pytest.approx(middle)
    # A kilobyte took longer than two, as the first of a series does.
    assert nccl.seconds("all-reduce", 1024, 2) <= nccl.seconds("all-reduce", 2048, 2) < 50e-6
    # The smallest is the shortest, and the largest sets the rate of all larger ones.
    assert nccl.seconds("all-reduce", 1, 8) == nccl.seconds("all-reduce", 1024, 8)
    assert nccl.seconds("all-reduce", 2**33, 8) == pytest.approx(4 * 2**31 / 230e9)
    assert nccl.seconds("collective-broadcast", 2**28, 3) == nccl.seconds("all-to-all", 2**28, 4)


def test_asynchronous_wrappers_and_fusions_of_collectives_are_read():
    entry = """ENTRY %main (p: f32[8]) -> f32[16] {
  %p = f32[8] parameter(0)
  %start = ((f32[8]), f32[16]) async-start(%p), calls=%wrapped
  %update = ((f32[8]), f32[16]) async-update(%start)
  %done = f32[16] async-done(%update)
  ROOT %fused = f32[8] fusion(%p), kind=kCustom, calls=%inner
}"""
    wrapped = """%wrapped (a: f32[8]) -> f32[16] {
  %a = f32[8] parameter(0)
  ROOT %g = f32[16] all-gather(%a), replica_groups={{0,1}}, dimensions={0}
}"""
    inner = """%inner (b: f32[8]) -> f32[8] {
  %b = f32[8] parameter(0)
  ROOT %r = f32[8] all-reduce(%b), replica_groups={{0,1}}, to_apply=%add
}"""
    parsed = module(entry, wrapped, inner)
    gather = read_collective(parsed, parsed.entry, parsed.entry["start"], 2)
    assert gather is not None
    assert (gather.kind, gather.payload, gather.starts) == ("all-gather", 64, True)
    found = schedule.run(parsed, None, 2).occurrences
    assert [(o.collective.kind, o.overlapped) for o in found] == [
        ("all-gather", True),
        ("all-reduce", False),
    ]


@pytest.mark.parametrize(
    "begun",
    [
        """  %start = ((f32[8], token[]), f32[8]) call-start(%p, %ready), to_apply=%sent
  %done = f32[8] call-done(%start)""",
        """  %launched = ((), (), (s32[1])) call-start(), to_apply=%sent
  %start = ((f32[8]), f32[8]) call-update(%launched, %p)
  %done = f32[8] call-done(%start)""",
    ],
    ids=["JAX 0.10", "JAX 0.12"],
)
def test_sums_on_a_sparse_core_are_read(begun):
    entry = f"""ENTRY %main (p: f32[8]) -> f32[8] {{
  %p = f32[8] parameter(0)
  %ready = token[] after-all()
{begun}
  ROOT %copy = f32[8] copy(%done)
}}"""
    sent = """%sent (a: f32[8], t: token[]) -> f32[8] {
  %a = f32[8] parameter(0)
  %t = token[] parameter(1)
  ROOT %r = f32[8] all-reduce(%a), replica_groups={{0,1}}, to_apply=%add
}"""
    (occurrence,) = schedule.run(module(entry, sent), V5E, 2).occurrences
    assert (occurrence.collective.kind, occurrence.collective.name) == ("all-reduce", "start")
    assert occurrence.overlapped


def test_the_longest_branch_counts():
    branches = [
        f"""%branch{k} (a{k}: f32[{n}]) -> f32[{n}] {{
  %a{k} = f32[{n}] parameter(0)
  ROOT %r{k} = f32[{n}] all-reduce(%a{k}), replica_groups={{{{0,1}}}}, to_apply=%add
}}"""
        for k, n in enumerate((1024 * 1024, 8))
    ]
    entry = """ENTRY %main (i: s32[], p: f32[8]) -> f32[8] {
  %i = s32[] parameter(0)
  %p = f32[8] parameter(1)
  ROOT %c = f32[8] conditional(%i, %p, %p), branch_computations={%branch0, %branch1}
}"""
    (occurrence,) = schedule.run(module(entry, *branches), V5E, 8).occurrences
    assert occurrence.collective.payload == 4 * MIB


def test_memory_is_that_of_the_branch_that_needs_most():
    """The first branch takes longer, and the second one has a larger array on the way."""
    long = """%long (a: f32[8]) -> f32[8] {
  %a = f32[8] parameter(0)
  %r = f32[8] all-reduce(%a), replica_groups={{0,1}}, to_apply=%add
  ROOT %r2 = f32[8] all-reduce(%r), replica_groups={{0,1}}, to_apply=%add
}"""
    large = """%large (b: f32[8]) -> f32[8] {
  %b = f32[8] parameter(0)
  %wide = f32[1048576] pad(%b), padding=0_1048568
  ROOT %cut = f32[8] slice(%wide), slice={[0:8]}
}"""
    entry = """ENTRY %main (i: s32[], p: f32[8]) -> f32[8] {
  %i = s32[] parameter(0)
  %p = f32[8] parameter(1)
  ROOT %c = f32[8] conditional(%i, %p, %p), branch_computations={%NAMES}
}"""
    for names in ("long, %large", "large, %long"):
        found = schedule.run(module(entry.replace("NAMES", names), long, large), None, 2)
        assert len(found.occurrences) == 2
        assert found.peak.bytes == 4 * MIB + 32
        assert [buffer.instruction for buffer in found.peak.buffers] == ["wide", "c"]
        assert max(held for _, held in found.memory) == found.peak.bytes


# ------------------------------------------------------------------------------------- explanations


def body(x):
    def step(carry, _):
        return lax.psum(carry, "j") * 0.5, None

    carry, _ = lax.scan(step, x, None, length=5)
    gathered = lax.all_gather(carry, "i", axis=0, tiled=True)
    return gathered, lax.psum_scatter(x, "i", scatter_dimension=1, tiled=True)


def mapped(mesh=MESH):
    out_specs = (P(None, "j"), P(None, ("j", "i")))
    return shard_map(body, mesh=mesh, in_specs=P("i", "j"), out_specs=out_specs, check_vma=False)


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_explanation_of_a_program_whose_devices_are_here(partitioner):
    x = np.ones((8, 16), np.float32)
    found = mapped().lower(x, partitioner=partitioner).compile().explain()
    lines = {kind: _line(text) for kind, text in _COLLECTIVES.items()}
    rows = {
        c.kind: (c.source.rpartition(":")[2], c.axes, c.group_size, c.count, c.payload_bytes)
        for c in found.collectives
    }
    assert rows == {
        "all-reduce": (lines["all-reduce"], ("j",), 2, 5, 64),
        "all-gather": (lines["all-gather"], ("i",), 4, 1, 256),
        "reduce-scatter": (lines["reduce-scatter"], ("i",), 4, 1, 64),
    }
    assert all(os.path.basename(__file__) in c.source for c in found.collectives)
    assert found.totals.sent_bytes == 5 * 64 + 3 / 4 * 256 + 3 / 4 * 64
    assert found.totals.step_seconds is None
    assert (found.memory.arguments, found.memory.results) == (64, 256 + 16 + 16)
    assert [note for note in found.notes if "no times" in note]


_COLLECTIVES = {
    "all-reduce": 'return lax.psum(carry, "j") * 0.5, None',
    "all-gather": "gathered = lax.all_gather(",
    "reduce-scatter": "return gathered, lax.psum_scatter(",
}


def _line(text):
    """The number of the one line of this file that begins with a text."""
    with open(__file__) as file:
        (number,) = [n for n, line in enumerate(file, 1) if line.strip().startswith(text)]
    return str(number)


def test_layouts_say_who_holds_what():
    x = np.ones((8, 16), np.float32)
    explanation = mapped().lower(x).compile().explain()
    sharded, gathered, scattered = explanation.layouts
    assert (sharded.role, sharded.path, sharded.type) == ("argument", "args[0]", "f32[8,16]")
    assert (sharded.block, sharded.bytes) == ((2, 8), 64)
    assert sharded.holds == tuple((i, j) for i in range(4) for j in range(2))
    assert gathered.holds == tuple((0, j) for _ in range(4) for j in range(2))
    # P(None, ('j', 'i')): j is major.
    assert scattered.holds == tuple((0, 4 * j + i) for i in range(4) for j in range(2))


def test_blocks_are_where_jax_puts_them():
    x = jnp.arange(64.0).reshape(8, 8)
    sharding = jax.sharding.NamedSharding(MESH, P(("j", "i"), None))
    identity = shard_map(lambda b: b, mesh=MESH, in_specs=sharding.spec, out_specs=sharding.spec)
    (layout, _) = identity.lower(x).compile().explain().layouts
    placed = jax.device_put(x, sharding)
    for device, held in zip(MESH.devices.flat, layout.holds, strict=True):
        (shard,) = [s for s in placed.addressable_shards if s.device == device]
        start = [index.start or 0 for index in shard.index]
        assert [k * n for k, n in zip(held, layout.block, strict=True)] == start


def test_json_has_all_figures():
    x = np.ones((8, 16), np.float32)
    explanation = mapped().lower(x).compile().explain()
    read = json.loads(explanation.to_json())
    assert read["mesh"] == SIZES
    assert [c["kind"] for c in read["collectives"]] == [c.kind for c in explanation.collectives]
    assert read["totals"]["sent_bytes"] == explanation.totals.sent_bytes


def test_text_is_the_same_every_time():
    x = np.ones((8, 16), np.float32)
    first, second = (str(mapped().lower(x).compile().explain()) for _ in range(2))
    assert first == second
    assert "all-reduce" in first


# --------------------------------------------------------------------------------------- on targets

N = 8
AB = (
    jax.ShapeDtypeStruct((16384, 8192), jnp.bfloat16),
    jax.ShapeDtypeStruct((8192, 2048), jnp.bfloat16),
)


def plain(a, b):
    return lax.all_gather(a, "i", axis=0, tiled=True) @ b


def two_way(a, b):
    me, rows = lax.axis_index("i"), a.shape[0]
    half = rows // 2
    product = jnp.zeros((rows * N, b.shape[1]), a.dtype)
    upper, lower = a[:half], a[half:]
    left, right = ([(k, (k + by) % N) for k in range(N)] for by in (-1, 1))
    for step in range(N):
        at, before = (me + step) % N * rows, (me - step) % N * rows + half
        product = lax.dynamic_update_slice_in_dim(product, upper @ b, at, 0)
        product = lax.dynamic_update_slice_in_dim(product, lower @ b, before, 0)
        if step < N - 1:
            upper, lower = lax.ppermute(upper, "i", left), lax.ppermute(lower, "i", right)
    return product


@functools.cache
def explained(fun, target, partitioner="gspmd", types=AB):
    mesh = AbstractMesh((N,), ("i",), axis_types=(AxisType.Auto,))
    in_specs = (P("i", None), P())
    program = shard_map(fun, mesh=mesh, in_specs=in_specs, out_specs=P(), check_vma=False)
    return program.lower(*types, partitioner=partitioner).compile(target).explain()


FLOPS = 2 * 16384 * 8192 * 2048
GATHERED = 16384 * 8192 * 2
# A quarter of each dimension: libtpu takes several times as long to compile the large products.
SMALL = tuple(jax.ShapeDtypeStruct([n // 4 for n in x.shape], x.dtype) for x in AB)


@pytest.mark.slow
@needs_tpu_compiler
@pytest.mark.parametrize("target", ["tpu:v5e:2x4", "tpu:v5p:2x2x2", "tpu:v6e:2x4"])
def test_a_gather_is_exposed_where_a_ring_overlaps(target):
    gathered = GATHERED / 16
    (gather,) = explained(plain, target, types=SMALL).collectives
    assert (gather.kind, gather.axes, gather.group_size) == ("all-gather", ("i",), N)
    assert gather.payload_bytes == gathered
    assert not gather.overlapped
    assert gather.exposed_seconds == gather.seconds

    ring = explained(two_way, target, types=SMALL)
    permutes = ring.collectives
    assert {c.kind for c in permutes} == {"collective-permute"}
    assert all(c.overlapped and c.axes == ("i",) for c in permutes)
    assert sum(c.count for c in permutes) == 2 * (N - 1)
    assert ring.totals.sent_bytes == gather.sent_bytes == (N - 1) / N * gathered
    assert ring.totals.flops == FLOPS / 64
    assert (ring.totals.exposed_seconds or math.inf) < sum(c.seconds or 0 for c in permutes)


@pytest.mark.slow
@needs_tpu_compiler
@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_the_wire_of_a_ring_of_neighbours_hides_behind_compute(partitioner):
    ring = explained(two_way, "tpu:v5e:4x2", partitioner)
    totals = ring.totals
    assert totals.bound == "compute"
    # libtpu of jax 0.12 hides all of it, that of 0.10.2 four fifths.
    assert (totals.exposed_seconds or 0) < 0.2 * sum(c.seconds or 0 for c in ring.collectives)
    assert totals.step_seconds == pytest.approx(
        (totals.compute_seconds or 0) + (totals.exposed_seconds or 0)
    )
    # 14 half blocks, each over one link of 50 GB/s; two travel at once as far as the schedule goes.
    sent = 14 * GATHERED / N / 2 / 50e9
    assert sum(c.seconds or 0 for c in ring.collectives) == pytest.approx(sent, rel=1e-6)
    assert sent * (0.5 - 1e-6) < (totals.wire_seconds or 0) < sent
    # The matrix units are busy for at least the time that the product needs at full speed.
    assert (totals.compute_seconds or 0) > FLOPS / 197e12
    assert ring.memory.capacity == 16 * 2**30
    assert not [note for note in ring.notes if "neighbors" in note]


@needs_tpu_compiler
def test_transfers_between_devices_that_are_no_neighbours_are_told():
    notes = explained(two_way, "tpu:v5e:2x4", types=SMALL).notes
    assert [note for note in notes if "over up to 2 links" in note]


@needs_tpu_compiler
def test_trips_are_counted_on_a_target():
    def scanned(x):
        def step(carry, _):
            return lax.ppermute(carry @ carry, "i", [(k, (k + 1) % N) for k in range(N)]), None

        return lax.scan(step, x, None, length=9)[0]

    mesh = AbstractMesh((N,), ("i",), axis_types=(AxisType.Auto,))
    program = shard_map(scanned, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    x = jax.ShapeDtypeStruct((N * 512, 512), jnp.bfloat16)
    found = program.lower(x).compile("tpu:v5e:2x4").explain()
    assert sum(c.count for c in found.collectives) == 9
    assert found.totals.flops == 9 * 2 * 512**3
    assert not [note for note in found.notes if "loop" in note]


@pytest.mark.parametrize(
    ("attributes", "element"),
    [
        ("", "tf32"),
        (", operand_precision={default,default}", "tf32"),
        (", operand_precision={highest,highest}", "f32"),
        (
            ', backend_config={"precision_config":{"operand_precision":["HIGHEST","HIGHEST"]}}',
            "f32",
        ),
    ],
)
def test_gpus_round_f32_to_tf32_unless_a_program_asks_for_more_precision(attributes, element):
    parsed = module(
        f"""ENTRY %main (p: f32[4096,4096]) -> f32[4096,4096] {{
  %p = f32[4096,4096] parameter(0)
  ROOT %dot = f32[4096,4096] dot(%p, %p), lhs_contracting_dims={{1}}{attributes}
}}"""
    )
    work = roofline.work(parsed, parsed.entry, parsed.entry["dot"], H100_SXM)
    assert work is not None
    assert (work.element, work.computed) == (element, 4096**2)
    share = 2 * 4096**3 / work.seconds / H100_SXM.flops[element]
    assert share == pytest.approx(H100_SXM.flops_share, rel=0.01)


@needs_gpu_compiler
def test_explanation_for_gpus_is_a_roofline_and_a_table():
    found = explained(plain, "gpu:h100:8")
    (gather,) = found.collectives
    assert (gather.kind, gather.axes, gather.payload_bytes) == ("all-gather", ("i",), GATHERED)
    # XLA's table of measured throughputs has 368 GB/s for gathers of 256 MiB among eight.
    assert GATHERED == 2**28
    assert gather.seconds == pytest.approx(GATHERED / 368e9)
    assert found.totals.flops == FLOPS
    assert (found.totals.compute_seconds or 0) >= FLOPS / 989.5e12
    assert [note for note in found.notes if "roofline" in note]
