"""Wrong modules are caught: each mutant has other results than the module it was made of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from module_mutants import mutants

from shmap_compiler import shard_map
from shmap_compiler.lowering.snapshots import ModuleState
from shmap_compiler.simulate.validation import validate

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
    return y * jnp.where(here > 2, 2.0, 0.5) + lax.axis_index(("i", "j")) * b + total


def loops(b):
    def step(k, c):
        c = lax.ppermute(c, "i", [(0, 1), (1, 0)]) * 0.5 + lax.psum(c * b, "j") + k * b
        return jnp.tanh(c)

    return lax.fori_loop(0, 3, step, b) + lax.psum_scatter(
        jnp.tile(b, (2, 1)), "j", scatter_dimension=0, tiled=True
    )


def layers(b):
    y = b
    for k in range(3):
        y = jnp.tanh(lax.psum(y * (k + 1) - b, "ij"[k % 2])) + b
        y = y * lax.pmax(y[::-1], "ji"[k % 2]) - lax.pmin(y, "i")
    return y


def rings(b):
    y = b
    for k in range(3):
        axes = (("i", "j"), ("j", "i"))[k % 2]
        y = jnp.sin(lax.ppermute(y, axes, [(0, 1), (1, 3), (3, 2)])) + (k + 1) * b
    return y


PROGRAMS = (sums, moves, permutations, gathers, branches, loops, layers, rings)
AXES = {"i": 2, "j": 2}


def caught(program, most=None):
    """Of the mutants of a program: (how many, those that are not caught)."""
    lowered = shard_map(program, **SPECS).lower(x)
    signature, body = lowered.call.signature, lowered.snapshots.stages[0]
    count, missed = 0, []
    for name, text in mutants(body.text, AXES):
        if most is not None and count == most:
            break
        count += 1
        states = [body, ModuleState("mutant", text, True)]
        validation = validate(signature, states, [x], None, None, 2)
        if validation.holds:
            missed.append(f"{program.__name__}: {name}")
    return count, missed


@pytest.mark.parametrize("program", [moves, branches], ids=lambda p: p.__name__)
def test_mutants_are_caught(program):
    count, missed = caught(program, most=8)
    assert count == 8
    assert not missed


@pytest.mark.long
def test_two_hundred_mutants_are_caught():
    found = [caught(program) for program in PROGRAMS]
    print("\n", [count for count, _ in found])
    assert not [name for _, names in found for name in names]
    assert sum(count for count, _ in found) >= 200
