"""What the type of a reduction over mesh axes keeps of its operand's.

Under `jax.shard_map` it is as weakly typed as the operand, which may be a Python number, and in the
same memory. With `check_vma=False` it is an array in the memory of the device, as it is for the
other front ends.
"""

from __future__ import annotations

import jax
from jax import lax
from jax.extend.core import Primitive

kept = jax.make_user_context(default_value=False)
"""The context in which both are kept, if it is entered with True.

JAX infers the type of a result once, and keeps it with the values of such contexts.
"""


def _keep_type(primitive: Primitive) -> None:
    ordinary = primitive.abstract_eval

    def abstract_eval(x, *, axes, **params):
        result, effects = ordinary(x, axes=axes, **params)
        if kept.value and not any(isinstance(axis, int) for axis in axes):
            result = result.update(weak_type=x.weak_type, memory_space=x.memory_space)
        return result, effects

    primitive.def_effectful_abstract_eval(abstract_eval)


_keep_type(lax.psum_p)
_keep_type(lax.pmax_p)
_keep_type(lax.pmin_p)
