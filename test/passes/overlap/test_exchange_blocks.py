"""Blocks of exchanges compute what they did, and are left if they cannot be computed in chunks."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from overlap_programs import BY_NAME, mesh, normal

import shmap_compiler
from shmap_compiler import shard_map


def exchange(x):
    return lax.all_to_all(x, "i", 0, 0, tiled=True)


def rows(x):
    return x.reshape(32, 8)


def tokens(x):
    return x.reshape(4, 8, 8)


def block(x, w, between=jnp.tanh, turned=lambda x: x):
    """Both ways through a layer; the sum is over tokens of both."""
    b = rows(exchange(x))
    g = exchange(between(exchange(tokens(b @ w))))
    return exchange(tokens(rows(g) @ w)), b.T @ rows(turned(g))


def of_two_cuts(x, w):
    return block(x, w, lambda e: jnp.tanh(e + e.transpose(0, 2, 1)))


def whose_product_others_read(x, w):
    read = []

    def between(e):
        read.append(e @ w)
        return jnp.tanh(read[0])

    return *block(x, w, between), jnp.flip(read[0], 2)


def summed_in_another_order(x, w):
    return block(x, w, turned=lambda g: g.transpose(1, 0, 2))


def beside_an_exchange_of_another_shape(x, w):
    line = lax.all_to_all(x[0, 0], "i", 0, 0, tiled=True)
    return *block(x, w), jnp.outer(line, line)


def exchanged_again_after_what_needs_all(x, w):
    b = rows(exchange(x))
    g = exchange(jnp.flip(exchange(tokens(b @ w)), 1))
    return exchange(tokens(rows(g) @ w)), b.T @ rows(g), exchange(tokens(b * 2))


def summed_with_what_comes_later(x, w):
    b = rows(exchange(x))
    e = exchange(tokens(b @ w))
    return e, b.T @ jnp.flip(rows(x), 0)


def exchanged_without_a_product_between(x, w):
    y, b = rows(x), exchange(x)
    return exchange(jnp.tanh(b)), rows(b).T @ y + w


# Whether the pass changes them.
PROGRAMS = {
    block: True,
    of_two_cuts: True,
    whose_product_others_read: False,
    summed_in_another_order: False,
    beside_an_exchange_of_another_shape: True,
    exchanged_again_after_what_needs_all: False,
    summed_with_what_comes_later: False,
    exchanged_without_a_product_between: False,
}
PASS = "shmap-overlap-exchange-block"


def lowered(body, parts=2, dtype="float32", **options):
    """The program with the pass, its text before and after it, and arguments."""
    args = [jnp.asarray(normal(0, 16, 8, 8), dtype), jnp.asarray(normal(1, 8, 8) / 4, dtype)]
    pass_ = BY_NAME["overlap-exchange-block"](form="summed-chunks", parts=parts, **options)
    specs = {"in_specs": (P("i"), P()), "out_specs": P("i"), "check_vma": False}
    with shmap_compiler.passes(pass_):
        program = shard_map(body, mesh=mesh(i=4), **specs).lower(*args)
    plain = shard_map(body, mesh=mesh(i=4), **specs).lower(*args)
    states = {state.name: state.text for state in program.snapshots.stages}
    return program, plain, states["shmap-normalize-all-to-all"], states[PASS], args


@pytest.mark.parametrize("body", PROGRAMS, ids=lambda body: body.__name__)
def test_values_are_those_without_chunks(body):
    program, plain, before, after, args = lowered(body)
    assert (before != after) == PROGRAMS[body]
    if before == after:
        return
    for ours, theirs in zip(program.compile()(*args), plain.compile()(*args), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6 * np.abs(theirs).max())


def summed_after_it_returned(x, w):
    y, z = block(x, w)
    return y, z, rows(y).T @ rows(y)


def test_what_has_returned_is_summed_as_it_was():
    *_, after, _ = lowered(summed_after_it_returned)
    assert "(tensor<8x32xf32>, tensor<32x8xf32>) -> tensor<8x8xf32>" in after


def test_chunks_of_different_sizes_are_not_made():
    _, _, before, after, _ = lowered(block, parts=3)
    assert before == after


def test_sums_of_chunks_are_added_in_f32():
    _, _, _, after, _ = lowered(block, dtype="bfloat16")
    assert "-> tensor<8x8xf32>" in after
    assert "stablehlo.add %" in after
    assert "(tensor<8x8xf32>) -> tensor<8x8xbf16>" in after


def test_a_sum_is_stored_before_the_next_product():
    program, plain, _, after, args = lowered(block, parts=4, ordered=True)
    for ours, theirs in zip(program.compile()(*args), plain.compile()(*args), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6 * np.abs(theirs).max())
    unordered = lowered(block, parts=4)[3]
    assert after.count("optimization_barrier %") == unordered.count("optimization_barrier %") + 3


def experts(x, w, v):
    """16 experts on four devices: two products for each, and back."""
    e = lax.all_to_all(x, "i", 0, 1, tiled=True)
    h = jnp.tanh(jnp.einsum("ecd,edh->ech", e, w))
    return lax.all_to_all(jnp.einsum("ech,ehd->ecd", h, v), "i", 1, 0, tiled=True)


def gradient_of_experts(x, w, v):
    return jax.grad(lambda *args: (experts(*args).astype("float32") ** 2).sum(), (0, 1, 2))(x, w, v)


def gradient_of_given(x, w, v):
    """Nothing but an exchange reads the cotangents."""
    return jax.vjp(experts, x, w, v)[1](jnp.cos(x))


def gradient_beside(x, w, v):
    """Others read the cotangents, too."""
    cotangents = jnp.cos(x)
    y, back = jax.vjp(experts, x, w, v)
    return *back(cotangents), y + cotangents


def lowered_experts(body, parts=4, count=16, **options):
    args = [normal(k, *s) / 4 for k, s in enumerate([(count, 32, 8), (count, 8, 6), (count, 6, 8)])]
    pass_ = BY_NAME["overlap-exchange-block"](form="summed-chunks", parts=parts, **options)
    specs = P(None, "i"), P("i"), P("i")
    out_specs = (*specs, P(None, "i")) if body is gradient_beside else specs
    mapped = shard_map(body, mesh=mesh(i=4), in_specs=specs, out_specs=out_specs, check_vma=False)
    plain = mapped.lower(*args)
    with shmap_compiler.passes(pass_):
        program = shard_map(
            lambda *args: body(*args), mesh=mesh(i=4), in_specs=specs, out_specs=out_specs
        ).lower(*args)
    states = {state.name: state.text for state in program.snapshots.stages}
    return program, plain, states[PASS], args


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("body", [gradient_of_experts, gradient_of_given, gradient_beside])
def test_chunks_of_the_experts_of_a_device_add_nothing_up(body, parts):
    program, plain, after, args = lowered_experts(body, parts)
    # Every product is of all tokens of some experts.
    products = re.findall(r"dot_general .*: \(tensor<(\d+)x", after)
    assert set(products) == {str(4 // parts)}
    assert "tensor<4x6x8xf32>, tensor<4x6x8xf32>" not in after
    for ours, theirs in zip(program.compile()(*args), plain.compile()(*args), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6 * np.abs(theirs).max())


def test_chunks_are_of_tokens_if_experts_of_a_device_are_no_multiple_of_four():
    program, plain, after, args = lowered_experts(gradient_of_experts, count=24)
    assert re.search(r"stablehlo.add .*tensor<6x6x8xf32>", after)
    for ours, theirs in zip(program.compile()(*args), plain.compile()(*args), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6 * np.abs(theirs).max())


@pytest.mark.parametrize(
    ("body", "buffers"), [(gradient_of_experts, 3), (gradient_of_given, 2), (gradient_beside, 4)]
)
def test_results_take_the_place_of_what_nothing_else_reads(body, buffers):
    """Gradients of both weights, and other results of exchanges, have buffers."""
    after = lowered_experts(body, empty="allocate")[2]
    assert after.count("@AllocateBuffer") == buffers


def test_chunks_are_taken_from_what_results_are_put_in():
    """Otherwise a compiler copies the array before the first result is put in it."""
    after = lowered_experts(gradient_of_given, empty="allocate")[2]
    found = re.findall(r"(%\d+) = stablehlo\.(\w+) (%\w+)", after)
    ops = {name: (op, operand) for name, op, operand in found}

    def source(name):
        op, operand = ops.get(name, ("", ""))
        return source(operand) if op == "reshape" else op

    taken = [source(operand) for op, operand in ops.values() if op == "slice"]
    assert taken.count("cosine") == 2  # two of four at a time
    assert taken.count("dynamic_update_slice") == 2
