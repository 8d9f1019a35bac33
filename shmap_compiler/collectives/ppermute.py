"""ppermute: sends blocks along (source, target) pairs; a device that is no target gets zeros."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad
from jaxlib.mlir.dialects import stablehlo as hlo

from shmap_compiler.base.jax_compat import lowering_mesh
from shmap_compiler.collectives.base import define, dense_ids, device_ids, same_dimension_batcher

ppermute_p = Primitive("ppermute")


def ppermute(x: Any, *, axes: tuple[str, ...], perm: tuple[tuple[int, int], ...]) -> Any:
    """`perm` holds (source, target) positions along `axes`, each source and target at most once."""
    return ppermute_p.bind(x, axes=axes, perm=perm)


def _type(x, *, axes, perm):
    return x


def _lowering(ctx, x, *, axes, perm):
    rows = device_ids(lowering_mesh(ctx), axes)
    pairs = rows[:, np.array(perm, np.int64).reshape(-1, 2)].reshape(-1, 2)
    return hlo.CollectivePermuteOp(x, dense_ids(pairs)).results


def _transpose(ct, x, *, axes, perm):
    if type(ct) is ad.Zero:
        return [ct]
    return [ppermute(ct, axes=axes, perm=tuple((target, source) for source, target in perm))]


define(ppermute_p, _type, _lowering, same_dimension_batcher(ppermute_p))
ad.deflinear2(ppermute_p, _transpose)
