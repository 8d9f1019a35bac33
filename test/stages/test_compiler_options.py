"""Options of the compiler: the user's, which have to be known, and those of a target."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import needs_tpu_compiler
from jax.sharding import PartitionSpec as P

from shmap_compiler import Target, TargetError, compiler_options, shard_map
from shmap_compiler.lowering.compiler_options import CompilerOptions, compile_with
from shmap_compiler.stages.option_errors import refused_option
from shmap_compiler.stages.subprocess_compiler import compile_in_subprocess
from shmap_compiler.targets.tpu import GENERATIONS

MESH = jax.make_mesh((8,), ("i",))
X = np.arange(16, dtype=np.float32)
KNOWN = {"xla_backend_optimization_level": 0}


def body(block):
    return jnp.sin(block)


MAPPED = shard_map(body, mesh=MESH, in_specs=P("i"), out_specs=P("i"))


def refused(where, found, needed):
    return pytest.raises(
        TargetError, match="(?s)`body`.*" + ".*".join(map(re.escape, (where, found, needed)))
    )


@pytest.mark.parametrize("target", [None, "cpu:8"])
def test_options_reach_the_compiler(target):
    lowered = MAPPED.lower(X)
    executable = lowered.compile(target, compiler_options=KNOWN)
    np.testing.assert_allclose(executable(X), np.sin(X), rtol=1e-6)
    assert executable.target == (target and Target.parse(target))
    # Programs with options of their own are not those that are kept.
    assert lowered.compile() is lowered.compile() is not executable


@pytest.mark.parametrize("target", [None, "cpu:8", "local"])
@pytest.mark.parametrize(
    ("options", "where", "found", "needed"),
    [
        ({"bogus": 1}, "compiler_options['bogus']", "does not know", "an option of XLA"),
        (
            {"xla_cpu_enable_fast_math": "maybe"},
            "compiler_options['xla_cpu_enable_fast_math']",
            "'maybe'",
            "a value that the compiler takes",
        ),
        (
            {"optimization_level": "O9"},
            "compiler_options['optimization_level']",
            "'O9'",
            "a value that the compiler takes",
        ),
        ({3: 4}, "compiler_options[3]", "4, an int", "a name, and a string"),
        (["a"], "compiler_options", "['a'], a list", "a dict of options by name"),
    ],
)
def test_options_are_refused(target, options, where, found, needed):
    with refused(where, found, needed):
        MAPPED.lower(X).compile(target, compiler_options=options)


def test_options_of_a_portable_program():
    portable = MAPPED.lower(X).portable("cpu")
    executable = portable.compile("cpu:8", compiler_options=KNOWN)
    np.testing.assert_allclose(executable(X), np.sin(X), rtol=1e-6)
    with refused("compiler_options['bogus']", "does not know", "an option"):
        portable.compile("cpu:8", compiler_options={"bogus": 1})


def test_unknown_options_of_a_target_are_left_out():
    lowered = jax.jit(jnp.sin).lower(1.0)
    with pytest.warns(UserWarning, match="does not know the option 'gone' of the target"):
        compiled = compile_with(lowered, CompilerOptions(KNOWN, {"gone": "true"}))
    assert compiled(0.0) == 0


def test_options_of_the_user_win():
    """A value of the target that is wrong would be refused."""
    options = CompilerOptions(KNOWN, dict.fromkeys(KNOWN, "no number"))
    compile_with(jax.jit(jnp.sin).lower(1.0), options)


def test_errors_about_something_else():
    assert refused_option("INTERNAL: failed", KNOWN) is None
    assert refused_option("No such compile option: 'another'", KNOWN) is None


def test_the_optimization_level_is_set_while_a_program_compiles():
    before = jax.config.jax_optimization_level
    MAPPED.lower(X).compile(compiler_options={"optimization_level": "O1"})
    assert jax.config.jax_optimization_level == before


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("tpu:v5e:2x4", "xla_tpu_force_async_all_to_all"),
        ("tpu:v5e:2x4", "xla_tpu_enable_deduplicated_calls"),
        ("tpu:v6e:2x4", "xla_tpu_enable_deduplicated_calls"),
        ("tpu:v6e:2x4", "xla_tpu_enable_sparse_core_collective_offload_all_gather"),
        ("tpu:v5p:2x2x2", "xla_tpu_enable_all_experimental_scheduler_features"),
        ("tpu:v5p:2x2x2", "xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter"),
        ("tpu:tpu7x:2x2x1", "xla_tpu_enable_async_all_to_all"),
    ],
)
def test_options_of_targets(target, name):
    assert compiler_options(target)[name] == compiler_options(Target.parse(target))[name] == "true"


@pytest.mark.parametrize("target", ["tpu:v6e:2x4", "tpu:v5p:2x2x2"])
def test_large_sums_are_not_combined_where_they_run_beside_products(target):
    assert compiler_options(target)["xla_jf_crs_combiner_threshold_in_bytes"] == str(2**20)


def test_options_of_gpus():
    assert Target.parse("gpu:h100:8").compiler_options == {"optimization_level": "O1"}


def test_options_of_local_devices(monkeypatch):
    local = Target.parse("local")
    assert compiler_options() == local.compiler_options == {}
    monkeypatch.setattr(type(local), "chip", GENERATIONS["v6e"].chip)
    assert local.compiler_options == GENERATIONS["v6e"].compiler_options
    monkeypatch.setattr(type(local), "platform", "cuda")
    assert local.compiler_options == Target.parse("gpu:h100:8").compiler_options


@needs_tpu_compiler
@pytest.mark.parametrize("target", ["tpu:v5e:2x4", "tpu:v5p:2x2x2"])
def test_the_compiler_takes_the_options_of_its_target(target):
    """No warning; but one of an option that it does not know."""
    portable, target = MAPPED.lower(X).portable("tpu"), Target.parse(target)
    options = CompilerOptions({}, {**target.compiler_options, "gone": "true"})
    with pytest.warns(UserWarning, match="does not know the option 'gone'") as warned:
        compile_in_subprocess(portable, target, lambda _: None, options)
    assert len(warned) == 1


@needs_tpu_compiler
def test_options_are_refused_by_a_compiler_elsewhere():
    with refused("compiler_options['bogus']", "does not know", "an option of XLA"):
        MAPPED.lower(X).compile("tpu:v5e:2x4", compiler_options={"bogus": 1})
