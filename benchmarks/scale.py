"""Two transformers lowered and compiled for more and more TPUs that are not here.

    python benchmarks/scale.py [--targets tpu:v5e:2x4 tpu:v5e:8x8 ...]

The first is that of lowering.py, cut over data and heads; its collectives are sums. The second is
examples/transformer_2d.py, with rings of collective-permutes: StableHLO can write these only as
lists of all pairs of devices. Prints a table in Markdown: time to trace and lower (the best of
three), bytes of the StableHLO module, time to compile, and memory on a device. Needs the extra
shmap_compiler[tpu].
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

import jax
import jax.numpy as jnp
import lowering
import transformer_2d
from jax.sharding import AbstractMesh, AxisType

from shmap_compiler import Target, shard_map
from shmap_compiler.base.text_tables import show_bytes

TARGETS = ("tpu:v5e:2x4", "tpu:v5e:8x8", "tpu:v5e:16x16", "tpu:v5p:16x20x28")


def mesh_of(**sizes: int) -> AbstractMesh:
    types = (AxisType.Auto,) * len(sizes)
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=types)


def array(*shape: int, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


def sums(devices: int):
    """4 layers on a mesh of 8 along `model`: (what lowers them, its mesh)."""
    lowering.WIDTH, lowering.HEADS = 1024, 8
    mesh = mesh_of(data=devices // 8, model=8)
    loss = lowering.make_loss(shard_map, mesh, 4)
    width, hidden = 1024, 4096
    layer = {
        "qkv": array(3, width, width),
        "out": array(width, width),
        "up": array(width, hidden),
        "down": array(hidden, width),
        "scale": array(width),
    }
    return lambda: loss.lower([layer] * 4, array(4 * mesh.shape["data"], 512, width)), mesh


def rings(devices: int):
    """A layer on a 2 x 2 x z mesh; each device has 8 heads of 128."""
    mesh = mesh_of(x=2, y=2, z=devices // 4)
    z = mesh.shape["z"]
    h = transformer_2d.HParams(
        layers=2,
        embed=2048,
        heads=16 * z,
        qkv=128,
        ff=512 * 16 * z,
        batch=2 * z,
        time=64,
        cache_capacity=128,
        cache_length=64,
    )
    params = transformer_2d.Params(
        q_wi=array(h.layers, h.heads, h.embed, h.qkv + 2 * h.ff_per_head),
        kv=array(h.layers, h.embed, 1, 2 * h.qkv),
        o_wo=array(h.layers, h.heads, h.qkv + h.ff_per_head, h.embed),
    )
    keys = array(h.layers, h.batch, h.cache_capacity, h.qkv)
    cache = transformer_2d.KVCache(k=keys, v=keys, length=array(dtype=jnp.int32))
    angles = array(h.time, h.qkv // 2, dtype=jnp.float32)
    types = array(dtype=jnp.int32), params, angles, angles, cache, array(h.batch, h.time, h.embed)

    def lower():
        transformer_2d.hparams = h
        return transformer_2d.transformer_layer.replace(mesh=mesh).lower(*types)

    return lower, mesh


def row(program, text: str) -> tuple[str, ...]:
    target = Target.parse(text)
    lower, mesh = program(target.device_count)
    lowering_s = math.inf
    for _ in range(3):
        jax.clear_caches()
        start = time.perf_counter()
        lowered = lower()
        lowering_s = min(lowering_s, time.perf_counter() - start)
    start = time.perf_counter()
    compiled = lowered.compile(target)
    compiling_s = time.perf_counter() - start
    return (
        program.__name__,
        str(target.device_count),
        f"`{text}`",
        ", ".join(f"{axis}={size}" for axis, size in mesh.shape.items()),
        f"{lowering_s * 1e3:.0f} ms",
        f"{len(lowered.as_text()):,}",
        f"{compiling_s:.1f} s",
        show_bytes(compiled.memory_analysis().total),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", nargs="+", default=TARGETS, metavar="TARGET")
    options = parser.parse_args()
    header = ("", "devices", "target", "mesh", "lower", "module bytes", "compile", "memory")
    print("|", " | ".join(header), "|")
    print("|", " | ".join("---" for _ in header), "|")
    for program in (sums, rings):
        for text in options.targets:
            print("|", " | ".join(row(program, text)), "|", flush=True)


if __name__ == "__main__":
    main()
