"""The work of choosing and rewriting forms grows with the number of layers, and no faster.

Layers are written one after the other. What is counted is calls of Python functions, which are the
same in each run.
"""

import sys

import jax
import jax.numpy as jnp
import pytest
import shmap_passes
from jax import lax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from overlap_programs import gather
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


def calls(text, machine):
    """How many Python functions are called while the passes run."""
    count = 0

    def profile(frame, event, arg):
        nonlocal count
        count += event == "call"

    passes = shmap_passes.pipeline(overlap=ChooseOverlap(machine=machine.text, may_round=True))
    with shmap_passes.make_context():
        module = ir.Module.parse(text)
        sys.setprofile(profile)
        try:
            shmap_passes.run(module, passes)
        finally:
            sys.setprofile(None)
    return count


@pytest.mark.parametrize("is_gradient", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("machine", [V5E, V6E, V5P, H100], ids=["v5e", "v6e", "v5p", "h100"])
def test_work_grows_with_the_number_of_layers(layer, is_gradient, machine):
    texts = [body(layer, count, is_gradient) for count in (4, 12, 20)]
    few, more, most = (calls(text, machine) for text in texts)
    assert most - more < 1.25 * (more - few)


@pytest.mark.parametrize("is_gradient", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
def test_forms_are_chosen(layer, is_gradient):
    chooser = ChooseOverlap(machine=V6E.text, may_round=True)
    with shmap_passes.make_context():
        found = chooser.choices(ir.Module.parse(body(layer, 4, is_gradient)).operation.opview)
    assert any(choice.is_rewritten for choice in found)
