"""Programs give the numbers of the plain ones after each pass that lets transfers overlap products.

Each family of programs is one body with several results, so that few programs are compiled.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from shmap_passes import PASSES

import shmap_compiler
from shmap_compiler import shard_map

BY_NAME = {cls.name.removeprefix("shmap-"): cls for cls in PASSES}


def mesh(**sizes):
    axis_types = (AxisType.Auto,) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=axis_types)


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def gather(x, axis="i", dimension=0):
    return lax.all_gather(x, axis, axis=dimension, tiled=True)


def scatter(x, axis="i", dimension=0):
    return lax.psum_scatter(x, axis, scatter_dimension=dimension, tiled=True)


def gathered(x, w, v, batch):
    """Products of gathered blocks: several, of either operand, with batches, what comes after."""
    g = gather(x)
    return (
        jax.nn.gelu(g @ w) * (g @ v),
        jnp.tanh(g @ w + v[0]) + g[:, :16],
        jnp.einsum("kf,mk->fm", w, gather(x * 2)),
        gather(x + 1) @ w,
        (gather(x + 2).T @ gather(x + 2), gather(x + 2) @ v),
        jnp.einsum("bmk,bkf->bmf", gather(batch, dimension=1), jnp.stack([w, v])),
        jnp.einsum("mbk,mfk->mbf", gather(x[:, None]), gather(x[:, None] + 1)),
    )


def over_two_axes(x, w):
    """The group is two axes, in another order than the mesh, and one axis of two."""
    return gather(x, ("j", "i")) @ w, gather(x, "j") @ w, scatter(x @ x.T @ x @ w, ("j", "i"))


def contracted(x, w):
    g = gather(w)
    return x @ g, jax.nn.relu(x @ g), x @ g @ g.T, jnp.einsum("kf,mk->fm", gather(w * 2), x)


def scattered(x, w, batch):
    return (
        scatter(x @ w),
        scatter(jnp.einsum("mk,kf->fm", x, w), dimension=1),
        scatter(jnp.tanh(x @ w)),
        scatter(x @ x.T),
        scatter(jnp.einsum("bmk,kf->bmf", batch, w), dimension=1),
    )


def experts(x, w, v):
    y = lax.all_to_all(x, "i", split_axis=0, concat_axis=1, tiled=True)
    z = jnp.einsum("ech,ehd->ecd", jax.nn.gelu(jnp.einsum("ecd,edh->ech", y, w)), v)
    return lax.all_to_all(z, "i", split_axis=1, concat_axis=0, tiled=True)


def layers(x, ws):
    def loss(x, ws):
        out = lax.scan(lambda x, w: (jnp.tanh(x @ gather(w)), None), x, ws)[0]
        return (out.astype(jnp.float32) ** 2).sum(), out

    (_, out), grads = jax.value_and_grad(loss, (0, 1), has_aux=True)(x, ws)
    return out, grads


LINE = {"i": 4}
BOTH = P(("j", "i"))
PROGRAMS = {
    "gathered": (
        gathered,
        LINE,
        (P("i"), P(), P(), P(None, "i")),
        P(),
        (normal(0, 64, 24), normal(1, 24, 16), normal(2, 24, 16), normal(3, 2, 64, 24)),
    ),
    "over two axes": (
        over_two_axes,
        {"i": 4, "j": 2},
        (BOTH, P()),
        (P(), P(("j", "i")), P(("j", "i"))),
        (normal(0, 256, 24), normal(1, 24, 16)),
    ),
    "contracted": (
        contracted,
        LINE,
        (P("i"), P("i")),
        (P("i"), P("i"), P("i"), P(None, "i")),
        (normal(0, 64, 24), normal(1, 24, 16)),
    ),
    "scattered": (
        scattered,
        LINE,
        (P(None, "i"), P("i"), P(None, None, "i")),
        (P("i"), P(None, "i"), P("i"), P("i"), P(None, "i")),
        (normal(0, 64, 64), normal(1, 64, 16), normal(2, 3, 64, 64)),
    ),
    "experts": (
        experts,
        LINE,
        (P(None, "i"), P("i"), P("i")),
        P(None, "i"),
        (normal(0, 16, 64, 16), normal(1, 16, 16, 12), normal(2, 16, 12, 16)),
    ),
    "layers": (
        layers,
        LINE,
        (P("i"), P(None, "i")),
        (P("i"), (P("i"), P(None, "i"))),
        (normal(0, 16, 24), normal(1, 5, 24, 24) * 0.2),
    ),
}
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
    ("scattered", "overlap-product-scatter", {"form": "columns", "parts": 2}),
    ("scattered", "overlap-product-scatter", {"form": "partial-sums", "parts": 4}),
    ("scattered", "overlap-product-scatter", {"form": "partial-sums", "parts": 4, "wide": True}),
    ("experts", "overlap-all-to-all", {"form": "chunks", "parts": 4}),
    ("layers", "unroll-gathering-loops", {"form": "unroll"}),
    ("layers", "unroll-gathering-loops", {"form": "unroll", "parts": 2}),
]
_results = {}


def lowered(name, dtype, *passes):
    body, sizes, in_specs, out_specs, args = PROGRAMS[name]
    args = [jnp.asarray(arg, dtype) for arg in args]
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
        states = {state.name: state.text for state in program.snapshots.stages}
        assert states[pass_.name] != states["shmap-normalize-all-to-all"]
        _results[key] = results(program, args)
    return _results[key]


def tolerance(pass_, dtype):
    """Of the largest value; XLA's CPU products of other sizes may add f32 in another order."""
    if dtype == "float32":
        return 2e-6
    # 8 bits at each of 8 hops were 9.6e-3 at most. XLA rounds less where it fuses.
    return 2e-2 if pass_.name == "shmap-overlap-product-scatter" else 0.0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "pass_name", "options"), CASES)
def test_a_rewritten_program_computes_what_the_plain_one_does(name, pass_name, options, dtype):
    expected = plain(name, dtype)
    pass_ = BY_NAME[pass_name](**options)
    for ours, theirs in zip(computed(name, dtype, pass_), expected, strict=True):
        limit = tolerance(pass_, dtype) * np.abs(theirs).max()
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=limit)


@pytest.mark.parametrize(
    ("name", "pass_name", "options"),
    [
        ("gathered", "overlap-gather-product", {"form": "ring"}),
        ("contracted", "overlap-gather-contraction", {"form": "columns", "parts": 2}),
        ("layers", "unroll-gathering-loops", {"form": "unroll", "parts": 2}),
    ],
)
def test_every_device_computes_the_same_bits(name, pass_name, options):
    pass_ = BY_NAME[pass_name](**options)
    assert pass_.keeps_bits
    program, args = lowered(name, "float32", pass_)
    validation = program.validate(*args, xla=False)
    assert validation.holds, validation


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


def rewritten(name, wide):
    pass_ = BY_NAME["overlap-product-scatter"](form="partial-sums", parts=4, wide=wide)
    return computed(name, "bfloat16", pass_)
