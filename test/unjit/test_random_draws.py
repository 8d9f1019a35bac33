"""Random numbers in jitted programs, as calls of `jax.random` on blocks."""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from jitted_programs import ROWS, Jitted, floats, mesh

from shmap_compiler import ArgumentTypeError, block_key, shard_map, unjit
from shmap_compiler.base.random_keys import as_data
from shmap_compiler.unjit import threefry_loops

KEY = jax.random.key(7)
X = floats(8, 16)


REST = (P(), ROWS)


def source(fun, ins=REST, outs: Any = ROWS, args=(KEY, X)):
    # What an earlier test has traced, such as `fold_in`, has its lines in JAX's caches.
    jax.clear_caches()
    made = unjit(Jitted(fun, args, ins, outs).jitted(), *args)
    assert made.embedded == ()
    return re.sub(r"(?<=\() | (?=\))", "", re.sub(r"\s+", " ", made.as_python()))


def two_draws_of_one_key(key, x):
    return x + jax.random.uniform(key, x.shape) * jax.random.normal(key, x.shape)


def draws_in_a_loop(key, x):
    def add(x, key):
        return x + jax.random.uniform(key, x.shape), None

    return jax.lax.scan(add, x, jax.random.split(key, 3))[0]


def masked(key, x):
    rate = jnp.mean(x) * 0 + 0.25
    return jnp.where(jax.random.bernoulli(key, rate, x.shape), x, 0.0)


BLOCK = 'block_key(key, (8, 16), P("i")), '


@pytest.mark.parametrize(
    ("fun", "expected"),
    [
        (
            lambda key, x: x + jax.random.uniform(key, x.shape, minval=-2.0, maxval=3.0),
            [f"jax.random.uniform({BLOCK}(2, 16), minval=-2.0, maxval=3.0)"],
        ),
        (masked, [f"jax.random.uniform({BLOCK}(2, 16))"]),
        (
            two_draws_of_one_key,
            [f"jax.random.normal({BLOCK}(2, 16))", f"jax.random.uniform({BLOCK}(2, 16))"],
        ),
        (lambda key, x: jax.random.bits(key, x.shape), [f"jax.random.bits({BLOCK}(2, 16))"]),
        (draws_in_a_loop, ['(8, 16), P("i")), (2, 16))']),
    ],
)
def test_a_device_draws_its_block(fun, expected):
    text = source(fun)
    assert [call for call in expected if call not in text] == []


def test_blocks_of_two_axes_and_whole_arrays():
    both = P("j", "i")
    uniform = lambda key, x: x + jax.random.uniform(key, x.shape)  # noqa: E731
    text = source(uniform, (P(), both), both)
    assert 'jax.random.uniform(block_key(key, (8, 16), P("j", "i")), (4, 4))' in text
    both = P(("j", "i"))
    text = source(uniform, (P(), both), both)
    assert 'jax.random.uniform(block_key(key, (8, 16), P(("j", "i"))), (1, 16))' in text
    text = source(uniform, (P(), P()), P())
    assert "jax.random.uniform(key, (8, 16))" in text
    assert "block_key" not in text


def test_bounds_of_what_is_drawn_are_kept():
    """Few numbers of a normal distribution are beyond them."""

    def draw(key):
        return jnp.clip(jax.random.normal(key, (16,)), -3, 3)

    unjitted = unjit(Jitted(draw, (KEY,), (P(),), ROWS).jitted(), KEY)
    made = jax.jit(unjitted.shard_map())
    beyond = 0
    for seed in range(60):
        key = jax.random.key(seed)
        drawn = np.asarray(unjitted.compiled(key))
        np.testing.assert_array_equal(made(key), drawn)
        beyond += np.sum(np.abs(drawn) == 3)
    assert beyond


def test_keys_are_split():
    def noise(key, x):
        first, second = jax.random.split(key)
        return x + jax.random.normal(first, x.shape), jax.random.uniform(second, (3,))

    text = source(noise, outs=(ROWS, P()))
    assert "split = jax.random.split(key, 2)" in text
    assert 'jax.random.normal(block_key(reshape, (8, 16), P("i")), (2, 16))' in text
    assert "jax.random.uniform(reshape_2, (3,))" in text


def test_integers_are_drawn_by_one_call():
    def draw(key, x):
        return x + jax.random.randint(key, x.shape, 0, maxval=9), jax.random.randint(
            key, (3,), -5, 5
        )

    text = source(draw, outs=(ROWS, P()))
    assert f"jax.random.randint({BLOCK}(2, 16), 0, 9)" in text
    assert "jax.random.randint(key, (3,), -5, 5)" in text
    assert "jax.random.bits" not in text


def test_integers_between_numbers_that_are_not_known_are_made_of_bits():
    def draw(key, x):
        return x + jax.random.randint(key, x.shape, 0, x[0].astype(int) + 9)

    assert "jax.random.bits(" in source(draw, outs=ROWS)


def test_numbers_are_folded_into_keys():
    def noise(key, x, step):
        fixed, counted = jax.random.fold_in(key, 3), jax.random.fold_in(key, step)
        return x + jax.random.normal(fixed, x.shape) + jax.random.uniform(counted, x.shape)

    text = source(noise, (P(), ROWS, P()), args=(KEY, X, jnp.int32(5)))
    assert "jax.random.fold_in(key, jnp.uint32(3))" in text
    assert "jax.random.fold_in(key, step.astype(jnp.uint32))" in text
    assert "fori_loop" not in text


def test_only_loops_that_compute_threefry_are_random(monkeypatch):
    monkeypatch.setattr(threefry_loops, "is_threefry", lambda *_: False)
    made = unjit(
        Jitted(lambda k, x: x + jax.random.uniform(k, x.shape), (), (P(), ROWS)).jitted(), KEY, X
    )
    assert "call_stablehlo(WIDE" in made.as_python()


def test_another_rotation_is_not_threefry():
    modules = []

    def remember(module, order, shape, word):
        modules.append((module, order, shape))
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threefry_loops, "is_threefry", remember)
        uniform = Jitted(lambda k, x: x + jax.random.uniform(k, x.shape), (), (P(), ROWS))
        unjit(uniform.jitted(), KEY, X)
    module, order, shape = modules[0]
    assert threefry_loops.is_threefry(module, order, shape)
    other = module.replace("[13, 15, 26, 6]", "[13, 15, 27, 6]")
    assert other != module
    assert not threefry_loops.is_threefry(other, order, shape)


@pytest.mark.parametrize("key", [KEY, jax.random.key_data(KEY)], ids=["typed", "raw"])
@pytest.mark.parametrize(
    ("draw", "shape"),
    [
        (jax.random.normal, (2, 8)),
        (partial(jax.random.randint, minval=0, maxval=1000), (2, 8)),
        (partial(jax.random.bits, dtype=jnp.uint8), (2, 8)),
    ],
)
def test_blocks_are_those_of_the_whole(key, draw, shape):
    @partial(shard_map, mesh=mesh(), in_specs=P(), out_specs=P("i", "j"))
    def by_blocks(key):
        return draw(block_key(key, (8, 16), P("i", "j")), shape)

    np.testing.assert_array_equal(by_blocks(key), draw(key, (8, 16)))


@pytest.mark.parametrize("default", ["threefry2x32", "rbg"])
def test_keys_of_blocks_are_split_as_those_of_threefry(default):
    key = jax.random.key(3, impl="threefry2x32")

    @partial(shard_map, mesh=mesh(), in_specs=P(), out_specs=P("i", "j"))
    def by_blocks(key):
        _, last = jax.random.split(block_key(key, (8, 16), P("i", "j")))
        return jax.random.uniform(last, (2, 8))

    with jax.default_prng_impl(default):
        found = by_blocks(key)
    np.testing.assert_array_equal(found, jax.random.uniform(jax.random.split(key)[1], (8, 16)))


@pytest.mark.parametrize(
    ("draw", "found"),
    [
        (lambda key: block_key(key, (9,), P("i")), "9 elements along dimension 0"),
        (lambda key: block_key(key, (2**31, 4), P("i")), "less than 2\\*\\*32"),
        (lambda key: block_key(key, (8,), P(None, "i")), "no more entries"),
        (lambda key: block_key(key[:1], (8,), P("i")), r"uint32\[1\]"),
        (lambda key: jax.random.fold_in(block_key(key, (8,), P("i")), 1), "fold_in"),
        (lambda key: block_key(key, (8, 4), P("i")), r"an array of shape \(2,\)"),
    ],
)
def test_blocks_that_cannot_be_drawn_are_refused(draw, found):
    @partial(shard_map, mesh=mesh(), in_specs=P(), out_specs=P("i"))
    def body(key):
        return jax.random.uniform(draw(key), (2,))

    with pytest.raises(ArgumentTypeError, match=found):
        body.lower(jax.random.key_data(KEY))


def test_permutations_are_calls_while_one_sorting_makes_them():
    rows, more = floats(8, 16), floats(2048, 4)

    def permuted(key, x):
        return x[jax.random.permutation(key, len(x))]

    text = source(permuted, (P(), P()), P(), (KEY, rows))
    assert "jax.random.permutation(key, 8)" in text
    assert "lax.sort" not in text
    text = source(permuted, (P(), P()), P(), (KEY, more))
    assert text.count("lax.sort(") == 2
    assert "jax.random.permutation(key, 2048)" not in text


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_other_generators_are_called_as_stablehlo(impl):
    args = jax.random.key(7, impl=impl), X
    jitted = Jitted(lambda key, x: x + jax.random.uniform(key, x.shape), args, REST, ROWS).jitted()
    made = unjit(jitted, *args)
    assert "stablehlo.rng_bit_generator" in made.embedded
    assert made.validate().simulation is not None
    np.testing.assert_array_equal(jax.jit(made.shard_map())(*args), made.compiled(*args))


@pytest.mark.parametrize("split_inside", [True, False])
def test_keys_under_vmap_are_what_they_compute_of_the_generator(split_inside):
    """Their counters have 64 bits, and share constants."""

    def noise(key, x):
        keys = jax.random.split(key, len(x)) if split_inside else key
        return x + jax.vmap(lambda key: jax.random.uniform(key, x.shape[1:]))(keys)

    args = KEY if split_inside else jax.random.split(KEY, len(X)), X
    jitted = Jitted(noise, args, REST if split_inside else (ROWS, ROWS), ROWS).jitted()
    made = unjit(jitted, *args)
    assert {"stablehlo.iota", "stablehlo.shift_right_logical"} <= set(made.embedded)
    np.testing.assert_array_equal(jax.jit(made.shard_map())(*args), made.compiled(*args))


def test_counters_that_depend_on_what_others_count():
    """A gamma draw counts in loops; its counters share a 64-bit operation with those before."""

    def noise(x):
        key = jax.random.fold_in(jax.random.key(3), jnp.floor(3 * jnp.abs(x[0])).astype(int))
        return x * jax.random.gamma(key, 2.0, x.shape)

    args = (floats(8),)
    jitted = Jitted(noise, args, (P("i"),), P("i")).jitted()
    made = unjit(jitted, *args)
    assert made.as_python().count("WIDE_2 =") == 1
    found, expected = jax.jit(made.shard_map())(*args), made.compiled(*args)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_bits_have_32_bits_where_jax_draws_64_by_default():
    x = floats(8)
    with jax.enable_x64(True):
        jitted = Jitted(jax.random.permutation, (KEY, x), (P(), ROWS), ROWS).jitted()
        made = unjit(jitted, KEY, x)
        found, expected = jax.jit(made.shard_map())(KEY, x), made.compiled(KEY, x)
    np.testing.assert_array_equal(found, expected)
    assert "(8,), jnp.uint32)" in made.as_python()


def test_block_keys_need_numbers_that_do_not_depend_on_each_other():
    def noise(key):
        return jax.random.normal(block_key(key, (16,), P("i")), (4,))

    draw = shard_map(noise, mesh=jax.make_mesh((4,), ("i",)), in_specs=P(), out_specs=P("i"))
    refused = pytest.raises(ArgumentTypeError, match="jax_threefry_partitionable")
    with jax.threefry_partitionable(False), refused:
        draw(jax.random.key(0))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_keys_are_returned_as_keys(impl):
    def draw(key, x):
        first, *rest = jax.random.split(key, 3)
        return {"keys": [first, jax.random.split(rest[0], 8)], "x": x * 2}

    key = jax.random.key(3, impl=impl)
    jitted = Jitted(draw, (key, X), REST).jitted()
    found, expected = unjit(jitted, key, X).shard_map()(key, X), jitted(key, X)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(as_data(ours), as_data(theirs))


def test_keys_that_are_made_of_numbers_are_returned_as_keys():
    def draw(x):
        return jax.random.fold_in(jax.random.key(0), x[0, 0].astype(jnp.int32))

    jitted = Jitted(draw, (X,), (ROWS,)).jitted()
    found = unjit(jitted, X).shard_map()(X)
    assert found.dtype == jax.random.key(0).dtype
    assert found == jitted(X)
