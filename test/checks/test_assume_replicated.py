"""assume_replicated: free, differentiable, and checked on the devices if asked for."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import assume_replicated, shard_map

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)


def test_assume_replicated_is_the_identity_under_every_transformation():
    def mapped(x):
        return shard_map(
            lambda x: jnp.sum(assume_replicated({"x": lax.psum(x, "i")}, "i")["x"] ** 2),
            mesh=MESH,
            in_specs=P("i"),
            out_specs=P(),
        )(x)

    def plain(x):
        return jnp.sum(x.reshape(4, 2).sum(0) ** 2)

    x = jnp.arange(8.0)
    np.testing.assert_allclose(mapped(x), plain(x))
    np.testing.assert_allclose(jax.jit(jax.grad(mapped))(x), jax.grad(plain)(x))
    tangents = jax.jit(lambda x: jax.jvp(mapped, (x,), (x,))[1])(x)
    np.testing.assert_allclose(tangents, jax.jvp(plain, (x,), (x,))[1])
    np.testing.assert_allclose(jax.jit(jax.vmap(mapped))(jnp.stack([x, x + 1]))[1], plain(x + 1))


def test_assume_replicated_leaves_nothing_in_the_module():
    mapped = shard_map(
        lambda x: assume_replicated(x, "i"), mesh=MESH, in_specs=P("i"), out_specs=P()
    )
    assert "return %arg0" in mapped.lower(jnp.ones(8)).as_text("body")


def test_assume_replicated_refuses_an_unknown_axis():
    mapped = shard_map(lambda x: assume_replicated(x, "k"), mesh=MESH, in_specs=P(), out_specs=P())
    with pytest.raises(NameError, match="'k'"):
        mapped(jnp.ones(8))


# Runs in a child process: after a failed callback, JAX fails again when it next waits for effects.
CHILD = """
import jax, jax.numpy as jnp, os
from jax import lax
from jax.sharding import PartitionSpec as P
from shmap_compiler import assume_replicated, shard_map

def outcome(dtype, value):
    mapped = shard_map(
        lambda: assume_replicated(value(lax.axis_index("i")).astype(dtype), "i"),
        mesh=jax.make_mesh((4, 2), ("i", "j")), in_specs=(), out_specs=P(),
    )
    try:
        jax.block_until_ready(mapped())
        jax.effects_barrier()
    except Exception as error:
        return str(error)
    return "passes"

for dtype in "float32 bfloat16 int32 uint8 int4 bool complex64".split():
    print(dtype, "equal:", outcome(dtype, lambda i: jnp.arange(3) + 0 * i))
print("NaN:", outcome("float32", lambda i: jnp.full(3, jnp.nan)))
for dtype in "float32 bfloat16 int32 uint8 int4 bool complex64".split():
    text = outcome(dtype, lambda i: jnp.arange(3) * (i != 2))
    print(dtype, "different:", text.replace(chr(10), " "))
text = outcome("float32", lambda i: jnp.where(i == 0, -0.0, 0.0))
print("zeros of two signs:", text.replace(chr(10), " "))
os._exit(0)
"""


def run_child(**variables: str) -> dict[str, str]:
    result = subprocess.run(
        [sys.executable, "-c", CHILD],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return dict(line.split(": ", 1) for line in result.stdout.splitlines())


DTYPES = ["float32", "bfloat16", "int32", "uint8", "int4", "bool", "complex64"]


@pytest.mark.slow
@pytest.mark.subprocess
def test_assume_replicated_is_checked_bit_for_bit_on_request():
    outcomes = run_child(SHMAP_CHECK_ASSUMPTIONS="1")
    assert len(outcomes) == 2 * len(DTYPES) + 2
    for case in [*(f"{d} equal" for d in DTYPES), "NaN"]:
        assert outcomes[case] == "passes"
    for case in [*(f"{d} different" for d in DTYPES), "zeros of two signs"]:
        assert "assume_replicated at <string>:" in outcomes[case]
        assert "the value differs between devices along ('i',)" in outcomes[case]


@pytest.mark.subprocess
def test_assume_replicated_is_not_checked_by_default():
    outcomes = run_child(SHMAP_CHECK_ASSUMPTIONS="0")
    assert set(outcomes.values()) == {"passes"}
