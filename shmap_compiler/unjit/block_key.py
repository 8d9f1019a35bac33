"""block_key: draws the block of a device out of what all devices draw together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import define_prng_impl, threefry2x32_p
from jax.sharding import PartitionSpec

from shmap_compiler.base.errors import ArgumentTypeError, Problem
from shmap_compiler.base.jax_compat import setting
from shmap_compiler.base.random_keys import as_data
from shmap_compiler.base.specs import dim_axes
from shmap_compiler.base.untyped import AnyValue, Setting

_WORDS = 2
"""The words of a threefry key; what follows them is where the block begins."""


def block_key(key: AnyValue, shape: Sequence[int], spec: PartitionSpec) -> AnyValue:
    """Returns a key with which a device draws its block of a random array.

    Inside a shard_mapped function, `jax.random.uniform(block_key(key, shape, spec), block_shape)`
    is the block that `spec` gives to this device of `jax.random.uniform(key, shape)`. Only the
    block is computed. The same holds for all functions of `jax.random` that draw an array of one
    shape.

    Args:
      key: A key of threefry, typed or as `uint32[2]`, equal on all devices.
      shape: The shape of the whole array, of less than 2**32 elements.
      spec: How the array is split over the mesh.

    Returns:
      A typed key. It can be split, but not folded into.

    Raises:
      ArgumentTypeError: The key is not one of threefry, or `spec` does not divide the shape.

    Examples:
      >>> def noise(key):
      ...   block = (16 // jax.lax.axis_size("i"),)
      ...   return jax.random.normal(block_key(key, (16,), P("i")), block)
      >>> draw = shard_map(noise, mesh=mesh, in_specs=P(), out_specs=P("i"))
      >>> key = jax.random.key(0)
      >>> bool(jnp.all(draw(key) == jax.random.normal(key, (16,))))
      True
    """
    words = _words(key)
    whole = tuple(map(int, shape))
    starts, problems = [], []
    if words.shape != (_WORDS,) or words.dtype != jnp.uint32:
        needed = "one key of threefry, typed or as uint32[2]"
        fix = "pass jax.random.key(seed), or what jax.random.split returns of it"
        problems.append(Problem("key", f"{words.dtype}{list(words.shape)}", needed, fix))
    if not setting("jax_threefry_partitionable"):
        fix = "switch it on, as it is by default: else a block needs the numbers of all others"
        problems.append(Problem("jax_threefry_partitionable", "off", "on", fix))
    if math.prod(whole) >= 2**32 or len(spec) > len(whole):
        found = f"shape {whole}, split by {spec}"
        needed = "less than 2**32 elements, and no more entries in the spec than dimensions"
        problems.append(Problem("shape", found, needed, "draw it in several parts"))
    else:
        for dim, (size, axes) in enumerate(zip(whole, dim_axes(spec, len(whole)), strict=True)):
            count = lax.axis_size(axes) if axes else 1
            if size % count:
                found = f"{size} elements along dimension {dim}"
                needed = f"a multiple of {count}, the devices along {axes}"
                problems.append(Problem("shape", found, needed, "change the shape or the spec"))
            index = lax.axis_index(axes) if axes else jnp.int32(0)
            starts.append((index * (size // count)).astype(jnp.uint32))
    if problems:
        raise ArgumentTypeError("block_key", problems)
    data = jnp.concatenate([words, jnp.stack(starts)]) if starts else words
    return jax.random.wrap_key_data(data, impl=_implementation(whole))


def _words(key: AnyValue) -> AnyValue:
    return jnp.asarray(as_data(key))


@cache
def _implementation(whole: tuple[int, ...]) -> Setting:
    """A random number generator that draws blocks of an array of a shape.

    Its keys are those of threefry, followed by the first index of the block in each dimension.
    """

    def random_bits(data: AnyValue, width: int, shape: Sequence[int]) -> AnyValue:
        if len(shape) != len(whole) or any(map(int.__gt__, shape, whole)):
            found = f"an array of shape {tuple(shape)}"
            fix = "draw an array of the block's shape, or use another key"
            problem = Problem("the drawn array", found, f"a block of shape {whole}", fix)
            raise ArgumentTypeError("block_key", [problem])
        # Threefry turns the number of each element in the whole array into its bits.
        number = jnp.zeros(shape, jnp.uint32)
        stride = 1
        for dim in reversed(range(len(whole))):
            index = lax.broadcasted_iota(jnp.uint32, shape, dim) + data[_WORDS + dim]
            number = number + index * np.uint32(stride)
            stride *= whole[dim]
        words = [jnp.broadcast_to(data[k], shape) for k in range(_WORDS)]
        high, low = threefry2x32_p.bind(*words, jnp.zeros_like(number), number)
        if width == 64:
            return high.astype(jnp.uint64) << 32 | low.astype(jnp.uint64)
        return (high ^ low).astype(f"uint{width}")

    def split(data: AnyValue, shape: Sequence[int]) -> AnyValue:
        # Keys without a type would be split as those of jax_default_prng_impl are.
        key = jax.random.wrap_key_data(data[:_WORDS], impl="threefry2x32")
        keys = jax.random.key_data(jax.random.split(key, tuple(shape)))
        starts = jnp.broadcast_to(data[_WORDS:], (*shape, len(whole)))
        return jnp.concatenate([keys, starts], axis=-1)

    def refuse(*args: AnyValue) -> AnyValue:
        found = "jax.random.fold_in of a block's key"
        fix = "fold into the key that block_key is given"
        problem = Problem("key", found, "a draw, or jax.random.split", fix)
        raise ArgumentTypeError("block_key", [problem])

    return define_prng_impl(
        key_shape=(_WORDS + len(whole),),
        seed=refuse,
        split=split,
        random_bits=random_bits,
        fold_in=refuse,
        name="threefry_block",
        tag="block",
    )
