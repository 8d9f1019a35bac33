"""The stages of an xmap: the original's Lower* tests, and compilation for targets.

Ours are `Lowered` and `Executable` as of `shard_map`. What the original's have besides, such as
`compiler_ir` and `cost_analysis` before compilation, JAX's own stages have, which they hold.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import needs_gpu_compiler, needs_tpu_compiler
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from named_programs import LINE, SQUARE

import shmap_compiler
from shmap_compiler import CompiledForTarget, ShmapError, TargetError, named, xmap

X = np.arange(16, dtype=np.float32).reshape(8, 2)
MAPPED = xmap(lambda x: x + 4, ["i", ...], ["i", ...])
SPLIT = xmap(lambda x: x + 4, ["i", ...], ["i", ...], axis_resources={"i": "x"}, mesh=LINE)
everywhere = pytest.mark.parametrize("f", [MAPPED, SPLIT], ids=["on one device", "on eight"])


@everywhere
def test_abstract_arguments(f):  # testLowerWithAbstractArgs
    lowered = f.lower(jax.ShapeDtypeStruct((8, 2), jnp.float32))
    assert lowered.as_text() == f.lower(X).as_text()


@everywhere
def test_compile(f):  # testLowerCompile
    np.testing.assert_array_equal(f.lower(X).compile()(X), f(X))


@everywhere
def test_arguments_of_another_structure(f):  # testLowerCompileInTreeMismatch
    with pytest.raises(TargetError, match=r"args\[0\]\[0\]") as raised:
        f.lower(X).compile()([X])
    assert isinstance(raised.value, ValueError)
    assert str(raised.value).startswith("xmap of `<lambda>` (")


@everywhere
def test_arguments_of_another_type(f):  # testLowerCompileArgTypeMismatch
    with pytest.raises(TargetError, match=r"args\[0\](?s:.*)i32\[8,2\](?s:.*)f32\[8,2\]"):
        f.lower(X).compile()(X.astype(np.int32))


@everywhere
def test_text_of_each_stage(f):  # testLowerAsText, testLowerCompileAsText
    lowered = f.lower(X)
    assert "{i:8}" in lowered.as_text("named")
    assert "graph" in lowered.as_text("graph")
    assert "sdy.manual_axes" in lowered.as_text("body")
    assert "stablehlo.add" in lowered.as_text() == lowered.as_text("stablehlo")
    assert "ENTRY" in lowered.as_text("hlo") == lowered.compile().as_text()
    with pytest.raises(TargetError, match="one of 'graph', 'body', 'stablehlo', 'hlo'"):
        lowered.as_text("mhlo")


@everywhere
def test_jax_stages(f):  # testLowerCompilerIR, testLowerCostAnalysis, testLowerCompileCompilerIR
    lowered = f.lower(X)
    assert "stablehlo.add" in str(lowered.jax_lowered.compiler_ir("stablehlo"))
    assert "flops" in lowered.jax_lowered.cost_analysis()
    compiled = lowered.compile()
    assert compiled.jax_compiled.runtime_executable() is not None
    assert "ENTRY" in compiled.jax_compiled.as_text()


@pytest.mark.parametrize("count", [1, 8])
def test_partitions(count):  # testLowerPartitionsAttribute
    f = MAPPED if count == 1 else SPLIT
    text = f.lower(X).as_text()
    assert f"mhlo.num_partitions = {count}" in text
    assert "mhlo.num_replicas = 1" in text


@everywhere
def test_analyses(f):  # testLowerCompileCostAnalysis, MemoryAnalysis, Executable
    compiled = f.lower(X).compile()
    parts = 1 if f is MAPPED else 8
    assert compiled.cost_analysis()["flops"] == 16 / parts
    figures = compiled.memory_analysis()
    assert figures.argument_size_in_bytes == figures.output_size_in_bytes == 64 / parts
    assert compiled.explain().collectives == ()


# ------------------------------------------------------------------- options, and other devices


def layer(x, w):
    """A gather that the product waits for."""
    return lax.all_gather(x, "i", tiled=True) @ w


def gathered(mesh, rows=8):
    f = xmap(layer, ({0: "i"}, [...]), [...], axis_resources={"i": "x"}, mesh=mesh)
    return f, jax.ShapeDtypeStruct((8, rows, 16), jnp.bfloat16)


def test_overlap():
    """As for shard_map: by the argument, by the context, and when it is compiled."""
    f, x = gathered(LINE)
    w = jax.ShapeDtypeStruct((16, 16), jnp.bfloat16)
    plain = f.lower(x, w)
    assert plain.overlap.mode == "off"
    assert "all_gather" in plain.as_text()
    forced = f.lower(x, w, overlap="force")
    assert "collective_permute" in forced.as_text()
    assert "all_gather" not in forced.as_text()
    with shmap_compiler.overlap("force"):
        assert f.lower(x, w).as_text() == forced.as_text()
    assert "collective-permute" in plain.compile(overlap="force").as_text()
    assert forced.overlap_report().choices[0].pattern == "gather-product"
    assert f.lower(x, w, overlap_rounding=True).overlap.rounding
    with pytest.raises(ShmapError, match="one of 'off', 'auto', 'measure', 'force'"):
        f.lower(x, w, overlap="on")


def network(mesh):
    """A tensor-parallel product: the sum over the hidden axis is the one collective."""
    f = xmap(
        lambda x, w: named.pdot(x, w, "hidden"),
        (["batch", "hidden"], ["hidden", "out"]),
        ["batch", "out"],
        axis_resources={"batch": "x", "hidden": "y"},
        mesh=mesh,
    )
    return f.lower(
        jax.ShapeDtypeStruct((512, 256), jnp.bfloat16),
        jax.ShapeDtypeStruct((256, 128), jnp.bfloat16),
    )


ABSTRACT = AbstractMesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


@needs_tpu_compiler
@pytest.mark.parametrize("target", ["tpu:v5e:2x4", "tpu:v6e:2x4"])
def test_for_tpus(target):
    """The program of each device is that of a shard_map; see test/targets/test_targets.py."""
    compiled = network(ABSTRACT).compile(target)
    assert isinstance(compiled, CompiledForTarget)
    hlo = compiled.as_text()
    assert "num_partitions=8" in hlo
    assert "test_xmap_lower.py" in hlo  # the lines are the user's
    assert [(c.kind, c.axes) for c in compiled.explain().collectives] == [("all-reduce", ("y",))]
    assert compiled.cost_analysis()["flops"] >= 2 * 128**3
    figures = compiled.memory_analysis()
    assert figures.argument_size_in_bytes == 2 * (128 * 128 + 128 * 128)
    assert figures.output_size_in_bytes == 2 * 128 * 128


@needs_gpu_compiler
def test_for_gpus():
    compiled = network(SQUARE).compile("gpu:h100:8")
    assert [(c.kind, c.axes) for c in compiled.explain().collectives] == [("all-reduce", ("y",))]
    assert "num_partitions=8" in compiled.as_text()


def test_targets_that_do_not_fit():
    with pytest.raises(TargetError, match="8 devices"):
        network(ABSTRACT).compile("cpu:4")
    with pytest.raises(TargetError, match=r"^xmap of `<lambda>`"):
        network(ABSTRACT).compile()


def scaled(x, factor):
    return x * factor


def test_the_name_of_a_function_without_a_name():
    f = xmap(functools.partial(scaled, factor=2), ["i", ...], ["i", ...])
    assert f.__name__ == f.__qualname__ == "scaled"
    assert "module @jit_scaled " in jax.jit(f).lower(X).as_text()
