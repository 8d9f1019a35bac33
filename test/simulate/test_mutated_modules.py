"""Wrong modules are caught: each mutant has other results than the module it was made of."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from module_mutants import mutants

from shmap_compiler import shard_map, simulate_module
from shmap_compiler.simulate.play import same_bits

# Both axes have the same size, so that another axis fits everywhere.
mesh = jax.make_mesh((2, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
SPECS = {"mesh": mesh, "in_specs": P("i", "j"), "out_specs": P("i", "j")}
x = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)


def sums(b):
    y = lax.psum(jnp.sin(b), "i") + lax.pmax(b, "j") * lax.pmin(b, "i")
    return y * lax.psum(y * b, ("i", "j")) + b


def moves(b):
    y = lax.all_gather(b, "i", axis=0, tiled=True)[2:6] * b
    z = lax.all_to_all(jnp.cos(y), "j", 0, 1, tiled=True).reshape(4, 4)
    z = lax.psum_scatter(z, "i", scatter_dimension=0, tiled=True)
    return jnp.concatenate([z, lax.psum_scatter(y, "j", scatter_dimension=0, tiled=True)]) * b


def permutations(b):
    y = lax.ppermute(b, "i", [(0, 1)]) + 2 * lax.ppermute(b, ("i", "j"), [(0, 1), (1, 2), (2, 0)])
    return jnp.sin(y) + 3 * lax.ppermute(y * b, ("j", "i"), [(3, 0), (0, 2), (2, 1)]) + b


def gathers(b):
    y = lax.all_gather(b[0], ("j", "i"))
    z = lax.all_gather(jnp.exp(b[1]), ("i", "j"))
    return y * z + lax.all_gather(b[:2], "j", axis=1, tiled=True)[:, 2:6].repeat(2, 0)


def branches(b):
    total = lax.psum(b, ("i", "j"))[0, 0]
    y = lax.cond(total > 0, lambda c: lax.psum(c, "i"), lambda c: lax.pmax(jnp.sin(c), "j"), b)
    here = lax.axis_index("i") + 3 * lax.axis_index("j")
    return y * jnp.sin(1.0 + here) + lax.axis_index(("i", "j")) * b + total


def loops(b):
    def step(k, c):
        c = lax.ppermute(c, "i", [(0, 1), (1, 0)]) * 0.5 + lax.psum(c * b, "j") + k * b
        return jnp.tanh(c)

    return lax.fori_loop(0, 3, step, b) + lax.psum_scatter(
        jnp.tile(b, (2, 1)), "j", scatter_dimension=0, tiled=True
    )


def layers(b):
    y = b
    for k in range(8):
        y = jnp.tanh(lax.psum(y * (k + 2) - b, "ij"[k % 2])) + b
        y = y * lax.pmax(y[::-1], "ji"[k % 2]) - lax.pmin(y, "i")
    return y


def rings(b):
    y = b
    for k in range(9):
        axes = (("i", "j"), ("j", "i"))[k % 2]
        y = jnp.sin(lax.ppermute(y, axes, [(0, 1), (1, 3), (3, 2)])) + y / 2 + (k + 1) * b
    return y


PROGRAMS = (sums, moves, permutations, gathers, branches, loops, layers, rings)
AXES = {"i": 2, "j": 2}


def inputs(seed):
    return np.random.default_rng(seed).standard_normal((8, 8)).astype(np.float32)


def missed(program, most=None):
    """(how many mutants a program has, those that have the same results for three inputs)."""
    lowered = shard_map(program, **SPECS).lower(x)
    expected = [lowered.simulate(inputs(seed), stage="body") for seed in range(3)]
    body = lowered.snapshots.text_with_lines("body")
    found = list(itertools.islice(mutants(body, AXES), most))
    return len(found), [name for name, text in found if not any(differs(text, expected))]


def differs(text, expected):
    """Whether a mutant differs from each of the simulations, one after the other."""
    for seed, right in enumerate(expected):
        wrong = simulate_module(text, [inputs(seed)])
        yield wrong.hang is not None or not all(map(same_bits, wrong.blocks[0], right.blocks[0]))


@pytest.mark.parametrize("program", [moves, branches], ids=lambda p: p.__name__)
def test_mutants_are_caught(program):
    count, names = missed(program, most=8)
    assert count == 8
    assert not names


@pytest.mark.long
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_all_mutants_are_caught(program):
    count, names = missed(program)
    print(f"\n{program.__name__}: {count} mutants")
    assert not names


def test_there_are_two_hundred_mutants():
    lowered = [shard_map(program, **SPECS).lower(x) for program in PROGRAMS]
    texts = [each.snapshots.text_with_lines("body") for each in lowered]
    assert sum(1 for text in texts for _ in mutants(text, AXES)) >= 200
