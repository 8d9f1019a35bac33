"""Modules that nobody here wrote: what they cost, which collectives could deadlock, and errors."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from run_module import jax_partitioner
from shmap_passes import PassFailure

from shmap_compiler import TargetError, explain, import_module

INPUTS = Path(__file__).parents[1] / "passes" / "import_" / "Inputs"
MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)

COLLECTIVES = {
    "jax_export_round_trip": [("collective-permute", "a", 11, 1)],
    "jax_gspmd_partial": [("all-reduce", "axis_0", 7, 1)],
    "jax_gspmd_positions": [],
    "jax_gspmd_v1": [("collective-permute", "axis_0", 12, 1)],
    "jax_shardy": [("all-gather", "fsdp", 22, 1), ("all-gather", "model", 24, 3)],
    "jax_shardy_partial": [("all-gather", "i", 8, 1), ("reduce-scatter", "i", 9, 1)],
    "mixed_tokens": [("all-gather", "axis_0", 12, 1)],
    "shardy_automatic_region": [("all-gather", "y", 14, 1)],
    "shardy_collectives": [("all-reduce", "y", 12, 1)],
    "shardy_nested": [],
    "shardy_notes": [],
    "shardy_round_trip": [("collective-permute", "a", 12, 1)],
    "tensorflow_unspecified": [("all-reduce", "axis_0", 11, 1)],
    "torch_xla_linear": [("all-reduce", "axis_1", 10, 1)],
    "torch_xla_two_regions": [("all-to-all", "axis_0", 7, 1), ("all-reduce", "axis_0", 14, 1)],
    "tt_mlir_gspmd": [("reduce-scatter", "axis_1", 15, 1), ("all-gather", "axis_1", 20, 1)],
    "tt_mlir_shardy": [("all-reduce", "_axis_1", 8, 1), ("all-reduce", "_axis_0", 13, 1)],
}
"""Per module (kind, axis, line of the module, times)."""

ADDED = {
    "jax_shardy_partial": ["j"],  # what the constraint along an automatic axis needs
    "torch_xla_two_regions": ["axis_0"],  # an array that two regions split differently
}
"""The axes of collectives that the module does not have."""


def imported(stem, **options):
    file = INPUTS / f"{stem}.mlir"
    return import_module(file.read_text(), who=file.name, **options)


def of_producer(explanation, stem):
    """The collectives of the module itself, and the axes of the others.

    XLA 0.10 names what it adds after the operation that reads it, which may be a collective.
    """
    found = [
        (c.kind, "".join(c.axes), int(c.source.removeprefix(f"{stem}.mlir:")), c.count, c.written)
        for c in explanation.collectives
    ]
    own = [each[:4] for each in found if each[4] and each[1] not in ADDED.get(stem, ())]
    if stem == "torch_xla_two_regions":
        own = [each[:4] for each in found if each[4]]
    return own, [each[1] for each in found if each[:4] not in own]


def test_all_inputs_are_here():
    assert {file.stem for file in INPUTS.glob("*.mlir")} == set(COLLECTIVES)


@pytest.mark.parametrize("stem", COLLECTIVES)
def test_the_collectives_of_a_module(stem):
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        module = imported(stem)
        assert module.hangs == ()
        assert of_producer(module.compile().explain(), stem) == (
            COLLECTIVES[stem],
            ADDED.get(stem, []),
        )
        other = {"gspmd": "shardy", "shardy": "gspmd"}[module.partitioner]
        explanation = imported(stem, partitioner=other).compile().explain()
        assert of_producer(explanation, stem) == (COLLECTIVES[stem], ADDED.get(stem, []))


def explained_apart(module):
    return explain(module)


@pytest.mark.subprocess
def test_a_module_is_explained_in_another_process():
    """One with 64-bit numbers, which are off here, and with fewer devices than are here."""
    module = imported("mixed_tokens", axes={"x": 2})
    with pytest.raises(TargetError, match="arrays of int64"):
        module.compile()
    explanation = explained_apart(module)
    assert explanation.target == "cpu:2"
    assert explanation.program == "mixed_tokens.mlir"
    (gather,) = explanation.collectives
    assert (gather.axes, gather.payload_bytes) == (("x",), 32)
    assert [layout.spec for layout in explanation.layouts] == ["P('x')", "P('x')"]


DEADLOCK = """
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[4]<=[4]}"} : (tensor<8xf32>) -> tensor<8xf32>
  %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8xf32>) -> tensor<2xf32>
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%1 init: %z) applies stablehlo.add across dimensions = [0] : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
  %c = stablehlo.compare GT, %s, %z : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %2 = "stablehlo.if"(%c) ({
    %5 = "stablehlo.all_reduce"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %6 = stablehlo.add %l, %r : tensor<f32>
      stablehlo.return %6 : tensor<f32>
    }) : (tensor<2xf32>) -> tensor<2xf32>
    stablehlo.return %5 : tensor<2xf32>
  }, {
    stablehlo.return %1 : tensor<2xf32>
  }) : (tensor<i1>) -> tensor<2xf32>
  %3 = stablehlo.custom_call @Sharding(%2) {mhlo.sharding = "{manual}"} : (tensor<2xf32>) -> tensor<2xf32>
  %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {mhlo.sharding = "{devices=[4]<=[4]}"} : (tensor<2xf32>) -> tensor<8xf32>
  return %4 : tensor<8xf32>
}"""  # noqa: E501


def test_a_collective_that_could_deadlock():
    (hang,) = import_module(DEADLOCK, who="branch.mlir", axes={"x": 4}).hangs
    assert hang.startswith('branch.mlir:9:10: all_reduce over "x" is inside of an if whose')
    assert "branch.mlir:8:8: the if is here" in hang
    assert 'the predicate varies along "x" since argument 0' in hang


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_what_jax_lowers_is_named_by_the_lines_of_the_user(partitioner):
    @jax.jit
    def f(x):
        x = x + 1
        return jax.shard_map(
            lambda b: lax.psum(b, "j"), mesh=MESH, in_specs=P("i", "j"), out_specs=P("i")
        )(x)

    x = jnp.arange(64.0).reshape(8, 8)
    with jax_partitioner(partitioner):
        text = f.lower(x).as_text(debug_info=True)
    module = import_module(text, axes={"i": 4, "j": 2} if partitioner == "gspmd" else None)
    assert module.partitioner == partitioner
    compiled = module.compile()
    (total,) = compiled.explain().collectives
    assert (total.kind, total.axes, total.written) == ("all-reduce", ("j",), True)
    assert re.fullmatch(r".*test_explained_modules\.py:\d+", total.source)
    np.testing.assert_array_equal(compiled(x)[0], f(x))
    np.testing.assert_array_equal(module.simulate(x).results[0], f(x))


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_collectives_of_constants_in_a_body(partitioner):
    @jax.jit
    def f(x):
        return jax.shard_map(
            lambda b: b * lax.psum(jnp.ones(b.shape), "j"),
            mesh=MESH,
            in_specs=P("i", "j"),
            out_specs=P("i", "j"),
            check_vma=False,
        )(x)

    x = jnp.arange(64.0).reshape(8, 8)
    with jax_partitioner(partitioner):
        text = f.lower(x).as_text()
    module = import_module(text, axes={"i": 4, "j": 2} if partitioner == "gspmd" else None)
    np.testing.assert_array_equal(module.simulate(x).results[0], 2 * x)


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_constants_whose_split_the_module_names(partitioner):
    """XLA would end the process on a hint that stays in the body."""
    rows = NamedSharding(MESH, P("i"))
    factors = np.arange(64.0, dtype=np.float32).reshape(8, 8) % 5

    @jax.jit
    def f(x):
        named = lax.with_sharding_constraint(jnp.asarray(factors), rows)
        specs = {"mesh": MESH, "in_specs": P("i"), "out_specs": P("i")}
        return jax.shard_map(lambda b, c: b * c, axis_names={"i"}, **specs)(x, named)

    x = jnp.arange(64.0).reshape(8, 8)
    with jax_partitioner(partitioner):
        text = f.lower(x).as_text()
    module = import_module(text, axes={"i": 4, "j": 2} if partitioner == "gspmd" else None)
    np.testing.assert_array_equal(module.compile()(x)[0], factors * x)


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_shardings_over_automatic_axes_outside_of_the_body(partitioner):
    rows, columns = NamedSharding(MESH, P("i")), NamedSharding(MESH, P("j"))

    def f(x, y):
        specs = {"mesh": MESH, "in_specs": P("i"), "out_specs": P("i"), "axis_names": {"i"}}
        return jax.shard_map(lambda b: b * lax.axis_index("i"), **specs)(x), y * 2

    x = jnp.arange(64.0).reshape(8, 8)
    with jax_partitioner(partitioner):
        text = jax.jit(f, in_shardings=(rows, columns)).lower(x, x).as_text()
    module = import_module(text, axes={"i": 4, "j": 2} if partitioner == "gspmd" else None)
    for found, expected in zip(module.compile()(x, x), jax.jit(f)(x, x), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_how_the_caller_splits_an_argument_along_automatic_axes():
    """The body form has the manual axes only, and XLA would take the block for a whole row."""
    spec = NamedSharding(MESH, P("i", "j"))
    f = jax.shard_map(
        jnp.sin, mesh=MESH, in_specs=P("i"), out_specs=P("i"), axis_names={"i"}, check_vma=False
    )
    for partitioner in ("gspmd", "shardy"):
        with jax_partitioner(partitioner):
            text = jax.jit(f, in_shardings=spec).lower(jnp.ones((8, 8))).as_text()
        explanation = import_module(text).compile().explain()
        assert explanation.memory.arguments == 2 * 4 * 4, partitioner


@pytest.mark.parametrize(
    ("text", "options", "complaint"),
    [
        ("func.func @main(", {}, r"a.mlir:1:16\n    found:  expected non-function type"),
        (
            "func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }",
            {},
            "found:  no manual region",
        ),
        (
            "func.func @main() { stablehlo.custom_call @SPMDFullToShardShape() : () -> ()\n"
            "stablehlo.custom_call @xla_ffi_python_cpu_callback() : () -> ()\n return }",
            {},
            "a.mlir:2:1\n    found:  a call back into Python, @xla_ffi_python_cpu_callback",
        ),
        ("", {"partitioner": "both"}, "needed: one of 'gspmd', 'shardy', or None"),
    ],
)
def test_what_is_no_module_for_several_devices(text, options, complaint):
    with pytest.raises(TargetError, match=complaint):
        import_module(text, who="a.mlir", **options)


def test_a_mesh_that_is_not_that_of_the_module():
    with pytest.raises(TargetError, match=r"needed: the mesh @mesh \[_axis_0=2, _axis_1=4\]"):
        imported("tt_mlir_shardy", axes={"x": 4, "y": 2})
    with pytest.raises(PassFailure, match="the sharding names 4 devices"):
        imported("torch_xla_linear", axes={"x": 4, "y": 2})
    with pytest.raises(TargetError, match=r"^tt_mlir_shardy.mlir:\n.*\n.* 2\*4 = 8 devices in the"):
        imported("tt_mlir_shardy").compile("cpu:4")


def body(type_, sharding):
    side = f"{type_} {{sdy.sharding = #sdy.sharding<@mesh, {sharding}>}}"
    return f"""
    sdy.mesh @mesh = <["i"=2]>
    func.func public @main(%x: {side}) -> ({side})
        attributes {{sdy.manual_axes = #sdy<manual_axes{{"i"}}>}} {{
      return %x : {type_}
    }}"""


BODY_FORM = """
sdy.mesh @mesh = <["i"=4]>
func.func @main(%x: TYPE {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) attributes {MANUAL} {
  return
}
"""


@pytest.mark.parametrize(
    ("type_", "manual", "complaint"),
    [
        ("tensor<2xf32>", 'sdy.manual_axes = ["i"]', "sdy.manual_axes of @main is"),
        (
            "tensor<4611686018427387904xi8>",
            'sdy.manual_axes = #sdy<manual_axes{"i"}>',
            "dimension 0: 4611686018427387904 per device over 4 devices is",
        ),
    ],
)
def test_body_form_is_verified_first(type_, manual, complaint):
    text = BODY_FORM.replace("TYPE", type_).replace("MANUAL", manual)
    with pytest.raises(PassFailure, match=complaint):
        import_module(text)


def test_an_entry_that_only_the_import_names():
    text = (INPUTS / "jax_export_round_trip.mlir").read_text()
    assert text.count("@main(") == 1
    module = import_module(text.replace("@main(", "@xla.sdy.LocalToGlobalShape("))
    assert module.signature.in_types == import_module(text).signature.in_types


def test_permutations_of_other_devices_are_no_hangs():
    cases = (INPUTS.parent / "import_custom_calls.mlir").read_text().split("// -----")
    (text,) = [each for each in cases if "module @regions_inside_stay_as_they_are" in each]
    module = import_module(text.replace("dense<[[0, 1]]>", "dense<[[0, 2147483647]]>"))
    assert module.hangs == ()


def test_arrays_that_jax_does_not_have():
    with pytest.raises(TargetError, match=r"argument 0\n.*summands along i"):
        import_module(body("tensor<2xf32>", '[{}], unreduced={"i"}'))
    with pytest.raises(TargetError, match="element type f4E2M1FN") as caught:
        import_module(body("tensor<2xf4E2M1FN>", '[{"i"}]'))
    assert [problem.where for problem in caught.value.problems] == ["argument 0", "result 0"]
