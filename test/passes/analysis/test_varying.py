"""The inference on MLIR, of the results of random programs.

SHMAP_VARYING_PROGRAMS=1000 pytest test/passes/analysis/test_varying.py
"""

import itertools
import os

import numpy as np
import oracle
import pytest
import shmap_passes
from jaxlib.mlir import ir
from programs.generate import draw_program
from shmap_passes.analysis.replication import infer
from shmap_passes.ir.ops import terminator

from shmap_compiler import shard_map

PROGRAMS = int(os.environ.get("SHMAP_VARYING_PROGRAMS", "16"))


def has_equal_groups(program):
    """Groups of different sizes cannot be lowered."""
    return all(
        len(set(map(len, op.params.get("axis_index_groups", ())))) < 2 for op in program.body.walk()
    )


def random_programs():
    drawn = (draw_program(seed, 8) for seed in itertools.count())
    return itertools.islice(filter(has_equal_groups, drawn), PROGRAMS)


@pytest.mark.parametrize("program", list(random_programs()))
def test_results_of_a_random_program(program):
    """As sharp as the inference on the Graph, and true of the blocks that the oracle computes.

    It is sharper where JAX's lowering leaves loops away, as those of no steps.
    """
    lowered = shard_map(
        program,
        mesh=program.jax_mesh(),
        in_specs=program.in_specs,
        out_specs=program.out_specs,
    ).lower(*program.arrays())
    with shmap_passes.make_context():
        module = ir.Module.parse(lowered.as_text("body"))
        form = shmap_passes.read_body_form(module)
        varying = infer(form, module)
        found = [set(varying.of(value)) for value in terminator(form.main.entry_block).operands]
    by_graph = lowered.graph.replication.outputs
    for claimed, known, array, spec in zip(
        found, by_graph, program.expected(), program.out_specs, strict=True
    ):
        assert claimed <= known
        assert axes_of_difference(oracle.split(array, spec, program.mesh), program.mesh) <= claimed


def axes_of_difference(blocks, mesh):
    """The axes along which the blocks of some devices differ."""
    stacked = np.reshape(blocks, (*mesh.values(), *blocks[0].shape))
    return {
        axis
        for dimension, axis in enumerate(mesh)
        if not np.array_equal(
            stacked, np.broadcast_to(stacked.take([0], dimension), stacked.shape), equal_nan=True
        )
    }
