"""Every program in `examples/` runs, in each way a user can run it, and equals its reference.

A new example needs no change here: see example_programs.py.
"""

import os
import re
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import run_module
from compilers import fast_jit
from example_programs import (
    EXAMPLES,
    FOLDER,
    MODULES,
    TOLERANCE,
    arguments,
    assert_equals_reference,
    collectives,
    executable,
    reference,
)
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import XMapped, shard_map


def for_each_example(test, slow=()):
    """Parametrizes a test with the examples; those in the files `slow` take it long."""
    marked = [
        pytest.param(
            file, name, marks=pytest.mark.slow if file in slow else (), id=f"{file}:{name}"
        )
        for file, name in EXAMPLES
    ]
    return pytest.mark.parametrize(("file", "name"), marked)(test)


for_both_partitioners = pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])


def assert_sharded_as_out_specs_say(results, example, args):
    def check(spec, result):
        expected = NamedSharding(example.mesh, spec)
        assert isinstance(result.sharding, NamedSharding)
        assert result.sharding.is_equivalent_to(expected, result.ndim)

    if isinstance(example, XMapped):  # which has out_axes
        specs = jax.tree.unflatten(
            jax.tree.structure(results), example.lower(*args).graph.out_specs
        )
    else:
        specs = jax.tree.broadcast(example.out_specs, results, is_leaf=lambda s: isinstance(s, P))
    jax.tree.map(check, specs, results)


def check(file, name, run):
    results = jax.block_until_ready(run(*arguments(file, name)))
    assert_equals_reference(results, reference(file, name))
    assert_sharded_as_out_specs_say(results, getattr(MODULES[file], name), arguments(file, name))


@pytest.fixture(params=["gspmd", "shardy"])
def jax_partitioner(request):
    """Sets the partitioner of `jax.jit` itself, which a shard_map inside it has to follow."""
    with run_module.jax_partitioner(request.param):
        yield


@pytest.mark.slow
@partial(for_each_example, slow=("equinox_model", "transformer_2d"))
def test_called_directly(file, name):
    check(file, name, getattr(MODULES[file], name))


@for_each_example
@pytest.mark.usefixtures("jax_partitioner")
def test_called_inside_jit(file, name):
    check(file, name, fast_jit(getattr(MODULES[file], name)))


@for_each_example
@for_both_partitioners
def test_compiled_ahead_of_time(file, name, partitioner):
    check(file, name, executable(file, name, partitioner))


@for_each_example
def test_docstring_says_how_to_run_it(file, name):
    command = f"shmap run examples/{file}.py:{name.removesuffix('_bf16')}"
    assert re.search(rf"{re.escape(command)}\b", MODULES[file].__doc__ or "")


def program(file):
    """The result of `python examples/FILE.py`, in an environment that does not choose devices."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    command = [sys.executable, FOLDER / f"{file}.py"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("file", MODULES)
def test_requests_its_devices_before_jax_starts_and_has_a_main_program(file):
    text = (FOLDER / f"{file}.py").read_text()
    before, _, _ = text.partition("\nimport jax\n")
    assert "--xla_force_host_platform_device_count=8" in before
    assert text.endswith('\n\nif __name__ == "__main__":\n    main()\n')


@pytest.mark.subprocess
@pytest.mark.long  # test/project/first_hour.py does the same in CI, in an environment of a new user
@pytest.mark.parametrize("file", MODULES)
def test_runs_as_a_script(file):
    done = program(file)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


# matmul.py


@for_both_partitioners
def test_matmul_basic_sends_one_all_reduce_and_nothing_else(partitioner):
    hlo = executable("matmul", "matmul_basic", partitioner).as_text()
    assert collectives(hlo) == {"all-reduce": 1}


def test_matmul_basic_is_exact_on_whole_numbers():
    """All sums of products in this example are below 2^24, so float32 represents them exactly."""
    result = MODULES["matmul"].matmul_basic(*MODULES["matmul"].matmul_basic_args)
    a, b = np.arange(8 * 16).reshape(8, 16), np.arange(16 * 32).reshape(16, 32)
    np.testing.assert_array_equal(result, a @ b)


@pytest.mark.parametrize(
    ("name", "block"), [("matmul_basic", (2, 32)), ("matmul_reduce_scatter", (2, 16))]
)
def test_matmul_blocks_have_the_documented_shapes(name, block):
    result = getattr(MODULES["matmul"], name)(*arguments("matmul", name))
    assert result.shape == (8, 32)
    assert {shard.data.shape for shard in result.addressable_shards} == {block}


# design_tour.py: what the design document states about its examples, in NumPy.

X = np.arange(12 * 12).reshape(12, 12)
DOCUMENTED = {
    "f1": (np.tile(X, (1, 2)), (3, 12)),
    "f2": (np.tile(X, (1, 2)), (3, 12)),
    "f2_first_axis": (np.tile(X, (1, 2)), (3, 12)),
    "closure_over_i_and_j": (np.tile([[3.0]], (4, 2)), (1, 1)),
    "closure_over_i": (np.tile([[3.0]], (4, 1)), (1, 1)),
    "closure_over_none": (np.array([[3.0]]), (1, 1)),
    "f3": (X[:, :6] + X[:, 6:], (3, 6)),
    "f4": (X[0:3] + X[3:6] + X[6:9] + X[9:12], (3, 6)),
    "f5": (X.reshape(4, 3, 2, 6).sum(axis=(0, 2)), (3, 6)),
}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_design_document_states_value_and_block_shape(name):
    value, block = DOCUMENTED[name]
    result = getattr(MODULES["design_tour"], name)(*arguments("design_tour", name))
    np.testing.assert_array_equal(result, value)
    assert {shard.data.shape for shard in result.addressable_shards} == {block}


def test_split_map_applies_the_function_to_four_blocks_on_four_devices():
    tour = MODULES["design_tour"]
    result = tour.split_map(*tour.split_map_args)
    assert [shard.data.shape for shard in result.addressable_shards] == [(3, 7)] * 4
    assert result.shape == (12, 7)
    assert result.sharding.device_set == set(jax.devices()[:4])


# collective_matmul.py


@for_both_partitioners
@pytest.mark.parametrize("suffix", ["", "_bf16"])
@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("plain", {"all-gather": 1}),
        ("ring", {"collective-permute": 7}),
        ("ring_loop", {"collective-permute": 1}),
        ("two_way", {"collective-permute": 14}),
        ("two_way_loop", {"collective-permute": 2}),
    ],
)
def test_collective_matmul_sends_what_its_form_says(name, suffix, sent, partitioner):
    hlo = executable("collective_matmul", name + suffix, partitioner).as_text()
    assert collectives(hlo) == sent


# transformer_2d.py


@for_both_partitioners
def test_transformer_layer_sends_what_is_written_and_nothing_else(partitioner):
    assert collectives(
        executable("transformer_2d", "transformer_layer", partitioner).as_text()
    ) == {
        "all-reduce": 2,  # mean and variance of the normalisation
        "all-gather": 2,  # of its result over y and z
        "reduce-scatter": 3,  # keys and values over x, the output over y and z
        "collective-permute": 2,  # two rings of two devices
        "all-to-all": 2,  # into and out of attention
    }


@pytest.mark.parametrize("name", ["transformer_layer", "transformer_layer_bf16"])
@pytest.mark.usefixtures("jax_partitioner")
def test_jit_layer_equals_its_reference(name):
    """The style of the document: only two products are shard_mapped, the compiler does the rest."""
    check("transformer_2d", name, MODULES["transformer_2d"].jit_layer)


def test_jit_layer_equals_its_reference_if_the_compiler_partitions_all_of_it():
    check(
        "transformer_2d",
        "transformer_layer",
        partial(MODULES["transformer_2d"].jit_layer, manual=False),
    )


def test_jit_layer_overlaps_only_if_manual():
    """The rings of collective-permutes are the shard_mapped products' doing, not the compiler's."""
    transformer = MODULES["transformer_2d"]
    args = transformer.transformer_layer_args()
    sent = {
        manual: collectives(transformer.jit_layer.lower(*args, manual=manual).compile().as_text())
        for manual in (True, False)
    }
    assert sent[True]["collective-permute"] >= sent[False]["collective-permute"] + 2


def test_ring_products_on_a_ring_of_eight():
    """The layer's rings have two devices, where left and right are one."""
    transformer = MODULES["transformer_2d"]
    mesh = Mesh(np.array(jax.devices()), ("x",))
    random = np.random.default_rng(0)

    def normal(*shape):
        return random.standard_normal(shape, np.float32)

    lhs, rhs = normal(2, 3, 32), normal(16, 32, 5)
    scattered = shard_map(
        partial(
            transformer.matmul_reducescatter, "bte,hed->bthd", scatter_dimension=0, axis_name="x"
        ),
        mesh=mesh,
        in_specs=(P(None, None, "x"), P(None, "x")),
        out_specs=P(None, None, "x"),
    )
    assert_equals_reference(scattered(lhs, rhs), jnp.einsum("bte,hed->bthd", lhs, rhs))

    lhs, rhs = normal(2, 3, 16, 5), normal(16, 5, 32)
    gathered = shard_map(
        partial(
            transformer.allgather_matmul,
            "bthd,hde->bte",
            gather_dimension=(2, 0),
            axis_name="x",
        ),
        mesh=mesh,
        in_specs=(P(None, None, "x"), P()),
        out_specs=P(),
        check_vma=False,  # each device adds in an order of its own: equal up to rounding only
    )
    assert_equals_reference(gathered(lhs, rhs), jnp.einsum("bthd,hde->bte", lhs, rhs))


def test_transformer_cache_and_position_matter():
    """The reference is no judge if attention ignores the cache or the rotation changes nothing."""
    transformer = MODULES["transformer_2d"]
    layer, params, sin, cos, kv_cache, x = transformer.transformer_layer_args()
    out, _, _ = transformer.transformer_layer_reference(layer, params, sin, cos, kv_cache, x)
    others = [
        (layer - 1, params, sin, cos, kv_cache, x),
        (layer, params, sin[::-1], cos[::-1], kv_cache, x),
        (layer, params, sin, cos, kv_cache._replace(length=kv_cache.length - 1), x),
    ]
    for other in others:
        changed, _, _ = transformer.transformer_layer_reference(*other)
        assert np.abs(out - changed).max() > 100 * TOLERANCE["float32"] * np.abs(out).max()


# named_transformer.py


@pytest.mark.slow
def test_the_named_transformer_trains_alike_whatever_its_resources():
    example = MODULES["named_transformer"]
    params, *data = example.loss_args()
    example.STEPS, losses = 3, {}
    for name, assignment in example.ASSIGNMENTS.items():
        losses[name], _ = example.trained(example.assigned(*assignment), params, *data)
    assert len(losses) == 4
    for found in losses.values():
        np.testing.assert_allclose(found, losses["one device"], rtol=1e-4)
    assert losses["data"][2] < losses["data"][0] - 0.2


# digits.py


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("data_parallel", {}),
        ("tensor_parallel", {"all-reduce": 1}),
        ("data_and_tensor_parallel", {"all-reduce": 1}),
    ],
)
@for_both_partitioners
def test_digits_sends_what_its_parallelism_says(name, sent, partitioner):
    assert collectives(executable("digits", name, partitioner).as_text()) == sent


@pytest.mark.slow
@pytest.mark.subprocess
def test_digits_program_reports_the_same_accuracy_for_every_partitioning():
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    report = subprocess.run(
        [sys.executable, FOLDER / "digits.py"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    ).stdout
    accuracies = re.findall(r"accuracy +(\S+)%", report)
    assert len(accuracies) == 4
    assert len(set(accuracies)) == 1
    assert float(accuracies[0]) > 95
    assert re.findall(r"on each device +(.*)", report) == ["(50, 10)", "(400, 10)", "(100, 10)"]


def test_all_programs_of_the_design_document_are_found():
    """Guards the search above: if it found nothing, no example would be tested and no test fail."""
    assert {
        "matmul_basic",
        "matmul_reduce_scatter",
        "split_map",
        *DOCUMENTED,
        *(f"{ring}{suffix}" for ring in ("ring", "ring_loop") for suffix in ("", "_bf16")),
        "transformer_layer",
        "transformer_layer_bf16",
        "data_parallel",
        "tensor_parallel",
    } <= {name for _, name in EXAMPLES}
