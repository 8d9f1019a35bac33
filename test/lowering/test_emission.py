"""The body form: the module emitted for a Graph, before any pass."""

import contextlib
import itertools
import re

import jax
import jax.numpy as jnp
import pytest
import shmap_passes
from jax import export, lax
from jax.experimental import io_callback
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from shmap_passes.ir import boundary

from shmap_compiler import shard_map
from shmap_compiler.base.jax_compat import groups_among_other_meshes

X = jax.ShapeDtypeStruct((8, 16), jnp.float32)


def mesh_of(**axes):
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


MESH = mesh_of(i=4, j=2)


def emitted(fun, *args, in_specs=None, out_specs=None, mesh=MESH, **options):
    in_specs = P("i", "j") if in_specs is None else in_specs
    out_specs = P("i", "j") if out_specs is None else out_specs
    mapped = shard_map(fun, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)
    return mapped.lower(*(args or (X,))).as_text("body")


def main_line(text):
    (line,) = [line for line in text.splitlines() if "func.func public @main" in line]
    return line


def group(*axes):
    refs = ", ".join(f'#stablehlo.axis_ref<name = "{axis}">' for axis in axes)
    return f"replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [{refs}]>"


def sharding(*dims):
    listed = ", ".join("{" + ", ".join(f'"{axis}"' for axis in axes) + "}" for axes in dims)
    return f"{{sdy.sharding = #sdy.sharding<@mesh, [{listed}]>}}"


# --------------------------------------------------------------------------------- the whole module


def test_module_of_a_matrix_product():
    """All of it, so that a change of the form is seen."""

    def matmul(a, b):
        return lax.psum(a @ b, "j")

    b = jax.ShapeDtypeStruct((16, 32), jnp.float32)
    text = emitted(matmul, X, b, in_specs=(P("i", "j"), P("j", None)), out_specs=P("i"))
    reduction = """({
    ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
      %2 = stablehlo.add %arg2, %arg3 : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<2x32xf32>) -> tensor<2x32xf32>"""
    assert text.strip() == (
        "module @matmul {\n"
        '  sdy.mesh @mesh = <["i"=4, "j"=2]>\n'
        "  func.func public @main("
        f"%arg0: tensor<2x8xf32> {sharding('i', 'j')}, "
        f"%arg1: tensor<8x32xf32> {sharding('j', '')}) -> "
        f"(tensor<2x32xf32> {sharding('i', '')}) "
        'attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {\n'
        "    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], "
        "precision = [DEFAULT, DEFAULT] : "
        "(tensor<2x8xf32>, tensor<8x32xf32>) -> tensor<2x32xf32>\n"
        f'    %1 = "stablehlo.all_reduce"(%0) <{{{group("j")}}}> {reduction}\n'
        "    return %1 : tensor<2x32xf32>\n"
        "  }\n"
        "}"
    )


def test_size_does_not_depend_on_the_number_of_devices():
    def body(x):
        y = lax.psum_scatter(lax.all_gather(x, ("i", "j"), tiled=True), "i", tiled=True)
        return lax.all_to_all(y, "j", 0, 1, tiled=True) + lax.axis_index("i")

    def lines(i, j):
        x = jax.ShapeDtypeStruct((4 * i, 64 * j), jnp.float32)
        return len(emitted(body, x, mesh=mesh_of(i=i, j=j)).splitlines())

    assert lines(2, 2) == lines(4, 2) == lines(64, 32)


def test_only_words_of_stablehlo_and_shardy():
    """Everything a Graph can hold is said in the dialects of the field; see `axis_index` below."""

    def body(x):
        y = lax.fori_loop(0, 3, lambda n, c: lax.psum(jnp.sin(c), "i") * n, x)
        z = lax.cond(lax.psum(y, ("i", "j")).sum() > 0, jnp.cos, lambda c: lax.pmax(c, "i"), y)
        return jax.jit(lambda c: lax.ppermute(c, "j", [(0, 1)]))(z) + lax.axis_index("j")

    with shmap_passes.make_context():
        module = ir.Module.parse(emitted(body))
        found = set()
        module.operation.walk(
            lambda op: (found.add(op.name.split(".")[0]), ir.WalkResult.ADVANCE)[1]
        )
    assert found == {"builtin", "sdy", "func", "stablehlo"}


# -------------------------------------------------------------------------------------- the entry


@pytest.mark.parametrize(
    ("spec", "dims"),
    [
        (P(), ("", "")),
        (P("i"), ("i", "")),
        (P(None, "j"), ("", "j")),
        (P(("j", "i")), (("j", "i"), "")),
        (P("j", "i"), ("j", "i")),
    ],
    ids=str,
)
def test_specs_become_shardings_of_the_entry(spec, dims):
    line = main_line(emitted(lambda x: x, in_specs=spec, out_specs=spec))
    assert line.count(sharding(*dims)) == 2


def test_scalars_and_random_keys_carry_shardings_of_their_own_rank():
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 8))
    scalar = jax.ShapeDtypeStruct((), jnp.int32)
    text = emitted(
        lambda k, n: (k, n), keys, scalar, in_specs=(P("i"), P()), out_specs=(P("i"), P())
    )
    line = main_line(text)
    assert line.count(f"tensor<2x2xui32> {sharding('i', '')}") == 2
    assert line.count(f"tensor<i32> {sharding()}") == 2


def test_values_closed_over_come_first():
    w = jnp.ones((8, 3))
    line = main_line(emitted(lambda x: x @ w))
    assert f"%arg0: tensor<8x3xf32> {sharding('', '')}, %arg1: tensor<2x8xf32>" in line


def test_axes_left_automatic_are_not_manual():
    text = emitted(lambda x: lax.psum(x, "i"), in_specs=P("i"), out_specs=P(), axis_names={"i"})
    line = main_line(text)
    assert 'sdy.manual_axes = #sdy<manual_axes{"i"}>' in line
    assert "tensor<2x16xf32>" in line
    assert "shmap.outer_manual_axes" not in line


def test_axes_manual_outside_are_told_apart():
    bodies = []

    def outer(x):
        inner = shard_map(
            lambda y: lax.psum(y, "j"),
            mesh=MESH,
            in_specs=P(None, "j"),
            out_specs=P(),
            axis_names={"j"},
        )
        bodies.append(inner.lower(x).as_text("body"))
        return x

    emitted(outer, in_specs=P("i"), out_specs=P("i"), axis_names={"i"})
    line = main_line(bodies[0])
    assert 'sdy.manual_axes = #sdy<manual_axes{"j"}>' in line
    assert 'shmap.outer_manual_axes = ["i"]' in line


def test_tokens_of_ordered_effects_come_first():
    def body(x):
        io_callback(lambda v: None, None, x, ordered=True)
        return x + 1

    mesh = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Auto,))
    line = main_line(emitted(body, in_specs=P("i"), out_specs=P("i"), mesh=mesh))
    assert re.search(r"@main\(%arg0: !stablehlo\.token, %arg1: tensor<8x16xf32> \{sdy", line)
    assert "-> (!stablehlo.token, tensor<8x16xf32> {sdy" in line


# ------------------------------------------------------------------------------------- collectives

COLLECTIVES = {
    "psum": (
        lambda x: lax.psum(x, "j"),
        f'"stablehlo.all_reduce"(%arg0) <{{{group("j")}}}> ({{',
    ),
    "psum of several axes, in the order of the call": (
        lambda x: lax.psum(x, ("j", "i")),
        f'"stablehlo.all_reduce"(%arg0) <{{{group("j", "i")}}}> ({{',
    ),
    "psum in groups, by device ids": (
        lambda x: lax.psum(x, "i", axis_index_groups=[[0, 3], [1, 2]]),
        '"stablehlo.all_reduce"(%arg0) <{replica_groups = '
        "dense<[[0, 6], [1, 7], [2, 4], [3, 5]]> : tensor<4x2xi64>}> ({",
    ),
    "all_gather": (
        lambda x: lax.all_gather(x, ("i", "j"), axis=1, tiled=True),
        f'"stablehlo.all_gather"(%arg0) <{{all_gather_dim = 1 : i64, {group("i", "j")}}}> : '
        "(tensor<2x8xf32>) -> tensor<2x64xf32>",
    ),
    "psum_scatter": (
        lambda x: lax.psum_scatter(x, "i", scatter_dimension=1, tiled=True),
        f'"stablehlo.reduce_scatter"(%arg0) <{{{group("i")}, scatter_dimension = 1 : i64}}> ({{',
    ),
    "all_to_all": (
        lambda x: lax.all_to_all(x, "i", 1, 0, tiled=True),
        f'"stablehlo.all_to_all"(%arg0) <{{concat_dimension = 0 : i64, {group("i")}, '
        "split_count = 4 : i64, split_dimension = 1 : i64}> : "
        "(tensor<2x8xf32>) -> tensor<8x2xf32>",
    ),
    "ppermute, by device ids": (
        lambda x: lax.ppermute(x, "i", [(0, 1), (3, 0)]),
        '"stablehlo.collective_permute"(%arg0) <{source_target_pairs = '
        "dense<[[0, 2], [6, 0], [1, 3], [7, 1]]> : tensor<4x2xi64>}>",
    ),
    "pbroadcast for XLA's CPU backend, which lacks it": (
        lambda x: lax.pbroadcast(x, "i", 2),
        "stablehlo.bitcast_convert %arg0",
    ),
    "axis_index": (
        lambda x: x + lax.axis_index("j"),
        "stablehlo.custom_call @shmap.axis_index() "
        '{api_version = 4 : i32, backend_config = {axes = ["j"]}} : () -> tensor<i32>',
    ),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collective(name):
    use, line = COLLECTIVES[name]
    text = emitted(lambda x: use(x).reshape(-1), out_specs=P(("i", "j")))
    assert line in text
    assert "channel_handle" not in text
    assert "use_global_device_ids" not in text


@pytest.mark.parametrize(
    ("source", "groups"),
    [(0, 'name = "i"'), (2, "dense<[[4, 0, 2, 6], [5, 1, 3, 7]]> : tensor<2x4xi64>")],
    ids=["from the first", "from another, which StableHLO puts first"],
)
def test_pbroadcast_for_other_backends(source, groups):
    f = shard_map(
        lambda x: lax.pbroadcast(x, "i", source),
        mesh=MESH,
        in_specs=P("i", "j"),
        out_specs=P(None, "j"),
    )
    x = jax.ShapeDtypeStruct((8, 16), "float32")
    text = jax.jit(f).trace(x).lower(lowering_platforms=("tpu",)).as_text()
    line = next(line for line in text.splitlines() if "collective_broadcast" in line)
    if groups_among_other_meshes() == "ids":
        groups = groups.replace('name = "i"', "dense<[[0, 2, 4, 6], [1, 3, 5, 7]]>")
    assert groups in line


REDUCTIONS = {"add": lax.psum, "maximum": lax.pmax, "minimum": lax.pmin}
DTYPES = ["float32", "bfloat16", "int32"]


@pytest.mark.parametrize(
    ("combine", "dtype"),
    [*itertools.product(REDUCTIONS, DTYPES), ("add", "complex64")],  # these have no order
)
def test_reductions_combine_scalars_of_their_type(combine, dtype):
    use = REDUCTIONS[combine]
    x = jax.ShapeDtypeStruct((8, 16), dtype)
    element = {"float32": "f32", "bfloat16": "bf16", "int32": "i32", "complex64": "complex<f32>"}
    text = emitted(lambda x: use(x, "i"), x, out_specs=P(None, "j"))
    assert re.search(rf"stablehlo\.{combine} %\w+, %\w+ : tensor<{element[dtype]}>", text)


# ------------------------------------------------------------------------------------ control flow


def test_nested_programs_keep_their_structure():
    def body(flag, x):
        def step(n, c):
            return lax.cond(flag > n, lambda c: lax.psum(c, "i"), jnp.sin, c)

        return lax.fori_loop(0, 5, step, x)

    flag = jax.ShapeDtypeStruct((), jnp.int32)
    text = emitted(body, flag, X, in_specs=(P(), P("i")), out_specs=P("i"))
    assert text.count("stablehlo.while") == 1
    assert text.count('"stablehlo.case"') == 1
    assert text.count('"stablehlo.all_reduce"') == 1


def test_inner_jit_becomes_a_private_function_once():
    @jax.jit
    def inner(x):
        return lax.psum(x, "j")

    text = emitted(lambda x: inner(inner(x)))
    assert len(re.findall(r"func\.func private", text)) == 1
    assert text.count("call @inner") == 2


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_body_form_passes_the_verifier(partitioner):
    """Emission and `shmap-verify` have one notion of the form."""

    def body(x):
        y = lax.psum(x, ("j", "i"), axis_index_groups=[[0, 1, 2, 3], [4, 5, 6, 7]])
        return lax.ppermute(y, ("i", "j"), [(0, 7), (7, 0)]) + lax.axis_index("i")

    with shmap_passes.make_context():
        module = ir.Module.parse(emitted(body))
        shmap_passes.run(module, shmap_passes.pipeline(partitioner))


def ordered():
    io_callback(lambda: None, None, ordered=True)


KEYS = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 8))

BOUNDARIES = {
    "two axes at a dimension": (lambda x: x, P(("j", "i")), P(None, ("i", "j")), X),
    "a scalar": (lambda x: x, P(), P(), jax.ShapeDtypeStruct((), jnp.int8)),
    "random keys": (lambda x: x, P("i"), P("i"), KEYS),
    "no elements": (lambda x: x, P("i"), P("i"), jax.ShapeDtypeStruct((8, 0), jnp.float32)),
    "tokens": (lambda x: ordered() or x, P("i"), P("i"), X),
    "no result": (lambda x: ordered() or (), P("i"), (), X),
}


@pytest.mark.parametrize("sizes", ["no sizes", "sizes"])
@pytest.mark.parametrize("name", BOUNDARIES)
def test_the_passes_get_the_boundary_that_they_would_read(name, sizes, monkeypatch):
    """Emission knows it, so they do not read it from the attributes of @main."""
    fun, in_specs, out_specs, *args = BOUNDARIES[name]
    left, remember = [], boundary.remember

    def compare(function, args, result):
        left.append(function.__wrapped__(*args) == result)
        monkeypatch.setattr(boundary, "_read", None)
        remember(function, args, result)

    monkeypatch.setattr(boundary, "remember", compare)
    mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    f = shard_map(fun, mesh=mesh, in_specs=in_specs, out_specs=out_specs)
    if sizes == "no sizes":
        jax.jit(f).lower(*args)
    else:
        symbolic = jax.ShapeDtypeStruct(export.symbolic_shape("n"), jnp.float32)
        with contextlib.suppress(NotImplementedError):  # of callbacks, after lowering
            export.export(jax.jit(lambda n, *args: (n, f(*args))))(symbolic, *args)
    assert left == [True]
