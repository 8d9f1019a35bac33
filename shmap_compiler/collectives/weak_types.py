"""Whether a reduction of a Python number over mesh axes is as weakly typed as the number.

Under `jax.shard_map` it is, unless `check_vma` is off: then JAX makes an array of it, and so do the
other front ends.
"""

from __future__ import annotations

import jax
from jax import lax
from jax.extend.core import Primitive

kept = jax.make_user_context(default_value=False)
"""The context in which it is, if it is entered with True.

JAX infers the type of a result once, and keeps it with the values of such contexts.
"""


def _keep_weak_types(primitive: Primitive) -> None:
    ordinary = primitive.abstract_eval

    def abstract_eval(x, *, axes, **params):
        result, effects = ordinary(x, axes=axes, **params)
        if kept.value and not any(isinstance(axis, int) for axis in axes):
            result = result.update(weak_type=x.weak_type)
        return result, effects

    primitive.def_effectful_abstract_eval(abstract_eval)


_keep_weak_types(lax.psum_p)
_keep_weak_types(lax.pmax_p)
_keep_weak_types(lax.pmin_p)
