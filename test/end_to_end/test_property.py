"""Random programs on random meshes: ours equals the NumPy oracle, and equals `jax.shard_map`.

They run inside `jit`, called directly, in both partitioner forms, under chains of one and two
transformations, and beside a mesh axis that is automatic or belongs to an enclosing shard_map. The
oracle has values, derivatives in a direction, and second derivatives; all entries of a gradient are
compared with those of JAX.

A short run is part of `make test`, and one of 1,000 programs is `make test-random`; both take the
same programs every time. A long run takes new programs, as many as it is told in all:

    SHMAP_PROPERTY_EXAMPLES=50000 pytest test/end_to_end/test_property.py

The header of the run tells its seed, and SHMAP_PROPERTY_SEED takes it to run the same once more.
A failure prints the smallest program found, and the call that makes it again. Should XLA end the
process, the program that did it is in `running_program.txt` in pytest's temporary folder.
"""

import itertools
import math
import os
import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import fast_jit
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from programs import Case, Program, cases, programs, runs_in_jax
from programs.compare import check_value
from programs.transformation import Transformation, in_one_direction
from run_module import jax_partitioner

from shmap_compiler import shard_map

EXAMPLES = int(os.environ.get("SHMAP_PROPERTY_EXAMPLES", "200"))
SEED = int(os.environ["SHMAP_PROPERTY_SEED"])

NAMES = ["jit", "grad", "jvp", "vmap", "checkpoint"]
CHAINS = [(name,) for name in NAMES] + list(itertools.product(NAMES, NAMES))

# What is said where `jax.shard_map` hands nothing but arrays without elements to XLA; and where JAX
# differentiates a maximum of integers that a function with a derivative rule of its own has made.
REFUSED_BY_JAX = re.compile(
    "expected at least one operand of .* to be produced by"
    "|Differentiation rule for 'pm(ax|in)' not implemented"
)


def examples(share: float):
    """For a test that runs this share of all programs."""
    chosen = settings(
        max_examples=max(1, round(share * EXAMPLES)),
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    return lambda test: seed(SEED)(chosen(test))


def mapped(shard_map, program: Program, **options):
    specs = {"in_specs": program.in_specs, "out_specs": program.out_specs}
    return shard_map(program, **{"mesh": program.jax_mesh(), **specs, **options})


def compiled(function, arrays):
    return jax.block_until_ready(fast_jit(function)(*arrays))


def compiled_by_jax(function, arrays):
    """The results of a program of `jax.shard_map`; None where that cannot give any."""
    try:
        return compiled(function, arrays)
    except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
        if not REFUSED_BY_JAX.search(str(error)):
            raise
    return None


# --------------------------------------------------------------------------------------- programs


def check(program: Program, results, jit: bool = False) -> None:
    """Compares values, types and shardings with what the oracle and the specs say."""
    expected = program.expected()
    mesh = program.jax_mesh()
    assert isinstance(results, tuple)
    assert len(results) == len(expected)
    for result, value, spec, rounded in zip(
        results, expected, program.out_specs, program.rounded(), strict=True
    ):
        if result.size or not jit:  # a user's jit forgets how an empty array is sharded
            assert result.sharding.is_equivalent_to(NamedSharding(mesh, spec), result.ndim)
        check_value(result, value, rounded)


@pytest.mark.parametrize("batch", ["1", "2", "3", "4"])
@examples(0.03)
@given(data=st.data())
def test_random_program_in_jit_equals_oracle_and_jax(announce, batch, data):
    program = data.draw(programs(batch))
    announce(program)
    arrays = program.arrays()
    check(program, compiled(mapped(shard_map, program), arrays), jit=True)
    if runs_in_jax(program):
        jaxs = compiled_by_jax(mapped(jax.shard_map, program, check_vma=False), arrays)
        if jaxs is not None:
            check(program, jaxs, jit=True)


# A direct call compiles one operation at a time, which takes its time when each is met once.
@examples(0.01)
@given(program=programs("direct"))
def test_random_program_called_directly(announce, program):
    announce(program)
    check(program, mapped(shard_map, program)(*program.arrays()))


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@examples(0.03)
@given(data=st.data())
def test_random_program_in_each_partitioner_form(announce, partitioner, data):
    program = data.draw(programs(partitioner))
    announce(program)
    arrays = program.arrays()
    lowered = mapped(shard_map, program).lower(*arrays, partitioner=partitioner)
    check(program, lowered.compile()(*arrays))


# -------------------------------------------------------------------------------- transformations


def check_items(case: Case, results) -> None:
    """Compares what a transformed program gives with what the oracle says."""
    assert isinstance(results, tuple)
    assert len(results) == len(case.expected)
    if not case.derivatives:
        rounded = case.program.rounded()
        for result, value, is_rounded in zip(results, case.expected, rounded, strict=True):
            check_value(result, value, is_rounded)
        return
    for item, value in zip(results, case.expected, strict=True):
        for part in item if isinstance(item, tuple) else [item]:
            assert part.dtype == (np.float32 if value.dtype == np.float64 else value.dtype)
        if isinstance(item, tuple):
            item = in_one_direction([np.float64(part) for part in item], value.ndim)
        check_close(item, value)


def check_close(result, value) -> None:
    """A derivative may have more digits than a float32."""
    assert result.shape == value.shape
    size = np.max(np.abs(value), initial=1)
    np.testing.assert_allclose(np.float64(result), np.float64(value), rtol=0, atol=1e-5 * size)


def results_and_jaxs(case: Case):
    """Those of ours and of `jax.shard_map`; None for the latter where it cannot give any.

    Without the check of varying values: under it, JAX's gradients of branches are wrong where
    devices differ in which one they take.
    """
    ours = case.transformed(mapped(shard_map, case.program))
    if runs_in_jax(case.program, case.names):
        jaxs = case.transformed(mapped(jax.shard_map, case.program, check_vma=False))
        both = compiled_by_jax(lambda *arrays: (ours(*arrays), jaxs(*arrays)), case.arrays())
        if both is not None:
            return both
    return compiled(ours, case.arrays()), None


@pytest.mark.parametrize("chain", CHAINS, ids="-".join)
@examples(0.025)
@given(data=st.data())
def test_transformed_random_program_equals_oracle_and_jax(announce, chain, data):
    case = data.draw(cases(chain))
    announce(case)
    ours, jaxs = results_and_jaxs(case)
    check_items(case, ours)
    if jaxs is not None:
        for result, value in zip(jax.tree.leaves(ours), jax.tree.leaves(jaxs), strict=True):
            assert result.dtype == value.dtype
            check_close(result, value)


@pytest.mark.parametrize("first", NAMES)
@examples(0.012)
@given(data=st.data())
def test_transformed_random_program_called_directly(announce, first, data):
    chains = [chain for chain in CHAINS if chain[0] == first]
    case = data.draw(st.sampled_from(chains).flatmap(partial(cases, batch="direct")))
    announce(case)
    check_items(case, case.transformed(mapped(shard_map, case.program))(*case.arrays()))


# ----------------------------------------------------------------------------- beside another axis


def automatic(case: Case, mesh: Mesh):
    manual = set(case.program.mesh)
    return case.transformed(mapped(shard_map, case.program, mesh=mesh, axis_names=manual))


def nested(case: Case, mesh: Mesh):
    inner = region_inside(case.program)
    return case.transformed(region_outside(lambda *args: inner(*args), mesh, P()))


def transformed_inside(case: Case, mesh: Mesh):
    return region_outside(case.transformed(region_inside(case.program)), mesh, P())


def transformed_inside_of_each(case: Case, mesh: Mesh):
    """Devices along the other axis have arguments of their own, as under vmap, the last of all."""
    function = replace(case, chain=case.chain[:-1]).transformed(region_inside(case.program))

    def of_first(*stacked):
        results = function(*[xs[0] for xs in stacked])
        return jax.tree.map(lambda x: jnp.expand_dims(x, 0), results)

    return region_outside(of_first, mesh, P("other"))


def region_inside(program: Program):
    return mapped(shard_map, program, mesh=None, axis_names=set(program.mesh))


def region_outside(function, mesh: Mesh, spec: P):
    return shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, axis_names={"other"})


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize(
    "surround", [automatic, nested, transformed_inside, transformed_inside_of_each]
)
@examples(0.01)
@given(data=st.data())
def test_transformed_random_program_beside_another_axis(announce, partitioner, surround, data):
    def draw(chain):
        return cases(chain, batch=surround.__name__)

    if surround is transformed_inside_of_each:
        found = st.sampled_from(CHAINS).flatmap(lambda chain: draw((*chain, "vmap")))
        found = found.map(with_stacked_arguments).filter(Case.fits).filter(permutes_on_all_devices)
    else:
        found = st.sampled_from(CHAINS).flatmap(draw)
    case = data.draw(found.filter(lambda case: math.prod(case.program.mesh.values()) <= 4))
    announce(case)
    axes = {"other": 2, **case.program.mesh}
    if data.draw(st.booleans(), label="the other axis is the last"):
        axes = {**case.program.mesh, "other": 2}
    devices = np.array(jax.devices()[: math.prod(axes.values())]).reshape(tuple(axes.values()))
    with jax_partitioner(partitioner):
        check_items(case, compiled(surround(case, Mesh(devices, tuple(axes))), case.arrays()))


def permutes_on_all_devices(case: Case) -> bool:
    """Whether the devices along another axis permute together, whatever their arguments are.

    XLA's permutes wait for all devices. Branches and the number of steps depend on arguments.
    """
    controls = [op for op in case.program.body.walk() if op.name in ("switch", "while_loop")]
    inside = [op.name for control in controls for body in control.bodies for op in body.walk()]
    return not {"ppermute", "pshuffle"} & {*inside}


def with_stacked_arguments(case: Case) -> Case:
    """The same under a vmap, the last of the chain, along the first dimension of all arguments."""
    every = Transformation("vmap", (0,) * len(case.program.arguments))
    return replace(case, chain=(*case.chain[:-1], every))
