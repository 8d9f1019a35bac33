"""The work of choosing and rewriting forms grows with the number of layers, and no faster.

Layers are written one after the other, and so are operations that read a value several times. What
is counted is calls of Python functions, which are the same in each run.
"""

import cProfile
import functools
import sys

import jax
import jax.numpy as jnp
import pytest
import shmap_passes
from jax import lax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from overlap_programs import BY_NAME, gather
from shmap_passes.overlap.choose_overlap import ChooseOverlap
from test_choices import H100, V5E, V5P, V6E

from shmap_compiler import shard_map

COLUMNS, ROWS = P(None, "i"), P("i")
WEIGHTS = (4096, 16384), (16384, 4096)


def scatter(x):
    return lax.psum_scatter(x, "i", tiled=True)


def exchange(x):
    return lax.all_to_all(x, "i", 0, 0, tiled=True)


def mlp(x, w, v):
    return x + scatter(jax.nn.gelu(gather(x) @ w) @ v)


def tensor_parallel(x, w, v):
    return x + lax.psum(jax.nn.gelu(x @ w) @ v, "i")


def gathered_weights(x, w, v):
    return x + jax.nn.gelu(x @ gather(w)) @ gather(v)


@jax.checkpoint
def experts(x, w, v):
    """Four on each of eight devices; what mixes tokens keeps layers apart."""
    tokens = exchange(jnp.cumsum(x, 1)).reshape(8, 4, *x.shape[1:])
    h = jax.nn.gelu(jnp.einsum("detf,efh->deth", tokens, w))
    return x + exchange(jnp.einsum("deth,ehf->detf", h, v).reshape(x.shape))


LAYERS = {
    mlp: ((16384, 4096), ROWS, WEIGHTS, (COLUMNS, ROWS)),
    tensor_parallel: ((16384, 4096), P(), WEIGHTS, (COLUMNS, ROWS)),
    gathered_weights: ((32768, 8192), ROWS, ((8192, 8192),) * 2, (ROWS, ROWS)),
    experts: ((256, 2048, 4096), ROWS, ((32, 4096, 2048), (32, 2048, 4096)), (ROWS, ROWS)),
}


@functools.cache
def body(layer, count, is_gradient):
    rows, spec, weights, specs = LAYERS[layer]

    def layers(x, weights):
        for w, v in weights:
            x = layer(x, w, v)
        return x

    def gradient(x, weights):
        return jax.grad(lambda *args: jnp.sum(layers(*args) ** 2), (0, 1))(x, weights)

    mapped = shard_map(
        gradient if is_gradient else layers,
        mesh=AbstractMesh((8,), ("i",)),
        in_specs=(spec, [specs] * count),
        out_specs=(spec, [specs] * count) if is_gradient else spec,
        check_vma=False,
    )
    types = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16),
        (rows, [weights] * count),
        is_leaf=lambda each: isinstance(each, tuple) and isinstance(each[0], int),
    )
    return mapped.lower(*types).as_text("body")


def calls(text, machine, effort="auto"):
    """How many Python functions are called while the passes run."""
    counter = cProfile.Profile(builtins=False)
    chooser = ChooseOverlap(machine=machine.text, effort=effort, may_round=True)
    passes = shmap_passes.pipeline(overlap=chooser)
    with shmap_passes.make_context():
        module = ir.Module.parse(text)
        counter.runcall(shmap_passes.run, module, passes)
    return sum(entry.callcount for entry in counter.getstats())


@pytest.mark.parametrize("is_gradient", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("machine", [V5E, V6E, V5P, H100], ids=["v5e", "v6e", "v5p", "h100"])
def test_work_grows_with_the_number_of_layers(layer, is_gradient, machine):
    """Fewer layers than eight may have other forms, each with its own work."""
    texts = [body(layer, count, is_gradient) for count in (8, 16, 24)]
    few, more, most = (calls(text, machine) for text in texts)
    assert most - more < 1.25 * (more - few)


@pytest.mark.parametrize("is_gradient", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
def test_forms_are_chosen(layer, is_gradient):
    chooser = ChooseOverlap(machine=V6E.text, may_round=True)
    with shmap_passes.make_context():
        found = chooser.choices(ir.Module.parse(body(layer, 4, is_gradient)).operation.opview)
    assert any(choice.is_rewritten for choice in found)


def beside_constants(x, w, count):
    y = gather(x) @ w
    c = jnp.full(y.shape, 0.5, y.dtype)
    for _ in range(count):
        c = c * c + c
    return y + c


def beside_a_residual(x, w, count):
    y = gather(x) @ w
    r = w[:1, :1] + jnp.zeros_like(y)
    for _ in range(count):
        r = r + jnp.tanh(r) * r
    return y + r


def on_rows_and_constants(x, w, count):
    def block(x, w):
        rows = gather(x)
        c = jnp.full(rows.shape, 0.5, rows.dtype)
        for _ in range(count):
            c = c * c + c
        return scatter(jnp.tanh((rows + c) @ w) @ w.T)

    return jax.grad(lambda *args: block(*args).astype(jnp.float32).sum(), (0, 1))(x, w)


def after_a_sum_in_a_loop(x, w, count):
    def step(total, k):
        r = scatter(jnp.tanh(x * k).T @ x)
        for _ in range(count):
            r = r + jnp.tanh(r) * r
        return total + k, r

    return lax.scan(step, jnp.zeros((), x.dtype), jnp.ones(4, x.dtype))[1]


CHAINS = [beside_constants, beside_a_residual, on_rows_and_constants, after_a_sum_in_a_loop]


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("effort", ["auto", "force"])
def test_work_grows_with_the_length_of_a_chain(chain, effort):
    def of_length(count):
        mapped = shard_map(
            lambda x, w: chain(x, w, count),
            mesh=AbstractMesh((8,), ("i",)),
            in_specs=(ROWS, P()),
            out_specs=P(),
            check_vma=False,
        )
        types = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((16384, 4096), (4096, 2048)))
        return calls(mapped.lower(*types).as_text("body"), V5E, effort)

    of_length(2)  # fills caches
    few, more, most = map(of_length, (2, 5, 8))
    assert most - more < 1.25 * (more - few)


def product_of_a_chain(x, w):
    return long_chain(gather(x)) @ w


def block_with_a_chain(x, w):
    def block(x, w):
        return scatter(long_chain(gather(x) @ w) @ w.T)

    return jax.grad(lambda *args: block(*args).sum(), (0, 1))(x, w)


def exchanges_around_a_chain(x, w):
    """Both ways through a layer."""
    rows = exchange(x)
    cotangents = exchange(long_chain(exchange(long_chain(rows @ w))))
    return exchange(cotangents @ w), rows.T @ cotangents


def long_chain(x):
    for _ in range(sys.getrecursionlimit() + 10):
        x = -x
    return x


@pytest.mark.parametrize(
    ("body", "name", "form"),
    [
        (product_of_a_chain, "overlap-gather-product", "ring"),
        (block_with_a_chain, "overlap-row-block", "row-chunks"),
        (exchanges_around_a_chain, "overlap-exchange-block", "summed-chunks"),
    ],
)
def test_chains_may_be_longer_than_the_stack_of_python(body, name, form):
    specs = {"in_specs": (ROWS, P()), "out_specs": ROWS, "check_vma": False}
    mapped = shard_map(body, mesh=AbstractMesh((4,), ("i",)), **specs)
    text = mapped.lower(jnp.ones((64, 8)), jnp.ones((8, 8))).as_text("body")
    with shmap_passes.make_context():
        module = ir.Module.parse(text)
        before = str(module)
        shmap_passes.run(module, [BY_NAME[name](form=form, parts=2)])
        assert str(module) != before
