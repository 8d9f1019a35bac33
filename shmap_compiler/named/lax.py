"""`jax.lax` with the functions of named axes that it had: `pdot`, `xeinsum` and `pgather`."""

import jax

from shmap_compiler.named.contractions import pdot, xeinsum
from shmap_compiler.named.indexing import pgather

__all__ = ["pdot", "pgather", "xeinsum"]


def __getattr__(name: str) -> jax.Array:
    return getattr(jax.lax, name)
