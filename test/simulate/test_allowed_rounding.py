"""What may differ from XLA and a reference: as much as the types inside, and rounding, explain."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map
from shmap_compiler.simulate.narrow_types import narrow_types

mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
COLUMNS = {"mesh": mesh, "in_specs": (P(None, "i"), P("i")), "out_specs": P()}


def narrow(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16)


ARGS = narrow(0, 16, 64), narrow(1, 64, 32)


def wide_product(x, w):
    return (x @ w).astype(jnp.float32)


def wide_loss(x, w):
    return jnp.mean(jnp.tanh(x @ w).astype(jnp.float32) ** 2)


def in_parts(fun, factor=1.0):
    """`fun` of a product that is summed over the devices."""
    sums = lambda x, w: fun(factor * lax.psum(x @ w, "i"), jnp.eye(32, dtype=x.dtype))  # noqa: E731
    return shard_map(sums, **COLUMNS).lower(*ARGS)


def product(x, w):
    return x @ w


@pytest.mark.parametrize("fun", [product, wide_product, wide_loss])
def test_wide_results_of_narrow_products(fun):
    validation = in_parts(fun).validate(*ARGS, reference=fun)
    assert validation.holds, str(validation)


@pytest.mark.parametrize("fun", [product, wide_product])
def test_mistakes_in_narrow_products_are_found(fun):
    validation = in_parts(fun, 1.05).validate(*ARGS, reference=fun)
    assert validation.first_difference.name == "reference"
    one = shard_map(fun, check_vma=False, **COLUMNS).lower(*ARGS)
    assert not one.validate(*ARGS, reference=fun).holds, "a psum is missing"


def test_whole_numbers_have_no_rounding():
    def largest(x, w, more=0):
        return 1000 + more + jnp.argmax(jnp.tanh(x @ w), axis=1)

    def of_parts(x, w):
        return largest(lax.psum(x @ w, "i"), jnp.eye(32, dtype=x.dtype), 1)

    validation = shard_map(of_parts, **COLUMNS).lower(*ARGS).validate(*ARGS, reference=largest)
    assert validation.first_difference.name == "reference"


def deep(x, ws):
    for w in ws:
        x = jnp.tanh(x @ w)
    return x


def test_rounding_that_many_layers_enlarge():
    """Random weights, as validation draws them, make a chaotic network."""
    rng = np.random.default_rng(0)
    x, ws = (np.float32(rng.standard_normal(shape)) for shape in ((16, 16), (8, 16, 16)))
    rows = {"mesh": mesh, "in_specs": (P("i"), P()), "out_specs": P("i")}
    validation = shard_map(deep, **rows).lower(x, ws).validate(x, ws, reference=deep, seeds=3)
    assert validation.holds, str(validation)
    wrong = shard_map(lambda x, ws: 1.001 * deep(x, ws), **rows).lower(x, ws)
    assert not wrong.validate(x, ws, reference=deep).holds


def of_steps(x):
    return lax.fori_loop(0, 3, lambda _, y: y * x, x)


@pytest.mark.parametrize(
    ("fun", "found"),
    [
        (lambda x: x + 1, ["bfloat16"]),
        (lambda x: (x + 1).astype(jnp.float32) * 2, ["bfloat16"]),
        (lambda x: x.astype(jnp.float32) * 2, [""]),
        (lambda x: x.T.reshape(-1)[3:].astype(jnp.float32), [""]),
        (lambda x: jnp.max(jnp.abs(x)).astype(jnp.float32), [""]),
        (lambda x: jnp.sum(x.astype(jnp.float32)).astype(jnp.bfloat16), ["bfloat16"]),
        (lambda x: x.astype(jnp.float32).astype(jnp.float16).astype(jnp.float32), ["float16"]),
        (lambda x: (x * 2, x.astype(jnp.float32) * 2), ["bfloat16", ""]),
        (lambda x: of_steps(x).astype(jnp.float32), ["bfloat16"]),
        (jax.jit(lambda x: jax.jit(lambda x: (x * 2, x))(x)), ["bfloat16", ""]),
        (lambda x: lax.sort(x).astype(jnp.float32), [""]),
        (lambda x: x > 0, [""]),
    ],
)
def test_narrow_types_on_the_way_to_results(fun, found):
    text = jax.jit(fun).lower(ARGS[0]).as_text()
    assert [" ".join(t.name for t in types) for types in narrow_types(text)] == found
