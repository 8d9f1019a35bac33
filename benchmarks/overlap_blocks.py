"""Blocks of models for `overlap.py --random N --blocks`: several collectives and products each.

Rows, as tokens, are split over the devices, or the weights are, as each block says. `BLOCKS` has
the function, the specs of its arguments and of its results, and what draws their global shapes.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

ROWS, COLUMNS, STACK = P("i", None), P(None, "i"), P(None, "i", None)
WIDTHS = (256, 512, 1024, 2048, 4096)
HEADS = 128


def gathered(x):
    return lax.all_gather(x, "i", axis=0, tiled=True)


def scattered(x):
    return lax.psum_scatter(x, "i", scatter_dimension=0, tiled=True)


def normalized(x):
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype)


def read_once(x, v, w):
    """Rows that are gathered, and results that nothing sums."""
    return jax.nn.gelu(gathered(x) @ v) @ w


def column_parallel(x, v, w):
    """Rows are on all devices, before and after."""
    return x + lax.psum(jax.nn.gelu(normalized(x) @ v) @ w, "i")


def sequence_parallel(x, v, w):
    return x + scattered(jax.nn.gelu(gathered(normalized(x)) @ v) @ w)


def gated(x, u, v, w):
    rows = gathered(normalized(x))
    return x + scattered((jax.nn.silu(rows @ u) * (rows @ v)) @ w)


def fused_gate(x, v, w):
    """The same with one product for both halves."""
    left, right = jnp.split(gathered(normalized(x)) @ v, 2, axis=1)
    return x + scattered((jax.nn.silu(left) * right) @ w)


def biased(x, v, b, w):
    return x + scattered(jax.nn.gelu(gathered(normalized(x)) @ v + b) @ w)


def fully_sharded(x, v, w):
    """Rows and weights are split, and weights are gathered where they are read."""
    return x + jax.nn.gelu(normalized(x) @ gathered(v)) @ gathered(w)


def attention(x, q, k, v, w):
    """Heads are split, and rows between the blocks; the sequences have 1024 tokens."""
    rows = gathered(normalized(x))
    heads = [
        (rows @ p).reshape(-1, min(1024, len(rows)), p.shape[1] // HEADS, HEADS) for p in (q, k, v)
    ]
    mixed = jax.nn.dot_product_attention(*heads, is_causal=True)
    return x + scattered(mixed.reshape(len(rows), -1) @ w)


def sequences(x, q, k, v, w):
    """The same if each device has some tokens of each sequence, which is an array of its own."""
    whole = lax.all_gather(normalized(x), "i", axis=1, tiled=True)
    heads = [(whole @ p).reshape(*whole.shape[:2], -1, HEADS) for p in (q, k, v)]
    mixed = jax.nn.dot_product_attention(*heads, is_causal=True)
    mixed = mixed.reshape(*whole.shape[:2], -1)
    return x + lax.psum_scatter(mixed @ w, "i", scatter_dimension=1, tiled=True)


def layers(x, vs, ws):
    """A scan over layers whose rows are split."""

    def layer(x, weights):
        return sequence_parallel(x, *weights), None

    return lax.scan(layer, x, (vs, ws))[0]


def recomputed_layers(x, vs, ws):
    """The same, if the gradient of a layer computes it again."""

    @jax.checkpoint
    def layer(x, weights):
        return sequence_parallel(x, *weights), None

    return lax.scan(layer, x, (vs, ws))[0]


def sharded_layers(x, vs, ws):
    def layer(x, weights):
        return fully_sharded(x, *weights), None

    return lax.scan(layer, x, (vs, ws))[0]


def two_layers(x, v, w, s, t):
    return sequence_parallel(sequence_parallel(x, v, w), s, t)


def logits(x, w):
    """The columns of the vocabulary are split; the loss of one token after the other."""
    found = (gathered(normalized(x)) @ w).astype(jnp.float32)
    most = lax.pmax(lax.stop_gradient(found.max(-1)), "i")
    return jnp.log(lax.psum(jnp.exp(found - most[:, None]).sum(-1), "i")) + most


def mixture(x, router, v, w):
    """Each expert takes as many tokens of each device as it would if they were spread evenly."""
    experts = router.shape[1]
    most = len(x) // experts
    scores = jax.nn.softmax((x @ router).astype(jnp.float32))
    weights, tokens = lax.top_k(scores.T, most)
    taken = jnp.take(x, tokens.reshape(-1), axis=0).reshape(experts, most, -1)
    taken = lax.all_to_all(taken, "i", split_axis=0, concat_axis=1, tiled=True)
    found = jnp.einsum("ech,ehd->ecd", jax.nn.gelu(jnp.einsum("ecd,edh->ech", taken, v)), w)
    found = lax.all_to_all(found, "i", split_axis=1, concat_axis=0, tiled=True)
    found = (found * weights[..., None].astype(x.dtype)).reshape(experts * most, -1)
    return x + jnp.zeros_like(x).at[tokens.reshape(-1)].add(found)


def _gradient(fun, count):
    def gradient(*args):
        def loss(*args):
            return (fun(*args).astype(jnp.float32) ** 2).sum()

        return jax.grad(loss, tuple(range(count)))(*args)

    return gradient


def _summed_gradient(x, v, w):
    """Of weights that all devices have: each computes that of its rows."""
    found = _gradient(lambda x, v, w: jax.nn.gelu(x @ v) @ w, 3)(x, v, w)
    return found[0], lax.psum(found[1], "i"), lax.psum(found[2], "i")


def _shapes(kinds, count, draw):
    """Draws the global shapes of the arguments of a block.

    Args:
      kinds: of the arguments, by letter: x for rows, q for these in sequences, d for weights from a
        width to one that is 1 to 4 times as large, g for two of these side by side, b for a bias of
        theirs, u for those back, s and t for stacks of both, h for weights to as many columns as
        heads have, o for those back, r for a router, e and f for experts, l for logits.
    """
    rows = count * draw.of((256, 1024, 2048, 4096, 8192))
    width = max(draw.of(WIDTHS), count)
    between = max(width * draw.of((1, 2, 4)), 256 * count if draw.of((0, 1)) else 0)
    between = -(-between // count) * count
    heads = max(width, HEADS * count)
    depth = draw.of((2, 4, 8))
    shapes = {
        "x": (rows, width),
        "q": (rows // (tokens := min(2048, rows // 4)), tokens, width),
        "d": (width, between),
        "g": (width, 2 * between),
        "b": (between,),
        "u": (between, width),
        "s": (depth, width, between),
        "t": (depth, between, width),
        "h": (width, heads),
        "o": (heads, width),
        "r": (width, count),
        "e": (count, width, between),
        "f": (count, between, width),
        "l": (width, count * draw.of((1024, 4096, 16384))),
    }
    return tuple(shapes[kind] for kind in kinds)


E = P("i", None, None)
MIDDLE, LAST = P(None, "i", None), P(None, None, "i")
BLOCKS = {
    "read_once": (read_once, (ROWS, COLUMNS, ROWS), P(), "xdu"),
    "column_parallel": (column_parallel, (P(), COLUMNS, ROWS), P(), "xdu"),
    "sequence_parallel": (sequence_parallel, (ROWS, COLUMNS, ROWS), ROWS, "xdu"),
    "gated": (gated, (ROWS, COLUMNS, COLUMNS, ROWS), ROWS, "xddu"),
    "fused_gate": (fused_gate, (ROWS, COLUMNS, ROWS), ROWS, "xgu"),
    "biased": (biased, (ROWS, COLUMNS, P("i"), ROWS), ROWS, "xdbu"),
    "fully_sharded": (fully_sharded, (ROWS, ROWS, ROWS), ROWS, "xdu"),
    "attention": (attention, (ROWS, COLUMNS, COLUMNS, COLUMNS, ROWS), ROWS, "xhhho"),
    "sequences": (sequences, (MIDDLE, COLUMNS, COLUMNS, COLUMNS, ROWS), MIDDLE, "qhhho"),
    "layers": (layers, (ROWS, LAST, STACK), ROWS, "xst"),
    "recomputed_layers": (recomputed_layers, (ROWS, LAST, STACK), ROWS, "xst"),
    "sharded_layers": (sharded_layers, (ROWS, STACK, STACK), ROWS, "xst"),
    "two_layers": (two_layers, (ROWS, COLUMNS, ROWS, COLUMNS, ROWS), ROWS, "xdudu"),
    "logits": (logits, (ROWS, COLUMNS), P(), "xl"),
    "mixture": (mixture, (ROWS, P(), E, E), ROWS, "xref"),
}
BLOCKS |= {
    f"{name}'": (_gradient(fun, len(ins)), ins, ins, kinds)
    for name, (fun, ins, _, kinds) in BLOCKS.items()
}
BLOCKS["data_parallel'"] = (_summed_gradient, (ROWS, P(), P()), (ROWS, P(), P()), "xdu")
BLOCKS = {
    name: (*rest, functools.partial(_shapes, kinds)) for name, (*rest, kinds) in BLOCKS.items()
}
