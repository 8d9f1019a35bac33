"""The same program gives the same modules, byte for byte, in every process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Written out to files of their own, so that the lines in the modules are the same.
PROGRAM = """
import json
import sys

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shmap_compiler
from shmap_compiler import PARTITIONERS, STAGES, shard_map
from shmap_passes.overlap.overlap_row_block import OverlapRowBlock

mesh = jax.make_mesh((2, 2, 2), ("i", "j", "k"), axis_types=(AxisType.Auto,) * 3)
w = jnp.ones((8, 8))


def body(params, flag, x):
    y = lax.psum(x @ params["a"], ("k", "i")) + lax.pmean(x @ w, "j")

    def step(carry, _):
        carry = lax.cond(flag > 0, lambda c: lax.psum(c, ("j", "k")) + c, jnp.sin, carry)
        return jax.jit(jnp.tanh)(carry), lax.ppermute(carry, "i", [(0, 1), (1, 0)])

    y, ys = lax.scan(step, y, length=3)
    z = lax.all_gather(y, ("j", "i"), tiled=True) * params["b"] + lax.axis_index("k")
    total = lax.psum(z, ("i", "j", "k"), axis_index_groups=[[0, 5, 1, 4], [2, 3, 6, 7]])
    return {"y": y, "ys": ys, "total": total}


mapped = shard_map(
    body,
    mesh=mesh,
    in_specs=({"a": P(), "b": P()}, P(), P(("i", "j", "k"))),
    out_specs={
        "y": P(("i", "j", "k")),
        "ys": P(None, ("i", "j", "k")),
        "total": P(("k", "i"), "j"),
    },
)
args = ({"a": jnp.ones((8, 8)), "b": jnp.float32(2)}, jnp.int32(1), jnp.ones((16, 8)))
texts = {}
for partitioner in PARTITIONERS:
    for groups in ("axes", "ids"):
        lowered = mapped.lower(*args, partitioner=partitioner, groups=groups)
        for stage in STAGES:
            texts[f"{partitioner} {groups} {stage}"] = lowered.as_text(stage)
        for name, text in lowered.passes:
            texts[f"{partitioner} {groups} after {name}"] = text


def gated(x, u, v, w):
    rows = lax.all_gather(x, "i", tiled=True)
    y = lax.psum_scatter((jnp.tanh(rows @ u) * (rows @ v)) @ w, "i", tiled=True)
    return (y**2).sum()


specs = (P("i"), P(None, "i"), P(None, "i"), P("i"))
gradient = shard_map(
    jax.grad(gated, (0, 1, 2, 3)), mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False
)
types = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((16, 8), (8, 16), (8, 16), (16, 8))]
for form in ("row-chunks", "row-stages"):
    with shmap_compiler.passes(OverlapRowBlock(form=form, parts=2)):
        texts[form] = gradient.lower(*types).as_text("stablehlo")
texts["forced"] = gradient.lower(*types, overlap="force").as_text("stablehlo")
json.dump(texts, sys.stdout)
"""


def modules(path, seed):
    environment = {
        **os.environ,
        "PYTHONHASHSEED": seed,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    done = subprocess.run(
        [sys.executable, path], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    path = tmp_path_factory.mktemp("determinism") / "program.py"
    path.write_text(PROGRAM)
    return [modules(path, seed) for seed in ("1", "2")]


@pytest.mark.slow
@pytest.mark.subprocess
def test_all_stages_are_compared(runs):
    first, second = runs
    assert first.keys() == second.keys()
    assert len(first) >= 2 * 2 * (4 + 5)
    assert all(first.values())


@pytest.mark.subprocess
def test_modules_are_byte_identical_across_processes(runs):
    first, second = runs
    assert [name for name in first if first[name] != second[name]] == []


@pytest.mark.subprocess
def test_hash_seeds_differ_indeed():
    """Guards the test above: sets of strings are ordered differently in the two processes."""
    program = "print(list(set(map(str, range(50)))))"
    orders = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(orders) == 2
