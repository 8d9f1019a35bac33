"""Collectives move random keys as they move numbers, and do not compute with them."""

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
KEYS = jax.random.split(jax.random.key(0), 16).reshape(16, 1)
MOVES = {
    "all_gather": lambda k: lax.all_gather(k, "i", tiled=True),
    "all_gather along another dimension": lambda k: lax.all_gather(k, "i", axis=1, tiled=True),
    "all_gather untiled": lambda k: lax.all_gather(k, "i"),
    "all_to_all": lambda k: lax.all_to_all(k, "i", 0, 1, tiled=True),
    "all_to_all untiled": lambda k: lax.all_to_all(k, "i", 0, 0),
    "ppermute": lambda k: lax.ppermute(k, "i", [(n, (n + 1) % 4) for n in range(4)]),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_keys_move_as_their_words_do(move):
    def mapped(fun):
        return shard_map(fun, mesh=MESH, in_specs=P("i"), out_specs=P("i"))

    words = jax.random.key_data(KEYS)
    expected = jax.jit(mapped(jax.vmap(move, in_axes=-1, out_axes=-1)))(words)
    for keys in (jax.jit(mapped(move))(KEYS), mapped(move)(KEYS)):
        assert jax.dtypes.issubdtype(keys.dtype, jax.dtypes.prng_key)
        np.testing.assert_array_equal(jax.random.key_data(keys), expected)


@pytest.mark.parametrize(
    "reduce",
    [
        lambda k: lax.psum({"key": k, "step": 1.0}, "i"),
        lambda k: lax.pmax(k, "i"),
        lambda k: lax.psum_scatter(k, "i"),
        lambda k: lax.pbroadcast(k, "i", 1),
    ],
)
@pytest.mark.parametrize("call", [jax.jit, lambda f: f])
def test_keys_are_no_numbers(reduce, call):
    body = shard_map(lambda k: reduce(k[0]), mesh=MESH, in_specs=P(None, "i"), out_specs=P())
    with pytest.raises(TypeError, match="an operand of random keys"):
        call(body)(KEYS.reshape(1, 16))
