"""Soundness of replication inference: random programs, with every value they compute looked at.

A short run is part of `make test`. A long run takes other programs each time, and prints counts:

    SHMAP_REPLICATION_EXAMPLES=1500 pytest -s test/test_replication_sound.py

Should XLA end the process, the last program is in `running_program.txt` in the temporary folder.
"""

import os

import numpy as np
from hypothesis import HealthCheck, given, note, settings
from jax.extend.core import jaxpr_as_fun
from jax.sharding import PartitionSpec as P
from programs import Program, programs

from shmap_compiler import shard_map
from shmap_compiler._compat import is_ref, replace_jaxpr

EXAMPLES = int(os.environ.get("SHMAP_REPLICATION_EXAMPLES", "15"))


def blocks_of_all_values(program: Program):
    """(graph, its top-level variables, for each the blocks of all devices: [*mesh, *block])."""
    options = {"mesh": program.jax_mesh(), "in_specs": program.in_specs}
    graph = shard_map(program, out_specs=program.out_specs, **options).trace(*program.arrays())
    jaxpr = graph.jaxpr.jaxpr
    variables = [
        v
        for v in dict.fromkeys([*jaxpr.invars, *(v for e in jaxpr.eqns for v in e.outvars)])
        if type(v).__name__ != "DropVar" and not is_ref(v.aval)
    ]
    everything = replace_jaxpr(
        graph.jaxpr, outvars=variables, debug_info=jaxpr.debug_info.with_unknown_names()
    )
    axes = tuple(program.mesh)

    def run(*blocks):
        return [x[None] for x in jaxpr_as_fun(everything)(*blocks)]

    constants = len(graph.in_specs) - len(program.arguments)
    assert constants == 0, "the generator makes its constants inside"
    stacked = shard_map(run, out_specs=P(axes), check_vma=False, **options)(*program.arrays())
    sizes = tuple(program.mesh.values())
    return graph, variables, [np.asarray(x).reshape(*sizes, *x.shape[1:]) for x in stacked]


def bits(x):
    return np.ascontiguousarray(x).view(np.uint8)


def violations(program: Program, counts):
    """Values called equal along an axis along which their blocks differ."""
    graph, variables, stacked = blocks_of_all_values(program)
    for var, blocks in zip(variables, stacked, strict=True):
        claimed = graph.replication.of(var)
        for d, (axis, size) in enumerate(program.mesh.items()):
            if size == 1:
                continue
            equal = np.array_equal(
                bits(blocks), bits(np.broadcast_to(blocks.take([0], axis=d), blocks.shape))
            )
            counts[axis in claimed, equal] += 1
            if axis not in claimed and not equal:
                yield f"{var} : {var.aval} is called equal along {axis!r} in\n{graph}"


def runs_on_cpu(program: Program) -> bool:
    """XLA's CPU backend has no collective-broadcast, and no groups of different sizes."""
    return all(
        op.name != "pbroadcast" and len(set(map(len, op.params.get("axis_index_groups", ())))) < 2
        for op in program.body.walk()
    )


def test_random_programs_hold_equal_blocks_where_inference_says_so(tmp_path):
    counts = dict.fromkeys([(False, True), (False, False), (True, True), (True, False)], 0)

    @settings(
        max_examples=EXAMPLES,
        derandomize="SHMAP_REPLICATION_EXAMPLES" not in os.environ,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(program=programs().filter(runs_on_cpu))
    def run(program):
        note(str(program))
        (tmp_path / "running_program.txt").write_text(f"{program}\n\n{program!r}\n")
        assert not list(violations(program, counts))

    run()
    print(
        f"\n{counts[False, True]} times a value was called equal along an axis, and was;"
        f" {counts[True, False]} times varying, and was; {counts[True, True]} times varying,"
        " and happened to be equal"
    )
    assert counts[False, True] > EXAMPLES
    assert counts[True, False] > EXAMPLES
