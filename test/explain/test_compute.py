"""What a device does itself, by line and named scope; whose collectives; the trace."""

import pytest
from schedules.programs import PROGRAMS
from shmap_passes.cost.chips import TPU_V5E
from test_schedules import STORED, explained, name, stored

from shmap_compiler.explain.compute import compute_costs, named_scope


@pytest.mark.parametrize(
    ("operation", "scope"),
    [
        ("jit(f)/shard_map/dot_general", ""),
        ("jit(step)/jvp(Model)/layers_0/while/body/dot_general", "Model/layers_0"),
        ("jit(step)/transpose(jvp(Model))/mlp/dot_general", "Model/mlp"),
        ("jit(f)/jit(main)/vmap(attention)/reduce_sum", "attention"),
        ("jit(f)/attention/custom_jvp_call/gelu/mul", "attention/gelu"),
        ("jit(f)/transpose(jvp(jit(row)))/shard_map/vmap(vmap(row))/mul", "row"),
        ("", ""),
    ],
)
def test_named_scopes(operation, scope):
    assert named_scope(operation) == scope


@pytest.mark.parametrize("path", STORED, ids=name)
def test_costs_of_lines_add_up(path):
    run = explained(path)
    costs = compute_costs(run.works, TPU_V5E)
    assert sum(c.seconds for c in costs) == pytest.approx(run.computing)
    assert sum(c.flops for c in costs) == run.flops
    assert [c.seconds for c in costs] == sorted((c.seconds for c in costs), reverse=True)
    # All collectives of these programs are the users', but for rows brought into place.
    added = {o.collective.kind for o in run.occurrences if not o.collective.written}
    assert added <= {"collective-permute"}


def test_products_come_from_the_line_that_says_so():
    source = PROGRAMS["two_layers_gradient"].body.__code__.co_filename
    run = stored("tpu:v5e:2x4", "two_layers_gradient")
    costs = compute_costs(run.works, TPU_V5E)
    top = costs[0]
    file, line = top.source.rsplit(":", 1)
    assert file.endswith("schedules/programs.py")
    with open(source) as lines:
        assert "@ w1) @ w2" in lines.readlines()[int(line) - 1]
    assert top.bound == "compute"
    assert 0.85 < top.peak_share < 1
    assert top.flops == pytest.approx(PROGRAMS["two_layers_gradient"].flops, rel=0.01)
