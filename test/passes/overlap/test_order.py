"""Random programs whose products are ordered around sums compute what they do as they are.

They compute with whole numbers, so that the order in which these are added does not matter.
"""

import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import FAST
from jax import lax
from jax.sharding import PartitionSpec as P
from overlap_programs import BY_NAME, mesh, normal

import shmap_compiler
from shmap_compiler import shard_map

SIZE = 16


def drawn(seed):
    """A function of three square arrays, most of whose products are summed over devices."""
    draw = random.Random(seed)

    def operands(known):
        return lax.rem(draw.choice(known[-8:]) + 1, 3.0), lax.rem(draw.choice(known[-12:]), 2.0)

    def step(known):
        kind, is_small = draw.randrange(6), draw.randrange(2)
        if kind == 0:
            a = draw.choice(known)
            return jnp.maximum(jnp.abs(a), a + draw.choice(known))
        a, b = operands(known)
        if is_small:  # It computes less than it reads.
            b = b[:, :4]
        if kind < 4:
            product = a @ b
        elif kind == 4:
            product = lax.psum(a @ b, "i")
        else:
            product = lax.psum_scatter(a @ b, "i", tiled=True)
        return jnp.tile(product, (SIZE // product.shape[0], SIZE // product.shape[1]))

    def function(*arrays):
        known = [*arrays]
        draw.seed(seed)  # it may be traced more than once
        for _ in range(24):
            known.append(step(known))
        return tuple(known[-8:])

    return function


ARGS = [np.round(3 * normal(k, 4 * SIZE, SIZE)) for k in range(3)]


def lowered(seed, *passes):
    with shmap_compiler.passes(*passes):
        mapped = shard_map(drawn(seed), mesh=mesh(i=4), in_specs=P("i"), out_specs=P("i"))
        return mapped.lower(*ARGS)


def results(program):
    return jax.tree.leaves(program.compile(compiler_options=FAST)(*ARGS))


@functools.cache
def plain_results(seed):
    return results(lowered(seed))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["columns", "partial-sums"])
@pytest.mark.parametrize("seed", [6, 7, 21, 25, 28, 654, 742])
def test_results(seed, form, monkeypatch):
    monkeypatch.setattr("shmap_passes.overlap.rewrite.released.FEW_BYTES", 0)

    def with_sums(ordered):
        scatters = BY_NAME["overlap-product-scatter"](form=form, parts=2, ordered=ordered)
        return lowered(
            seed, scatters, BY_NAME["overlap-product-sum"]("columns", 2, ordered=ordered)
        )

    ordered = with_sums(ordered=True)
    assert ordered.as_text() != with_sums(ordered=False).as_text()
    for ours, plain in zip(results(ordered), plain_results(seed), strict=True):
        np.testing.assert_array_equal(ours, plain)
