"""Soundness of replication inference: random programs, with every value they compute looked at.

The programs are numbered: a short run is part of `make test`, a long one takes more of them and
prints what it saw:

    SHMAP_REPLICATION_PROGRAMS=1000 pytest -s test/replication/test_replication_sound.py

Should XLA end the process, the last program is in `running_program.txt` in the temporary folder.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator

import jax
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun
from jax.sharding import PartitionSpec as P
from programs import Program
from programs.generate import draw_program

from shmap_compiler import HangError, shard_map
from shmap_compiler.base.jax_compat import is_ref, replace_jaxpr
from shmap_compiler.tracing.trace import trace

PROGRAMS = int(os.environ.get("SHMAP_REPLICATION_PROGRAMS", "6"))


def random_programs() -> Iterator[Program]:
    for seed in itertools.count():
        program = draw_program(seed, size=18)
        if runs_on_cpu(program):
            yield program


def runs_on_cpu(program: Program) -> bool:
    """XLA's CPU backend has no collective-broadcast, and XLA no manual region of empty arrays.

    Groups of several sizes are refused.
    """
    return any(0 not in argument.shape for argument in program.arguments) and all(
        op.name != "pbroadcast" and len(set(map(len, op.params.get("axis_index_groups", ())))) < 2
        for op in program.body.walk()
    )


def blocks_of_all_values(program: Program):
    """(graph, its top-level variables, for each the blocks of all devices: [*mesh, *block])."""
    mesh, axes, arrays = program.jax_mesh(), tuple(program.mesh), program.arrays()
    traced = trace(
        program,
        name="program",
        who="program",
        mesh=mesh,
        manual_axes=axes,
        in_specs=program.in_specs,
        out_specs=program.out_specs,
        in_types=[jax.typeof(x) for x in arrays],
    )
    graph = traced.graph
    jaxpr = graph.jaxpr.jaxpr
    variables = [
        v
        for v in dict.fromkeys([*jaxpr.invars, *(v for e in jaxpr.eqns for v in e.outvars)])
        if type(v).__name__ != "DropVar" and not is_ref(v.aval)
    ]
    everything = replace_jaxpr(
        graph.jaxpr, outvars=variables, debug_info=jaxpr.debug_info.with_unknown_names()
    )

    def run(*blocks):
        return [x[None] for x in jaxpr_as_fun(everything)(*blocks)]

    of_all_devices = shard_map(
        run, mesh=mesh, in_specs=graph.in_specs, out_specs=P(axes), check_vma=False
    )
    stacked = of_all_devices(*traced.constants, *arrays)
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


@pytest.mark.slow
def test_random_programs_hold_equal_blocks_where_inference_says_so(announce):
    counts = dict.fromkeys(itertools.product([True, False], repeat=2), 0)
    for program in itertools.islice(random_programs(), PROGRAMS):
        announce(program)
        # The generator judges a loop by its first step, and so draws a few programs that hang.
        with contextlib.suppress(HangError):
            assert not list(violations(program, counts)), f"{program}\n{program!r}"
    print(
        f"\n{counts[False, True]} times a value was called equal along an axis, and was;"
        f" {counts[True, False]} times varying, and was; {counts[True, True]} times varying,"
        " and happened to be equal"
    )
    assert counts[False, True] > 10 * PROGRAMS
    assert counts[True, False] > 5 * PROGRAMS
