"""Of a result that XLA or the reference gives otherwise, the first line that differs is named."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from shmap_passes.ir.mesh import Mesh

from shmap_compiler import shard_map
from shmap_compiler.simulate import against_reference, by_numpy, layouts
from shmap_compiler.simulate.candidates import Candidates
from shmap_compiler.simulate.inner_values import returning, stacked_devices, values_behind
from shmap_compiler.simulate.layouts import Layout
from shmap_compiler.simulate.simulate_module import simulate_module

mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
rng = np.random.default_rng(0)
x, w, v = (rng.standard_normal(s).astype(np.float32) for s in ((8, 8), (8, 16), (16, 8)))


def reference(x, w, v):
    h = jnp.tanh(x @ w)
    return {"out": h @ v, "sum": x.sum()}


def summed(h):
    return lax.psum(h, "j")


def block(x, w, v, sums=summed, act=jnp.tanh, ends=lambda y: y):
    h = sums(x @ w)
    h = lax.fori_loop(0, 1, lambda _, h: act(h), h)
    return {"out": ends(h @ v), "sum": lax.psum(x.sum(), ("i", "j"))}


SPECS = {
    "mesh": mesh,
    "in_specs": (P("i", "j"), P("j"), P()),
    "out_specs": {"out": P("i"), "sum": P()},
    "check_vma": False,
}


def lowered(partitioner="gspmd", **changes):
    mapped = shard_map(lambda *args: block(*args, **changes), **SPECS)
    return mapped.lower(x, w, v, partitioner=partitioner)


def first_difference(name, reference=reference, **changes):
    validation = lowered(**changes).validate(x, w, v, reference=reference, xla=name == "XLA")
    check = validation.first_difference
    assert check.name == name
    assert check.difference.what == "result['out']"
    return check.difference


def wrong_axis(h):
    return lax.psum(h, "i")


def averaged(h):
    return lax.pmean(h, "j")


def halved(h):
    return h * 0.5


def positive(h):
    return jnp.maximum(h, 0)


def kept(h):
    return jnp.where(h < 1, h, 0)


def scaled(y):
    return y * 1.01


def detour(y):
    """What is none of the reference's values, but becomes one again, and then the mistake."""
    y = (y + 1) * 2
    y = y / 2 - 1
    return y.at[0, 0].set(5)


_HERE = "test/simulate/test_first_differences.py"
NONE = "from there on, no value is one of the reference's"
HALF = "there it is 1/2 of what the reference computes in stablehlo.dot_general at "


@pytest.mark.parametrize(
    ("changes", "op", "fun", "offset", "note"),
    [
        ({"sums": wrong_axis}, "all_reduce", wrong_axis, 1, NONE),
        ({"act": jnp.sin}, "sine", block, 2, NONE),
        ({"act": positive}, "maximum", positive, 1, NONE),
        ({"act": kept}, "compare", kept, 1, NONE),
        ({"sums": averaged}, "divide", averaged, 1, HALF),
        ({"act": halved}, "multiply", halved, 1, HALF),
        ({"ends": scaled}, "multiply", scaled, 1, NONE),
        ({"ends": detour}, "scatter", detour, 4, NONE),
        (
            {"sums": lambda h: h},
            "tanh",
            block,
            2,
            f"{NONE}; its operand from stablehlo.dot_general at .* is a summand, along 'j', of "
            "what the reference computes in stablehlo.dot_general at ",
        ),
    ],
)
def test_the_first_line_that_computes_none_of_the_reference(changes, op, fun, offset, note):
    difference = first_difference("reference", **changes)
    assert difference.place.op == f"stablehlo.{op}"
    line = fun.__code__.co_firstlineno + offset
    assert difference.place.line == f"test/simulate/test_first_differences.py:{line}"
    assert re.match(note, difference.note)


def test_a_result_that_is_another_value_of_the_reference():
    difference = first_difference(
        "reference", lambda x, w, v: {**reference(x, w, v), "out": 2 * (jnp.tanh(x @ w) @ v)}
    )
    assert difference.place.op == "stablehlo.dot_general"
    assert difference.note.startswith("there it is what the reference computes in stablehlo.dot_")


def test_a_reference_that_cannot_be_traced():
    difference = first_difference(
        "reference",
        lambda x, w, v: {"out": np.tanh(np.asarray(x) @ w), "sum": x.sum()},
        ends=lambda y: jnp.tile(y, 2),
    )
    assert difference.place is None
    assert "the reference cannot be traced (TracerArrayConversionError)" in str(difference)


def ring(y, w):
    filled = jnp.zeros((8, 8))
    for k in range(4):
        at = (lax.axis_index("i") + k) % 4
        piece = y @ w if k < 3 else scaled(y @ w)
        filled = lax.dynamic_update_slice(filled, piece, (2 * at, 0))
        y = lax.ppermute(y, "i", [(n, (n - 1) % 4) for n in range(4)])
    return jnp.tanh(filled)


def test_parts_on_the_way_around_a_ring_are_values_of_the_reference():
    """Only the last piece is wrong."""
    specs = {"in_specs": (P("i"), P()), "out_specs": P(), "check_vma": False}
    lowered = shard_map(ring, mesh=mesh, **specs).lower(x, w[:, :8])
    validation = lowered.validate(x, w[:, :8], reference=lambda y, w: jnp.tanh(y @ w), xla=False)
    place = validation.first_difference.difference.place
    assert place.op == "stablehlo.multiply"
    assert place.line.endswith(f":{scaled.__code__.co_firstlineno + 1}")


def positive_parts(x):
    positive = jnp.where(x > 0, x, -1)
    return positive, jnp.where(x < 0, 2.0, x)  # whose function may be the same


@pytest.mark.parametrize("which", [0, 1])
def test_values_that_functions_of_jax_compute_have_the_line_of_the_call(which):
    specs = {"in_specs": P("i"), "out_specs": P("i"), "check_vma": False}
    lowered = shard_map(lambda x: positive_parts(x)[which] * 1, mesh=mesh, **specs).lower(x)
    check = lowered.validate(x, reference=lambda x: 3 * positive_parts(x)[which], xla=False)
    place = f"{_HERE}:{positive_parts.__code__.co_firstlineno + 1 + which}"
    assert check.first_difference.difference.note == (
        f"there it is what the reference computes in stablehlo.select at {place}"
    )


def test_arguments_of_the_reference_are_named():
    specs = {"in_specs": P("i"), "out_specs": P("i"), "check_vma": False}
    args = {"first": w[:8], "second": x}
    lowered = shard_map(lambda args: args["second"] * 1, mesh=mesh, **specs).lower(args)
    check = lowered.validate(args, reference=lambda args: args["second"] * 2, xla=False)
    note = check.first_difference.difference.note
    assert note == "there it is the reference's argument args[0]['second']"


def masked_softmax(x, w, fill=-jnp.inf):
    scores = x @ w
    scores = jnp.where(scores > -1, scores, fill)
    weights = jnp.exp(scores)
    return weights / weights.sum(0, keepdims=True)  # a psum over "i" is missing


@pytest.mark.parametrize("fill", [-jnp.inf, -1e9])
def test_a_reference_with_infinities(fill):
    program = partial(masked_softmax, fill=fill)
    specs = {"in_specs": (P("i"), P()), "out_specs": P("i"), "check_vma": False}
    lowered = shard_map(program, mesh=mesh, **specs).lower(x, w)
    validation = lowered.validate(x, w, reference=program, xla=False)
    difference = validation.first_difference.difference
    assert difference.place.op == "stablehlo.broadcast_in_dim"
    assert difference.place.line.endswith(f":{masked_softmax.__code__.co_firstlineno + 4}")
    assert "is a summand, along 'i', of what the reference computes in" in difference.note


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_the_first_line_that_xla_computes_otherwise(monkeypatch, partitioner):
    right = by_numpy.COMPUTED["stablehlo.dot_general"]
    products = []

    def wrong(op):
        products.append(op)
        run = right(op)
        return lambda a, b: [run(a, b)[0] * np.float32(1.01 if b.shape == (16, 8) else 1)]

    monkeypatch.setitem(by_numpy.COMPUTED, "stablehlo.dot_general", wrong)
    difference = first_difference("XLA", None, partitioner=partitioner)
    assert (difference.place.op, difference.device) == ("stablehlo.dot_general", 0)
    assert difference.place.line.endswith(f":{block.__code__.co_firstlineno + 3}")


def test_values_on_the_way_are_stacked_and_have_the_order_of_the_program():
    text = lowered().snapshots.text_with_lines("body")
    values = values_behind(text, 0)
    ops = [each.place.op.removeprefix("stablehlo.") for each in values]
    assert ops == ["dot_general", "all_reduce", "while", "dot_general"]  # none of the other result
    assert stacked_devices(text) == list(range(8))
    found = simulate_module(returning(text, [(each.op, each.result) for each in values]), [x, w, v])
    partial, total = found.arrays[:2]
    np.testing.assert_array_equal(total[0], partial[0] + partial[1])
    assert partial.shape == (8, 2, 16)


def gradient(ws, x, scale=1.0):
    def loss(ws):
        return (lax.scan(lambda x, w: (jnp.tanh(x @ w), None), scale * x, ws)[0] ** 2).sum()

    return jax.grad(loss)(ws)


def validated_layers():
    """Against gradients of other arguments, so that no value after them is one of theirs."""
    ws = rng.standard_normal((4, 8, 8)).astype(np.float32) / 3
    specs = {"in_specs": (P(), P("i")), "out_specs": P(), "check_vma": False}
    mapped = shard_map(lambda ws, x: lax.psum(gradient(ws, x), "i"), mesh=mesh, **specs)
    return mapped.lower(ws, x).validate(ws, x, reference=partial(gradient, scale=1.5), xla=False)


def test_few_values_are_compared_completely(monkeypatch):
    compared = []

    def counted(blocks, full, *others):
        compared.append(full)
        return layouts.layout_of(blocks, full, *others)

    monkeypatch.setattr(against_reference, "layout_of", counted)
    assert validated_layers().first_difference.difference.place.line
    assert 0 < len(compared) < 200


def test_a_search_that_takes_too_long_is_given_up(monkeypatch):
    monkeypatch.setattr(against_reference, "MOST_NUMBERS", 2**13)
    difference = validated_layers().first_difference.difference
    assert difference.place is None
    assert re.search(
        r"its line was not found: the comparison of \d+ values with \d+ of the reference's was "
        "stopped; use less data",
        difference.note,
    )


def layout_of(blocks, full, mesh, tolerance):
    """The layout, which a few numbers must not rule out."""
    layout = layouts.layout_of(blocks, full, mesh, tolerance)
    arrays = [np.zeros_like(full), full, full[:1]]
    for tiles in (True, False):
        if layout is not None and (tiles or not layout.moved):
            assert 1 in Candidates(arrays, mesh).of(blocks, tolerance, tiles)
    return layout


def test_a_few_numbers_rule_out_other_arrays():
    small = Mesh("mesh", (("i", 4), ("j", 2)))
    arrays = [rng.standard_normal((8, 6)) for _ in range(50)]
    rows = [arrays[7][2 * (d // 2) : 2 * (d // 2) + 2] for d in range(8)]
    summands = [arrays[9] * (0.1, 0.2, 0.3, 0.4)[d // 2] for d in range(8)]
    for blocks, number in ((rows, 7), (rows[::-1], 7), (summands, 9)):
        assert list(Candidates(arrays, small).of(blocks, 1e-6, tiles=True)) == [number]
    assert not list(Candidates(arrays, small).of(rows[::-1], 1e-6, tiles=False))


def test_layouts_are_found_by_contents():
    small = Mesh("mesh", (("i", 4), ("j", 2)))
    full = rng.standard_normal((8, 6)).astype(np.float32)
    at = [(d // 2, d % 2) for d in range(8)]
    rows = [full[2 * i : 2 * i + 2] for i, j in at]
    both = [full[(4 * j + i) : (4 * j + i) + 1] for i, j in at]
    halves = [full[2 * i : 2 * i + 2] * (0.25, 0.75)[j] for i, j in at]
    assert layout_of(rows, full, small, 1e-6) == Layout((("i",), ()))
    assert layout_of(both, full, small, 1e-6) == Layout((("j", "i"), ()))
    assert layout_of(halves, full, small, 1e-6) == Layout((("i",), ()), ("j",))
    assert layout_of([full[:, None]] * 8, full, small, 1e-6) == Layout(((), ()))
    assert layout_of(rows[::-1], full, small, 1e-6) == Layout(moved=True)
    filled = [np.where(np.arange(8)[:, None] < 2 * i + 2, full, 0) for i, j in at]
    assert layout_of(filled, full, small, 1e-6) == Layout(moved=True)
    assert layout_of([*rows[:7], rows[7] + 1], full, small, 1e-6) is None


def test_equal_blocks_are_fractions_of_their_sum_and_not_summands():
    small = Mesh("mesh", (("i", 4), ("j", 2)))
    full = rng.standard_normal((8, 6)).astype(np.float32)
    rows = [full[2 * (d // 2) : 2 * (d // 2) + 2] for d in range(8)]
    summands = [full * (0.1, 0.2, 0.3, 0.4)[d // 2] for d in range(8)]
    assert layout_of([row / 2 for row in rows], full, small, 1e-6) == Layout((("i",), ()), share=2)
    assert layout_of([full / 8] * 8, full, small, 1e-6) == Layout(((), ()), share=8)
    halves = [summand / 2 for summand in summands]
    assert layout_of(halves, full, small, 1e-6) == Layout(((), ()), ("i",), 2)


@pytest.mark.parametrize("shape", [(8,), (2, 2), (8, 6), (4, 4, 4)])
def test_elements_that_a_function_makes_zero_are_not_parts_that_are_not_filled_yet(shape):
    small = Mesh("mesh", (("i", 4), ("j", 2)))
    full = rng.standard_normal(shape).astype(np.float32)
    full.flat[:2] = 1, -1
    for clip in (np.maximum, np.minimum):
        assert layout_of([clip(full, 0)] * 8, full, small, 1e-6) is None
    full, first = abs(full), np.arange(shape[0]).reshape(-1, *(1 for _ in shape[1:])) < 1
    assert layout_of([full * first] * 8, full, small, 1e-6) == Layout(moved=True)


def test_parts_are_filled_in_slices_and_not_in_single_elements():
    small = Mesh("mesh", (("i", 4), ("j", 2)))
    full = 1 + rng.random((8, 6)).astype(np.float32)
    at = [(d // 2, d % 2) for d in range(8)]
    rows, columns = np.arange(8)[:, None], np.arange(6)
    filled = {
        "one by one": [rows <= i for i, j in at],
        "around a ring": [(rows // 2 - i) % 4 < 2 for i, j in at],
        "by two rings": [((rows // 2 + i) % 4 < 2) | (columns // 3 == j) for i, j in at],
    }
    for parts in filled.values():
        assert layout_of([full * part for part in parts], full, small, 1e-6) == Layout(moved=True)
    for few in ([rng.random((8, 6)) < 0.5] * 8, [rows >= columns] * 8):
        assert layout_of([full * part for part in few], full, small, 1e-6) is None


@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_layouts_of_infinities_and_nan(odd):
    small = Mesh("mesh", (("i", 4), ("j", 2)))
    full = rng.standard_normal((8, 6)).astype(np.float32)
    full[::2, 1] = full[3, 4] = odd
    rows = [full[2 * (d // 2) : 2 * (d // 2) + 2] for d in range(8)]
    assert layout_of(rows, full, small, 1e-6) == Layout((("i",), ()))
    assert layout_of(rows[::-1], full, small, 1e-6) == Layout(moved=True)
    for other in {0.5, np.inf, -np.inf, np.nan} - {odd}:
        wrong = np.where(np.arange(6) == 1, np.float32(other), rows[3])
        assert layout_of([*rows[:3], wrong, *rows[4:]], full, small, 1e-6) is None
    assert layout_of([*rows[:7], rows[7] + 1], full, small, 1e-6) is None
    opposite = [np.full_like(full, (np.inf, -np.inf)[d % 2]) for d in range(8)]
    assert layout_of(opposite, full, small, 1e-6) is None
