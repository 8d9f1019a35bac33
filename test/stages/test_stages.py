"""The stages after tracing: Lowered and Executable."""

import re
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from run_module import jax_partitioner

from shmap_compiler import (
    PARTITIONERS,
    STAGES,
    Executable,
    Lowered,
    SimulationError,
    TargetTypeError,
    load,
    shard_map,
)

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
A = np.arange(8 * 16, dtype=np.float32).reshape(8, 16)
B = np.arange(16 * 4, dtype=np.float32).reshape(16, 4)


def matmul(a, b):
    return lax.psum(a @ b, "j")


MATMUL = shard_map(matmul, mesh=MESH, in_specs=(P("i", "j"), P("j")), out_specs=P("i"))

for_both_partitioners = pytest.mark.parametrize("partitioner", PARTITIONERS)


def lowered(partitioner="gspmd", **options) -> Lowered:
    return MATMUL.lower(A, B, partitioner=partitioner, **options)


def named(spec):
    return NamedSharding(MESH, spec)


# --------------------------------------------------------------------------------------- Lowered


def test_names_of_stages_and_partitioners():
    assert STAGES == ("graph", "body", "stablehlo", "hlo")
    assert PARTITIONERS == ("gspmd", "shardy")


def test_graph_stage_is_the_graph():
    stage = lowered()
    assert stage.as_text("graph") == str(stage.graph) == str(MATMUL.trace(A, B))


@for_both_partitioners
def test_body_stage_is_what_was_emitted(partitioner):
    text = lowered(partitioner).as_text("body")
    assert text == lowered("gspmd").as_text("body")
    assert "func.func public @main(%arg0: tensor<2x8xf32>" in text
    assert "replica_group_mesh_axes" in text


def test_stablehlo_stage_for_gspmd():
    text = lowered("gspmd").as_text("stablehlo")
    assert text == lowered("gspmd").as_text()
    for target, count in {
        "@SPMDFullToShardShape": 2,
        "@SPMDShardToFullShape": 1,
        "@Sharding": 3,
    }.items():
        assert len(re.findall(rf"custom_call {target}\b", text)) == count
    assert "sdy." not in text
    assert "{devices=[4,2]<=[8]}" in text


def test_stablehlo_stage_for_shardy():
    text = lowered("shardy").as_text()
    assert text.count("sdy.manual_computation") == 1
    assert "custom_call @SPMD" not in text


@for_both_partitioners
def test_hlo_stage_is_what_xla_made(partitioner):
    stage = lowered(partitioner)
    text = stage.as_text("hlo")
    assert text == stage.compile().as_text()
    assert text.startswith("HloModule jit_matmul")
    assert "num_partitions=8" in text
    assert len(re.findall(r" all-reduce(?:-start)?\(", text)) == 1


def test_every_pass_is_recorded():
    names = [name for name, _ in lowered().passes]
    assert names[0] == "body"
    assert names[-2:] == ["shmap-wrap-manual", "shmap-inline-meshes"]
    assert len(names) == len(set(names))
    texts = dict(lowered().passes)
    assert texts["shmap-verify"] == texts["body"]
    assert "@SPMDFullToShardShape" in texts["shmap-wrap-manual"]


def test_groups_by_device_ids():
    text = lowered(groups="ids").as_text("stablehlo")
    assert "dense<[[0, 1], [2, 3], [4, 5], [6, 7]]> : tensor<4x2xi64>" in text
    np.testing.assert_array_equal(lowered(groups="ids").compile()(A, B), A @ B)


@pytest.mark.parametrize(("manual", "partitioner"), [("ij", "gspmd"), ("i", "shardy")])
def test_partly_manual_programs_are_lowered_for_shardy(manual, partitioner):
    f = shard_map(
        lambda x: lax.psum(x, "i"),
        mesh=MESH,
        in_specs=P("i"),
        out_specs=P(),
        axis_names={*manual},
    )
    lowered = f.lower(A)
    assert lowered.partitioner == partitioner
    assert lowered.as_text() == f.lower(A, partitioner=partitioner).as_text()
    np.testing.assert_array_equal(lowered.compile()(A), A.reshape(4, 2, 16).sum(0))


def test_lowering_leaves_jaxs_setting_alone():
    before = jax.config.jax_use_shardy_partitioner
    for partitioner in PARTITIONERS:
        lowered(partitioner).compile()
        assert jax.config.jax_use_shardy_partitioner == before


def test_what_the_stages_of_jax_say():
    """Structures, types and costs before and after compilation, as of `jax.stages`."""

    def body(tree):
        return {"sum": lax.psum(tree["a"] @ tree["b"], "j")}

    specs = {"a": P("i", "j"), "b": P("j")}
    ours = shard_map(body, mesh=MESH, in_specs=(specs,), out_specs=P("i")).lower({"a": A, "b": B})
    theirs = jax.jit(
        jax.shard_map(body, mesh=MESH, in_specs=(specs,), out_specs=P("i")),
        in_shardings=(jax.tree.map(named, specs),),
    ).lower({"a": A, "b": B})
    compiled = ours.compile(), theirs.compile()
    for mine, jaxs in ((ours, theirs), compiled):
        assert (mine.in_tree, mine.out_tree) == (jaxs.in_tree, jaxs.out_tree)
        (info,), (wanted,) = jax.tree.leaves(mine.out_info), jax.tree.leaves(jaxs.out_info)
        assert (info.shape, info.dtype, info.sharding) == (
            wanted.shape,
            wanted.dtype,
            named(P("i")),
        )
    assert ours.cost_analysis().keys() == theirs.cost_analysis().keys()
    assert str(ours.compiler_ir()) == ours.as_text()
    assert "HloModule" in ours.compiler_ir("hlo").as_hlo_text()
    assert compiled[0].runtime_executable() is not None


def test_is_a_stage_of_jax_too():
    assert isinstance(lowered().jax_lowered, jax.stages.Lowered)
    assert isinstance(lowered().compile().jax_compiled, jax.stages.Compiled)


# ------------------------------------------------------------------------------------- Executable


@for_both_partitioners
def test_called_on_jax_and_numpy_arrays(partitioner):
    executable = lowered(partitioner).compile()
    assert isinstance(executable, Executable)
    placements = [
        (A, B),
        (jnp.asarray(A), B),
        (jax.device_put(A, named(P("i", "j"))), jax.device_put(B, named(P("j")))),
        (jax.device_put(A, named(P("j", "i"))), jax.device_put(B, named(P()))),
    ]
    for a, b in placements:
        result = executable(a, b)
        np.testing.assert_array_equal(result, A @ B)
        assert isinstance(result, jax.Array)
        assert result.sharding == named(P("i"))


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2"])
def test_elements_of_less_than_a_byte_wherever_they_are(dtype):
    whole = jnp.arange(8).astype(dtype)
    mapped = shard_map(lambda x: x + whole[:2], mesh=MESH, in_specs=P("i"), out_specs=P("i"))
    executable = mapped.lower(whole).compile()
    for given in (whole, np.asarray(whole), jax.device_put(whole, named(P("i")))):
        np.testing.assert_array_equal(executable(given), mapped(whole))


def test_compiled_once():
    stage = lowered()
    assert stage.compile() is stage.compile()


@for_both_partitioners
def test_pytrees(partitioner):
    def layer(params, x, scale):
        y = x @ params["w"] + params["b"]
        return {"y": y * scale, "norm": lax.psum((y * y).sum(), "i")}, (x,)

    specs = {"in_specs": ({"w": P(), "b": P()}, P("i"), None)}
    mapped = shard_map(layer, mesh=MESH, **specs, out_specs=({"y": P("i"), "norm": P()}, (P("i"),)))
    params = {"w": B, "b": np.ones(4, np.float32)}
    executable = mapped.lower(params, A, 2, partitioner=partitioner).compile()
    out, (x,) = executable(params, A, 2)
    assert sorted(out) == ["norm", "y"]
    np.testing.assert_array_equal(out["y"], 2 * (A @ B + 1))
    np.testing.assert_allclose(out["norm"], ((A @ B + 1) ** 2).sum(), rtol=1e-6)
    np.testing.assert_array_equal(x, A)
    assert executable.input_shardings == [named(P()), named(P()), named(P("i"))]
    assert executable.output_shardings == (
        {"y": named(P("i")), "norm": named(P())},
        (named(P("i")),),
    )


@pytest.mark.parametrize("count", [0, 1, 2])
def test_tuples_of_arrays(count):
    mapped = shard_map(lambda *xs: xs, mesh=MESH, in_specs=P("i"), out_specs=P("i"))
    results = mapped.lower(*[A] * count).compile()(*[A] * count)
    assert isinstance(results, tuple)
    assert len(results) == count
    for result in results:
        np.testing.assert_array_equal(result, A)


def test_values_closed_over_are_inside():
    w = jnp.asarray(B)
    mapped = shard_map(lambda a: a @ w, mesh=MESH, in_specs=P("i"), out_specs=P("i"))
    executable = mapped.lower(A).compile()
    assert executable.input_shardings == [named(P("i"))]
    for _ in range(2):
        np.testing.assert_array_equal(executable(A), A @ B)


@jax.tree_util.register_dataclass
@dataclass
class Scaled:
    array: jax.Array
    factor: int = field(default=2, metadata={"static": True})


@pytest.mark.parametrize(
    ("given", "called", "where", "found", "needed"),
    [
        (Scaled(A), Scaled(A, 3), "[0]", "CustomNode(Scaled[(3,)], [*])", "Scaled[(2,)], [*])"),
        (Scaled(A), Scaled(A, 2.0), "[0]", "CustomNode(Scaled[(2.0,)], [*])", "Scaled[(2,)], [*])"),
        ({"w": [A]}, {"w": (A,)}, "[0]['w']", "(*,)", "[*]"),
        ((A, None), (A, ()), "[0][1]", "()", "None"),
        ((A, None), (A,), "[0]", "(*,)", "(*, None)"),
        ({"b": A, "a": ()}, {"b": A, "a": {}}, "[0]['a']", "{}", "()"),
    ],
    ids=["metadata", "type", "container", "empty", "missing", "empty_dict"],
)
def test_refuses_other_structures_with_equal_paths(given, called, where, found, needed):
    mapped = shard_map(
        lambda tree: jax.tree.leaves(tree)[0], mesh=MESH, in_specs=P("i"), out_specs=P("i")
    )
    lowered = mapped.lower(given)
    executable = lowered.compile()
    np.testing.assert_array_equal(executable(given), A)
    with pytest.raises(TargetTypeError, match="for which this executable") as caught:
        executable(called)
    with pytest.raises(SimulationError, match="for which the program was lowered"):
        lowered.simulate(called)
    (problem,) = caught.value.problems
    assert problem.where == f"args{where}"
    assert problem.found == f"the structure {found}"
    assert f"{needed}, for which" in problem.needed


def test_keys_of_dicts_count_by_type():
    mapped = shard_map(
        lambda tree: sum(key * x for key, x in tree.items()),
        mesh=MESH,
        in_specs=P("i"),
        out_specs=P("i"),
    )
    executable = mapped.lower({1: A.astype(int)}).compile()
    with pytest.raises(TargetTypeError, match=r"args\[0\]\[True\]"):
        executable({True: A.astype(int)})
    np.testing.assert_array_equal(executable({1: A.astype(int)}), A)


def test_a_static_nan_is_every_nan():
    mapped = shard_map(
        lambda x, y, z: x if y != y else z,
        mesh=MESH,
        in_specs=(P("i"), None, None),
        out_specs=P("i"),
    )
    lowered = mapped.lower(A, float("nan"), complex("nan+1j"))
    executable = lowered.compile()
    np.testing.assert_array_equal(executable(A, float("nan"), complex("nan+1j")), A)
    lowered.simulate(A, float("nan"), complex("nan+1j"))
    for others in (0.0, complex("nan+1j")), (float("nan"), complex("nan+2j")), (float("nan"), 1.0):
        with pytest.raises(TargetTypeError, match="pass the value given to lower"):
            executable(A, *others)


@pytest.mark.parametrize(
    "zero",
    [
        0.0,
        -0.0,
        0j,
        complex(0.0, -0.0),
        np.float32(0),
        np.complex64(-0.0),
        jnp.bfloat16.dtype.type(0),
    ],
    ids=repr,
)
def test_static_zeros_of_different_signs_differ(zero, tmp_path):
    mapped = shard_map(
        lambda x, y: x / complex(y).real, mesh=MESH, in_specs=(P("i"), None), out_specs=P("i")
    )
    lowered = mapped.lower(A, zero)
    executable = lowered.compile()
    programs = [executable]
    if isinstance(zero, float):
        executable.save(tmp_path / "f")
        programs.append(load(tmp_path / "f"))
    for program in programs:
        np.testing.assert_array_equal(program(A, zero), mapped(A, zero))
        with pytest.raises(TargetTypeError, match="pass the value given to lower"):
            program(A, -zero)
    lowered.simulate(A, zero)
    with pytest.raises(SimulationError, match="the value for which the program was lowered"):
        lowered.simulate(A, -zero)


def test_static_numpy_scalars_are_compared_by_value():
    mapped = shard_map(lambda x, y: x + y, mesh=MESH, in_specs=(P("i"), None), out_specs=P("i"))
    for number in (np.float32(0.1), np.float32("nan"), np.int64(3), np.float16(2)):
        executable = mapped.lower(A, number).compile()
        same = type(number)(number)
        np.testing.assert_array_equal(executable(A, same), mapped(A, same))
        with pytest.raises(TargetTypeError, match="pass the value given to lower"):
            executable(A, type(number)(5))


@pytest.mark.parametrize(
    "make", [lambda: np.ones(4), lambda: jnp.ones(4), lambda: {1}, object, lambda: lambda: 0]
)
def test_static_objects_without_equality_must_be_the_same(make):
    given = make()
    mapped = shard_map(lambda x, _: x, mesh=MESH, in_specs=(P("i"), None), out_specs=P("i"))
    lowered = mapped.lower(A, given)
    executable = lowered.compile()
    np.testing.assert_array_equal(executable(A, given), A)
    with pytest.raises(
        TargetTypeError, match=r"(?s)not the object given to lower.*: the same object"
    ):
        executable(A, make())
    with pytest.raises(TargetTypeError, match=r"found: *'text', a str\n.* was compiled\n"):
        executable(A, "text")
    with pytest.raises(SimulationError, match="the same object for which the program was lowered"):
        lowered.simulate(A, make())


def test_compiled_from_types_only():
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (A, B)]
    np.testing.assert_array_equal(MATMUL.lower(*types).compile()(A, B), A @ B)


def test_python_and_numpy_scalars():
    mapped = shard_map(lambda a, s: a * s, mesh=MESH, in_specs=(P("i"), P()), out_specs=P("i"))
    executable = mapped.lower(A, 2.0).compile()
    np.testing.assert_array_equal(executable(A, 3.0), 3 * A)
    np.testing.assert_array_equal(executable(A, np.float32(3)), 3 * A)


def test_refuses_integers_that_no_type_holds():
    executable = shard_map(lambda s: s, mesh=MESH, in_specs=P(), out_specs=P()).lower(3).compile()
    with pytest.raises(TargetTypeError, match="1099511627776, an int that 32 bits do not hold"):
        executable(2**40)
    with (
        jax.enable_x64(True),
        pytest.raises(TargetTypeError, match="an int that 64 bits do not hold"),
    ):
        executable(2**70)


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "key<fry>"])
def test_result_without_elements(partitioner, dtype):
    empty = jax.random.split(jax.random.key(0), 0) if "key" in dtype else jnp.zeros(0, dtype)
    mapped = shard_map(lambda x: (x, 3), mesh=MESH, in_specs=P("i"), out_specs=(P("i"), P()))
    same, three = mapped.lower(empty, partitioner=partitioner).compile()(empty)
    assert (same.shape, same.dtype) == ((0,), empty.dtype)
    assert same.sharding == named(P("i"))
    assert three == 3
    program = jax.jit(mapped, out_shardings=(named(P("i")), None))
    with jax_partitioner(partitioner):  # XLA's older one could end the process here
        assert program(empty)[0].sharding == named(P("i"))


def test_cost_and_memory_of_one_device():
    executable = lowered().compile()
    # 2x8 @ 8x4 on each device, two operations per multiply-add, and one addition per element of
    # the all-reduce, which XLA may or may not count.
    assert 2 * 2 * 8 * 4 <= executable.cost_analysis()["flops"] <= 2 * 2 * 8 * 4 + 2 * 2 * 4
    memory = executable.memory_analysis()
    assert memory.argument_size_in_bytes == 4 * (2 * 8 + 8 * 4)
    assert memory.output_size_in_bytes == 4 * (2 * 4)


def test_callbacks_still_run_after_the_function_that_lowered_is_gone():
    seen = []

    def compiled():
        def body(x):
            jax.debug.callback(lambda v: seen.append(float(v)), x.sum())
            return x

        return shard_map(body, mesh=MESH, in_specs=P("i"), out_specs=P("i")).lower(A).compile()

    executable = compiled()
    np.testing.assert_array_equal(executable(A), A)
    jax.effects_barrier()
    blocks = A.reshape(4, -1).sum(1)
    assert sorted(seen) == sorted(float(b) for b in blocks for _ in range(2))


def test_a_program_for_a_target_has_no_dead_code_and_all_inputs():
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))

    def gradient(x, unused):
        return jax.grad(lambda x: jnp.square(lax.all_gather(x, "i", tiled=True)).sum())(x)

    mapped = shard_map(gradient, mesh=mesh, in_specs=(P("i"), P()), out_specs=P("i"))
    portable = mapped.lower(jnp.ones(8), jnp.ones(3)).portable("cpu")
    text = portable.lower(mesh).as_text()
    assert "all_gather" in text
    assert "stablehlo.reduce(" not in text  # the loss, which nothing reads
    assert len(portable.signature.in_types) == 2
    np.testing.assert_array_equal(portable.compile("cpu:8")(jnp.ones(8), jnp.ones(3)), 16.0)
