"""The inference on MLIR says what the inference on the Graph says, of random programs.

SHMAP_VARYING_PROGRAMS=1000 pytest test/test_varying.py
"""

import itertools
import os

import pytest
import shmap_passes
from jaxlib.mlir import ir
from programs.generate import draw_program
from shmap_passes.body_form import terminator
from shmap_passes.varying import infer

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
def test_both_inferences_agree_on_the_results_of_a_program(program):
    lowered = shard_map(
        program,
        mesh=program.jax_mesh(),
        in_specs=program.in_specs,
        out_specs=program.out_specs,
    ).lower(*program.arrays())
    if "length=0 " in str(lowered.graph):
        return  # JAX leaves out loops of no steps, of which the Graph still speaks.
    with shmap_passes.make_context():
        module = ir.Module.parse(lowered.as_text("body"))
        form = shmap_passes.read_body_form(module)
        varying = infer(form, module)
        results = terminator(form.main.entry_block).operands
        for value, by_graph in zip(results, lowered.graph.replication.outputs, strict=True):
            # JAX lowers what makes an array without elements to a constant.
            if 0 not in ir.RankedTensorType(value.type).shape:
                assert set(varying.of(value)) == by_graph
