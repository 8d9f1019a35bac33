"""The page of an explanation: what a browser and a reader find in it."""

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map
from shmap_compiler.explain.collective import KINDS
from shmap_compiler.explain.compute import short
from shmap_compiler.explain.explanation import Explanation
from shmap_compiler.explain.figures import (
    CollectiveCost,
    ComputeCost,
    Layout,
    LiveArrays,
    Memory,
    MemoryUse,
    Totals,
)
from shmap_compiler.explain.page import holders, page, timeline
from shmap_compiler.explain.schedule import Event

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
VOID = {"meta", "link", "img", "br", "input", "hr"}


class Page(HTMLParser):
    """Reads a page, and fails on elements that are not closed, or closed in another order."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts, self._open, self._text = [], [], [], []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self._open[-1] if self._open else "", data))

    def attributes(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def having(self, attribute):
        return [a[attribute] for _, a in self.elements if attribute in a]

    @property
    def text(self):
        return " ".join(" ".join(t.split()) for tag, t in self.texts if tag not in HIDDEN)

    @property
    def events(self):
        (data, *_) = [t for tag, t in self.texts if tag == "script" and t.startswith("{")]
        return json.loads(data)


HIDDEN = {"script", "style", "title"}


def gather(exposed=2e-3, source="model.py:7"):
    return CollectiveCost(
        source, True, "all-gather", ("i",), 4, ("ag.1",), 1, 2**20, 3 * 2**18, 2e-3, True, exposed
    )


def made(**changes):
    """An explanation of a gather of 2 ms, of which the device waits all, and 3 ms of compute."""
    layout = Layout("argument", "args[0]", "f32[8,6]", "P('i', 'j')", (2, 3), 24, GRID)
    explanation = Explanation(
        program="`f` (model.py:3)",
        target="tpu:v5e:4x2",
        chip="TPU v5e",
        mesh={"i": 4, "j": 2},
        collectives=(gather(),),
        compute=(
            ComputeCost("model.py:8", "block/mlp", 1, 3e-3, 10**9, 0.5, 2**20, "compute", 0.0),
        ),
        totals=Totals(
            flops=10**9,
            compiler_flops=9e8,
            compiler_bytes=1e6,
            sent_bytes=3 * 2**18,
            compute_seconds=3e-3,
            wire_seconds=2e-3,
            exposed_seconds=2e-3,
            unestimated_seconds=0.0,
            link_seconds=2e-3,
            host_seconds=None,
            host_exposed_seconds=None,
            step_seconds=5e-3,
            bound="compute",
            bound_seconds=3e-3,
        ),
        memory=Memory(2**30, 2**29, 0, 2**28, 2**20, 2**30 + 2**29 + 2**28 + 2**20, 2**34),
        memory_use=MemoryUse(
            2**30 + 2**28,
            2e-3,
            (
                LiveArrays("", "arguments", "", 1, 2**30),
                LiveArrays("model.py:8", "block/mlp", "f32[2,3]", 2, 2**28),
            ),
            ((0.0, 2**30), (2e-3, 2**30 + 2**28)),
        ),
        layouts=(layout,),
        timeline=(
            Event("wire", 0.0, 2e-3, "ag.1", "all-gather", "model.py:7"),
            Event("wait", 0.0, 2e-3, "ag.1", "all-gather", "model.py:7"),
            Event("compute", 2e-3, 3e-3, "fusion.1", "fusion", "model.py:8"),
        ),
        transfers=(Event("0,0 to 1,0", 0.0, 2e-3, "ag.1", "all-gather", "model.py:7"),),
        notes=("a note",),
    )
    return dataclasses.replace(explanation, **changes)


GRID = tuple((i, j) for i in range(4) for j in range(2))


# --------------------------------------------------------------------------------------- the page


def test_a_page_of_a_real_program():
    @shard_map(mesh=MESH, in_specs=(P("i", "j"), P("j")), out_specs=P("i"))
    def product(a, b):
        return lax.psum(a @ b, "j")

    types = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8, 16), (16, 4))]
    explanation = product.lower(*types).compile().explain()
    read = Page(explanation.to_html())
    assert explanation.to_html() == explanation.to_html()
    assert "product" in read.text
    assert "all-reduce" in read.text
    assert f"test_explain_page.py:{product_line(product)}" in read.text
    assert "1 collective; a device sends 32 B. No times are known." in read.text
    assert "There are no times to draw; see the notes." in read.text
    assert not read.attributes("canvas")
    assert read.having("data-device") == [str(i) for i in range(8)]
    # The argument lies in 4 x 2 blocks, the other in 2, the result in 4.
    assert read.having("data-devices") == [
        *map(str, range(8)),
        *("0 2 4 6", "1 3 5 7"),
        *("0 1", "2 3", "4 5", "6 7"),
    ]


def product_line(product):
    return product.__wrapped__.__code__.co_firstlineno + 2


def test_a_page_refers_to_nothing_else():
    text = page(made())
    read = Page(text)
    for attribute in ("src", "href", "data", "action", "srcset"):
        assert read.having(attribute) == []
    assert re.findall(r"https?:|@import|url\(", text) == []
    (policy,) = [a for a in read.attributes("meta") if "http-equiv" in a]
    assert policy["content"].startswith("default-src 'none'")
    assert text.isascii()


def test_names_of_users_are_text():
    bad = "</script><b>&\"'\u00e9"
    layouts = (dataclasses.replace(made().layouts[0], path=bad),)
    event = dataclasses.replace(made().timeline[0], name=bad, source=bad)
    explanation = made(
        program=bad, collectives=(gather(source=bad),), layouts=layouts, timeline=(event,)
    )
    read = Page(page(explanation))
    assert read.text.count(bad) == 4  # heading, verdict, table, array
    assert bad in read.events["strings"]


def test_the_timeline_is_data_in_nanoseconds():
    data = Page(page(made())).events
    names = data["strings"]
    events = [(row, names[kind], begin, took) for row, kind, begin, took, *_ in data["events"]]
    assert events == [
        (0, "wait", 0, 2e6),
        (0, "compute", 2e6, 3e6),
        (1, "all-gather", 0, 2e6),
    ]
    assert data["end"] == 5e6
    assert [[names[n] for n in c] for c in data["collectives"]] == [["ag.1"]]


def test_every_collective_has_a_colour():
    style = page(made())
    for kind in KINDS:
        assert f".{kind} {{" in style, kind
        assert style.count(f"  --{kind}: ") == 2, kind  # light and dark


# ------------------------------------------------------------------------------------ the verdict


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        (
            {},
            "Waits 2 ms of 5 ms for the wire, all of it in the all-gather at model.py:7. "
            "If all of it overlapped, the run would be compute-bound: 3 ms.",
        ),
        (
            {"collectives": (gather(exposed=5e-4), gather(exposed=1.5e-3, source="model.py:9"))},
            "Waits 2 ms of 5 ms for the wire, 75% of it in the all-gather at model.py:9. "
            "If all of it overlapped, the run would be compute-bound: 3 ms.",
        ),
        (
            {"totals": dataclasses.replace(made().totals, exposed_seconds=0.0, step_seconds=3e-3)},
            "Compute-bound: 3 ms; the wire, in use for 2 ms, is hidden behind it.",
        ),
        ({"collectives": ()}, "Compute-bound: 5 ms; it sends nothing."),
        (
            {"totals": dataclasses.replace(made().totals, host_exposed_seconds=3e-3, bound="host")},
            "Waits 3 ms of 5 ms for the host. If all of it overlapped, the run would be "
            "host-bound: 3 ms.",
        ),
    ],
)
def test_the_verdict(changes, verdict):
    assert verdict in Page(page(made(**changes))).text


def test_memory_beyond_the_capacity_is_marked():
    bars = [a["class"] for a in Page(page(made())).attributes("span") if "bar" in a["class"]]
    over = made(memory=dataclasses.replace(made().memory, capacity=2**20))
    marked = [a["class"] for a in Page(page(over)).attributes("span") if "bar" in a["class"]]
    assert "bar over" not in bars
    assert marked.count("bar over") == 1


# ------------------------------------------------------------------------------------- the tables


def test_ten_lines_are_shown_and_the_others_unfold():
    (cost,) = made().compute
    costs = tuple(dataclasses.replace(cost, source=f"model.py:{i}") for i in range(13))
    read = Page(page(made(compute=costs)))
    assert "3 more" in read.text
    # Every row of a table can be searched for: a collective, 13 lines, two kinds of arrays.
    assert len(read.having("data-row")) == 1 + 13 + 2
    assert read.attributes("details") == [{}]


def test_memory_at_its_peak_is_a_table_and_a_row_of_the_timeline():
    read = Page(page(made()))
    assert "In memory at the peak, at 2 ms" in read.text
    assert "f32[2,3] 256.00 MiB" in read.text
    assert read.events["memory"] == [[0.0, 2**30], [2e6, 2**30 + 2**28]]
    assert read.events["reserved"] == 2**30 + 2**29 + 2**28


def test_of_very_many_samples_of_memory_the_largest_are_drawn():
    samples = tuple((i * 1e-7, i) for i in range(50_000))
    use = dataclasses.replace(made().memory_use, samples=samples)
    memory = Page(page(made(memory_use=use))).events["memory"]
    assert len(memory) <= 2001
    assert max(held for _, held in memory) == 49_999


def test_a_page_of_two_explanations_has_both_at_one_scale():
    slower = dataclasses.replace(made().totals, step_seconds=9e-3)
    both = made().against(made(program="`g` (other.py:1)", totals=slower))
    text = both.to_html()
    read = Page(text)
    assert "f (model.py:3) and g (other.py:1)" in read.text
    assert len(read.attributes("article")) == 2
    ids = [a["id"] for _, a in read.elements if "id" in a]
    assert len(ids) == len(set(ids)) == 2
    assert text.count('"end":9000000.0') == 2
    assert re.findall(r"https?:|@import|url\(", text) == []


def test_paths_are_relative_wherever_a_program_is():
    """Also of files that are not below the current folder, and of installed libraries."""
    types = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    explanation = shard_map(
        lambda a: lax.psum(jnp.tanh(a), "i"), mesh=MESH, in_specs=P("i"), out_specs=P()
    )
    found = explanation.lower(types).compile().explain()
    for text in (found.to_json(), found.to_html(), found.to_trace(), str(found)):
        assert str(Path(__file__).parents[2]) not in text
        assert "test_explain_page.py" in text or "traceEvents" in text
    here = Path.cwd()
    assert short(f"{here.parent / 'other' / 'x.py'}:3") == "../other/x.py:3"
    assert short("/usr/lib/python3/site-packages/flax/nnx/nn.py:7") == "flax/nnx/nn.py:7"
    assert short(f"{here / 'x.py'}:3") == "x.py:3"


# ----------------------------------------------------------------------------------- the timeline


def test_collectives_at_one_time_have_rows_of_their_own():
    def wire(start, seconds):
        return Event("wire", start, seconds, "cp", "collective-permute", "")

    drawn = timeline.bars([wire(0.0, 2.0), wire(1.0, 2.0), wire(2.0, 1.0), wire(2.5, 1.0)])
    assert [(bar.row, bar.event.start) for bar in drawn] == [(1, 0.0), (1, 2.0), (2, 1.0), (3, 2.5)]


def test_of_very_many_events_short_ones_are_drawn_as_one():
    events = [Event("compute", i * 1e-6, 1e-6, f"op.{i}", "fusion", "") for i in range(50_000)]
    events.append(Event("compute", 0.05, 0.05, "long", "fusion", ""))
    drawn = timeline.bars(events)
    assert len(drawn) <= timeline.MOST_EVENTS
    assert sum(bar.count for bar in drawn) == len(events)
    assert sum(bar.event.seconds for bar in drawn) == pytest.approx(0.1)
    assert [bar.event.name for bar in drawn if bar.count == 1] == ["long"]
    read = Page(page(made(timeline=tuple(events))))
    assert "Events that take less than 50 us are drawn together." in read.text


def test_loops_that_are_not_drawn_to_the_end_are_told():
    totals = dataclasses.replace(made().totals, compute_seconds=9e-3)
    text = Page(page(made(totals=totals))).text
    assert "Of long loops only the first trips are drawn: 3 ms of 9 ms of computing." in text


# --------------------------------------------------------------------------------- who holds what


def test_arrays_that_are_cut_alike_share_a_drawing():
    layout = made().layouts[0]
    paths = [f"args[{i}]" for i in range(7)]
    layouts = tuple(dataclasses.replace(layout, path=path) for path in paths)
    read = Page(page(made(layouts=layouts)))
    assert len(read.attributes("figure")) == 1
    assert "args[0] and 6 more" in read.text
    assert ", ".join(paths) in read.text
    assert "8 blocks; a device holds 2 \u00d7 3, 24 B of each" in read.text


def test_an_array_cut_along_three_dimensions_is_drawn_in_planes():
    cube = tuple((i, j, k) for i in range(2) for j in range(2) for k in range(2))
    layout = Layout("result", "result", "f32[2,2,2]", "P('i', 'j', 'k')", (1, 1, 1), 4, cube)
    read = Page(page(made(mesh=dict.fromkeys("ijk", 2), layouts=(layout,))))
    assert "dim 2: block 0" in read.text
    assert "dim 2: block 1" in read.text
    assert read.having("data-devices") == ["0", "2", "4", "6", "1", "3", "5", "7"]


def test_devices_of_large_meshes_are_told_in_words():
    mesh = {"x": 16, "y": 16}
    rows = tuple((x,) for x in range(16) for _ in range(16))
    each = tuple((x * 16 + y,) for x in range(16) for y in range(16))
    layouts = (
        Layout("argument", "args[0]", "f32[16]", "P('x')", (1,), 4, rows),
        Layout("argument", "args[1]", "f32[256]", "P(('x', 'y'))", (1,), 4, each),
    )
    read = Page(page(made(mesh=mesh, layouts=layouts)))
    assert "256 devices, too many to draw one by one." in read.text
    assert read.having("data-device") == []
    assert "x=3" in read.text
    assert "block (5): device 5; x=0, y=5" in read.text
    assert "and 250 more blocks" in read.text


@pytest.mark.parametrize("shape", [(), (0, 4), (1,)])
def test_scalars_and_arrays_without_elements(shape):
    layout = Layout("argument", "args[0]", "f32", "P()", shape, 0, ((0,) * len(shape),) * 8)
    text = Page(page(made(layouts=(layout,)))).text
    assert "every device holds all of it" in text


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        ([0], "0"),
        ([0, 1, 2, 5], "0-2,5"),
        ([0, 2, 4], "0,2,4"),
        (list(range(0, 40, 2)), "0,2,4,6,8,10,12,14,... (20 in all)"),
    ],
)
def test_devices_in_a_row_are_a_range(devices, text):
    assert holders.ranges(devices) == text


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        ([5], "i=2, j=1"),
        ([0, 1], "i=0"),
        ([1, 3, 5, 7], "j=1"),
        (range(8), "every device"),
    ],
)
def test_coordinates_leave_out_axes_that_devices_fill(devices, text):
    assert holders.coordinates(devices, {"i": 4, "j": 2}) == text
