"""Ring attention: attention over a sequence that is split over devices, without gathering it.

Every device keeps its block of queries. The blocks of keys and values travel around the ring of
devices, and each device attends to the block that it has while it waits for the next. A softmax
over all keys needs no two blocks at once: a running maximum, a running sum of exponentials, and a
running weighted sum of values are enough. So memory per device is that of one block, however long
the sequence is.

    python examples/ring_attention.py    errors, and the memory of one device as sequences grow
    shmap run examples/ring_attention.py:attention          every query sees all keys
    shmap run examples/ring_attention.py:causal_attention   a query sees no later key

Written from the descriptions in "Ring Attention with Blockwise Transformers for Near-Infinite
Context" (Liu, Zaharia, Abbeel, 2023) and "Online normalizer calculation for softmax" (Milakov,
Gimelshein, 2018).
"""

import os
from functools import partial
from typing import NamedTuple

# Eight virtual CPU devices, requested before JAX is imported. JAX_PLATFORMS=tpu overrides this.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

LENGTH, HEADS, SIZE = 32, 2, 8

mesh = Mesh(np.array(jax.devices()[:8]), ("ring",))
over_sequence = partial(shard_map, mesh=mesh, in_specs=P("ring"), out_specs=P("ring"))


class Softmax(NamedTuple):
    """A softmax-weighted sum of values, over the keys seen so far.

    Exponentials are relative to `maximum`, so they never overflow. The result is `values / total`.
    """

    maximum: jax.Array  # [head, query]: the largest score
    total: jax.Array  # [head, query]: the sum of exponentials of scores
    values: jax.Array  # [head, query, size]: the sum of values, weighted by them

    def add(self, scores, values):
        """Adds keys with `scores` [head, query, key] and `values` [key, head, size]."""
        maximum = jnp.maximum(self.maximum, scores.max(axis=-1))
        weights = jnp.exp(scores - maximum[..., None])
        rescale = jnp.exp(self.maximum - maximum)  # zero at first: no key before the first
        return Softmax(
            maximum,
            self.total * rescale + weights.sum(axis=-1),
            self.values * rescale[..., None] + jnp.einsum("hqk,khd->hqd", weights, values),
        )


def scaled_scores(queries, keys):
    return jnp.einsum("qhd,khd->hqk", queries, keys) / SIZE**0.5


def hide_later(scores, query_positions, key_positions):
    return jnp.where(key_positions <= query_positions[:, None], scores, -jnp.inf)


def from_the_left(blocks):
    """Each device sends its blocks to the right and gets those of its left neighbour."""
    size = lax.axis_size("ring")
    return lax.ppermute(blocks, "ring", perm=[(i, (i + 1) % size) for i in range(size)])


def ring_attention(queries, keys, values, causal):
    """One device's block of the result; all blocks are [position, head, size]."""
    length, heads, _ = queries.shape
    size, me = lax.axis_size("ring"), lax.axis_index("ring")
    positions = jnp.arange(length)

    def attend(softmax, step, keys, values):
        scores = scaled_scores(queries, keys)
        if causal:
            sender = (me - step) % size  # whose block this was at first
            scores = hide_later(scores, me * length + positions, sender * length + positions)
        return softmax.add(scores, values)

    def travel_and_attend(step, carry):
        softmax, keys, values = carry
        keys, values = from_the_left((keys, values))
        return attend(softmax, step, keys, values), keys, values

    nothing = Softmax(
        maximum=jnp.full((heads, length), -jnp.inf),
        total=jnp.zeros((heads, length)),
        values=jnp.zeros((heads, length, SIZE)),
    )
    # A device's own block comes first. There each query sees itself at least, so the maximum is
    # finite from then on, and a later block that is hidden as a whole has weight zero, not NaN.
    softmax = attend(nothing, 0, keys, values)
    carry = (softmax, keys, values)
    softmax, _, _ = lax.fori_loop(1, size, travel_and_attend, carry)
    return jnp.swapaxes(softmax.values / softmax.total[..., None], 0, 1)


@over_sequence
def attention(queries, keys, values):
    return ring_attention(queries, keys, values, causal=False)


@over_sequence
def causal_attention(queries, keys, values):
    return ring_attention(queries, keys, values, causal=True)


def attention_reference(queries, keys, values):
    weights = jax.nn.softmax(scaled_scores(queries, keys), axis=-1)
    return jnp.einsum("hqk,khd->qhd", weights, values)


def causal_attention_reference(queries, keys, values):
    positions = jnp.arange(LENGTH)
    scores = hide_later(scaled_scores(queries, keys), positions, positions)
    return jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores, axis=-1), values)


random = np.random.default_rng(0)
attention_args = causal_attention_args = tuple(
    jnp.asarray(random.standard_normal((LENGTH, HEADS, SIZE)), jnp.float32) for _ in range(3)
)


def main():
    for name, ring, reference in [
        ("attention", attention, attention_reference),
        ("causal_attention", causal_attention, causal_attention_reference),
    ]:
        result, expected = jax.jit(ring)(*attention_args), reference(*attention_args)
        print(f"{name}: {result.shape}, difference {jnp.abs(result - expected).max():.1e}")
    print("\ntemporary memory of one device, by length of the sequence")
    for length in (1024, 2048, 4096):
        block = jax.ShapeDtypeStruct((length, HEADS, SIZE), jnp.float32)
        memory = attention.lower(block, block, block).compile().memory_analysis()
        scores = HEADS * length**2 * 4
        print(f"  {length:5}  {memory.temp_size_in_bytes:10,} bytes (all scores: {scores:12,})")


if __name__ == "__main__":
    main()
