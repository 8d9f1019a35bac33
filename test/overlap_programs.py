"""Programs in which transfers can run beside products, and the forms that the passes have for them.

Each family of programs is one body with several results, so that few programs are compiled.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P
from shmap_passes import PASSES, Pass, find_ops
from shmap_passes.overlap import form

import shmap_compiler
from shmap_compiler import shard_map

BY_NAME = {cls.name.removeprefix("shmap-"): cls for cls in PASSES}


@dataclass(frozen=True)
class WriteForm(Pass):
    """Writes a form on all operations of a name, as shmap-choose-overlap does on some."""

    name = "my-write-form"
    keeps_bits = True

    op_name: str = ""
    form_name: str = ""
    parts: int = 0
    backward: bool = False
    empty: str = "zeros"
    barriers: bool = True
    stacked: bool = False
    in_place: bool = True
    narrow: bool = False
    wide: bool = False
    shared: bool = False

    def run(self, module):
        order = (0, 3, 2, 1) if self.backward else ()
        flags = self.barriers, self.stacked, self.in_place, self.narrow, self.wide, self.shared
        written = form.Form(self.form_name, self.parts, order, self.empty, *flags)
        for op in find_ops(module.operation, [f"stablehlo.{self.op_name}"]):
            form.write(op, written)


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
    g, more, other = gather(x), gather(x + 3), gather(x + 4)
    wide = jnp.concatenate([w, v, w, v], axis=1)
    return (
        jax.nn.gelu(g @ w) * (g @ v),
        jnp.tanh(g @ w + v[0]) + g[:, :16],
        jnp.einsum("kf,mk->fm", w, gather(x * 2)),
        (gather(x + 1) @ w, gather(x[:15]) @ v),
        (gather(x + 2).T @ gather(x + 2), gather(x + 2) @ v),
        jnp.einsum("bmk,bkf->bmf", gather(batch, dimension=1), jnp.stack([w, v])),
        jnp.einsum("mbk,mfk->mbf", gather(x[:, None]), gather(x[:, None] + 1)),
        more @ more.T,
        other @ wide + wide.T @ other.T,
    )


def two_products(x, w, y):
    """What is gathered is read by products alone, of which one leads on."""
    g, h = gather(x), gather(x + 1)
    n = jnp.tanh(h @ w) @ w.T
    weight, batches = jnp.einsum("km,kn->mn", y, g), jnp.einsum("km,nm->kn", h, y)
    return jnp.tanh(g @ w) @ w.T, weight, n, batches, jnp.einsum("km,kn->mn", h, h)


def over_two_axes(x, w):
    """The group is two axes, in another order than the mesh, and one axis of two."""
    return gather(x, ("j", "i")) @ w, gather(x, "j") @ w, scatter(x @ x.T @ x @ w, ("j", "i"))


def contracted(x, w):
    g = gather(w)
    return x @ g, jax.nn.relu(x @ g), x @ g @ g.T, jnp.einsum("kf,mk->fm", gather(w * 2), x)


def gated(x, w, y, u):
    """Products that only what is computed from gathered ones reads."""
    return (
        jax.nn.silu(gather(x) @ u) * (y @ u),
        jax.nn.gelu(x @ gather(w)) * (x @ u) + jnp.sin(x @ u),
    )


def scattered(x, w, batch):
    return (
        scatter(x @ w),
        scatter(jnp.einsum("mk,kf->fm", x, w), dimension=1),
        scatter(jnp.tanh(x @ w)),
        scatter(x @ x.T),
        scatter(jnp.einsum("bmk,kf->bmf", batch, w), dimension=1),
        scatter(added(x, w)),
        scatter(both_ways(x)),
    )


def both_ways(x):
    """Two products, of rows and of columns of the same array, as in gradients of `x @ x.T`."""
    square = x @ jnp.sin(x).T
    return square @ x + jnp.einsum("km,kf->mf", square, x)


def summed(x, w, batch):
    """Cut along columns, along rows, transposed, with batches, a square, and several products."""
    return (
        lax.psum(x @ w, "i"),
        lax.psum(w.T @ x.T[:, :8], "i"),
        lax.psum(jnp.einsum("mk,kf->fm", x, w), "i"),
        lax.psum(jnp.einsum("bmk,kf->bmf", batch, w), "i"),
        lax.psum(w @ w, "i"),
        lax.psum(added(x, w), "i"),
    )


def added(x, w):
    """Three products, one of them transposed."""
    return x @ w + jnp.einsum("kf,mk->fm", w, jnp.cos(x)).T + jnp.sin(x) @ (w * 2)


def large(x, w, y, v):
    """On more devices than are unrolled, and than there are."""
    return jnp.tanh(gather(x) @ w), scatter(y @ v)


def blocks(x, v, w, u):
    """An MLP, a gated one whose sums are scattered along columns, and one with a transpose."""
    h = gather(x)
    z = (jax.nn.gelu(h @ v) * (h @ u)) @ w
    return (
        scatter(jnp.tanh(gather(x + 1) @ v) @ w),
        scatter(z, dimension=1),
        scatter((w.T @ jnp.tanh(gather(x * 2) @ v).T).T * 2),
    )


def gradients(x, v, w, u):
    """Of an MLP, and of a gated one whose weights have a gradient that others need."""

    def loss(x, v, w, u):
        h = gather(x * 2)
        y = scatter(jnp.tanh(gather(x) @ v) @ w)
        return ((y * scatter((jnp.tanh(h @ v) * (h @ u)) @ w)).astype(jnp.float32)).sum()

    return jax.grad(loss, (0, 1, 2, 3))(x, v, w, u)


def fused_gates(x, u, b, v, w):
    """Gradients of blocks whose gate and other half are one product, with a bias, and taken apart.

    Halves are split and joined, taken and padded, or have a dimension of their own.
    """

    def loss(x, u, b, v, w):
        g, left = jnp.split(gather(x) @ u + b, 2, axis=1)
        n = u.shape[1] // 2
        both = gather(x * 2) @ u
        apart = jnp.einsum("md,dcf->mcf", gather(x * 3), v)
        y = scatter((jnp.sin(g) * left) @ w)
        z = scatter((jnp.tanh(both[:, :n]) * both[:, n:]) @ w)
        return ((y + z + scatter((apart[:, 0] * apart[:, 1]) @ w)).astype(jnp.float32) ** 2).sum()

    return jax.grad(loss, (0, 1, 2, 3, 4))(x, u, b, v, w)


def heads(x, w):
    """A sum of products of heads that are joined, as after attention."""
    return scatter(jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1) @ w)


def attentions(x, y, q, k, v, w, shown=None):
    """Attention of sequences one after the other, and in a dimension of their own.

    Args:
      shown: by sequence, how many of the first tokens others see.
    """

    def mixed(*projected):
        """Of queries, keys and values, (sequences, tokens, columns) each."""
        shape = projected[0].shape
        queries, keys, values = (each.reshape(*shape[:2], 2, -1) for each in projected)
        scores = jnp.einsum("bshd,bthd->bhst", queries, keys)
        places = np.arange(shape[1])
        before = jnp.broadcast_to(places[:, None] >= places, scores.shape)
        near = jnp.broadcast_to(places[:, None] < places + 3, scores.shape)
        is_seen = before & near
        if shown is not None:
            is_seen &= places < shown[: shape[0], None, None, None]
        scores = lax.select(is_seen, scores, jnp.full_like(scores, -30))
        out = jnp.einsum("bhst,bthd->bshd", jax.nn.softmax(scores), values)
        return out.reshape(shape)

    rows, apart = gather(x), gather(y, dimension=1)
    one = mixed(*((rows @ p).reshape(-1, 6, p.shape[1]) for p in (q, k, v)))
    one = scatter(one.reshape(-1).reshape(len(rows), -1) @ w)
    return one, scatter(mixed(*(apart @ p for p in (q, k, v))) @ w, dimension=1)


def trained_attentions(*args):
    """Their gradients."""

    def loss(*args):
        one, other = attentions(*args)
        return (one.astype(jnp.float32) ** 2).sum() + (other.astype(jnp.float32) ** 2).sum()

    return jax.grad(loss, tuple(range(6)))(*args)


def experts(x, w, v):
    y = lax.all_to_all(x, "i", split_axis=0, concat_axis=1, tiled=True)
    z = jnp.einsum("ech,ehd->ecd", jax.nn.gelu(jnp.einsum("ecd,edh->ech", y, w)), v)
    return lax.all_to_all(z, "i", split_axis=1, concat_axis=0, tiled=True)


def trained_experts(x, w, v):
    """Gradients of experts alone, and before what is not computed element by element."""

    def normalized(x, w, v):
        y = x + experts(x, w, v)
        return jnp.tanh(y) - y.mean(-1, keepdims=True)

    return squared(experts, x, w, v), squared(normalized, x, w, v)


def squared(fun, *args):
    def loss(*args):
        return (fun(*args).astype(jnp.float32) ** 2).sum()

    return jax.grad(loss, (0, 1, 2))(*args)


def experts_in_loops(x, w, v):
    """Gradients of layers that are computed again, and of layers that store what they computed."""

    def recomputed(x, w, v):
        def layer(x, _):
            return x + jnp.tanh(jax.checkpoint(experts)(x, w, v)), None

        return lax.scan(layer, x, None, length=2)[0]

    def stored(x, w, v):
        return lax.scan(lambda x, _: (jnp.sin(experts(x, w, v)), None), x, None, length=2)[0]

    return squared(recomputed, x, w, v), squared(stored, x, w, v)


def layers(x, ws):
    def loss(x, ws):
        out = lax.scan(lambda x, w: (jnp.tanh(x @ gather(w)), None), x, ws)[0]
        return (out.astype(jnp.float32) ** 2).sum(), out

    (_, out), grads = jax.value_and_grad(loss, (0, 1), has_aux=True)(x, ws)
    return out, grads


LINE = {"i": 4}
IN_LOOPS = {
    "overlap-gather-product": {
        "a ring in a loop": {},
        "halves stacked, in a loop": {"stacked": True},
    },
    "overlap-product-scatter": {
        "4 partial sums in a loop": {"parts": 4},
    },
}
BOTH = P(("j", "i"))
ATTENTION_SPECS = (P("i"), P(None, "i"), *(P(None, "i"),) * 3, P("i"))
ATTENTION_ARGS = (
    normal(0, 96, 10) / 2,
    normal(1, 4, 8, 10) / 2,
    normal(2, 10, 16) / 2,
    normal(3, 10, 16) / 2,
    normal(4, 10, 16) / 2,
    normal(5, 16, 10) / 2,
)
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
    "gated": (
        gated,
        LINE,
        (P("i"), P("i"), P(), P()),
        (P(), P("i")),
        (normal(0, 64, 24), normal(1, 24, 16), normal(2, 64, 24), normal(3, 24, 16)),
    ),
    "scattered": (
        scattered,
        LINE,
        (P(None, "i"), P("i"), P(None, None, "i")),
        (P("i"), P(None, "i"), P("i"), P("i"), P(None, "i"), P("i"), P("i")),
        (normal(0, 64, 64), normal(1, 64, 16), normal(2, 3, 64, 64)),
    ),
    "two products": (
        two_products,
        LINE,
        (P("i"), P(), P()),
        P(),
        (normal(0, 32, 16), normal(1, 16, 12), normal(2, 32, 16)),
    ),
    "summed": (
        summed,
        LINE,
        (P(None, "i"), P("i"), P(None, None, "i")),
        P(),
        (normal(0, 32, 64), normal(1, 64, 16), normal(2, 3, 32, 64)),
    ),
    "a ring of 18": (
        large,
        {"i": 18},
        (P("i"), P(), P(None, "i"), P("i")),
        (P(), P("i")),
        (normal(0, 72, 6), normal(1, 6, 4), normal(2, 72, 36), normal(3, 36, 4)),
    ),
    "blocks": (
        blocks,
        LINE,
        (P("i"), P(None, "i"), P("i"), P(None, "i")),
        (P("i"), P(None, "i"), P("i")),
        (normal(0, 32, 16), normal(1, 16, 24), normal(2, 24, 16), normal(3, 16, 24)),
    ),
    "gradients": (
        gradients,
        LINE,
        (P("i"), P(None, "i"), P("i"), P(None, "i")),
        (P("i"), P(None, "i"), P("i"), P(None, "i")),
        (
            normal(0, 64, 12) / 4,
            normal(1, 12, 16) / 4,
            normal(2, 16, 12) / 4,
            normal(3, 12, 16) / 4,
        ),
    ),
    "fused gates": (
        fused_gates,
        LINE,
        (P("i"), P(None, "i"), P("i"), P(None, None, "i"), P("i")),
        (P("i"), P(None, "i"), P("i"), P(None, None, "i"), P("i")),
        (
            normal(0, 64, 12) / 4,
            normal(1, 12, 32) / 4,
            normal(2, 32),
            normal(3, 12, 2, 16) / 4,
            normal(4, 16, 12) / 4,
        ),
    ),
    "heads": (
        heads,
        LINE,
        (P(None, None, "i"), P("i")),
        P("i"),
        (normal(0, 2, 64, 16), normal(1, 32, 12)),
    ),
    "attentions": (
        attentions,
        LINE,
        (*ATTENTION_SPECS, P()),
        (P("i"), P(None, "i")),
        (*ATTENTION_ARGS, np.tile([3.0, 6.0, 1.0, 5.0, 2.0], 4)[:16]),
    ),
    "trained attentions": (
        trained_attentions,
        LINE,
        ATTENTION_SPECS,
        ATTENTION_SPECS,
        ATTENTION_ARGS,
    ),
    "experts": (
        experts,
        LINE,
        (P(None, "i"), P("i"), P("i")),
        P(None, "i"),
        (normal(0, 16, 64, 16), normal(1, 16, 16, 12), normal(2, 16, 12, 16)),
    ),
    "trained experts": (
        trained_experts,
        LINE,
        (P(None, "i"), P("i"), P("i")),
        ((P(None, "i"), P("i"), P("i")),) * 2,
        (normal(0, 4, 32, 6), normal(1, 4, 6, 5) / 4, normal(2, 4, 5, 6) / 4),
    ),
    "experts in loops": (
        experts_in_loops,
        LINE,
        (P(None, "i"), P("i"), P("i")),
        ((P(None, "i"), P("i"), P("i")),) * 2,
        (normal(0, 4, 32, 6), normal(1, 4, 6, 5) / 4, normal(2, 4, 5, 6) / 4),
    ),
    "layers": (
        layers,
        LINE,
        (P("i"), P(None, "i")),
        (P("i"), (P("i"), P(None, "i"))),
        (normal(0, 16, 24), normal(1, 5, 24, 24) * 0.2),
    ),
}

RINGS = {
    "a ring": {},
    "a ring, backward": {"backward": True},
    "a ring, halves stacked": {"stacked": True},
    "a ring without barriers": {"barriers": False},
    "a ring into an allocated buffer": {"empty": "allocate"},
    "a ring of narrow numbers": {"narrow": True},
}
CHUNKS = {
    "2 chunks": {"parts": 2},
    "4 chunks": {"parts": 4},
    "4 chunks without barriers": {"parts": 4, "barriers": False},
    "4 chunks, concatenated": {"parts": 4, "in_place": False},
    "4 chunks into an allocated buffer": {"parts": 4, "empty": "allocate"},
}
SUMS = {
    "partial sums, one way": {"parts": 1},
    "2 partial sums, both ways": {"parts": 2},
    "4 partial sums": {"parts": 4},
    "4 partial sums, backward": {"parts": 4, "backward": True},
    "4 partial sums in f32": {"parts": 4, "wide": True},
    "4 partial sums without barriers": {"parts": 4, "barriers": False},
    "4 partial sums, concatenated": {"parts": 4, "in_place": False},
    "4 partial sums into an allocated buffer": {"parts": 4, "empty": "allocate"},
}
LOOPS = {
    "no loop": {},
    "no loop, into allocated buffers": {"empty": "allocate"},
    "no loop, with barriers": {"barriers": True},
    "1 step of 2": {"parts": 2},
    "1 step of 3, two before": {"parts": 3},
}
ROWS = {
    "2 chunks of rows": {"parts": 2},
    "4 chunks of rows, backward": {"parts": 4, "backward": True},
    "4 chunks of rows without barriers": {"parts": 4, "barriers": False},
}
STAGES = {
    "2 stages of rows": {"parts": 2},
    "4 stages of rows in place": {"parts": 4, "in_place": True},
    "2 stages of rows without barriers": {"parts": 2, "barriers": False},
}
SEQUENCES = {
    "2 chunks of forward sequences": {"parts": 2},
    "4 chunks of forward sequences in place": {"parts": 4, "in_place": True},
    "2 chunks of forward sequences without barriers": {"parts": 2, "barriers": False},
}
EXCHANGES = {"2 summed chunks": {"parts": 2}}
_GATHER, _SCATTER, _SUM = "all_gather", "reduce_scatter", "all_reduce"
FORMS = [
    (name, program, pass_, op_name, {"form_name": form_name, **options})
    for program, pass_, op_name, form_name, forms in (
        ("gathered", "overlap-gather-product", _GATHER, "ring", RINGS),
        ("gathered", "overlap-gather-product", _GATHER, "rows", CHUNKS),
        ("over two axes", "overlap-gather-product", _GATHER, "ring", {"a ring": {}}),
        ("over two axes", "overlap-gather-product", _GATHER, "rows", {"2 chunks": {"parts": 2}}),
        ("contracted", "overlap-gather-contraction", _GATHER, "columns", CHUNKS),
        ("two products", "order-gathered-products", _GATHER, "together", {"together": {}}),
        ("scattered", "overlap-product-scatter", _SCATTER, "columns", CHUNKS),
        ("scattered", "overlap-product-scatter", _SCATTER, "partial-sums", SUMS),
        (
            "over two axes",
            "overlap-product-scatter",
            _SCATTER,
            "partial-sums",
            {"4 partial sums": {"parts": 4}},
        ),
        *(
            ("a ring of 18", pass_, op_name, form_name, IN_LOOPS[pass_])
            for pass_, op_name, form_name in (
                ("overlap-gather-product", _GATHER, "ring"),
                ("overlap-product-scatter", _SCATTER, "partial-sums"),
            )
        ),
        ("summed", "overlap-product-sum", _SUM, "columns", CHUNKS),
        ("blocks", "overlap-gather-scatter", _GATHER, "stages", CHUNKS),
        ("gradients", "overlap-row-block", _GATHER, "row-chunks", ROWS),
        (
            "fused gates",
            "overlap-row-block",
            _GATHER,
            "row-chunks",
            {"2 chunks of rows with fused gates": {"parts": 2}},
        ),
        ("gradients", "overlap-row-block", _GATHER, "row-stages", STAGES),
        *(
            ("trained attentions", "overlap-row-block", _GATHER, form_name, forms)
            for form_name, forms in (
                ("row-chunks", {"2 chunks of sequences": {"parts": 2}}),
                ("row-stages", {"4 stages of sequences": {"parts": 4, "in_place": True}}),
            )
        ),
        ("attentions", "overlap-sequence-block", _GATHER, "sequences", SEQUENCES),
        ("attentions", "store-maxima", "reduce", "stored-maximum", {"stored maxima": {}}),
        ("experts", "overlap-all-to-all", "all_to_all", "chunks", CHUNKS),
        (
            "trained experts",
            "overlap-exchange-block",
            "all_to_all",
            "summed-chunks",
            EXCHANGES,
        ),
        ("layers", "unroll-gathering-loops", "while", "unroll", LOOPS),
    )
    for name, options in forms.items()
]
"""(name, program, pass, operation on which the form is written, options of `WriteForm`)."""


def lowered_in(program, pass_, op_name, options, dtype, partitioner):
    """A program one of whose passes rewrites into a form, and its arguments.

    Arguments are small integers where numbers are narrowed, which loses nothing of them.
    """
    body, sizes, in_specs, out_specs, args = PROGRAMS[program]
    if options.get("narrow"):
        args = [np.round(4 * arg) for arg in args]
    args = [jnp.asarray(arg, dtype) for arg in args]
    rewrite = BY_NAME[pass_]
    if op_name == "while":  # forced, as only then the pass inlines the steps
        added = (rewrite(form="unroll", **{k: v for k, v in options.items() if k != "form_name"}),)
    else:
        added = (WriteForm(op_name=op_name, **options), rewrite())
    specs = {"in_specs": in_specs, "out_specs": out_specs, "check_vma": False}
    with shmap_compiler.passes(*added):
        is_large = math.prod(sizes.values()) > 8
        on = AbstractMesh(tuple(sizes.values()), tuple(sizes)) if is_large else mesh(**sizes)
        types = [jax.ShapeDtypeStruct(arg.shape, arg.dtype) for arg in args]
        mapped = shard_map(body, mesh=on, **specs)
        return mapped.lower(*types, partitioner=partitioner), args
