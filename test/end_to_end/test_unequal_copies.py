"""Arrays whose copies differ, though their shardings say that they are equal.

Programs with `check_vma=False` return such arrays, and the next program sums or averages them: a
sum over devices that is put off, weights that devices trained by themselves for some steps.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

pytestmark = pytest.mark.usefixtures("equal_programs_compile_once")

MESH = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
X = np.arange(32, dtype=np.float32).reshape(8, 4) / 8
W = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
called = pytest.mark.parametrize("call", [jax.jit, lambda f: f], ids=["jit", "eager"])


def copies(array):
    """The block of each device, in the order of the mesh."""
    blocks = {shard.device: np.asarray(shard.data) for shard in array.addressable_shards}
    return np.stack([blocks[device] for device in MESH.devices.flat])


def partial_products(mapper):
    specs = {"in_specs": (P("data", "model"), P("model")), "out_specs": P("data")}
    return mapper(jnp.dot, mesh=MESH, check_vma=False, **specs)


@called
def test_each_device_keeps_its_own_copy(call):
    found, wanted = (
        copies(call(partial_products(mapper))(X, W)) for mapper in (shard_map, jax.shard_map)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert not np.array_equal(found[0], found[1])


@called
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("reduction", [lax.psum, lax.pmean, lax.pmax, lax.pmin])
def test_a_reduction_that_is_put_off(call, check_vma, reduction):
    def computed(mapper):
        specs = {"in_specs": P("data"), "out_specs": P("data")}
        reduced = mapper(lambda y: reduction(y, "model"), mesh=MESH, check_vma=check_vma, **specs)
        return copies(call(lambda x, w: reduced(partial_products(mapper)(x, w)))(X, W))

    found = computed(shard_map)
    np.testing.assert_allclose(found, computed(jax.shard_map), rtol=1e-6)
    if reduction is lax.psum:
        np.testing.assert_allclose(found[0], (X @ W)[:4], rtol=1e-5, atol=1e-5)


@called
def test_weights_that_devices_train_by_themselves(call):
    def trained(mapper):
        def step(w, x):
            return w - 0.1 * jax.grad(lambda w: jnp.sum(jnp.sin(x @ w)))(w)

        specs = {"mesh": MESH, "check_vma": False, "out_specs": P()}
        local = mapper(step, in_specs=(P(), P(("data", "model"))), **specs)
        averaged = mapper(lambda w: lax.pmean(w, ("data", "model")), in_specs=P(), **specs)

        def steps(w):
            for _ in range(2):
                w = local(w, X)
            return w, averaged(w)

        return map(copies, call(steps)(W))

    for found, wanted in zip(trained(shard_map), trained(jax.shard_map), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@called
def test_an_array_made_of_unequal_copies(call):
    devices = list(MESH.devices.flat)
    parts = [jax.device_put(np.float32(k), device) for k, device in enumerate(devices)]
    array = jax.make_array_from_single_device_arrays((), NamedSharding(MESH, P()), parts)
    total = shard_map(
        lambda x: lax.psum(x, ("data", "model")), mesh=MESH, in_specs=P(), out_specs=P()
    )
    assert float(call(total)(array)) == 28


@pytest.mark.parametrize("check_vma", [True, False])
def test_the_gradient_of_a_sum_that_is_put_off(check_vma):
    """Each device's cotangent is that of its own copy."""
    specs = {"in_specs": P("data"), "out_specs": P("data"), "mesh": MESH, "check_vma": check_vma}
    bent = shard_map(jnp.tanh, **specs)
    reduced = shard_map(lambda y: lax.psum(y, "model"), **specs)

    def loss(w):
        return reduced(bent(partial_products(shard_map)(X, w))).sum()

    def reference(w):
        return sum(jnp.tanh(X[:, k, None] * w[k]).sum() for k in range(4))

    np.testing.assert_allclose(jax.jit(loss)(W), reference(W), rtol=1e-4)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(W), jax.grad(reference)(W), rtol=1e-4)


@called
def test_a_sum_that_is_put_off_beside_automatic_axes(call):
    options = {"mesh": MESH, "out_specs": P(), "axis_names": {"model"}, "check_vma": False}
    product = shard_map(jnp.dot, in_specs=(P(None, "model"), P("model")), **options)
    total = shard_map(lambda y: lax.psum(y, "model"), in_specs=P(), **options)
    found = call(lambda x, w: total(product(x, w)))(X, W)
    np.testing.assert_allclose(found, X @ W, rtol=1e-5, atol=1e-5)


def own_weights(mapper):
    """Weights of each device along "data", of which their sharding says that they are equal."""
    specs = {"mesh": MESH, "in_specs": P(), "out_specs": P(), "check_vma": False}
    return mapper(lambda w: w + lax.axis_index("data"), **specs)(jnp.ones(8))


@called
@pytest.mark.parametrize("spec", [P(), P("model"), P("data")], ids=str)
@pytest.mark.parametrize("halved", [lambda w: w / 2, lambda w: w / lax.psum(w, "model")])
def test_what_is_computed_of_copies_differs(call, spec, halved):
    """Also if each device takes a part of its own copy."""

    def computed(mapper):
        specs = {"mesh": MESH, "in_specs": spec, "out_specs": spec, "check_vma": False}
        return copies(call(mapper(halved, **specs))(own_weights(mapper)))

    np.testing.assert_allclose(computed(shard_map), computed(jax.shard_map), rtol=1e-6)


@pytest.mark.parametrize("spec", [P(), P("model"), P("data")], ids=str)
def test_a_tangent_of_copies_on_another_mesh(spec):
    line = Mesh(MESH.devices.reshape(8), ("all",))

    def computed(mapper):
        differ = mapper(
            lambda w: w + lax.axis_index("all"),
            mesh=line,
            in_specs=P(),
            out_specs=P(),
            check_vma=False,
        )
        scaled = mapper(
            lambda w, scales: w * scales.sum(),
            mesh=MESH,
            in_specs=(spec, P("model")),
            out_specs=spec,
            check_vma=False,
        )
        values = differ(jnp.ones(8)), jnp.ones(8)
        return list(map(copies, jax.jvp(scaled, values, values)))

    np.testing.assert_array_equal(computed(shard_map), computed(jax.shard_map))


@called
def test_a_random_key_of_each_device(call):
    def drawn(mapper):
        specs = {"mesh": MESH, "in_specs": P(), "check_vma": False}
        folded = mapper(
            lambda key: jax.random.fold_in(key, lax.axis_index("data")), out_specs=P(), **specs
        )
        draw = mapper(lambda key: jax.random.normal(key, (1,)), out_specs=P("data"), **specs)
        return call(draw)(call(folded)(jax.random.key(0)))

    found = drawn(shard_map)
    np.testing.assert_array_equal(found, drawn(jax.shard_map))
    assert found[0] != found[1]


def test_a_gradient_with_residuals_that_differ():
    """What is computed of copies is no more equal than they are."""
    specs = {"in_specs": P("data"), "out_specs": P("data"), "mesh": MESH, "check_vma": False}

    def gradient(mapper):
        reduced = mapper(lambda y: lax.psum(y * lax.psum(jnp.tanh(y), "model"), "model"), **specs)
        return jax.jit(jax.grad(lambda y: reduced(y).sum()))(partial_products(mapper)(X, W))

    np.testing.assert_allclose(copies(gradient(shard_map)), copies(gradient(jax.shard_map)), 1e-4)


def count(function, *args):
    return jax.jit(function).lower(*args).compile().as_text().count(" all-reduce(")


def test_gradients_reduce_no_copies_that_they_know_to_be_equal():
    """Cotangents, and residuals that the body itself has made equal."""

    def layers(w, v, x):
        y = lax.psum(jnp.tanh(x @ w) @ v, "model")
        return lax.pmean(jnp.mean(y**2), "data")

    def gradient(check_vma):
        specs = {"in_specs": (P(None, "model"), P("model"), P("data")), "out_specs": P()}
        mapped = shard_map(layers, mesh=MESH, check_vma=check_vma, **specs)
        return jax.grad(mapped, (0, 1, 2))

    arguments = W, W.T, X
    assert count(gradient(False), *arguments) == count(gradient(True), *arguments)
