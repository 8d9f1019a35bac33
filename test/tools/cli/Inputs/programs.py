"""Programs for the tests of `shmap`, right and wrong ones."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

AUTO = AxisType.Auto
mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AUTO, AUTO))
on_mesh = partial(shard_map, mesh=mesh)


@partial(on_mesh, in_specs=P("i"), out_specs=P("i"))
def double(x):
    return 2 * x


@partial(on_mesh, in_specs=P("i"), out_specs=P("i"))
def types_only(x):
    return 2 * x


types_only_args = (jax.ShapeDtypeStruct((8,), jnp.float32),)


def types_only_reference(x):
    return x + x


@partial(on_mesh, in_specs=P("i"), out_specs=P())
def unequal_to_reference(x):
    return lax.psum(x, "i")


unequal_to_reference_args = (jnp.arange(8.0),)


def unequal_to_reference_reference(x):
    return x[:2]


other_shape = other_structure = double
other_shape_args = other_structure_args = unequal_to_reference_args


def other_shape_reference(x):
    return x[:3]


def other_structure_reference(x):
    return {"y": x}


@partial(on_mesh, in_specs=P("i"), out_specs=P("i"))
def raises_when_traced(x):
    return jnp.reshape(x, (3, 5))


raises_when_traced_args = unequal_to_reference_args


@partial(on_mesh, in_specs=P("i"), out_specs=P("i"))
def kernel(x):
    def double_block(x_ref, out_ref):
        out_ref[...] = x_ref[...] * 2

    return pl.pallas_call(double_block, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


jitted_kernel = jax.jit(kernel)
kernel_args = jitted_kernel_args = (jnp.zeros((32, 128)),)

raising_reference = double
raising_reference_args = unequal_to_reference_args


def raising_reference_reference(x):
    raise KeyError("no reference today")


list_of_args = double
list_of_args_args = [1.0]

many_devices = shard_map(
    lambda x: lax.psum(x, "k"),
    mesh=AbstractMesh((16,), ("k",), axis_types=(AUTO,)),
    in_specs=P("k"),
    out_specs=P(),
)
many_devices_args = (jax.ShapeDtypeStruct((32,), jnp.int32),)


def many_devices_reference(x):
    return x.reshape(16, 2).sum(0)


@partial(shard_map, mesh=mesh, in_specs=P("i"), out_specs=P("i"), axis_names={"i"})
def manual_over_i(x):
    return lax.psum(x, "i")


manual_over_i_args = unequal_to_reference_args


@partial(shard_map, in_specs=P("i"), out_specs=P("i"))
def without_mesh(x):
    return x


without_mesh_args = unequal_to_reference_args


def plain(x):
    return x


jitted = jax.jit(double)
number = 3


@partial(on_mesh, in_specs=P("i"), out_specs=P("i"))
def open_ring(x):
    return lax.ppermute(x, "i", [(0, 1), (1, 2), (2, 3)])


open_ring_args = (jnp.arange(8.0),)


@partial(on_mesh, in_specs=P("i"), out_specs=P("i"), check_hangs=False)
def deadlocks(x):
    return lax.cond(lax.axis_index("i") == 3, lambda b: lax.psum(b, "i"), lambda b: b, x)


deadlocks_args = (jnp.arange(8.0),)
