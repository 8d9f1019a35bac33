"""Modules of `jax.shard_map`, imported and exported for the other partitioner, run as before."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shmap_passes
from body_module import P
from golden.modules import folder
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export, lax
from jax.sharding import AxisType, NamedSharding
from run_module import jax_partitioner, passed, run_in_child
from shmap_passes import PASSES, parse_pipeline
from shmap_passes.import_.hlo_sharding import HloSharding, read_hlo_sharding
from shmap_passes.ir.mesh import Mesh
from shmap_passes.ir.sharding_text import full_sharding
from test_executed import PROGRAMS

from shmap_compiler import ShmapError, TargetTypeError, import_module, simulate_module

IMPORTERS = {"shardy": "import-manual-computation", "gspmd": "import-custom-calls"}
BOTH = [("shardy", "gspmd"), ("gspmd", "shardy")]
CHOSEN = (
    "axis index of axes out of order",
    "axis index with automatic axes",
    "all_gather over axes out of order",
    "all_to_all with automatic axes",
    "collective_permute with automatic axes",
    "transposed tilings",
    "an automatic axis of size one",
)


def lowered(function, args, partitioner):
    """What JAX hands to XLA for one of its partitioners."""
    with jax_partitioner(partitioner):
        return jax.jit(function).lower(*args).as_text()


def imported(text, partitioner):
    importer = f"builtin.module(shmap-{IMPORTERS[partitioner]})"
    return passed(text, parse_pipeline(importer, PASSES))


def exporting(partitioner):
    # XLA looks up names of axes in the first mesh of a module before jaxlib 0.12, and here that is
    # the mesh of the enclosing jit.
    return shmap_passes.pipeline(partitioner, "ids")


@pytest.mark.subprocess
@pytest.mark.parametrize(("source", "target"), BOTH)
@pytest.mark.parametrize("name", CHOSEN)
def test_a_program_of_jax_is_converted_to_the_form_of_the_other_partitioner(name, source, target):
    program = PROGRAMS[name]
    x = program.full_input()
    body = imported(lowered(program.mapped(), [x], source), source)
    text = passed(body, exporting(target))
    (result,) = run_in_child(text, (x,), program.sizes, target)
    np.testing.assert_array_equal(result, program.expected())


def _program_with_regions_in_a_loop():
    mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    over = functools.partial(jax.shard_map, mesh=mesh, check_vma=False)

    @over(in_specs=(P("i", "j"), P("j", None)), out_specs=P("i", None))
    def product(x, w):
        return lax.psum(x @ w, "j") + lax.axis_index("i")

    @over(in_specs=P("i", None), out_specs=P("i", "j"))
    def own_columns(x):
        return lax.dynamic_slice_in_dim(x, 4 * lax.axis_index("j"), 4, axis=1)

    @over(in_specs=P("i", "j"), out_specs=P())
    def total(x):
        return lax.psum(jnp.sum(x), ("i", "j"))

    def program(x, w):
        def step(x, _):
            return own_columns(jnp.sin(product(2 * x, w)) + 1), None

        x, _ = lax.scan(step, x, length=3)
        return jnp.sqrt(total(x) ** 2) * jnp.ones((2,))

    return program


@pytest.mark.subprocess
@pytest.mark.parametrize(("source", "target"), BOTH)
def test_regions_in_a_loop_and_what_is_around_them(source, target):
    program = _program_with_regions_in_a_loop()
    x = np.arange(64, dtype=np.float32).reshape(8, 8) % 7
    w = np.arange(64, dtype=np.float32).reshape(8, 8) % 5
    body = imported(lowered(program, [x, w], source), source)
    assert "SPMD" not in body
    assert "manual_computation" not in body
    text = passed(body, exporting(target))
    (result,) = run_in_child(text, (x, w), {"i": 4, "j": 2}, target)
    np.testing.assert_allclose(result, jax.jit(program)(x, w), rtol=1e-6)


@st.composite
def split_arrays(draw):
    """A mesh, axes that split two dimensions, and axes that are unreduced."""
    shapes = [(2, 2, 2), (4, 2, 1), (2, 3, 4), (8, 1, 1), (3, 2, 2)]
    mesh = Mesh("mesh", tuple(zip("abc", draw(st.sampled_from(shapes)), strict=True)))
    several = [name for name, size in mesh.axes if size > 1]
    taken = draw(st.permutations(several))[: draw(st.integers(0, len(several)))]
    one = draw(st.integers(0, len(taken)))
    two = draw(st.integers(one, len(taken)))
    return mesh, (tuple(taken[:one]), tuple(taken[one:two])), tuple(taken[two:])


def kept_bodies():
    """The body forms of examples that are kept whole in test/golden."""
    for file in sorted(folder().glob("*.mlir")):
        for text in file.read_text().split("// ----- ")[1:]:
            name, _, module = text.partition("\n")
            if ".body" in name:
                yield pytest.param(
                    passed(module, parse_pipeline("builtin.module()", PASSES)), id=name
                )


def with_listed_devices(text):
    """A module whose shardings list device ids, as older versions of XLA write them."""

    def listed(found):
        sizes = [int(size) for size in found[2].split(",")]
        order = [int(k) for k in found[3].split(",")] if found[3] else range(len(sizes))
        ids = np.arange(np.prod(sizes)).reshape(sizes).transpose(tuple(order))
        return f"devices=[{found[1]}]{','.join(map(str, ids.ravel()))}"

    return re.sub(r"devices=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", listed, text)


@pytest.mark.parametrize("body", list(kept_bodies()))
def test_what_is_exported_is_imported_again(body):
    """In both forms, and with shardings of both kinds."""
    axes = re.findall(r'"([^"]+)"=(\d+)', re.findall(r"sdy\.mesh @mesh = <\[(.*?)\]>", body)[0])
    mesh = ",".join(f"{name}={size}" for name, size in axes)
    importers = {"shardy": "", "gspmd": f"{{mesh={mesh}}}"}
    for partitioner, options in importers.items():
        wrap = f"shmap-wrap-manual{{partitioner={partitioner}}}"
        export = f"builtin.module(shmap-legalize-collectives{{groups=ids}},{wrap})"
        text = passed(body, parse_pipeline(export, PASSES))
        back = parse_pipeline(f"builtin.module(shmap-{IMPORTERS[partitioner]}{options})", PASSES)
        assert passed(text, back) == body
        if partitioner == "gspmd":
            older = with_listed_devices(text)
            assert "<=" not in older
            assert passed(older, back) == body


@pytest.mark.parametrize("summed", ["i", "j"])
def test_collectives_of_shardy(summed):
    """A move of full arrays changes none of them, and a sum over manual axes sums blocks."""
    text = f"""
    module {{
      sdy.mesh @mesh = <["i"=4, "j"=2]>
      func.func @step(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {{
        %y = sdy.all_slice [{{"i"}}, {{}}] %x out_sharding=<@mesh, [{{"i"}}, {{}}]>
            : tensor<8x4xf32>
        %0 = sdy.manual_computation(%y) in_shardings=[<@mesh, [{{"i"}}, {{"j"}}]>]
            out_shardings=[<@mesh, [{{"i"}}, {{"j"}}]>] manual_axes={{"i", "j"}}
            (%b: tensor<2x2xf32>) {{
          %1 = sdy.all_reduce {{"{summed}"}} %b out_sharding=<@mesh, [{{}}, {{}}]> : tensor<2x2xf32>
          sdy.return %1 : tensor<2x2xf32>
        }} : (tensor<8x4xf32>) -> tensor<8x4xf32>
        return %0 : tensor<8x4xf32>
      }}
    }}"""
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    dimension = 0 if summed == "i" else 2
    blocks = x.reshape(4, 2, 2, 2)
    expected = np.broadcast_to(blocks.sum(dimension, keepdims=True), blocks.shape).reshape(8, 4)
    for partitioner in IMPORTERS:
        exported = passed(imported(text, "shardy"), exporting(partitioner))
        np.testing.assert_array_equal(simulate_module(exported, [x]).results[0], expected)


@settings(max_examples=100, deadline=None)
@given(split_arrays())
def test_what_is_written_for_gspmd_is_read_again(case):
    mesh, dims, unreduced = case
    sharding = read_hlo_sharding(full_sharding(mesh, dims, (), unreduced))
    assert isinstance(sharding, HloSharding)
    placement = sharding.placement(2, mesh)
    assert placement is not None
    assert placement.dims == dims
    assert set(placement.unreduced.axes) >= set(unreduced)
    assert mesh.product(placement.unreduced.axes) == mesh.product(unreduced)


def _resharding(mesh, before, after):
    """A module whose first region gives an array split in one way to one that takes another."""

    def sharding(dims):
        each = ("{" + ", ".join(f'"{axis}"' for axis in axes) + "}" for axes in dims)
        return f"[<@mesh, [{', '.join(each)}]>]"

    def region(name, of, dims):
        block = "x".join(str(48 // mesh.product(axes)) for axes in dims)
        every = ", ".join(f'"{axis}"' for axis in mesh.names)
        return (
            f"{name} = sdy.manual_computation({of}) in_shardings={sharding(dims)}"
            f" out_shardings={sharding(dims)} manual_axes={{{every}}} (%b: tensor<{block}xf32>) {{"
            f"\n sdy.return %b : tensor<{block}xf32>\n"
            "} : (tensor<48x48xf32>) -> tensor<48x48xf32>"
        )

    axes = ", ".join(f'"{axis}"={size}' for axis, size in mesh.axes)
    return f"""
    sdy.mesh @mesh = <[{axes}]>
    func.func public @main(%x: tensor<48x48xf32>) -> tensor<48x48xf32> {{
      {region("%0", "%x", before)}
      {region("%1", "%0", after)}
      return %1 : tensor<48x48xf32>
    }}"""


@settings(max_examples=40, deadline=None)
@given(split_arrays(), st.data())
def test_an_array_that_two_regions_split_differently(case, data):
    mesh, before, _ = case
    taken = data.draw(st.permutations(mesh.names))
    one, two = sorted(data.draw(st.tuples(*[st.integers(0, 3)] * 2)))
    after = (tuple(taken[:one]), tuple(taken[one:two]))
    body = imported(_resharding(mesh, before, after), "shardy")
    x = np.arange(48 * 48, dtype=np.float32).reshape(48, 48)
    (result,) = simulate_module(body, [x]).results
    np.testing.assert_array_equal(result, x)


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        ((("i",), ()), ((), ("i",)), ["all_to_all"]),
        ((("i", "j"), ()), (("i",), ("j",)), ["all_to_all"]),
        ((("i", "j"), ()), (("i",), ()), ["all_gather"]),
        ((("i",), ()), (("i",), ("j",)), []),
        ((("i",), ()), (("j",), ()), ["all_gather"]),
        ((("i",), ("j",)), ((), ()), ["all_gather", "all_gather"]),
    ],
)
def test_how_the_block_of_another_split_is_made(before, after, moved):
    mesh = Mesh("mesh", (("i", 2), ("j", 4)))
    body = imported(_resharding(mesh, before, after), "shardy")
    assert re.findall(r"stablehlo\.(all_\w+)", body) == moved


@pytest.mark.subprocess
@pytest.mark.parametrize(("source", "target"), BOTH)
def test_regions_of_jax_that_split_an_array_differently(source, target):
    mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    over = functools.partial(jax.shard_map, mesh=mesh, check_vma=False)
    rows = over(lambda x: x * lax.axis_index("i"), in_specs=P("i", "j"), out_specs=P("i", "j"))
    columns = over(lambda x: lax.psum(x, "j"), in_specs=P("j", "i"), out_specs=P(None, "i"))

    def program(x):
        y = rows(x)
        return columns(y + x) @ jnp.cumsum(y, axis=0).T

    x = np.arange(64, dtype=np.float32).reshape(8, 8) % 7
    text = passed(imported(lowered(program, [x], source), source), exporting(target))
    (result,) = run_in_child(text, (x,), {"i": 4, "j": 2}, target)
    np.testing.assert_array_equal(result, jax.jit(program)(x))


def test_what_is_computed_from_replicated_parameters_is_followed_once():
    """Each value is used twice: following all ways back to the parameter would never end."""
    steps = "".join(
        f"%c{k} = stablehlo.concatenate %s{k}, %s{k}, dim = 0"
        " : (tensor<4xf32>, tensor<4xf32>) -> tensor<8xf32>\n"
        f"%s{k + 1} = stablehlo.slice %c{k} [2:6] : (tensor<8xf32>) -> tensor<4xf32>\n"
        for k in range(60)
    )
    body = imported(
        f"""
        func.func @main(%x: tensor<8xf32>, %s0: tensor<4xf32> {{mhlo.sharding = "{{replicated}}"}})
            -> tensor<8xf32> {{
          {steps}
          %0 = stablehlo.custom_call @Sharding(%x) {{mhlo.sharding = "{{devices=[2]0,1}}"}}
              : (tensor<8xf32>) -> tensor<8xf32>
          %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {{mhlo.sharding = "{{manual}}"}}
              : (tensor<8xf32>) -> tensor<4xf32>
          %2 = stablehlo.add %1, %s60 : tensor<4xf32>
          %3 = stablehlo.custom_call @Sharding(%2) {{mhlo.sharding = "{{manual}}"}}
              : (tensor<4xf32>) -> tensor<4xf32>
          %4 = stablehlo.custom_call @SPMDShardToFullShape(%3)
              {{mhlo.sharding = "{{devices=[2]0,1}}"}} : (tensor<4xf32>) -> tensor<8xf32>
          return %4 : tensor<8xf32>
        }}""",
        "gspmd",
    )
    x, s = np.arange(8, dtype=np.float32), np.arange(4, dtype=np.float32)
    (result,) = simulate_module(body, [x, s]).results
    np.testing.assert_array_equal(result, x + np.tile(s, 2))


@pytest.mark.parametrize("mesh", ["i", "i=0", "i=4,i=2", "i=4,", "i=4;j=2", "i=1048577"])
def test_a_mesh_that_cannot_be_read(mesh):
    with pytest.raises(shmap_passes.PipelineError, match="is not a list of axes, as in mesh=i=4"):
        parse_pipeline(f"builtin.module(shmap-import-custom-calls{{mesh={mesh}}})", PASSES)


def test_modules_are_read_from_bytecode_and_portable_artifacts():
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
    total = jax.shard_map(lambda x: lax.psum(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
    x = jax.device_put(np.arange(8, dtype=np.float32), NamedSharding(mesh, P("i")))
    artifact = export.export(jax.jit(total))(x).mlir_module_serialized
    with shmap_passes.make_context() as context:
        bytecode = shmap_passes.bytecode(shmap_passes.parse(artifact, context).operation)
    for module in (artifact, bytecode):
        np.testing.assert_array_equal(import_module(module).simulate(x).results[0], [28])
        np.testing.assert_array_equal(simulate_module(module, [x]).results[0], [28])


@pytest.mark.parametrize("read", [import_module, lambda m: simulate_module(m, [])])
def test_an_artifact_that_is_damaged_is_not_a_module(read):
    artifact = export.export(jax.jit(jnp.sin))(1.0).mlir_module_serialized
    with pytest.raises(ShmapError, match="a portable artifact that cannot be read"):
        read(artifact[:100])


def test_what_is_no_module_is_named():
    with pytest.raises(TargetTypeError, match="found:  a NoneType"):
        import_module(None)
