"""Arrays in the memory of the host, and values that a body moves there and back.

On CPU devices both memories hold the same numbers, so modules for GPUs and TPUs are read as well:
what JAX lowers of a `jax.shard_map` says how often values move.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import needs_gpu_compiler, needs_tpu_compiler
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import (
    PARTITIONERS,
    BodyError,
    TargetError,
    explain,
    import_module,
    load,
    shard_map,
)

Space = jax.memory.Space
MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
X = np.linspace(-1, 1, 128, dtype=np.float32).reshape(16, 8)

partitioners = pytest.mark.parametrize("partitioner", PARTITIONERS)


def placed(x, kind=None):
    return jax.device_put(x, NamedSharding(MESH, P("i"), memory_kind=kind))


def kinds(results):
    return [x.sharding.memory_kind for x in jax.tree.leaves(results)]


def mapped(body, shard_map=shard_map, **options):
    specs = {"in_specs": P("i"), "out_specs": P("i")} | options
    return shard_map(body, mesh=MESH, **specs)


def double_on_host(x):
    return jax.device_put(x * 2, Space.Host)


def double_of_host(x):
    return jax.device_put(x, Space.Device) * 2


def twice_there_and_back(x):
    return double_of_host(double_on_host(x))


def beside(x):
    return x + 1, double_on_host(x)


MOVING = {
    "to the host": (double_on_host, None),
    "from the host": (double_of_host, "pinned_host"),
    "there and back": (twice_there_and_back, None),
    "one of two": (beside, None),
    "stays on the host": (lambda x: x, "pinned_host"),
    "reduced on the host": (lambda x: (x - lax.pmean(x, "i"), x + lax.pmax(x, "i")), "pinned_host"),
    "in a loop on the host": (
        lambda x: lax.scan(lambda c, _: (c + lax.psum(c, "i"), None), x, None, length=2)[0],
        "pinned_host",
    ),
    "in a branch": (lambda x: lax.cond(x[0, 0] > 0, twice_there_and_back, jnp.sin, x), None),
    "in a loop": (lambda x: lax.fori_loop(0, 3, lambda _, y: twice_there_and_back(y), x), None),
}
moving = pytest.mark.parametrize(("body", "kind"), MOVING.values(), ids=list(MOVING))


@moving
def test_results_are_in_the_memory_where_jax_has_them(body, kind):
    x = placed(X, kind)
    ours, theirs = (jax.jit(mapped(body, each))(x) for each in (shard_map, jax.shard_map))
    assert kinds(ours) == kinds(theirs)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@moving
@partitioners
def test_compiled_loaded_and_portable_programs_place_them_there(body, kind, partitioner, tmp_path):
    x = placed(X, kind)
    expected = jax.jit(mapped(body, jax.shard_map))(x)
    lowered = mapped(body).lower(x, partitioner=partitioner)
    compiled = lowered.compile()
    compiled.save(tmp_path / "compiled.bin")
    lowered.save(tmp_path / "portable.bin", "cpu")
    portable = load(tmp_path / "portable.bin").compile("local")
    for program in (compiled, load(tmp_path / "compiled.bin"), portable):
        assert [s.memory_kind for s in program.input_shardings] == [x.sharding.memory_kind]
        for argument in (x, X):
            results = program(argument)
            assert kinds(results) == kinds(expected)
            jax.tree.map(np.testing.assert_array_equal, results, expected)


@partitioners
def test_a_type_says_that_an_argument_is_on_the_host(partitioner):
    x = placed(X, "pinned_host")
    type_ = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=x.sharding)
    compiled = mapped(double_of_host).lower(type_, partitioner=partitioner).compile()
    assert compiled.input_shardings == [x.sharding]
    np.testing.assert_array_equal(compiled(x), 2 * X)


def moves(lowered):
    """How often values move to each memory, and the memories of arguments and results."""
    text = lowered.as_text()
    return (
        sorted(re.findall(r'_xla_buffer_placement = "(\w+)"', text)),
        re.findall(r'mhlo.memory_kind = "(\w+)"', text),
    )


def lowered_for(platform, fun, *args):
    return jax.jit(fun).trace(*args).lower(lowering_platforms=(platform,))


@moving
@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_values_move_as_often_as_in_jax(body, kind, platform):
    x = placed(X, kind)
    ours, theirs = (
        moves(lowered_for(platform, mapped(body, each), x)) for each in (shard_map, jax.shard_map)
    )
    assert ours == theirs
    assert sum(map(len, ours))


@pytest.mark.parametrize("inner", [shard_map, jax.shard_map], ids=["ours", "jax"])
def test_a_nested_program_moves_values(inner):
    on_j = {"in_specs": P("j"), "out_specs": P("j"), "axis_names": {"j"}}
    nested = inner(twice_there_and_back, **on_j)
    outer = mapped(lambda x: nested(x) + x, axis_names=frozenset("i"))
    placements, _ = moves(lowered_for("tpu", outer, X))
    assert placements == ["device", "pinned_host"]


LAYERS = 16


def offloading(offloaded, saved=()):
    """Layers of which a gradient needs these values."""
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=saved,
        names_which_can_be_offloaded=offloaded,
        offload_src="device",
        offload_dst="pinned_host",
    )

    def body(x, w):
        @functools.partial(jax.checkpoint, policy=policy)
        def layer(x, _):
            x = checkpoint_name(x, "given")
            return jnp.tanh(jnp.tanh(x @ w) @ w), None

        return lax.scan(layer, x, None, length=LAYERS)[0]

    return body


def gradient_of(layers):
    return jax.grad(lambda x, w: jnp.sum(layers(x, w).astype(jnp.float32) ** 2))


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_a_checkpoint_policy_offloads_what_a_gradient_needs(platform):
    w = np.eye(8, dtype=np.float32)
    ours, theirs = (
        moves(
            lowered_for(
                platform,
                gradient_of(mapped(offloading(["given"]), each, in_specs=(P("i"), P()))),
                X,
                w,
            )
        )
        for each in (shard_map, jax.shard_map)
    )
    assert ours == theirs == (["device", "pinned_host"], ours[1])


def test_nothing_moves_where_a_policy_offloads_nothing():
    layers = mapped(offloading([], ["given"]), in_specs=(P("i"), P()))
    assert moves(lowered_for("tpu", gradient_of(layers), X, np.eye(8, dtype=np.float32))) == (
        [],
        [],
    )


@needs_tpu_compiler
@partitioners
def test_an_offloaded_value_takes_no_memory_of_a_tpu(partitioner):
    x, w = (jax.ShapeDtypeStruct((n, 2048), "bfloat16") for n in (16384, 2048))
    saved_bytes = LAYERS * x.size // MESH.shape["i"] * x.dtype.itemsize

    def temporaries(**names):
        program = mapped(gradient_of(offloading(**names)), in_specs=(P("i"), P()))
        lowered = program.lower(x, w, partitioner=partitioner)
        return lowered.compile("tpu:v5e:2x4").explain().memory.temporaries

    kept, offloaded = temporaries(offloaded=[], saved=["given"]), temporaries(offloaded=["given"])
    assert kept - offloaded > saved_bytes / 2


@moving
def test_an_imported_module_places_them_where_it_says(body, kind):
    x = placed(X, kind)
    lowered = jax.jit(mapped(body, jax.shard_map)).lower(x)
    imported = import_module(lowered.as_text()).compile("local")
    results, expected = imported(x), lowered.compile()(x)
    assert kinds(results) == kinds(expected)
    jax.tree.map(np.testing.assert_array_equal, results, [*jax.tree.leaves(expected)])


def test_tokens_of_an_imported_module_have_no_memory():
    imported = import_module("""
      sdy.mesh @mesh = <["i"=4]>
      func.func @main(%t: !stablehlo.token, %x: tensor<8xf32> {mhlo.memory_kind = "pinned_host"})
          -> (!stablehlo.token, tensor<8xf32> {mhlo.memory_kind = "pinned_host"}) {
        %0:2 = sdy.manual_computation(%t, %x)
            in_shardings=[<@mesh, []>, <@mesh, [{"i"}]>]
            out_shardings=[<@mesh, []>, <@mesh, [{"i"}]>] manual_axes={"i"}
            (%inner: !stablehlo.token, %block: tensor<2xf32>) {
          sdy.return %inner, %block : !stablehlo.token, tensor<2xf32>
        } : (!stablehlo.token, tensor<8xf32>) -> (!stablehlo.token, tensor<8xf32>)
        return %0#0, %0#1 : !stablehlo.token, tensor<8xf32>
      }""")
    assert [s.memory_kind for s in imported.compile("local").input_shardings] == ["pinned_host"]


@needs_tpu_compiler
def test_a_jitted_function_is_explained_with_arrays_on_the_host():
    x = jax.ShapeDtypeStruct((1024, 1024), "float32", sharding=placed(X, "pinned_host").sharding)
    there = explain(jax.jit(double_of_host), x, target="tpu:v5e:2x4")
    assert (there.memory.arguments, there.memory.results) == (0, 1024 * 256 * 4)
    back = explain(jax.jit(lambda x: double_on_host(double_of_host(x))), x, target="tpu:v5e:2x4")
    assert (back.memory.arguments, back.memory.results) == (0, 0)
    assert any("2.00 MiB move between" in note for note in back.notes)


@needs_gpu_compiler
def test_without_a_gpu_nothing_is_compiled_that_takes_arrays_on_the_host():
    lowered = mapped(double_of_host).lower(placed(X, "pinned_host"))
    with pytest.raises(TargetError, match=r"args\[0\]\n +found: +an array with memory_kind='pin"):
        lowered.compile("gpu:h100:8")
    results = mapped(double_on_host).lower(X).compile("gpu:h100:8").as_text()
    assert re.search(r"->\w+\[\d+,\d+\]\{1,0:S\(5\)\}", results.splitlines()[0])


def test_values_of_both_memories_are_not_combined():
    def body(x):
        return x + jax.device_put(x, Space.Device)

    with pytest.raises(ValueError, match="memory_space of all inputs passed to `add`"):
        jax.jit(mapped(body))(placed(X, "pinned_host"))


def test_gradients_of_arrays_on_the_host_are_there():
    def gradient(shard_map):
        layer = mapped(double_of_host, shard_map)
        return jax.jit(jax.grad(lambda x: jnp.sum(layer(x) ** 2)))(placed(X, "pinned_host"))

    assert kinds(gradient(shard_map)) == kinds(gradient(jax.shard_map)) == ["pinned_host"]
    np.testing.assert_array_equal(gradient(shard_map), 8 * X)


def test_a_call_outside_of_jit_takes_arrays_on_the_host():
    result = mapped(double_of_host)(placed(X, "pinned_host"))
    assert kinds(result) == ["device"]
    np.testing.assert_array_equal(result, 2 * X)
    assert kinds(mapped(lambda x: x)(placed(X, "pinned_host"))) == ["pinned_host"]
    centered = mapped(lambda x: x - lax.pmean(x, "i"))(placed(X, "pinned_host"))
    np.testing.assert_allclose(centered, X - np.tile(X.reshape(4, 4, 8).mean(0), (4, 1)), rtol=1e-5)


def test_a_call_outside_of_jit_moves_nothing_to_the_host():
    with pytest.raises(BodyError, match=r"device_put at .*test_memory_kinds.py:\d+") as raised:
        mapped(double_on_host)(X)
    (problem,) = raised.value.problems
    assert problem.found == "a value in the memory of the host, in a call outside of jax.jit"
    assert problem.fix == "call jax.jit of the shard_mapped function"
