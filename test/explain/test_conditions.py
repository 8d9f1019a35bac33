"""`--fail-if`, `--against` and `--trace` on explanations made by hand."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from test_explain_page import gather, made

from shmap_compiler import shard_map
from shmap_compiler.explain.conditions import FIGURES, parse_condition


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("exposed > 1ms", "exposed is 2 ms, and 'exposed > 1ms' holds"),
        ("exposed>=2000us", "exposed is 2 ms"),
        ("exposed > 2ms", None),
        ("exposed < 2.5e-3s", "exposed is 2 ms"),
        ("memory > 1GiB", "memory is 1.75 GiB"),
        ("memory > 2GB", None),
        ("collectives > 0", "collectives is 1"),
        ("added-collectives > 0", None),
        ("operations >= 1GFLOP", "operations is 1 GFLOP"),
    ],
)
def test_conditions(text, found):
    holds = parse_condition(text).holds(made())
    assert holds is None if found is None else found in (holds or "")


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("exposed", "FIGURE > NUMBER UNIT"),
        ("exposed == 1ms", "FIGURE > NUMBER UNIT"),
        ("speed > 1ms", f"a figure, one of {', '.join(FIGURES)}"),
        ("exposed > 1", "a unit of 'exposed', one of s, ms, us, ns"),
        ("memory > 1ms", "a unit of 'memory', one of B, KiB"),
        ("collectives > 1ms", "'collectives' without a unit"),
        ("exposed > 1.2.3ms", "a number before the unit, found '1.2.3'"),
    ],
)
def test_mistakes_in_conditions(text, needed):
    with pytest.raises(ValueError, match=re.escape(needed)):
        parse_condition(text)


def test_a_time_that_is_not_known_is_no_verdict():
    unknown = made(totals=dataclasses.replace(made().totals, exposed_seconds=None))
    with pytest.raises(ValueError, match="exposed is not known for this target"):
        parse_condition("exposed > 1ms").holds(unknown)


def test_two_explanations_side_by_side():
    faster = dataclasses.replace(made().totals, step_seconds=4e-3, exposed_seconds=None)
    lines = str(made().against(made(totals=faster, target="tpu:v6e:4x2"))).splitlines()
    assert "tpu:v5e:4x2" in lines[0]
    assert "tpu:v6e:4x2" in lines[0]
    (total,) = [line.split() for line in lines if "total" in line]
    assert total == ["total", "5", "ms", "4", "ms", "-20.0%"]
    (exposed,) = [line.split() for line in lines if line.strip().startswith("exposed")]
    assert exposed == ["exposed", "2", "ms", "-"]
    (gathers,) = [line.split() for line in lines if "all-gather" in line]
    assert " ".join(gathers).startswith("all-gather 1, 2 ms exposed")


def test_numbers_of_collectives_are_compared_as_numbers():
    (gathered,) = made().collectives
    many = made(collectives=(dataclasses.replace(gathered, count=14),))
    lines = [line.split() for line in str(made().against(many)).splitlines()]
    assert ["collectives", "1", "14", "1", "->", "14"] in lines
    assert ["added-collectives", "0", "0"] in lines


def test_two_programs_side_by_side():
    """Lines of either program, the most expensive first; "-" where a program has no such line."""
    (cost,) = made().compute
    slower = dataclasses.replace(cost, seconds=6e-3)
    other = dataclasses.replace(cost, source="ring.py:9", scope="", seconds=1e-3)
    both = made().against(made(program="`ring` (ring.py:1)", compute=(other, slower)))
    lines = [line.split() for line in str(both).splitlines()]
    assert ["side", "by", "side", "f", "(model.py:3)", "ring", "(ring.py:1)", "change"] in lines
    start = next(i for i, line in enumerate(lines) if line[:2] == ["compute", "scope"])
    assert lines[start + 1 :] == [
        ["model.py:8", "block/mlp", "3", "ms", "6", "ms", "+100.0%"],
        ["ring.py:9", "-", "1", "ms"],
    ]
    data = json.loads(both.to_json())
    assert set(data) == {"schema", "first", "second"}
    assert data["second"]["program"] == "`ring` (ring.py:1)"


def test_the_trace_reads_back():
    """Slices per thread, in microseconds, and no two of a thread at one time."""
    events = json.loads(made().to_trace())["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(names.values()) == ["compute", "wait", "collectives 1", "0,0 to 1,0"]
    slices = [e for e in events if e["ph"] == "X"]
    assert [(names[e["pid"], e["tid"]], e["ts"], e["dur"]) for e in slices] == [
        ("compute", 2000.0, 3000.0),
        ("wait", 0.0, 2000.0),
        ("collectives 1", 0.0, 2000.0),
        ("0,0 to 1,0", 0.0, 2000.0),
    ]
    assert slices[0]["args"]["source"] == "model.py:8"


def test_collectives_at_one_time_have_threads_of_their_own():
    first, *rest = made().timeline
    both = (first, dataclasses.replace(first, start=1e-3), *rest)
    events = json.loads(made(timeline=both).to_trace())["traceEvents"]
    wire = [e for e in events if e["ph"] == "X" and e["pid"] == 1]
    assert len({e["tid"] for e in wire}) == 2


def test_collectives_of_the_partitioner_are_marked():
    added = dataclasses.replace(gather(), written=False)
    text = str(made(collectives=(gather(), added)))
    assert "all-gather *" in text
    assert "* added by the partitioner: all-gather; 768.00 KiB of the bytes sent" in text
    assert "partitioner" not in str(made())
    assert "* added by the partitioner: all-gather" in made(collectives=(added,)).to_html()


@pytest.mark.parametrize("first", [True, False])
def test_without_figures_of_the_target_the_branch_that_sends_is_the_longest(first):
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))

    def body(x, p):
        branches = [lambda x: lax.psum(x, "i"), lambda x: x * 2]
        return lax.cond(p > 0, *(branches if first else branches[::-1]), x)

    program = shard_map(body, mesh=mesh, in_specs=(P("i"), P()), out_specs=P("i"), check_vma=False)
    explanation = program.lower(jnp.ones((8, 8)), jnp.int32(1)).compile().explain()
    assert [each.kind for each in explanation.collectives] == ["all-reduce"]


def test_trips_of_a_loop_that_computes_its_arrays_in_many_ways():
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))

    def step(k, x):
        for _ in range(60):
            x = x + x
        return lax.psum(x, "i")

    program = shard_map(
        lambda x: lax.fori_loop(0, 5, step, x), mesh=mesh, in_specs=P("i"), out_specs=P("i")
    )
    explanation = program.lower(jnp.ones((8, 8))).compile().explain()
    assert [each.count for each in explanation.collectives] == [5]


def test_packed_elements_take_less_than_a_byte():
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
    program = shard_map(lambda x: x.astype(jnp.int8), mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    explanation = program.lower(jnp.zeros((8, 1024), jnp.int4)).compile().explain()
    assert explanation.layouts[0].bytes == explanation.memory.arguments == 512
