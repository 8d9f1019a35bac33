"""JAX's former xmap and ours, on the programs of its own tests: see original/original_programs.py.

`None` in original/results.json stands for a program that the original could not compile.
"""

import builtins
import contextlib
import json
import re
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding

import shmap_compiler
from shmap_compiler import SpecError, UnknownAxisError, named

FOLDER = Path(__file__).parent / "original"
sys.path.insert(0, str(FOLDER))
from manual_programs import MANUAL  # noqa: E402
from original_programs import ERRORS, PROGRAMS, Api  # noqa: E402

ALL = {**PROGRAMS, **MANUAL}
ORIGINAL = json.loads((FOLDER / "results.json").read_text())


def mesh_of(shape, names):
    devices = np.array(jax.devices()[: np.prod(shape)]).reshape(shape)
    return Mesh(devices, names, axis_types=(AxisType.Auto,) * len(names))


def jit(fun, mesh, in_spec, out_spec):
    def sharding(spec):
        return None if spec is None else NamedSharding(mesh, spec)

    return jax.jit(fun, in_shardings=sharding(in_spec), out_shardings=sharding(out_spec))


def constraint(x, mesh, spec):
    return jax.lax.with_sharding_constraint(x, NamedSharding(jax.typeof(x).sharding.mesh, spec))


def api(mesh, xmap=shmap_compiler.xmap):
    functions = (shmap_compiler.SerialLoop, shmap_compiler.serial_loop)
    return Api(xmap, named.lax, *functions, mesh, jit, constraint)


OURS = api(lambda shape, names: shmap_compiler.mesh(mesh_of(shape, names)))


def assert_equal_results(name, found):
    wanted = ORIGINAL["results"][name]
    leaves = [np.asarray(x) for x in jax.tree.leaves(found)]
    if wanted is None:
        return
    assert [list(x.shape) for x in leaves] == [x["shape"] for x in wanted]
    for x, want in zip(leaves, wanted, strict=True):
        np.testing.assert_allclose(x.ravel(), want["values"], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ALL)
def test_the_original_and_ours_compute_the_same(name):
    assert_equal_results(name, ALL[name](OURS))


def test_the_original_computes_nearly_all_of_them():
    failed = {name for name, results in ORIGINAL["results"].items() if results is None}
    assert failed == {"in_jit_and_under_value_and_grad", "pdot_vjp"}
    assert ORIGINAL["results"].keys() == ALL.keys()
    assert None not in ORIGINAL["errors"].values()
    assert ORIGINAL["errors"].keys() == ERRORS.keys()


@pytest.mark.parametrize("name", ["basic", "collective_reduce", "pdot_batching"])
def test_with_the_mesh_of_set_mesh(name):
    results = PROGRAMS[name](api(lambda *mesh: jax.set_mesh(mesh_of(*mesh))))
    assert_equal_results(name, results)


@pytest.mark.parametrize("name", ["basic", "collective_reduce", "pdot_batching"])
def test_with_the_mesh_as_an_argument(name):
    meshes = []

    def xmap(*args, **options):
        return lambda *arrays: shmap_compiler.xmap(*args, mesh=meshes[-1], **options)(*arrays)

    @contextlib.contextmanager
    def mesh(*given):
        meshes.append(mesh_of(*given))
        yield

    assert_equal_results(name, PROGRAMS[name](api(mesh, xmap)))


PHRASES = {
    "repeated_axis_resource": "a tuple of distinct resources",
    "repeated_resource_of_a_value": "'a' and 'b', both mapped to the resource 'x'",
    "resource_conflict_inner": "add at .*'a' and 'b', both mapped to the resource 'x'",
    "resource_conflict_out": "broadcasts along 'b'",
    "undefined_axis_resource": "resource 'y'; in-scope resources are insufficient",
    "inconsistent_axis_sizes": "size 5 of axis 'i'.*size 4, as dimension 0 of args.0.",
    "inconsistent_axis_sizes_given": "size 4 of axis 'i'.*size 3, as axis_sizes",
    "axis_that_does_not_divide": "size 5 of axis 'i', on 'x'.*2 does not divide 5",
    "in_axes_rank": "rank 2.*at least 6 dimensions, which in_axes={5: 'i'} implies",
    "out_axes_rank": "rank 1.*at least 5 positional dimensions, which out_axes={5: 'i'} requires",
    "negative_axes": "doesn't support negative axes",
    "negative_out_axes": "doesn't support negative axes",
    "list_axes_rank_assertion": r"rank 2.*rank 1, which in_axes=\['i'\] asserts",
    "list_axes_rank_assertion_of_results": r"rank 2.*rank 1, which out_axes=\['i'\] asserts",
    "extra_mapped_axes_of_a_result": "mapped along more axes than .*: 'i'",
    "undefined_out_axis": "out_axes.*axis 'j', which appears neither in in_axes nor in axis_sizes",
    "undefined_axis_in_resources": "axis_resources.*axis 'j', which appears neither",
    "axes_mismatch": "a tree prefix of the tuple of arguments",
    "axes_mismatch_of_results": "a tree prefix of the result",
    "no_results": "xmapped functions cannot have no return values",
    "empty_argument_trees": "axis 'i'.*no size",
    "loop_collectives": r"psum over 'i' at .*whose chunks SerialLoop\(2\) computes",
    "resource_conflict_of_a_loop": r"both mapped to the resource SerialLoop\(2\)",
    "resource_conflict_nested": "add at .*'a' and 'b', both mapped to the resource 'x'",
    "mesh_changes_inside": "the physical mesh cannot change inside xmap",
    "unbound_name": "axis 'j'.*a named axis: 'i' of size 4",
}
OTHER_TYPES = {
    "axis_that_does_not_divide": "AssertionError",
    "loop_collectives": "RuntimeError",
    "mesh_changes_inside": "RuntimeError",
    "resource_conflict_of_a_loop": "NotImplementedError",
}
"""What the original raised where ours are a ValueError, as for other mistakes in resources."""


@pytest.mark.parametrize("name", ERRORS)
def test_what_the_original_rejects(name):
    """With all five parts, and as an error of the same type."""
    needed = SpecError if name != "unbound_name" else UnknownAxisError
    with pytest.raises(needed, match=re.compile(PHRASES[name], re.DOTALL)) as raised:
        ERRORS[name](OURS)
    kind = ORIGINAL["errors"][name]["type"]
    assert isinstance(raised.value, getattr(builtins, kind)) == (name not in OTHER_TYPES)
    assert OTHER_TYPES.get(name, kind) == kind
    text = str(raised.value)
    assert re.match(r"xmap of `\w+|xmap of `<lambda>`", text)
    assert "programs.py:" in text
    for problem in raised.value.problems:
        parts = problem.where, problem.found, problem.needed, problem.fix
        assert all(parts)
