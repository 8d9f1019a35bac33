"""A transformer layer with attention and MLP in parallel, partitioned in two dimensions.

The realistic example of the shard_map design document (its "2D weight gathered pattern"), with all
missing pieces written out. The eight devices form a 2x2x2 mesh with the axes x, y and z. Comments
give the layout of an array as `[batch.Z, time, embed.XY]`: batch split over z, embed over x and
within that over y. The weights are never moved (heads over y and z, embed over x); the
activations are:

- the residual stream rests as [batch.Z, time, embed.XY];
- the input projection needs [batch, time, embed.X] and leaves partial sums over x, which a ring of
  collective-permutes adds and scatters over the heads while the next block is multiplied;
- attention is split by heads first and then, because all heads share one key and value, by batch;
- the output projection gathers the heads over x by such a ring, and reduce-scatters its partial
  sums over y and z back to the residual layout.

The layer is written three times, with the same arguments and results, which
`python examples/transformer_2d.py` compares:

- `transformer_layer`: all in one shard_map, every movement of data explicit.
      shmap run examples/transformer_2d.py:transformer_layer
      shmap run examples/transformer_2d.py:transformer_layer_bf16
- `jit_layer`: in the style of the document. The compiler partitions the layer, guided by sharding
  constraints, and only the two large matrix products are shard_mapped.
- `transformer_layer_reference`: for one device.
"""

import os
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

# Eight virtual CPU devices, requested before JAX is imported. JAX_PLATFORMS=tpu overrides this.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

mesh = jax.make_mesh((2, 2, 2), ("x", "y", "z"), axis_types=(AxisType.Auto,) * 3)


@dataclass(frozen=True)
class HParams:
    """Sizes of the model, of its cache and of one batch of new tokens."""

    layers: int = 2
    embed: int = 32
    heads: int = 8
    qkv: int = 8
    ff: int = 128
    batch: int = 4
    time: int = 8
    cache_capacity: int = 16
    cache_length: int = 11

    @property
    def ff_per_head(self):
        return self.ff // self.heads


hparams = HParams()


class Params(NamedTuple):
    """The weights of all layers, stacked on the first dimension."""

    q_wi: jax.Array  # [layers, heads.YZ, embed.X, qkv + 2 ff_per_head]
    kv: jax.Array  # [layers, embed.X, 1, 2 qkv]
    o_wo: jax.Array  # [layers, heads.YZ, qkv + ff_per_head, embed.X]


class KVCache(NamedTuple):
    """Keys and values of earlier tokens; only the first `length` entries in time are filled."""

    k: jax.Array  # [layers, batch.X, cache_capacity, qkv]
    v: jax.Array  # [layers, batch.X, cache_capacity, qkv]
    length: jax.Array  # []


# How the dimensions of arrays lie on the mesh.

LOGICAL_TO_PHYSICAL = {
    "residual_batch": "z",
    "residual_embed": ("x", "y"),
    "post_norm_batch": None,
    "post_norm_embed": "x",
    "time": None,
    "heads": ("y", "z", "x"),
    "per_head": None,
    "attention_batch": "x",
    "attention_heads": ("y", "z"),
    "layers": None,
    "params_heads": ("y", "z"),
    "params_embed": "x",
}


def l2phys(*names):
    """The PartitionSpec of an array whose dimensions have these logical names."""
    return P(*(LOGICAL_TO_PHYSICAL[name] for name in names))


RESIDUAL = l2phys("residual_batch", "time", "residual_embed")
POST_NORM = l2phys("post_norm_batch", "time", "post_norm_embed")
HEADS = l2phys("post_norm_batch", "time", "heads", "per_head")
ATTENTION_HEADS = l2phys("attention_batch", "time", "attention_heads", "per_head")
KV = l2phys("attention_batch", "time", "per_head")

PARAMS = Params(
    q_wi=l2phys("layers", "params_heads", "params_embed", "per_head"),
    kv=l2phys("layers", "params_embed"),
    o_wo=l2phys("layers", "params_heads", "per_head", "params_embed"),
)
KV_CACHE = KVCache(
    k=l2phys("layers", "attention_batch"), v=l2phys("layers", "attention_batch"), length=P()
)


# The parts of the layer that are the same however it is partitioned.


def my_layer(stacked, layer):
    """The entry of one layer."""
    return lax.dynamic_index_in_dim(stacked, layer, axis=0, keepdims=False)


def layernorm(x, axis_name=None):
    """Normalises over the last dimension, which may be split over the mesh axes `axis_name`.

    Computes in float32. Scale and offset are taken to be folded into the weights that follow.
    """

    def mean(t):
        local = jnp.mean(t, axis=-1, keepdims=True)
        return local if axis_name is None else lax.pmean(local, axis_name)

    centred = x.astype(jnp.float32) - mean(x.astype(jnp.float32))
    normed = centred * lax.rsqrt(mean(jnp.square(centred)) + 1e-6)
    return normed.astype(x.dtype)


def split_q_wi(q_wi):
    """Takes apart what the input projection gives: queries and the two inputs of the MLP's gate."""
    q, wi0, wi1 = jnp.split(q_wi, (hparams.qkv, hparams.qkv + hparams.ff_per_head), axis=-1)
    return q, wi0, wi1


def rope(sin, cos, x):
    """Rotates the pairs (first half, second half) of the last dimension by their positions' angles.

    sin, cos: [time, qkv / 2]; x: [batch, time, heads, qkv].
    """
    sin, cos = sin[:, None, :], cos[:, None, :]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)


def swish2(x):
    """x * sigmoid to the base 2: the change of base is folded into the weights."""
    return x / (1 + jnp.exp2(-x))


def attend(q, k, v, kv_cache, layer):
    """Attention of new tokens to the cache's filled entries and to the new tokens up to themselves.

    q: [batch, time, heads, qkv]; k, v: [batch, time, qkv], shared by all heads.
    """
    keys = jnp.concatenate([my_layer(kv_cache.k, layer), k], axis=1)
    values = jnp.concatenate([my_layer(kv_cache.v, layer), v], axis=1)

    new, capacity = k.shape[1], kv_cache.k.shape[2]
    filled = jnp.broadcast_to(jnp.arange(capacity) < kv_cache.length, (new, capacity))
    causal = jnp.tril(jnp.ones((new, new), bool))
    visible = jnp.concatenate([filled, causal], axis=1)

    scores = jnp.einsum("bthd,bsd->bhts", q, keys).astype(jnp.float32) / np.sqrt(q.shape[-1])
    weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhts,bsd->bthd", weights.astype(q.dtype), values)


# The two large matrix products, per device, their communication overlapped with their arithmetic.


def matmul_reducescatter(subscripts, lhs, rhs, *, scatter_dimension, axis_name):
    """`psum_scatter(einsum(subscripts, lhs, rhs))` as a ring of products and collective-permutes.

    scatter_dimension: the dimension of `rhs` that is scattered; the result must have it too.

    The sum for one device travels around the ring to it, and each device on its way adds its part.
    """
    size, me = lax.axis_size(axis_name), lax.axis_index(axis_name)
    chunk = rhs.shape[scatter_dimension] // size
    to_the_right = [(device, (device + 1) % size) for device in range(size)]

    def part_of(owner):
        rhs_block = lax.dynamic_slice_in_dim(rhs, owner * chunk, chunk, scatter_dimension)
        return jnp.einsum(subscripts, lhs, rhs_block)

    total = part_of((me - 1) % size)
    for step in range(1, size):
        total = lax.ppermute(total, axis_name, to_the_right) + part_of((me - 1 - step) % size)
    return total


def allgather_matmul(subscripts, lhs, rhs, *, gather_dimension, axis_name):
    """`einsum(subscripts, all_gather(lhs), rhs)` as a ring of products and collective-permutes.

    gather_dimension: the dimension to gather, as a dimension of `lhs` and as one of `rhs`. The
    product sums over it.

    Each device multiplies the block of `lhs` that it has while the next one travels to it.
    """
    lhs_dimension, rhs_dimension = gather_dimension
    size, me = lax.axis_size(axis_name), lax.axis_index(axis_name)
    chunk = lhs.shape[lhs_dimension]
    to_the_left = [(device, (device - 1) % size) for device in range(size)]

    def product(lhs_block, owner):
        rhs_block = lax.dynamic_slice_in_dim(rhs, owner * chunk, chunk, rhs_dimension)
        return jnp.einsum(subscripts, lhs_block, rhs_block)

    total = product(lhs, me)
    for step in range(1, size):
        lhs = lax.ppermute(lhs, axis_name, to_the_left)
        total = total + product(lhs, (me + step) % size)
    return total


def q_wi_manual(layer, q_wi, xnorm):
    """The input projection.

    [batch, time, embed.X] @ [heads.YZ, embed.X, per_head]
    -> (product)                      [batch, time, heads.YZ, per_head], partial sums over x
    -> (reduce-scatter over x)        [batch, time, heads.YZX, per_head]
    """
    with jax.named_scope("q_wi"):
        return matmul_reducescatter(
            "bte,hed->bthd",
            xnorm,
            my_layer(q_wi, layer),
            scatter_dimension=0,
            axis_name="x",
        )


def o_wo_manual(layer, o_wo, y_fused):
    """The output projection.

    [batch, time, heads.YZX, per_head] @ [heads.YZ, per_head, embed.X]
    -> (all-gather over x, product)   [batch, time, embed.X], partial sums over y and z
    -> (reduce-scatter over y, z)     [batch.Z, time, embed.XY]
    """
    with jax.named_scope("o_wo"):
        y_out = allgather_matmul(
            "bthd,hde->bte",
            y_fused,
            my_layer(o_wo, layer),
            gather_dimension=(2, 0),
            axis_name="x",
        )
        y_out = lax.psum_scatter(y_out, "y", scatter_dimension=2, tiled=True)
        return lax.psum_scatter(y_out, "z", scatter_dimension=0, tiled=True)


# The layer, three times.


@partial(
    shard_map,
    mesh=mesh,
    in_specs=(P(), PARAMS, P(), P(), KV_CACHE, RESIDUAL),
    out_specs=(RESIDUAL, KV, KV),
)
def transformer_layer(layer, params, sin, cos, kv_cache, x):
    """Forward pass through one layer: the output, and the keys and values of the new tokens."""
    xnorm = layernorm(x, axis_name=("x", "y"))  # [batch.Z, time, embed.XY]
    xnorm = lax.all_gather(xnorm, "y", axis=2, tiled=True)
    xnorm = lax.all_gather(xnorm, "z", axis=0, tiled=True)  # [batch, time, embed.X]

    q, wi0, wi1 = split_q_wi(q_wi_manual(layer, params.q_wi, xnorm))  # [batch, time, heads.YZX, _]
    kv = jnp.einsum("bte,ezd->btzd", xnorm, my_layer(params.kv, layer))
    kv = lax.psum_scatter(kv, "x", scatter_dimension=0, tiled=True)  # [batch.X, time, 1, 2 qkv]
    k, v = jnp.split(kv, 2, axis=-1)
    q, k = rope(sin, cos, q), rope(sin, cos, k)
    k, v = k[:, :, 0], v[:, :, 0]

    q = lax.all_to_all(q, "x", 0, 2, tiled=True)  # [batch.X, time, heads.YZ, qkv]
    y_att = attend(q, k, v, kv_cache, layer)
    y_att = lax.all_to_all(y_att, "x", 2, 0, tiled=True)  # [batch, time, heads.YZX, qkv]
    y_mlp = swish2(wi0) * wi1

    y_fused = jnp.concatenate([y_att, y_mlp], axis=-1)
    return x + o_wo_manual(layer, params.o_wo, y_fused), k, v


@partial(jax.jit, static_argnames="manual")
def jit_layer(layer, params, sin, cos, kv_cache, x, manual=True):
    """The same layer, partitioned by the compiler but for the two large products if `manual`."""

    def constrain(t, spec):
        return lax.with_sharding_constraint(t, NamedSharding(mesh, spec))

    x = constrain(x, RESIDUAL)
    xnorm = constrain(layernorm(x), POST_NORM)
    if manual:
        q_wi = shard_map(
            q_wi_manual, mesh=mesh, in_specs=(P(), PARAMS.q_wi, POST_NORM), out_specs=HEADS
        )(layer, params.q_wi, xnorm)
    else:
        q_wi = jnp.einsum("bte,hed->bthd", xnorm, my_layer(params.q_wi, layer))
        q_wi = constrain(q_wi, HEADS)
    q, wi0, wi1 = split_q_wi(q_wi)
    kv = jnp.einsum("bte,ezd->btzd", xnorm, my_layer(params.kv, layer))
    k, v = jnp.split(kv, 2, axis=-1)
    q, k = rope(sin, cos, q), rope(sin, cos, k)
    k, v = constrain(k[:, :, 0], KV), constrain(v[:, :, 0], KV)

    y_att = attend(constrain(q, ATTENTION_HEADS), k, v, kv_cache, layer)
    y_mlp = swish2(wi0) * wi1

    y_fused = constrain(jnp.concatenate([y_att, y_mlp], axis=-1), HEADS)
    if manual:
        y_out = shard_map(
            o_wo_manual, mesh=mesh, in_specs=(P(), PARAMS.o_wo, HEADS), out_specs=RESIDUAL
        )(layer, params.o_wo, y_fused)
    else:
        y_out = jnp.einsum("bthd,hde->bte", y_fused, my_layer(params.o_wo, layer))
        y_out = constrain(y_out, RESIDUAL)
    return constrain(x + y_out, RESIDUAL), k, v


def transformer_layer_reference(layer, params, sin, cos, kv_cache, x):
    """The same layer on one device."""
    xnorm = layernorm(x)
    q, wi0, wi1 = split_q_wi(jnp.einsum("bte,hed->bthd", xnorm, params.q_wi[layer]))
    k, v = jnp.split(jnp.einsum("bte,ezd->btzd", xnorm, params.kv[layer]), 2, axis=-1)
    q, k = rope(sin, cos, q), rope(sin, cos, k)
    k, v = k[:, :, 0], v[:, :, 0]
    y_fused = jnp.concatenate([attend(q, k, v, kv_cache, layer), swish2(wi0) * wi1], axis=-1)
    return x + jnp.einsum("bthd,hde->bte", y_fused, params.o_wo[layer]), k, v


def transformer_layer_args(dtype=jnp.float32):
    """Arguments for the second layer of a random model, after `cache_length` tokens."""
    h = hparams
    random = np.random.default_rng(0)

    def normal(*shape, scale=1.0):
        return jnp.asarray(scale * random.standard_normal(shape), dtype)

    params = Params(
        q_wi=normal(h.layers, h.heads, h.embed, h.qkv + 2 * h.ff_per_head, scale=h.embed**-0.5),
        kv=normal(h.layers, h.embed, 1, 2 * h.qkv, scale=h.embed**-0.5),
        o_wo=normal(
            h.layers,
            h.heads,
            h.qkv + h.ff_per_head,
            h.embed,
            scale=(h.heads * (h.qkv + h.ff_per_head)) ** -0.5,
        ),
    )
    kv_cache = KVCache(
        k=normal(h.layers, h.batch, h.cache_capacity, h.qkv),
        v=normal(h.layers, h.batch, h.cache_capacity, h.qkv),
        length=jnp.int32(h.cache_length),
    )
    positions = h.cache_length + np.arange(h.time)
    angles = positions[:, None] * 10000.0 ** (-np.arange(h.qkv // 2) / (h.qkv // 2))
    sin, cos = jnp.asarray(np.sin(angles), jnp.float32), jnp.asarray(np.cos(angles), jnp.float32)
    x = normal(h.batch, h.time, h.embed)
    return jnp.int32(1), params, sin, cos, kv_cache, x


transformer_layer_bf16 = transformer_layer
transformer_layer_bf16_reference = transformer_layer_reference


def transformer_layer_bf16_args():
    return transformer_layer_args(jnp.bfloat16)


def main():
    args = transformer_layer_args()
    expected, _, _ = transformer_layer_reference(*args)
    print(f"one transformer layer on mesh {dict(mesh.shape)}, activations {expected.shape}")
    for name, layer in [("transformer_layer", transformer_layer), ("jit_layer", jit_layer)]:
        result, _, _ = jax.jit(layer)(*args)
        error = jnp.abs(result - expected).max() / jnp.abs(expected).max()
        print(f"  {name:18} relative error {error:.1e}, {result.sharding.spec}")
    print("\ncollectives of transformer_layer")
    for collective in transformer_layer.lower(*args).compile().explain().collectives:
        axes = ", ".join(collective.axes or ())
        print(f"  {collective.count} {collective.kind} over {axes or 'pairs'}: {collective.source}")


if __name__ == "__main__":
    main()
