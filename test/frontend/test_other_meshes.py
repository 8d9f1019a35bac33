"""Programs in which the mesh of a shard_map is not the only one.

The enclosing jit has others, or arguments are on others.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map
from shmap_compiler.base.jax_compat import partitioner as partitioner_is

DEVICES = np.array(jax.devices()[:8])
MESHES = {
    "q=8": Mesh(DEVICES, ("q",)),
    "i=8": Mesh(DEVICES, ("i",)),
    "i=4, j=2": Mesh(DEVICES.reshape(4, 2), ("i", "j")),
    "i=2, j=4": Mesh(DEVICES.reshape(2, 4), ("i", "j")),
    "j=2, i=4": Mesh(DEVICES.reshape(2, 4), ("j", "i")),
    "a=2, b=2, i=2": Mesh(DEVICES.reshape(2, 2, 2), ("a", "b", "i")),
}
X = np.arange(8, dtype=np.int32) ** 2  # integers: exact in any order

# (mesh of the shard_map, the other mesh). On the last three the groups along "i" are other devices.
PAIRS = [
    ("i=8", "q=8"),
    ("i=8", "i=4, j=2"),
    ("i=4, j=2", "q=8"),
    ("i=2, j=4", "a=2, b=2, i=2"),
    ("i=4, j=2", "i=2, j=4"),
    ("i=4, j=2", "j=2, i=4"),
    ("j=2, i=4", "i=4, j=2"),
]

both_partitioners = pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
all_pairs = pytest.mark.parametrize(("mesh", "other"), PAIRS)


def collectives_along_i(x):
    gathered = lax.all_gather(x, "i", tiled=True)
    own = lax.dynamic_slice_in_dim(gathered, lax.axis_index("i"), 1)
    neighbour = lax.ppermute(x, "i", [(0, 1), (1, 0)])
    return x + 100 * lax.psum(x, "i") + 7 * own * gathered[0] + 3 * neighbour


def mapped(with_shard_map, mesh):
    everywhere = P(MESHES[mesh].axis_names)
    return with_shard_map(
        collectives_along_i, mesh=MESHES[mesh], in_specs=everywhere, out_specs=everywhere
    )


def on(mesh):
    return NamedSharding(MESHES[mesh], P(MESHES[mesh].axis_names))


def check(program, argument, partitioner):
    """Compares `program(shard_map)` under jit with the same program of jax.shard_map."""
    with partitioner_is(partitioner):
        ours, theirs = (
            np.asarray(jax.jit(program(each))(argument)) for each in (shard_map, jax.shard_map)
        )
    np.testing.assert_array_equal(ours, theirs)


@both_partitioners
@all_pairs
def test_argument_on_another_mesh(mesh, other, partitioner):
    check(lambda each: mapped(each, mesh), jax.device_put(X, on(other)), partitioner)


@both_partitioners
@all_pairs
def test_constraint_to_another_mesh_after_the_call(mesh, other, partitioner):
    def program(each):
        f = mapped(each, mesh)
        return lambda x: lax.with_sharding_constraint(f(x), on(other)) + 1

    check(program, X, partitioner)


@both_partitioners
def test_two_shard_maps_on_different_meshes(partitioner):
    def program(each):
        first, second, third = (
            mapped(each, mesh) for mesh in ("i=4, j=2", "j=2, i=4", "a=2, b=2, i=2")
        )
        return lambda x: third(second(first(x) % 97) % 97)

    check(program, X, partitioner)


SUMS = [  # (mesh of the shard_map, axes of the sums, the other mesh)
    ("i=2, j=4", ("i", "j"), "i=4, j=2"),  # as in JAX's own, XLA would abort on names of these axes
    ("i=4, j=2", ("i", "j"), "j=2, i=4"),
    ("a=2, b=2, i=2", ("b", "i"), "i=2, j=4"),
    ("a=2, b=2, i=2", ("i", "a"), "q=8"),
    ("a=2, b=2, i=2", ("a", "b"), "q=8"),
]


@both_partitioners
@pytest.mark.parametrize(("mesh", "axes", "other"), SUMS)
def test_sums_along_several_axes(mesh, axes, other, partitioner):
    everywhere = P(MESHES[mesh].axis_names)
    f = shard_map(
        lambda x: x + 100 * lax.psum(x, axes),
        mesh=MESHES[mesh],
        in_specs=everywhere,
        out_specs=everywhere,
    )
    with partitioner_is(partitioner):
        found = jax.jit(f)(jax.device_put(X, on(other)))
    sizes, names = tuple(MESHES[mesh].shape.values()), MESHES[mesh].axis_names
    x = X.reshape(sizes)
    total = x.sum(tuple(map(names.index, axes)), keepdims=True)
    np.testing.assert_array_equal(found, (x + 100 * total).reshape(-1))


@both_partitioners
def test_result_that_some_axes_split(partitioner):
    """It lies on the mesh of the shard_map: that of the argument does not divide it.

    On other pairs of meshes JAX fails, too.
    """
    mesh, other = "i=4, j=2", "q=8"
    argument = jax.device_put(X, on(other))
    found = []
    for each in (shard_map, jax.shard_map):
        f = each(
            lambda x: (x[:1], lax.psum(x, MESHES[mesh].axis_names)),
            mesh=MESHES[mesh],
            in_specs=P(MESHES[mesh].axis_names),
            out_specs=(P("i"), P()),
            check_vma=False,
        )
        with partitioner_is(partitioner):
            found.append(jax.jit(f)(argument))
    for ours, theirs in zip(*found, strict=True):
        assert (ours.sharding, jax.typeof(ours)) == (theirs.sharding, jax.typeof(theirs))
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("names", [{"i", "j"}, {"i"}])
def test_type_of_a_result_names_the_mesh(names):
    def typed(each):
        seen = []

        def program(x):
            y = each(
                lambda x: x[:1],
                mesh=MESHES["i=4, j=2"],
                in_specs=P("i"),
                out_specs=P("i"),
                axis_names=names,
                check_vma=False,
            )(x)
            seen.append(jax.typeof(y).sharding)
            return y

        jax.eval_shape(program, X)
        return seen

    assert typed(shard_map) == typed(jax.shard_map)


def scaled_sines(each):
    """Split over "i" and "j", which JAX cannot name by the axis of "q=8"."""
    return each(
        lambda x, y: jnp.sin(x) * lax.psum(y.sum(), "i"),
        mesh=MESHES["i=4, j=2"],
        in_specs=(P("j"), P("i")),
        out_specs=P("j"),
    )


def cosines(each):
    return each(jnp.cos, mesh=MESHES["q=8"], in_specs=P("q"), out_specs=P("q"))


OUTSIDE_OF_JIT = {
    "jvp": lambda f, _, x, y: jax.jvp(f, (x, y), (x, y)),
    "vjp": lambda f, _, x, y: jax.vjp(f, x, y)[1](y),
    "linearize": lambda f, _, x, y: jax.linearize(f, x, y)[1](y, y),
    "vmap": lambda f, _, x, y: jax.vmap(f, in_axes=(None, 0))(x, y[None]),
    "checkpoint": lambda f, _, x, y: jax.checkpoint(f)(x, y),
    "vjp of two, back to q": lambda f, g, x, y: jax.vjp(lambda x, y: f(g(x), y), x, y)[1](y),
    "vjp of two, back to i": lambda f, g, x, y: jax.vjp(lambda x, y: g(f(x, y)), x, y)[1](y),
}


@pytest.mark.usefixtures("equal_programs_compile_once")
@pytest.mark.parametrize("spec", [P(), P("q")], ids=["replicated", "split"])
@pytest.mark.parametrize("transformed", OUTSIDE_OF_JIT.values(), ids=list(OUTSIDE_OF_JIT))
def test_argument_on_another_mesh_outside_of_jit(transformed, spec):
    y = jnp.arange(8.0) / 8
    x = jax.device_put(y, NamedSharding(MESHES["q=8"], spec))
    found, expected = (
        jax.tree.leaves(transformed(scaled_sines(each), cosines(each), x, y))
        for each in (shard_map, jax.shard_map)
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.sharding == theirs.sharding
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
