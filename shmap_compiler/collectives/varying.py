"""Marks that exist only between a linear program and its transpose.

A value that is equal on all devices along an axis has one cotangent. Where a varying computation
uses it, each device contributes a share, and the shares are summed: `pvary` is the identity whose
transpose is that sum. A sum over an axis is equal on all its devices, and so is its cotangent:
`psum_invariant` is the psum whose transpose is the identity. `normalize` turns them into the
identity and psum, so that no Graph contains them.

So is a gathered array, and if all devices have its whole cotangent, each takes that of its own
block: `all_gather_invariant` is the all_gather whose transpose is a slice.
"""

from __future__ import annotations

import jax
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad

from shmap_compiler.collectives.axis_index import axis_index
from shmap_compiler.collectives.base import with_dimension

pvary_p = Primitive("shmap_pvary")
psum_invariant_p = Primitive("shmap_psum_invariant")
all_gather_invariant_p = Primitive("shmap_all_gather_invariant")


def pvary(x: jax.Array, *, axes: tuple[str, ...]) -> jax.Array:
    return pvary_p.bind(x, axes=axes)


def psum_invariant(x: jax.Array, *, axes: tuple[str, ...]) -> jax.Array:
    return psum_invariant_p.bind(x, axes=axes)


def _type(x, *, axes):
    return x


def _pvary_transpose(ct, x, *, axes):
    return [ct if type(ct) is ad.Zero else psum_invariant(ct, axes=axes)]


def _psum_invariant_transpose(ct, x, *, axes):
    return [ct if type(ct) is ad.Zero else pvary(ct, axes=axes)]


def _all_gather_invariant_type(x, *, axes, dimension, size):
    return with_dimension(x, dimension, x.shape[dimension] * size)


def _all_gather_invariant_transpose(ct, x, *, axes, dimension, size):
    if type(ct) is ad.Zero:
        return [ct]
    block = x.aval.shape[dimension]
    return [lax.dynamic_slice_in_dim(ct, axis_index(axes=axes) * block, block, dimension)]


for _primitive in (pvary_p, psum_invariant_p):
    _primitive.def_abstract_eval(_type)
all_gather_invariant_p.def_abstract_eval(_all_gather_invariant_type)
ad.deflinear2(pvary_p, _pvary_transpose)
ad.deflinear2(psum_invariant_p, _psum_invariant_transpose)
ad.deflinear2(all_gather_invariant_p, _all_gather_invariant_transpose)
