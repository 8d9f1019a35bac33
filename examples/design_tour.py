"""A tour of what shard_map means: how specs split arguments into blocks and join results.

The small programs of the shard_map design document, in its order. `split_map` runs on a mesh of
the first four devices, all others on a 4x2 mesh.

    python examples/design_tour.py    the shapes of arguments, blocks and results
    shmap run examples/design_tour.py:split_map            split, apply, concatenate
    shmap run examples/design_tour.py:f1                   an axis that in_specs leave out: a copy
    shmap run examples/design_tour.py:f2                   ... is what tiling the argument gives
    shmap run examples/design_tour.py:f2_first_axis        ... along either axis
    shmap run examples/design_tour.py:closure_over_i_and_j one block on each device, joined
    shmap run examples/design_tour.py:closure_over_i       an axis that out_specs leave out:
    shmap run examples/design_tour.py:closure_over_none    ... one copy of equal blocks
    shmap run examples/design_tour.py:f3                   psum makes blocks equal along j,
    shmap run examples/design_tour.py:f4                   ... along i,
    shmap run examples/design_tour.py:f5                   ... and along both
"""

import os
from functools import partial

# Eight virtual CPU devices, requested before JAX is imported. JAX_PLATFORMS=tpu overrides this.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

devices = np.array(jax.devices()[:8])
mesh = Mesh(devices.reshape(4, 2), ("i", "j"))
mesh_of_four = Mesh(devices[:4], ("i",))


# The map keeps the rank: it cuts the argument into blocks, applies the function to each block, and
# concatenates the results. The sizes are those of the document: from f32[8,5] to f32[12,7], with
# the blocks f32[2,5] and f32[3,7].

left = np.arange(3 * 2, dtype=np.float32).reshape(3, 2)
right = np.arange(5 * 7, dtype=np.float32).reshape(5, 7)


def f(y_block):
    return left @ y_block @ right


split_map = shard_map(f, mesh=mesh_of_four, in_specs=P("i"), out_specs=P("i"))
split_map_args = (jnp.arange(8 * 5.0).reshape(8, 5),)


def split_map_reference(y):
    return jnp.concatenate([f(y_block) for y_block in jnp.split(y, 4)])


# A mesh axis that an input spec does not mention: every device along it sees the same block. The
# argument might as well be tiled by the caller, along either axis, and split over all mesh axes.

x = np.arange(12 * 12).reshape(12, 12)


@partial(shard_map, mesh=mesh, in_specs=P("i", None), out_specs=P("i", "j"))
def f1(x_block):
    return x_block  # [3,12]


@partial(shard_map, mesh=mesh, in_specs=P("i", "j"), out_specs=P("i", "j"))
def f2(x_block):
    return x_block  # [3,12]


@partial(shard_map, mesh=mesh, in_specs=P(("j", "i"), None), out_specs=P("i", "j"))
def f2_first_axis(x_block):
    return x_block  # [3,12]


f1_args = (x,)
f2_args = (jnp.tile(x, (1, 2)),)  # [12,24]
f2_first_axis_args = (jnp.tile(x, (2, 1)),)  # [24,12]


def f1_reference(x):
    return jnp.tile(x, (1, 2))


def f2_reference(x_tiled):
    return x_tiled


def f2_first_axis_reference(x_tiled):
    return jnp.concatenate(jnp.split(x_tiled, 2), axis=1)


# A mesh axis that an output spec does not mention: the blocks are equal along it, and the result
# holds one of them. A closure over an array gives equal blocks everywhere, so all three specs fit.

three = jnp.array([[3.0]])

closure_over_i_and_j = shard_map(lambda: three, mesh=mesh, in_specs=(), out_specs=P("i", "j"))
closure_over_i = shard_map(lambda: three, mesh=mesh, in_specs=(), out_specs=P("i", None))
closure_over_none = shard_map(lambda: three, mesh=mesh, in_specs=(), out_specs=P(None, None))

closure_over_i_and_j_args = closure_over_i_args = closure_over_none_args = ()


def closure_over_i_and_j_reference():
    return jnp.tile(three, (4, 2))


def closure_over_i_reference():
    return jnp.tile(three, (4, 1))


def closure_over_none_reference():
    return three


# A psum makes the blocks equal along the axes it sums over: an output spec may then leave them out.


@partial(shard_map, mesh=mesh, in_specs=P("i", "j"), out_specs=P("i", None))
def f3(x_block):
    return lax.psum(x_block, "j")  # [3,6]


@partial(shard_map, mesh=mesh, in_specs=P("i", "j"), out_specs=P(None, "j"))
def f4(x_block):
    return lax.psum(x_block, "i")  # [3,6]


@partial(shard_map, mesh=mesh, in_specs=P("i", "j"), out_specs=P(None, None))
def f5(x_block):
    return lax.psum(x_block, ("i", "j"))  # [3,6]


f3_args = f4_args = f5_args = (x,)


def f3_reference(x):
    return jnp.sum(jnp.stack(jnp.split(x, 2, axis=1)), axis=0)  # [12,6]


def f4_reference(x):
    return jnp.sum(jnp.stack(jnp.split(x, 4, axis=0)), axis=0)  # [3,12]


def f5_reference(x):
    return f4_reference(f3_reference(x))  # [3,6]


def main():
    print(f"{'program':22}{'arguments':12}{'result':12}on each device  equals its definition")
    for name in [name.removesuffix("_args") for name in globals() if name.endswith("_args")]:
        mapped, args = globals()[name], globals()[f"{name}_args"]
        result, expected = jax.jit(mapped)(*args), globals()[f"{name}_reference"](*args)
        shapes = ", ".join(show(arg.shape) for arg in args) or "none"
        block = show(result.addressable_shards[0].data.shape)
        equal = bool(jnp.allclose(result, expected))
        print(f"{name:22}{shapes:12}{show(result.shape):12}{block:16}{equal}")


def show(shape):
    return "x".join(map(str, shape))


if __name__ == "__main__":
    main()
