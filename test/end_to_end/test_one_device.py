"""Programs on one device: a CPU, and a GPU where JAX has one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from example_programs import EXAMPLES, MODULES, arguments, assert_equals_reference, reference
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from programs import draw_program
from programs.compare import check_value
from shmap_passes.cost.chips import CHIPS

from shmap_compiler import PARTITIONERS, Target, load, shard_map
from shmap_compiler.stages.subprocess_compiler import compile_in_subprocess
from shmap_compiler.targets.gpu import MODELS


def gpus():
    """The GPUs of JAX, and why there are none."""
    try:
        return jax.devices("gpu"), ""
    except RuntimeError as error:
        return [], f"no GPU: {error}"


GPUS, NO_GPU = gpus()
needs_gpu = pytest.mark.skipif(not GPUS, reason=NO_GPU)

on_each_platform = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("gpu", marks=needs_gpu)], indirect=True
)


@pytest.fixture
def device(request):
    """The device, on which products are as exact as in NumPy."""
    with jax.default_matmul_precision("highest"):
        yield jax.devices(request.param)[0]


def mesh_of(device, axis_names, **options):
    return Mesh(np.array(device).reshape((1,) * len(axis_names)), axis_names, **options)


# What these compute depends on the sizes of the mesh: blocks are shown, or an axis is an expert or
# a stage of the model.
OF_THEIR_MESH = {"design_tour", "mixture_of_experts", "pipeline"}


@on_each_platform
@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize(("file", "name"), [e for e in EXAMPLES if e[0] not in OF_THEIR_MESH])
def test_examples(device, partitioner, file, name):
    example = getattr(MODULES[file], name)
    mesh = mesh_of(device, example.mesh.axis_names, axis_types=example.mesh.axis_types)
    lowered = example.replace(mesh=mesh).lower(*arguments(file, name), partitioner=partitioner)
    results = lowered.compile()(*arguments(file, name))
    assert all(result.devices() == {device} for result in jax.tree.leaves(results))
    assert_equals_reference(results, reference(file, name))


ONE_DEVICE = [(1,), (1, 1), (1, 1, 1)]


def random_program(number):
    return draw_program(f"one device {number}", 1 + number % 12, mesh_sizes=ONE_DEVICE)


def check_random_program(program, device, run):
    mesh = mesh_of(device, tuple(program.mesh))
    specs = {"in_specs": program.in_specs, "out_specs": program.out_specs}
    results = run(shard_map(program, mesh=mesh, **specs), program.arrays())
    for result, value, rounded in zip(results, program.expected(), program.rounded(), strict=True):
        assert result.devices() == {device}
        check_value(result, value, rounded)


@on_each_platform
@pytest.mark.parametrize("number", range(40))
def test_random_programs(device, number):
    check_random_program(
        random_program(number), device, lambda f, arrays: f.lower(*arrays).compile()(*arrays)
    )


@on_each_platform
@pytest.mark.parametrize("number", range(40, 50))
def test_random_programs_called_directly(device, number):
    check_random_program(random_program(number), device, lambda f, arrays: f(*arrays))


def loss(mesh):
    @shard_map(mesh=mesh, in_specs=(P("i"), P(None, "j")), out_specs=P())
    def of(a, b):
        part = jnp.tanh(a @ b).sum()
        return jax.lax.psum(part, ("i", "j"))

    return of


A = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
B = np.linspace(-1, 1, 48, dtype=np.float32).reshape(8, 6)


def reference_loss(a, b):
    return np.tanh(a.astype(np.float64) @ b).sum()


@on_each_platform
def test_gradients(device):
    of = loss(mesh_of(device, ("i", "j")))
    value, gradients = jax.jit(jax.value_and_grad(of, argnums=(0, 1)))(A, B)
    slope = 1 - np.tanh(A @ B) ** 2
    np.testing.assert_allclose(value, reference_loss(A, B), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradients[0], slope @ B.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradients[1], A.T @ slope, rtol=1e-4, atol=1e-5)


@on_each_platform
def test_a_saved_executable_runs(device, tmp_path):
    executable = loss(mesh_of(device, ("i", "j"))).lower(A, B).compile()
    executable.save(tmp_path / "loss.bin")
    loaded = load(tmp_path / "loss.bin")
    assert loaded(A, B).devices() == {device}
    np.testing.assert_array_equal(loaded(A, B), executable(A, B))


@on_each_platform
def test_an_executable_is_explained(device):
    explanation = loss(mesh_of(device, ("i", "j"))).lower(A, B).compile().explain()
    assert explanation.memory.arguments == A.nbytes + B.nbytes
    assert explanation.memory.results == 4
    assert explanation.collectives == ()
    is_known = any(chip.device_kind == device.device_kind for chip in CHIPS)
    assert (explanation.totals.step_seconds is not None) == is_known


@on_each_platform
def test_arrays_on_the_host(device):
    mesh, space = mesh_of(device, ("i",)), jax.memory.Space
    host = NamedSharding(mesh, P("i"), memory_kind="pinned_host")

    @shard_map(mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    def double(x):
        there = jax.device_put(x, space.Device) * 2
        return jax.device_put(there, space.Host), there, x

    x = jax.device_put(A, host)
    for run in (jax.jit(double), double.lower(x).compile(), jax.jit(double).lower(x).compile()):
        results = run(x)
        assert [r.sharding.memory_kind for r in results] == ["pinned_host", "device", "pinned_host"]
        for result, factor in zip(results, (2, 2, 1), strict=True):
            np.testing.assert_array_equal(result, factor * A)


@on_each_platform
def test_a_gradient_of_offloaded_values(device):
    policy = jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host")

    @shard_map(mesh=mesh_of(device, ("i",)), in_specs=(P("i"), P()), out_specs=P("i"))
    def layers(x, w):
        layer = jax.checkpoint(lambda x, _: (jnp.tanh(x @ w), None), policy=policy)
        return jax.lax.scan(layer, x, None, length=4)[0]

    w = 0.3 * np.eye(8, dtype=np.float32)
    gradient = jax.jit(jax.grad(lambda x: layers(x, w).sum()))(A)
    slope, x = np.ones_like(A), A
    for _ in range(4):
        x = np.tanh(0.3 * x)
        slope = slope * 0.3 * (1 - x**2)
    np.testing.assert_allclose(gradient, slope, rtol=1e-4)


@on_each_platform
def test_a_call_without_jit(device):
    of = loss(mesh_of(device, ("i", "j")))
    with jax.disable_jit():
        np.testing.assert_allclose(of(A, B), reference_loss(A, B), rtol=1e-5, atol=1e-5)


def ahead_of_time(lowered, target):
    """Compiled for a target as if its devices were not here."""
    target = Target.parse(target)
    return compile_in_subprocess(lowered.portable(target.platform), target, lambda phase: None)


KNOWN_GPUS = {model.chip.device_kind: f"gpu:{name}:1" for name, model in MODELS.items()}
THIS_GPU = next((KNOWN_GPUS[g.device_kind] for g in GPUS if g.device_kind in KNOWN_GPUS), "")
needs_known_gpu = pytest.mark.skipif(not THIS_GPU, reason="no GPU that is a target")


@pytest.mark.subprocess
@needs_known_gpu
def test_a_gpu_program_compiled_elsewhere_is_that_compiled_here():
    lowered = loss(mesh_of(GPUS[0], ("i", "j"))).lower(A, B)
    here, elsewhere = lowered.compile().explain(), ahead_of_time(lowered, THIS_GPU).explain()
    assert elsewhere.memory.arguments == here.memory.arguments
    assert elsewhere.memory.results == here.memory.results
    assert elsewhere.layouts == here.layouts
    assert elsewhere.collectives == here.collectives


@pytest.mark.subprocess
@needs_known_gpu
def test_a_gpu_program_compiled_elsewhere_runs_here(tmp_path):
    lowered = loss(mesh_of(GPUS[0], ("i", "j"))).lower(A, B)
    ahead_of_time(lowered, THIS_GPU).save(tmp_path / "loss.bin")
    loaded = load(tmp_path / "loss.bin")
    assert loaded(A, B).devices() == {GPUS[0]}
    np.testing.assert_allclose(loaded(A, B), reference_loss(A, B), rtol=1e-5, atol=1e-5)
