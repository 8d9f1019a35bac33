"""Rings of more devices than are unrolled: loops, whose modules do not grow with them."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map


def gathered(x, w):
    g = lax.all_gather(x, "i", axis=0, tiled=True)
    return jax.nn.silu(g @ w), g


def scattered(x, w):
    return lax.psum_scatter(x @ w, "i", scatter_dimension=0, tiled=True)


PROGRAMS = {
    gathered: ((P("i"), P()), (P(), P()), "shmap-overlap-gather-product"),
    scattered: ((P(None, "i"), P("i")), P("i"), "shmap-overlap-product-scatter"),
}


def lowered(fun, count, dtype="float32"):
    """A program that is rewritten, with four rows for each of `count` devices."""
    in_specs, out_specs, _ = PROGRAMS[fun]
    inner = 6 if fun is gathered else count
    random = np.random.default_rng(0)
    args = random.integers(-4, 4, (4 * count, inner)), random.integers(-4, 4, (inner, 3))
    args = [jnp.asarray(arg, dtype) for arg in args]
    mesh = AbstractMesh((count,), ("i",))
    f = shard_map(fun, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    types = [jax.ShapeDtypeStruct(arg.shape, arg.dtype) for arg in args]
    return f.lower(*types, overlap="force", overlap_rounding=True), args


def rewritten(fun, program):
    return next(s.text for s in program.snapshots.stages if s.name == PROGRAMS[fun][-1])


@pytest.mark.parametrize(("fun", "count"), [(gathered, 17), (gathered, 18), (scattered, 18)])
def test_a_loop_of_steps_computes_the_same(fun, count):
    program, args = lowered(fun, count)
    assert "stablehlo.while" in rewritten(fun, program)
    found = program.simulate(*args, stage=PROGRAMS[fun][-1])
    product = np.asarray(args[0]) @ np.asarray(args[1])
    expected = (np.asarray(jax.nn.silu(product)), args[0]) if fun is gathered else (product,)
    for ours, theirs in zip(jax.tree.leaves(found.results), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("fun", PROGRAMS)
def test_modules_do_not_grow_with_the_ring(fun):
    more = 130 if fun is gathered else 26  # as many steps are left over
    texts = [rewritten(fun, lowered(fun, count)[0]) for count in (18, more)]
    operations = [len(re.findall(r"^ *%.* = ", text, re.MULTILINE)) for text in texts]
    assert operations[0] == operations[1] > 0


def test_a_ring_of_too_many_devices_remains_a_gather():
    program, _ = lowered(gathered, 260)
    assert "stablehlo.while" not in rewritten(gathered, program)
