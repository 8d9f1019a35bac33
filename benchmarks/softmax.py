"""Layers of attention with stored maxima of softmax, and the same layers as they are.

    python benchmarks/softmax.py
    python benchmarks/softmax.py --targets tpu:v6e:2x4 --layers 2,4096,4,4,causal,gradient

Compiles each layer twice for each target, without its devices, and prints milliseconds as `explain`
models them, and MiB of temporaries as the compiler counts them. Numbers in brackets are of layers
that `overlap="auto"` leaves as they are. Needs the extra `tpu`.
"""

import argparse
import itertools

import jax
import jax.numpy as jnp
import llama
import overlap
from compile_here import compile_in_this_process
from jax import lax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

FEATURES, HEAD, DEVICES = 1024, 128, 8
LAYERS = [
    f"{sizes},{mask}"
    for sizes in ("8,1024,4,4", "4,2048,4,4", "1,3072,8,8", "1,4096,4,4", "2,4096,4,4")
    for mask in ("none", "causal")
] + ["1,4096,4,4,bias", "2,4096,8,1,causal", "2,4096,8,2,causal", "1,4096,4,4,causal,gradient"]


def attention(x, weights, mask):
    """Of all sequences of a device: [sequences, tokens, features]."""
    query, key, value, out = weights
    q, k, v = (jnp.einsum("btf,fhd->bthd", x, w) for w in (query, key, value))
    q, k = llama.rotated(q), llama.rotated(k)
    if (heads := k.shape[2]) == 1:
        scores = jnp.einsum("bthd,bsd->bhts", q, k[:, :, 0])
    elif heads < q.shape[2]:
        q = q.reshape(*k.shape[:3], -1, HEAD)
        scores = jnp.einsum("btkgd,bskd->bkgts", q, k)
    else:
        scores = jnp.einsum("bthd,bshd->bhts", q, k)
    scores = masked(scores.astype(jnp.float32) / HEAD**0.5, mask)
    shares = jax.nn.softmax(scores).astype(x.dtype)
    if heads == 1:
        mixed = jnp.einsum("bhts,bsd->bthd", shares, v[:, :, 0])
    elif scores.ndim > 4:
        mixed = jnp.einsum("bkgts,bskd->btkgd", shares, v)
    else:
        mixed = jnp.einsum("bhts,bshd->bthd", shares, v)
    return jnp.einsum("bthd,hdf->btf", mixed.reshape(*x.shape[:2], -1, HEAD), out)


def masked(scores, mask):
    times = scores.shape[-1]
    if mask == "causal":
        return jnp.where(jnp.tril(jnp.ones((times, times), bool)), scores, -1e30)
    if mask == "bias":
        return scores + jnp.where(jnp.arange(times) < times - 5, 0.0, -1e9)
    return scores


def layer(sequences, times, heads, keys, mask, *gradient):
    """A layer, which was never traced, and the types of its arguments."""

    def forward(x, weights):
        return attention(x, weights, mask)

    def loss(x, weights):
        return (forward(x, weights).astype(jnp.float32) ** 2).sum()

    sizes = [(FEATURES, int(n), HEAD) for n in (heads, keys, keys)] + [(int(heads), HEAD, FEATURES)]
    x, *weights = (
        jax.ShapeDtypeStruct(shape, jnp.bfloat16)
        for shape in ((DEVICES * int(sequences), int(times), FEATURES), *sizes)
    )
    specs = {"in_specs": (P("i"), P()), "out_specs": (P("i"), P()) if gradient else P("i")}
    mapped = shard_map(
        jax.grad(loss, (0, 1)) if gradient else forward,
        mesh=AbstractMesh((DEVICES,), ("i",)),
        check_vma=False,
        **specs,
    )
    return mapped, (x, tuple(weights))


def block():
    """Attention over 4,096 tokens with its gather and its sum, and the types of its arguments.

    Four sequences are split over the devices by tokens, and 32 heads inside.
    """
    features, heads = 4096, 32

    def body(x, weights):
        rows = lax.all_gather(x, "i", axis=1, tiled=True)
        summed = attention(rows, weights, "causal")
        return lax.psum_scatter(summed, "i", scatter_dimension=1, tiled=True)

    of_heads = P(None, "i")
    mapped = shard_map(
        body,
        mesh=AbstractMesh((DEVICES,), ("i",)),
        in_specs=(P(None, "i"), (*(of_heads,) * 3, P("i"))),
        out_specs=P(None, "i"),
    )
    x, inner, out = (
        jax.ShapeDtypeStruct(shape, jnp.bfloat16)
        for shape in ((4, 4096, features), (features, heads, HEAD), (heads, HEAD, features))
    )
    return mapped, (x, (inner, inner, inner, out))


def compared(name, target):
    """Milliseconds and MiB, plain and with stored maxima."""
    made = layer(*name.split(","))
    is_taken = overlap.lowered(*made, "auto").overlap_report(target).is_changed
    cells = []
    for mode in ("off", "force"):
        compiled = overlap.lowered(*made, mode).compile(target)
        seconds = overlap.total(compiled.explain().totals)
        mebibytes = compiled.memory_analysis().temp_size_in_bytes >> 20
        cells.append((f"{1e3 * seconds:.2f}", str(mebibytes)))
    text = ", ".join(" -> ".join(pair) for pair in zip(*cells, strict=True))
    return text if is_taken else f"({text})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", nargs="+", default=overlap.TARGETS)
    parser.add_argument(
        "--layers", nargs="+", default=LAYERS, help="sequences,tokens,heads,heads of keys,mask"
    )
    options = parser.parse_args()
    compile_in_this_process()
    print("| layer | target | plain -> stored: ms, MiB |\n|---|---|---|")
    for name, target in itertools.product(options.layers, options.targets):
        print(f"| {name} | {target} | {compared(name, target)} |", flush=True)


if __name__ == "__main__":
    main()
