"""Programs of `examples/` in sizes of real models, and layers of models, with overlap and without.

    python benchmarks/overlap_examples.py
    python benchmarks/overlap_examples.py --programs experts --targets tpu:v6e:2x4 --report
    python benchmarks/overlap_examples.py --lowering

Prints what `explain` models for each target, as `overlap.py` does, and with --report what was
chosen at each place. With --lowering it times lowering, and compiles nothing. Needs the extra
`tpu`.
"""

import argparse
import importlib
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import expert_layers
import jax
import jax.numpy as jnp
import llama
import mixture_of_experts
import overlap
import sequence_parallel
import softmax
import transformer_2d
from compile_here import compile_in_this_process
from jax import lax


def of(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def experts():
    """Eight experts, 4,096 features to 16,384 and back, 8,192 tokens a device."""
    importlib.reload(mixture_of_experts)  # what was traced is cached
    tokens, features, hidden = 8192, 4096, 16384
    mixture_of_experts.CAPACITY = tokens // 8
    weights = mixture_of_experts.Weights(
        of(features, 8), of(8, features, hidden), of(8, hidden, features)
    )
    return mixture_of_experts.mixture, (weights, of(8 * tokens, features))


def transformer():
    """One layer of 4,096 features and 32 heads, for 16 sequences of 1,024 new tokens."""
    importlib.reload(transformer_2d)
    h = transformer_2d.HParams(
        layers=2, embed=4096, heads=32, qkv=128, ff=16384, batch=16, time=1024, cache_capacity=2048
    )
    transformer_2d.hparams = h
    params = transformer_2d.Params(
        of(h.layers, h.heads, h.embed, h.qkv + 2 * h.ff_per_head),
        of(h.layers, h.embed, 1, 2 * h.qkv),
        of(h.layers, h.heads, h.qkv + h.ff_per_head, h.embed),
    )
    number = jax.ShapeDtypeStruct((), jnp.int32)
    cache = transformer_2d.KVCache(
        of(h.layers, h.batch, h.cache_capacity, h.qkv),
        of(h.layers, h.batch, h.cache_capacity, h.qkv),
        number,
    )
    angles = jax.ShapeDtypeStruct((h.time, h.qkv // 2), jnp.float32)
    x = of(h.batch, h.time, h.embed)
    return transformer_2d.transformer_layer, (number, params, angles, angles, cache, x)


def plain_transformer():
    """The same without the rings that it has by hand."""
    made = transformer()

    def scattered(subscripts, lhs, rhs, *, scatter_dimension, axis_name):
        # The heads are the first dimension of the weights, and the third one of the result.
        assert scatter_dimension == 0
        sums = jnp.einsum(subscripts, lhs, rhs)
        return lax.psum_scatter(sums, axis_name, scatter_dimension=2, tiled=True)

    def gathered(subscripts, lhs, rhs, *, gather_dimension, axis_name):
        whole = lax.all_gather(lhs, axis_name, axis=gather_dimension[0], tiled=True)
        return jnp.einsum(subscripts, whole, rhs)

    transformer_2d.matmul_reducescatter = scattered
    transformer_2d.allgather_matmul = gathered
    return made


def training():
    """The gradient of two layers, 4,096 features and 32 heads, for 8 sequences of 2,048 tokens."""
    importlib.reload(sequence_parallel)
    features, hidden, heads, head = 4096, 16384, 32, 128
    sequence_parallel.TIMES, sequence_parallel.HEAD = 2048, head
    sequence_parallel.FEATURES = features
    layer = {
        "qkv": of(3, features, heads * head),
        "out": of(heads * head, features),
        "up": of(features, hidden),
        "down": of(hidden, features),
    }
    tokens = of(sequence_parallel.SEQUENCES * sequence_parallel.TIMES, features)
    layers = [layer] * sequence_parallel.LAYERS
    return sequence_parallel.loss_and_gradients, (layers, tokens, tokens)


PROGRAMS = {
    "experts": experts,
    "transformer": transformer,
    "plain transformer": plain_transformer,
    "training": training,
    "llama": llama.gradients,
    "llama recomputed": llama.recomputed_gradients,
    "llama forward": llama.forward_pass,
    "expert layers": expert_layers.gradients,
    "attention": softmax.block,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", nargs="+", default=list(PROGRAMS), choices=PROGRAMS)
    parser.add_argument("--targets", nargs="+", default=overlap.TARGETS)
    parser.add_argument("--mode", default="auto", choices=("auto", "measure", "force"))
    parser.add_argument("--report", action="store_true", help="print what was chosen, too")
    parser.add_argument("--lowering", action="store_true", help="time lowering, compile nothing")
    options = parser.parse_args()
    compile_in_this_process()
    programs = {name: PROGRAMS[name] for name in options.programs}
    if options.lowering:
        overlap.print_lowering(programs, options.targets, options.mode)
        return
    print(overlap.HEAD)
    for name, make in programs.items():
        made = make()
        plain, other = (overlap.lowered(*made, mode) for mode in ("off", options.mode))
        for target in options.targets:
            print(overlap.compared(name, plain, other, target), flush=True)
            if options.report:
                print(f"\n{other.overlap_report(target)}\n", flush=True)


if __name__ == "__main__":
    main()
