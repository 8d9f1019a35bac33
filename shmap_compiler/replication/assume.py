"""assume_replicated: the user's declaration that a value is equal on all devices along some axes.

Inference is sound and therefore sometimes too conservative: it infers that the results of callbacks
and foreign kernels vary, and values that are equal for an arithmetical reason. This identity
overrides it.

With the environment variable SHMAP_CHECK_ASSUMPTIONS=1, read while a program is traced, devices
compare the value bit for bit, and a program whose declaration is wrong fails with a message.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback
from jax.extend import source_info_util
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from shmap_compiler.base.bits import as_unsigned
from shmap_compiler.base.descriptions import show_value
from shmap_compiler.base.errors import ArgumentTypeError, Problem
from shmap_compiler.base.untyped import AnyValue, PyTree, Unchecked
from shmap_compiler.base.values import is_hashable, type_of

assume_replicated_p = Primitive("assume_replicated")

CHECK_VARIABLE = "SHMAP_CHECK_ASSUMPTIONS"


def assume_replicated(x: PyTree, axes: str | Sequence[str]) -> PyTree:
    """Declares that a value is equal on all devices along mesh axes.

    Use it in a body if the value is replicated for a reason that cannot be inferred. It is the
    identity under every transformation and costs nothing. If the declaration is wrong, results are
    undefined; with `SHMAP_CHECK_ASSUMPTIONS=1` in the environment, devices compare the value.

    Args:
      x: An array or a pytree of arrays.
      axes: The name of a mesh axis, or several names.

    Returns:
      `x`.

    Raises:
      ArgumentTypeError: `x` contains something other than arrays, or `axes` are not names.

    Examples:
      >>> def largest(block):  # 0 * block is inferred to vary, although it is zero on all devices
      ...     return assume_replicated(lax.pmax(block, "i") + 0 * block, "i")
      >>> shard_map(largest, mesh=mesh, in_specs=P("i"), out_specs=P())(x)
      Array([14., 15.], dtype=float32)
    """
    problems = [*_problems_of_axes(axes), *_problems_of_values(x)]
    if problems:
        raise ArgumentTypeError(f"assume_replicated ({_user_line()})", problems)
    axes = (axes,) if isinstance(axes, str) else tuple(axes)
    for axis in axes:
        lax.axis_size(axis)  # refuses unknown names, as every collective does
    if os.environ.get(CHECK_VARIABLE, "0") not in ("", "0"):
        jax.tree.map(functools.partial(_check, axes=axes, place=_user_line()), x)
    return jax.tree.map(lambda leaf: assume_replicated_p.bind(jnp.asarray(leaf), axes=axes), x)


def _problems_of_axes(axes: Unchecked) -> list[Problem]:
    if isinstance(axes, str) or (isinstance(axes, Sequence) and all(map(is_hashable, axes))):
        return []
    return [
        Problem(
            "axes",
            show_value(axes),
            "the name of a mesh axis, or a tuple of names",
            "write assume_replicated(x, 'i')",
        )
    ]


def _problems_of_values(x: PyTree) -> list[Problem]:
    return [
        Problem(
            f"x{jax.tree_util.keystr(path)}",
            show_value(leaf),
            "an array, or a pytree of arrays",
            "pass arrays only",
        )
        for path, leaf in jax.tree_util.tree_leaves_with_path(x)
        if type_of(leaf) is None or isinstance(leaf, jax.ShapeDtypeStruct)
    ]


def _user_line() -> str:
    return source_info_util.summarize(source_info_util.current())


def _check(x: AnyValue, *, axes: tuple[str, ...], place: str) -> None:
    words = _bits(lax.stop_gradient(x))
    differ = jnp.any(lax.pmax(words, axes) != lax.pmin(words, axes))
    io_callback(functools.partial(_refuse, axes=axes, place=place), None, differ)


def _refuse(differ: AnyValue, *, axes: tuple[str, ...], place: str) -> None:
    if np.any(differ):
        raise AssertionError(
            f"assume_replicated at {place}: the value differs between devices along {axes}"
        )


def _bits(x: AnyValue) -> jax.Array:
    """The bits of `x` as unsigned integers: NaNs may be equal, zeros of two signs are not."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return jnp.stack([_bits(x.real), _bits(x.imag)])
    words = as_unsigned(x)
    return words.astype(jnp.uint32) if words.dtype.itemsize < 4 else words


def _transpose(ct, x, *, axes):
    return [ct]


def _batcher(args, dims, *, axes):
    (x,), (d,) = args, dims
    return assume_replicated_p.bind(x, axes=axes), d


assume_replicated_p.def_abstract_eval(lambda x, *, axes: x)
assume_replicated_p.def_impl(lambda x, *, axes: x)
mlir.register_lowering(assume_replicated_p, lambda ctx, x, *, axes: [x])
ad.deflinear2(assume_replicated_p, _transpose)
batching.primitive_batchers[assume_replicated_p] = _batcher
