"""Functions that take named axes where `jax.numpy`, `jax.nn` and `jax.lax` take dimensions.

Inside `xmap`, `pmap`, `shard_map` and `jax.vmap(axis_name=...)`, `axis` may be a name, a dimension,
or a tuple of both. `named.lax` is `jax.lax` with `pdot`, `xeinsum` and `pgather` added.

Examples:
  >>> f = xmap(lambda x: named.softmax(x, "rows"), in_axes=["rows", ...], out_axes=["rows", ...])
  >>> f(x).sum().item()
  1.0
"""

from shmap_compiler.named import lax, random
from shmap_compiler.named.contractions import einsum, pdot, xeinsum
from shmap_compiler.named.indexing import argmax, argmin, axis_size, one_hot, pgather
from shmap_compiler.named.normalization import log_softmax, logsumexp, softmax
from shmap_compiler.named.reductions import all, any, max, mean, min, prod, std, sum, var
from shmap_compiler.named.shapes import NamedShape

__all__ = [
    "NamedShape",
    "all",
    "any",
    "argmax",
    "argmin",
    "axis_size",
    "einsum",
    "lax",
    "log_softmax",
    "logsumexp",
    "max",
    "mean",
    "min",
    "one_hot",
    "pdot",
    "pgather",
    "prod",
    "random",
    "softmax",
    "std",
    "sum",
    "var",
    "xeinsum",
]
