"""ragged_all_to_all against slices moved by NumPy; JAX itself cannot run it on CPU devices."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import (
    BodyError,
    ReplicationError,
    UnknownAxisError,
    shard_map,
    simulate_module,
    xmap,
)

MESH = jax.make_mesh((2, 4), ("j", "i"), axis_types=(AxisType.Auto,) * 2)
DEVICES, SENT, ROOM = 4, 12, 16

GROUPS = {"one": [[0, 1, 2, 3]], "two": [[0, 2], [3, 1]]}


def plan(groups):
    """Random slices: for each device and each rank in its group, four int32[devices, group]."""
    rng = np.random.default_rng(len(groups))
    offsets_in, sizes, offsets_out, received = np.zeros((4, DEVICES, len(groups[0])), np.int32)
    for group in groups:
        n = len(group)
        table = rng.integers(0, 4, (n, n))  # from the first to the second
        sizes[group], received[group] = table, table.T
        offsets_in[group] = np.cumsum(table, 1) - table
        offsets_out[group] = np.cumsum(table, 0) - table + 1  # row 0 is nobody's
    return offsets_in, sizes, offsets_out, received


def exchange(groups, slices=None):
    @shard_map(mesh=MESH, in_specs=P("i"), out_specs=P("i"))
    def fun(operand, output, *offsets_and_sizes):
        blocks = [x[0] for x in offsets_and_sizes]
        groups_or_none = groups if len(groups) > 1 else None
        return lax.ragged_all_to_all(
            operand, output, *blocks, axis_name="i", axis_index_groups=groups_or_none
        )

    return lambda operand, output: fun(operand, output, *(slices or plan(groups)))


def moved(groups, operand, output):
    """The same on the full arrays, by JAX on one device."""
    offsets_in, sizes, offsets_out, _ = plan(groups)
    operands = jnp.reshape(operand, (DEVICES, SENT, -1))
    outputs = [jnp.asarray(block) for block in jnp.reshape(output, (DEVICES, ROOM, -1))]
    for group in groups:
        for source in group:
            for rank, target in enumerate(group):
                n, start = sizes[source, rank], offsets_in[source, rank]
                at = offsets_out[source, rank]
                part = operands[source, start : start + n]
                outputs[target] = outputs[target].at[at : at + n].set(part)
    return jnp.concatenate(outputs)


RNG = np.random.default_rng(0)
OPERAND = RNG.normal(size=(DEVICES * SENT, 3)).astype(np.float32)
OUTPUT = RNG.normal(size=(DEVICES * ROOM, 3)).astype(np.float32)


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_values(groups):
    result = jax.jit(exchange(groups))(OPERAND, OUTPUT)
    np.testing.assert_array_equal(result, moved(groups, OPERAND, OUTPUT))


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_gradients(groups):
    weights = RNG.normal(size=OUTPUT.shape).astype(np.float32)

    def gradients(fun):
        def loss(*args):
            return jnp.sum(jnp.sin(fun(*args)) * weights)

        return jax.jit(jax.grad(loss, (0, 1)))(OPERAND, OUTPUT)

    for ours, expected in zip(
        gradients(exchange(groups)), gradients(lambda *a: moved(groups, *a)), strict=True
    ):
        np.testing.assert_allclose(ours, expected, rtol=1e-6)


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_several_slices_for_each_device(groups):
    """Each in two parts, of which the first may be empty."""

    def halved(*offsets_and_sizes):
        offsets_in, sizes, offsets_out, received = map(np.asarray, offsets_and_sizes)
        first, from_others = sizes // 2, received // 2
        pairs = [
            (offsets_in, offsets_in + first),
            (first, sizes - first),
            (offsets_out, offsets_out + first),
            (from_others, received - from_others),
        ]
        return [np.stack(pair, -1).reshape(DEVICES, -1) for pair in pairs]

    def fun(operand, output):
        return exchange(groups, halved(*plan(groups)))(operand, output)

    def loss(fun):
        return lambda *args: jnp.sum(jnp.sin(fun(*args)))

    def expected(*args):
        return moved(groups, *args)

    args = OPERAND, OUTPUT
    np.testing.assert_array_equal(jax.jit(fun)(*args), expected(*args))
    on_tpus = jax.jit(fun).trace(*args).lower(lowering_platforms=("tpu",)).as_text()
    np.testing.assert_array_equal(simulate_module(on_tpus, args).results[0], expected(*args))
    gradients = [jax.jit(jax.grad(loss(each), (0, 1)))(*args) for each in (fun, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_vmap():
    both = jax.jit(jax.vmap(exchange(GROUPS["one"]), (0, None)))
    result = both(np.stack([OPERAND, -OPERAND]), OUTPUT)
    for row, operand in zip(result, (OPERAND, -OPERAND), strict=True):
        np.testing.assert_array_equal(row, moved(GROUPS["one"], operand, OUTPUT))


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_groups_on_other_targets(platform):
    """Groups of positions along 'i', once for each position along 'j'."""
    traced = jax.jit(exchange(GROUPS["two"])).trace(OPERAND, OUTPUT)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert text.count("@ragged_all_to_all") == 1
    found = re.search(r"replica_groups = dense<(\[\[.*?\]\])>", text)
    assert found is not None
    assert sorted(json.loads(found[1])) == [[0, 2], [3, 1], [4, 6], [7, 5]]


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_other_targets_have_the_operation_itself(platform):
    traced = jax.jit(exchange(GROUPS["one"])).trace(OPERAND, OUTPUT)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert text.count("@ragged_all_to_all") == 1
    assert "all_gather" not in text


@pytest.mark.parametrize(
    ("axis", "type_", "error", "message"),
    [
        ("k", jnp.int32, UnknownAxisError, r"found:  axis 'k'.*needed: a manual axis of the mesh"),
        ("i", jnp.float32, BodyError, r"must be integer type.*accepts.*on blocks of shape \(3,\)"),
    ],
    ids=["axis", "offsets"],
)
def test_mistakes_name_the_call(axis, type_, error, message):
    def body(x):
        offsets = jnp.zeros(4, type_)
        return lax.ragged_all_to_all(x, x, offsets, offsets, offsets, offsets, axis_name=axis)

    f = shard_map(body, mesh=MESH, in_specs=P("i"), out_specs=P("i"))
    with pytest.raises(error, match=rf"(?s)`body`.*ragged_all_to_all over '{axis}' at .*{message}"):
        f.trace(jax.ShapeDtypeStruct((12,), np.float32))


def test_devices_receive_different_slices_of_equal_arrays():
    def body(x):
        offsets = jnp.arange(4, dtype=jnp.int32)
        ones = jnp.ones(4, jnp.int32)
        return lax.ragged_all_to_all(x, x, offsets, ones, offsets, ones, axis_name="i")

    specs = {"mesh": MESH, "in_specs": P(), "out_specs": P()}
    types = jax.ShapeDtypeStruct((4,), np.float32)
    assert jax.eval_shape(jax.shard_map(body, **specs), types).shape == (4,)  # JAX accepts it
    with pytest.raises(ReplicationError, match="varies along"):
        shard_map(body, **specs).trace(types)


def test_positions_of_a_device_exchange_nothing():
    def body(x):
        offsets = jnp.zeros(4, jnp.int32)
        return lax.ragged_all_to_all(x, x, offsets, offsets, offsets, offsets, axis_name="i")

    f = xmap(body, ["i", ...], ["i", ...])
    with pytest.raises(BodyError, match=r"needed: an axis with one position on each device"):
        f(np.zeros((4, 12), np.float32))
