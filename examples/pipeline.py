"""Pipeline parallelism: the layers of a network on different devices, busy with different inputs.

A batch is split into microbatches. In every tick each stage applies its layer to one microbatch and
passes the result on to the next stage. Stage `s` works on microbatch `t - s` in tick `t`; while the
pipeline fills and drains, stages without a microbatch work on numbers that nobody reads.

    tick      0   1   2   3   4   5   6
    stage 0   a   b   c   d   .   .   .
    stage 1   .   a   b   c   d   .   .
    stage 2   .   .   a   b   c   d   .
    stage 3   .   .   .   a   b   c   d

The mesh is 2x4: each of two pipelines of four stages has half of every microbatch. The derivative
of the program is the backward pipeline: its ppermutes go the other way, and by `jax.checkpoint` a
stage keeps only its inputs for it.

    python examples/pipeline.py    outputs and gradients beside those of one device
    shmap run examples/pipeline.py:pipeline

Written from the description in "GPipe: Efficient Training of Giant Neural Networks using Pipeline
Parallelism" (Huang et al., 2018).
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
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

STAGES, MICROBATCHES, ROWS, FEATURES = 4, 4, 6, 8

mesh = jax.make_mesh((2, STAGES), ("data", "stage"), axis_types=(AxisType.Auto,) * 2)


class Layer(NamedTuple):
    """One layer, or all of them stacked along a new first dimension."""

    weight: jax.Array  # [features, features]
    bias: jax.Array  # [features]


def apply(layer, rows):
    return rows + jnp.tanh(rows @ layer.weight + layer.bias)


@partial(shard_map, mesh=mesh, in_specs=(P("stage"), P(None, "data")), out_specs=P(None, "data"))
def pipeline(layers, microbatches):
    """Applies all layers in turn to `microbatches`, [microbatch, row, feature]."""
    layer = jax.tree.map(lambda stacked: stacked[0], layers)  # this stage's only one
    stage, stages = lax.axis_index("stage"), lax.axis_size("stage")
    count = microbatches.shape[0]

    def tick(arrived, entering):
        done = jax.checkpoint(apply)(layer, jnp.where(stage == 0, entering, arrived))
        passed_on = lax.ppermute(done, "stage", perm=[(s, s + 1) for s in range(stages - 1)])
        return passed_on, done

    drain = jnp.zeros((stages - 1, *microbatches.shape[1:]))
    nothing = jnp.zeros(microbatches.shape[1:])
    _, done = lax.scan(tick, nothing, jnp.concatenate([microbatches, drain]))

    # The first microbatch leaves the last stage in tick `stages - 1`. Only this stage adds to the
    # sum, which hands its results to all stages.
    results = done[-count:]
    return lax.psum(jnp.where(stage == stages - 1, results, 0), "stage")


def pipeline_reference(layers, microbatches):
    for weight, bias in zip(*layers, strict=True):
        microbatches = apply(Layer(weight, bias), microbatches)
    return microbatches


def pipeline_args():
    random = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(random.standard_normal(shape), jnp.float32)

    layers = Layer(normal(STAGES, FEATURES, FEATURES) / FEATURES**0.5, normal(STAGES, FEATURES))
    return layers, normal(MICROBATCHES, ROWS, FEATURES)


def main():
    layers, microbatches = pipeline_args()
    print(f"{STAGES} stages, {MICROBATCHES} microbatches, mesh {dict(mesh.shape)}")
    difference = jax.jit(pipeline)(layers, microbatches) - pipeline_reference(layers, microbatches)
    print(f"  results      {microbatches.shape}, difference {jnp.abs(difference).max():.1e}")

    def gradients(forward):
        return jax.jit(jax.grad(lambda layers: jnp.sum(forward(layers, microbatches) ** 2)))(layers)

    ours, expected = gradients(pipeline), gradients(pipeline_reference)
    for name, gradient, wanted in zip(Layer._fields, ours, expected, strict=True):
        error = jnp.abs(gradient - wanted).max() / jnp.abs(wanted).max()
        print(f"  d/d {name:8} {gradient.shape}, relative error {error:.1e}")


if __name__ == "__main__":
    main()
