"""Pallas kernels meet the axes of the mesh as under `jax.shard_map`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map
from shmap_compiler.base.jax_compat import partitioner
from shmap_compiler.targets import Target

ON_I = P("i")
X = np.arange(32 * 128, dtype=np.float32).reshape(32, 128)
CPU = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
ANYWHERE = pl.BlockSpec(memory_space=pl.ANY)

PARTITIONERS = pytest.mark.parametrize("name", ["gspmd", "shardy"])


def of_shape(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def add_position(x_ref, out_ref):
    out_ref[...] = x_ref[...] + lax.axis_index("i").astype(jnp.float32)


def positions(x, **options):
    return pl.pallas_call(add_position, out_shape=of_shape(x), **options)(x)


def send(to):
    """Sends each block to the device that `to` names, given the next position along i."""

    def kernel(x_ref, out_ref, sent, received):
        target = to(lax.rem(lax.axis_index("i") + 1, 4))
        copy = pltpu.make_async_remote_copy(x_ref, out_ref, sent, received, target)
        copy.start()
        copy.wait()

    def fun(x, **options):
        call = pl.pallas_call(
            kernel,
            out_shape=of_shape(x),
            in_specs=[ANYWHERE],
            out_specs=ANYWHERE,
            scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
            compiler_params=pltpu.CompilerParams(has_side_effects=True),
            **options,
        )
        return call(x)

    return fun


SENDERS = {
    "names": send(lambda n: {"i": n}),
    "coordinates": send(lambda n: (n, lax.axis_index("j"))),
}


# -------------------------------------------------------------------------------- interpret mode


def interpreted(fun, interpret, **options):
    body = functools.partial(fun, interpret=interpret)
    return shard_map(body, mesh=CPU, in_specs=ON_I, out_specs=ON_I, check_vma=False, **options)


INTERPRETERS = {"plain": True, "tpu": pltpu.InterpretParams()}
SHIFTED = X + np.repeat(np.arange(4, dtype=np.float32), 8)[:, None]


@PARTITIONERS
@pytest.mark.parametrize("interpret", INTERPRETERS.values(), ids=INTERPRETERS)
def test_kernel_asks_for_its_position(name, interpret):
    with partitioner(name):
        result = jax.jit(interpreted(positions, interpret))(X)
    np.testing.assert_array_equal(result, SHIFTED)


@pytest.mark.parametrize("interpret", INTERPRETERS.values(), ids=INTERPRETERS)
def test_eager_kernel_asks_for_its_position(interpret):
    np.testing.assert_array_equal(interpreted(positions, interpret)(X), SHIFTED)


def test_kernel_in_a_partly_manual_region():
    program = jax.jit(interpreted(positions, True, axis_names={"i"}))
    np.testing.assert_array_equal(program(X), SHIFTED)


@pytest.mark.parametrize("sender", SENDERS.values(), ids=SENDERS)
def test_kernel_sends_to_another_device(sender):
    result = jax.jit(interpreted(sender, pltpu.InterpretParams()))(X)
    np.testing.assert_array_equal(result, np.roll(X, 8, axis=0))


def test_eager_kernel_sends_to_another_device():
    result = interpreted(SENDERS["names"], pltpu.InterpretParams())(X)
    np.testing.assert_array_equal(result, np.roll(X, 8, axis=0))


def test_position_in_a_kernel_varies():
    """R16: what a kernel writes varies along the axes that it asks about."""
    graph = shard_map(
        lambda x: positions(x, interpret=True), mesh=CPU, in_specs=P(), out_specs=P("i")
    ).trace(X)
    assert graph.replication.outputs == ({"i"},)


# ------------------------------------------------------------------------------------------- TPU


@pytest.fixture(scope="module")
def tpu():
    """Eight TPU chips that are not here."""
    pytest.importorskip("libtpu")
    target = Target.parse("tpu:v5e:2x4")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in target.environment.items():
            patch.setenv(name, value)
        yield target.mesh({"i": 4, "j": 2})


def compiled_for(mesh, fun):
    program = shard_map(fun, mesh=mesh, in_specs=ON_I, out_specs=ON_I, check_vma=False)
    x = jax.ShapeDtypeStruct((64, 128), jnp.float32, sharding=NamedSharding(mesh, ON_I))
    traced = jax.jit(program).trace(x)
    return traced.lower(lowering_platforms=("tpu",)).compile().as_text()


@PARTITIONERS
@pytest.mark.parametrize("fun", [positions, *SENDERS.values()], ids=["position", *SENDERS])
def test_kernel_for_tpu(tpu, name, fun):
    with partitioner(name):
        assert "tpu_custom_call" in compiled_for(tpu, fun)


def test_pipeline_of_copies_for_tpu(tpu):
    """A loop of copies over buffers that the kernel makes itself: its inference comes to an end."""

    def double(x_ref, out_ref):
        out_ref[...] = x_ref[...] * 2

    block = pl.BlockSpec((8, 128), lambda k: (k, 0))
    pipeline = pltpu.emit_pipeline(double, grid=(2,), in_specs=[block], out_specs=[block])

    def body(x):
        call = pl.pallas_call(
            pipeline, out_shape=of_shape(x), in_specs=[ANYWHERE], out_specs=ANYWHERE
        )
        return call(x)

    assert "tpu_custom_call" in compiled_for(tpu, body)


def test_loop_over_buffers_of_a_kernel():
    """References that a program makes in each step of a loop do not keep the fixed point going."""

    def kernel(x_ref, out_ref):
        def with_buffer(buffer, done):
            def step(k, carry):
                copy = pltpu.make_async_copy(x_ref, buffer, done)
                copy.start()
                copy.wait()
                out_ref[...] = buffer[...] + k
                return carry

            lax.fori_loop(0, 2, step, 0)

        pl.run_scoped(with_buffer, pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA)

    def body(x):
        call = pl.pallas_call(kernel, out_shape=of_shape(x), interpret=pltpu.InterpretParams())
        return call(x)

    program = shard_map(body, mesh=CPU, in_specs=ON_I, out_specs=ON_I)
    np.testing.assert_array_equal(jax.jit(program)(X), X + 1)
