"""Names of operations in compiled programs, as profilers show them; beside `jax.shard_map`."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import PARTITIONERS, shard_map
from shmap_compiler.base.jax_compat import partitioner as partitioner_is


def mesh_of(*sizes):
    names = ("x", "y")[: len(sizes)]
    return jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes))


def body(x, w):
    with jax.named_scope("layer"):
        x = jnp.tanh(x @ w)

    def step(carry, _):
        with jax.named_scope("loop"):
            return jnp.cos(carry), None

    x, _ = lax.scan(step, x, length=3)
    return lax.psum(jax.jit(jnp.sin)(x), "x")


def of_gradient(mapped, x, w):
    return jax.grad(lambda w: mapped(x, w).sum())(w)


def of_checkpoint(mapped, x, w):
    return jax.grad(lambda w: jax.checkpoint(mapped)(x, w).sum())(w)


TRANSFORMED = {
    "call": lambda mapped, x, w: mapped(x, w),
    "jvp": lambda mapped, x, w: jax.jvp(mapped, (x, w), (x, w)),
    "vmap": lambda mapped, x, w: jax.vmap(mapped, (None, 0))(x, jnp.stack([w, w])),
    "gradient": of_gradient,
    "checkpoint": of_checkpoint,
}


def names(mapped, transformed, partitioner):
    """The names of all operations, without those that reducers have in a computation of theirs."""

    def step(x, w):
        with jax.named_scope("block"):
            return TRANSFORMED[transformed](mapped, x, w)

    with partitioner_is(partitioner):
        compiled = jax.jit(step).lower(jnp.ones((8, 4)), jnp.ones((4, 4))).compile()
    found = set(re.findall(r'op_name="([^"]*)"', compiled.as_text()))
    found = {name.replace("psum_invariant", "psum") for name in found if "/" in name}
    return {name for name in found if name.startswith("jit(") or not name.endswith("/psum")}


def inside(found):
    """The names within the shard_map of what the body computes."""
    tails = {name.rpartition("shard_map/")[2] for name in found if "shard_map/" in name}
    tails = {re.sub("(eval_jaxpr|closed_call)/", "", tail) for tail in tails}  # of loops
    return {
        t for t in tails if t.rpartition("/")[2] in ("cos", "dot_general", "psum", "sin", "tanh")
    }


@pytest.mark.parametrize(
    ("transformed", "partitioner"),
    [*((each, "gspmd") for each in TRANSFORMED), ("call", "shardy"), ("gradient", "shardy")],
)
def test_names_are_those_of_jax(transformed, partitioner):
    """`jit(step)/block/jvp()/shard_map/layer/tanh`: scopes around the call, and in the body."""
    parts = {"mesh": mesh_of(8), "in_specs": (P("x"), P()), "out_specs": P()}
    ours = names(shard_map(body, **parts), transformed, partitioner)
    theirs = names(jax.shard_map(body, **parts), transformed, partitioner)
    assert inside(ours) == inside(theirs)
    assert "layer/tanh" in inside(ours)
    assert not [name for name in ours if not name.startswith("jit(step)/block/")]


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("sizes", [(1,), (1, 8), (2, 4)], ids=str)
def test_regions_keep_the_names_around_them(sizes, partitioner):
    """Also where no region is left in the module: on one device, or over axes of size one."""
    parts = {"mesh": mesh_of(*sizes), "in_specs": (P("x"), P()), "out_specs": P()}
    found = names(shard_map(body, axis_names="x", **parts), "call", partitioner)
    assert "jit(step)/block/shard_map/layer/tanh" in found
    assert not [name for name in found if not name.startswith("jit(step)")]
