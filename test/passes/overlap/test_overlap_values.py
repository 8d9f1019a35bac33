"""Programs give the numbers of the plain ones after each pass that overlaps transfers."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from overlap_programs import BY_NAME, PROGRAMS, mesh, normal

import shmap_compiler
from shmap_compiler import shard_map

# Which passes run on a program, with the options that force their form.
CASES = [
    ("gathered", "overlap-gather-product", {"form": "ring"}),
    ("gathered", "overlap-gather-product", {"form": "rows", "parts": 2}),
    ("over two axes", "overlap-gather-product", {"form": "ring"}),
    ("over two axes", "overlap-product-scatter", {"form": "partial-sums", "parts": 4}),
    ("contracted", "overlap-gather-contraction", {"form": "columns", "parts": 2}),
    (
        "contracted",
        "overlap-gather-contraction",
        {"form": "columns", "parts": 4, "barriers": True},
    ),
    ("gated", "overlap-gather-product", {"form": "ring"}),
    ("gated", "overlap-gather-product", {"form": "rows", "parts": 2}),
    ("gated", "overlap-gather-contraction", {"form": "columns", "parts": 4}),
    ("two products", "order-gathered-products", {"form": "together"}),
    ("scattered", "overlap-product-scatter", {"form": "columns", "parts": 2}),
    ("scattered", "overlap-product-scatter", {"form": "partial-sums", "parts": 4}),
    ("scattered", "overlap-product-scatter", {"form": "partial-sums", "parts": 4, "wide": True}),
    ("summed", "overlap-product-sum", {"form": "columns", "parts": 2}),
    ("blocks", "overlap-gather-scatter", {"form": "stages", "parts": 2}),
    ("gradients", "overlap-row-block", {"form": "row-chunks", "parts": 2}),
    ("gradients", "overlap-row-block", {"form": "row-chunks", "parts": 4}),
    ("fused gates", "overlap-row-block", {"form": "row-chunks", "parts": 4}),
    ("gradients", "overlap-row-block", {"form": "row-stages", "parts": 2}),
    ("gradients", "overlap-row-block", {"form": "row-stages", "parts": 4}),
    ("fused gates", "overlap-row-block", {"form": "row-stages", "parts": 4}),
    ("trained attentions", "overlap-row-block", {"form": "row-chunks", "parts": 2}),
    ("trained attentions", "overlap-row-block", {"form": "row-chunks", "parts": 4}),
    ("trained attentions", "overlap-row-block", {"form": "row-stages", "parts": 2}),
    ("attentions", "overlap-sequence-block", {"form": "sequences", "parts": 2}),
    ("attentions", "overlap-sequence-block", {"form": "sequences"}),
    ("attentions", "store-maxima", {"form": "stored-maximum"}),
    ("trained attentions", "store-maxima", {"form": "stored-maximum"}),
    ("experts", "overlap-all-to-all", {"form": "chunks", "parts": 4}),
    ("trained experts", "overlap-exchange-block", {"form": "summed-chunks", "parts": 4}),
    ("experts in loops", "overlap-exchange-block", {"form": "summed-chunks", "parts": 2}),
    ("layers", "unroll-gathering-loops", {"form": "unroll"}),
    ("layers", "unroll-gathering-loops", {"form": "unroll", "parts": 2}),
    ("layers", "unroll-gathering-loops", {"form": "unroll", "barriers": True}),
]
_results = {}


def lowered(name, dtype, *passes):
    body, sizes, in_specs, out_specs, args = PROGRAMS[name]
    args = [np.asarray(arg, jnp.dtype(dtype)) for arg in args]
    with shmap_compiler.passes(*passes):
        f = shard_map(
            body, mesh=mesh(**sizes), in_specs=in_specs, out_specs=out_specs, check_vma=False
        )
        return f.lower(*args), args


def results(program, args):
    return [np.asarray(leaf, np.float32) for leaf in jax.tree.leaves(program.compile()(*args))]


def plain(name, dtype):
    key = name, dtype
    if key not in _results:
        program, args = lowered(name, dtype)
        _results[key] = results(program, args)
    return _results[key]


def computed(name, dtype, pass_):
    key = name, dtype, pass_
    if key not in _results:
        program, args = lowered(name, dtype, pass_)
        states = dict(program.snapshots.texts)
        assert states[pass_.name] != states["shmap-normalize-all-to-all"]
        _results[key] = results(program, args)
    return _results[key]


def tolerance(pass_, dtype):
    """Of the largest value; XLA's CPU products of other sizes may add f32 in another order."""
    if dtype == "float32":
        return 2e-6
    # 8 bits at each of 8 hops were 9.6e-3 at most. XLA rounds less where it fuses.
    if pass_.name in ("shmap-overlap-product-scatter", "shmap-overlap-row-block"):
        return 2e-2
    if pass_.name == "shmap-overlap-exchange-block":
        return 1e-2  # weights' gradients, rounded once: 5e-3
    # Barriers keep XLA from fusing: 4e-3 with jax 0.10. By the reference interpreter the bits are
    # the same (test/simulate/test_overlap_forms.py).
    with_barriers = (
        "shmap-overlap-gather-scatter",
        "shmap-overlap-product-sum",
        "shmap-order-gathered-products",
    )
    return 1e-2 if pass_.name in with_barriers else 0.0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "pass_name", "options"), CASES)
def test_a_rewritten_program_computes_what_the_plain_one_does(name, pass_name, options, dtype):
    expected = plain(name, dtype)
    pass_ = BY_NAME[pass_name](**options)
    for ours, theirs in zip(computed(name, dtype, pass_), expected, strict=True):
        limit = tolerance(pass_, dtype) * np.abs(theirs).max()
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=limit)


def test_rows_are_taken_before_heads_are_joined(monkeypatch):
    """As of large arrays."""
    monkeypatch.setattr("shmap_passes.overlap.rewrite.moved_rows._COPIED_FAST", 0)
    pass_ = BY_NAME["overlap-product-scatter"](form="partial-sums", parts=2)
    text = lowered("heads", "float32", pass_)[0].as_text("stablehlo")
    assert "(tensor<2x8x4xf32>) -> tensor<8x2x4xf32>" in text  # a piece is transposed
    assert "(tensor<2x64x4xf32>) -> tensor<64x2x4xf32>" not in text
    expected = plain("heads", "float32")
    for ours, theirs in zip(computed("heads", "float32", pass_), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6 * np.abs(theirs).max())


@pytest.mark.parametrize("form", ["columns", "partial-sums"])
def test_products_that_read_large_arrays_last_are_computed_first(form, monkeypatch):
    monkeypatch.setattr("shmap_passes.overlap.rewrite.released.FEW_BYTES", 0)
    options = {"form": form, "parts": 2}
    early, late = (
        BY_NAME["overlap-product-scatter"](**options, ordered=ordered) for ordered in (True, False)
    )
    expected = plain("gradients", "float32")
    for ours, theirs in zip(computed("gradients", "float32", early), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6 * np.abs(theirs).max())
    stages = [lowered("gradients", "float32", each)[0].snapshots.stages for each in (early, late)]
    texts = [state.text for found in stages for state in found if state.name == early.name]
    assert texts[0] != texts[1]


@pytest.mark.parametrize(
    ("name", "pass_name", "options"),
    [
        ("gathered", "overlap-gather-product", {"form": "ring"}),
        ("contracted", "overlap-gather-contraction", {"form": "columns", "parts": 2}),
        ("layers", "unroll-gathering-loops", {"form": "unroll", "parts": 2}),
        ("layers", "unroll-gathering-loops", {"form": "unroll", "barriers": True}),
        ("summed", "overlap-product-sum", {"form": "columns", "parts": 2}),
        ("two products", "order-gathered-products", {"form": "together"}),
        ("attentions", "store-maxima", {"form": "stored-maximum"}),
        ("blocks", "overlap-gather-scatter", {"form": "stages", "parts": 2}),
    ],
)
def test_every_device_computes_the_same_bits(name, pass_name, options):
    pass_ = BY_NAME[pass_name](**options)
    assert pass_.keeps_bits
    program, args = lowered(name, "float32", pass_)
    validation = program.validate(*args, xla=False)
    assert validation.holds, validation


@jax.jit
def dense(x, w):
    return jnp.clip(x @ w, -2, 2)


def called(x, w):
    """What is computed from products is in jitted functions, as is one of the products."""
    g = lax.all_gather(x, "i", axis=0, tiled=True)
    y = g @ w
    return jax.nn.silu(y) * dense(g, w), jnp.where(y > 0, y, 0.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_small_jitted_functions_are_computed_on_pieces(dtype):
    args = [np.asarray(arg, jnp.dtype(dtype)) for arg in PROGRAMS["gathered"][-1][:2]]
    f = shard_map(called, mesh=mesh(i=4), in_specs=(P("i"), P()), out_specs=P(), check_vma=False)
    program = f.lower(*args, overlap="force")
    text = next(s.text for s in program.snapshots.stages if s.name == "shmap-legalize-collectives")
    assert "call @silu" not in text
    assert '"stablehlo.all_gather"' not in text
    assert "stablehlo.select" in text
    assert not re.search(r"stablehlo\.(exponential|select).* tensor<64x16x", text)
    for ours, theirs in zip(results(program, args), results(f.lower(*args), args), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6 * np.abs(theirs).max())


def trained(x, w):
    """The gradient reads the gathered weights too, in a product that needs the first one."""

    def loss(x, w):
        return ((x @ lax.all_gather(w, "i", axis=0, tiled=True)) ** 2).sum()

    return jax.grad(loss, (0, 1))(x, w)


def test_a_gathered_operand_of_two_products_of_which_one_needs_the_other():
    args = [np.asarray(arg, np.float32) for arg in PROGRAMS["contracted"][-1]]
    specs = (P("i"), P("i"))
    f = shard_map(trained, mesh=mesh(i=4), in_specs=specs, out_specs=specs, check_vma=False)
    program = f.lower(*args, overlap="force")
    forms = [(choice.pattern, choice.form) for choice in program.overlap_report().choices]
    assert forms == [("gather-contraction", "columns"), ("product-scatter", "partial-sums")]
    states = {state.name: state.text for state in program.snapshots.stages}
    chunked = states["shmap-overlap-gather-contraction"]
    assert chunked.count('= "stablehlo.all_gather"') == 4
    for ours, theirs in zip(results(program, args), results(f.lower(*args), args), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6 * np.abs(theirs).max())


def test_the_last_product_of_a_block_may_read_the_gathered_array():
    def body(x, w):
        g = lax.all_gather(x, "i", axis=0, tiled=True)
        y = jnp.tanh(g @ w) + jnp.sin(g @ (w * 2)) * g
        return lax.psum_scatter(y, "i", scatter_dimension=0, tiled=True)

    def lowered():
        specs = {"in_specs": (P("i"), P()), "out_specs": P("i"), "check_vma": False}
        return shard_map(body, mesh=mesh(i=4), **specs).lower(*args)

    args = [np.asarray(normal(k, rows, 16), np.float32) for k, rows in enumerate((32, 16))]
    expected = lowered().compile()(*args)
    with shmap_compiler.passes(BY_NAME["overlap-gather-scatter"](form="stages", parts=2)):
        program = lowered()
    assert program.as_text().count("optimization_barrier") > 0
    np.testing.assert_allclose(program.compile()(*args), expected, rtol=0, atol=1e-5)


def test_an_unrolled_loop_may_gather_an_array_without_elements():
    def f(x, *ws):
        def layer(x, each):
            w, nothing = (lax.all_gather(a, "i", axis=0, tiled=True) for a in each)
            return jnp.tanh(x @ w) + nothing.sum(), None

        return lax.scan(layer, x, ws)[0]

    numbers = np.ones((8, 16)), np.full((6, 16, 16), 0.1), np.ones((6, 16, 0))
    args = [each.astype(np.float32) for each in numbers]
    specs = {"in_specs": (P(), P(None, "i"), P(None, "i")), "out_specs": P(), "check_vma": False}
    f = shard_map(f, mesh=mesh(i=4), **specs)
    with shmap_compiler.passes(BY_NAME["unroll-gathering-loops"](form="unroll", barriers=True)):
        program = f.lower(*args)
    assert "stablehlo.while" not in program.snapshots.stages[-1].text
    np.testing.assert_allclose(results(program, args), results(f.lower(*args), args), atol=2e-6)


def sequence(x, ws):
    """Each step gathers rows, which need the step before, and weights, which do not."""

    def layer(x, w):
        w = lax.all_gather(w, "j", axis=0, tiled=True)
        y = jnp.tanh(lax.all_gather(x, "i", axis=0, tiled=True) @ w)
        return lax.psum_scatter(y @ w, "i", scatter_dimension=0, tiled=True), None

    return lax.scan(layer, x, ws)[0]


def test_what_needs_the_step_before_has_a_form_of_its_own_in_an_unrolled_loop():
    x = np.asarray(PROGRAMS["gathered"][-1][0], np.float32)
    args = x[:, :16], np.float32(0.1) * np.stack([x[:16, :16], x[16:32, :16]])
    specs = {"in_specs": (P("i"), P(None, "j")), "out_specs": P("i"), "check_vma": False}
    f = shard_map(sequence, mesh=mesh(i=4, j=2), **specs)
    program = f.lower(*args, overlap="force")
    choices = program.overlap_report().choices
    assert {(c.pattern, c.axes): c.form for c in choices} == {
        ("gathering-loop", ("j",)): "unroll",
        ("gather-contraction", ("j",)): None,
        ("gather-product", ("i",)): "ring",
        ("product-scatter", ("i",)): "partial-sums",
    }
    text = program.snapshots.stages[-1].text
    assert "stablehlo.while" not in text
    assert text.count('= "stablehlo.all_gather"') == 2
    assert "reduce_scatter" not in text
    for ours, theirs in zip(results(program, args), results(f.lower(*args), args), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6 * np.abs(theirs).max())


@pytest.mark.parametrize(
    ("name", "pass_name", "form"),
    [
        ("scattered", "overlap-product-scatter", "partial-sums"),
        ("gradients", "overlap-row-block", "row-chunks"),
    ],
)
def test_sums_go_both_ways(name, pass_name, form):
    program, _ = lowered(name, "float32", BY_NAME[pass_name](form=form, parts=2))
    states = {state.name: state.text for state in program.snapshots.stages}
    pairs = re.findall(r"source_target_pairs = (dense<[^>]*>)", states[f"shmap-{pass_name}"])
    assert len(set(pairs)) == 2
    assert pairs.count(pairs[0]) * 2 == len(pairs)


def test_sums_are_as_exact_as_their_wire():
    """Errors of four partial sums in bf16, and in f32 on the wire, against sums in f64."""
    x, w, _ = PROGRAMS["scattered"][-1]
    x, w = (np.asarray(jnp.asarray(a, jnp.bfloat16), np.float64) for a in (x, w))
    exact = x @ w
    errors = {
        wide: np.abs(rewritten("scattered", wide)[0] - exact).max() / np.abs(exact).max()
        for wide in (False, True)
    }
    assert errors[True] < errors[False] < 1e-2
    assert errors[True] < 2**-8


@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8"])
def test_sums_of_integers_go_round_without_being_asked_for(dtype):
    """They wrap around, and are bitwise equal to those of the plain program."""

    def body(x, w):
        return lax.psum_scatter(x @ w, "i", scatter_dimension=0, tiled=True)

    specs = {"in_specs": (P(None, "i"), P("i")), "out_specs": P("i")}
    f = shard_map(body, mesh=mesh(i=4), **specs, check_vma=False)
    numbers = np.random.default_rng(0)
    x, w = (
        numbers.integers(-(2**30), 2**30, shape).astype(dtype) for shape in ((32, 64), (64, 16))
    )
    program = f.lower(x, w, overlap="force")
    assert "collective_permute" in program.as_text()
    np.testing.assert_array_equal(program.compile()(x, w), f.lower(x, w).compile()(x, w))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "complex64"])
def test_no_sums_are_rounded_on_their_way_without_being_asked_for(dtype):
    def body(x, w):
        return lax.psum_scatter(x @ w, "i", scatter_dimension=0, tiled=True)

    specs = {"in_specs": (P(None, "i"), P("i")), "out_specs": P("i")}
    f = shard_map(body, mesh=mesh(i=4), **specs, check_vma=False)
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape in ((32, 64), (64, 16))]
    text = f.lower(*types, overlap="force").as_text()
    sent = re.findall(r"collective_permute.*-> tensor<\d+x\d+x(.+)>", text)
    assert set(sent) <= {"f32"}


def rewritten(name, wide):
    pass_ = BY_NAME["overlap-product-scatter"](form="partial-sums", parts=4, wide=wide)
    return computed(name, "bfloat16", pass_)
