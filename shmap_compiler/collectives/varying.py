"""Two marks that exist only between a linear program and its transpose: pvary and psum_invariant.

A value that is equal on all devices along an axis has one cotangent. Where a varying computation
uses it, each device contributes a share, and the shares are summed: `pvary` is the identity whose
transpose is that sum. A sum over an axis is equal on all its devices, and so is its cotangent:
`psum_invariant` is the psum whose transpose is the identity. `normalize` turns them into the
identity and psum, so that no Graph contains them.
"""

from __future__ import annotations

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad

pvary_p = Primitive("shmap_pvary")
psum_invariant_p = Primitive("shmap_psum_invariant")


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


for _primitive in (pvary_p, psum_invariant_p):
    _primitive.def_abstract_eval(_type)
ad.deflinear2(pvary_p, _pvary_transpose)
ad.deflinear2(psum_invariant_p, _psum_invariant_transpose)
