"""Writes docs/overlap-timelines.html: python docs/make_overlap_timelines.py

The page has two explanations of one program for eight chips of TPU v5e, as it is and with overlap,
whose timelines have one scale. Needs the extra `tpu`, and no TPU.
"""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

PAGE = Path(__file__).with_name("overlap-timelines.html")
TARGET = "tpu:v5e:2x4"
SHAPES = ((16384, 8192), (8192, 2048))


def plain(x, w):
    return lax.all_gather(x, "i", tiled=True) @ w


def overlapped(x, w):
    return lax.all_gather(x, "i", tiled=True) @ w


def main() -> None:
    types = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in SHAPES]
    mesh = AbstractMesh((8,), ("i",))
    specs = {"in_specs": (P("i"), P()), "out_specs": P()}
    explained = [
        shard_map(body, mesh=mesh, check_vma=False, **specs)
        .lower(*types, overlap=mode)
        .compile(TARGET)
        .explain()
        for body, mode in ((plain, "off"), (overlapped, "auto"))
    ]
    PAGE.write_text(explained[0].against(explained[1]).to_html())


if __name__ == "__main__":
    main()
