"""explain of anything that compiles: training steps, gradients, programs of JAX's."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compilers import needs_tpu_compiler
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import TargetError, TargetTypeError, explain, load, shard_map, unjit
from shmap_compiler.stages.any_function import lower_function


class State(NamedTuple):
    mean: jax.Array
    rest: tuple[jax.Array, ...]


@jax.tree_util.register_pytree_node_class
@dataclass
class Pair:
    left: jax.Array
    right: jax.Array

    def tree_flatten(self):
        return (self.left, self.right), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


MESH = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
OPTIMIZER = optax.adam(1e-3)


@shard_map(
    mesh=MESH,
    in_specs=(P("data", None), P(None, "model"), P("model", None)),
    out_specs=P("data", None),
)
def block(x, first, second):
    with jax.named_scope("block"):
        return lax.psum(jnp.tanh(x @ first) @ second, "model")


def loss(params, x, y):
    hidden = x @ params["in"]
    return ((block(hidden, params["first"], params["second"]) - y) ** 2).mean()


@jax.jit
def step(params, state, x, y):
    value, grads = jax.value_and_grad(loss)(params, x, y)
    updates, state = OPTIMIZER.update(grads, state)
    return optax.apply_updates(params, updates), state, value


def typed(shape, *spec):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(MESH, P(*spec)))


PARAMS = {
    "in": typed((16, 16), None, "model"),
    "first": typed((16, 32), None, "model"),
    "second": typed((32, 16), "model", None),
}
BATCH = (typed((32, 16), "data", None), typed((32, 16), "data", None))
ARGS = (PARAMS, jax.eval_shape(OPTIMIZER.init, PARAMS), *BATCH)


@pytest.fixture(scope="module")
def explained():
    return explain(step, *ARGS, target="cpu:8")


def test_a_training_step(explained):
    assert explained.mesh == {"data": 4, "model": 2}
    assert "step" in explained.program
    paths = [layout.path for layout in explained.layouts]
    assert "args[0]['first']" in paths
    assert all(layout.role == "argument" for layout in explained.layouts)
    (first,) = [layout for layout in explained.layouts if layout.path == "args[0]['first']"]
    assert first.block == (16, 16)


def test_collectives_of_the_user_and_of_the_partitioner(explained):
    """The psum is the user's; the gather of the split rows, and the mean, are XLA's doing."""
    written = {c.axes for c in explained.collectives if c.written}
    assert ("model",) in written
    added = {c.axes for c in explained.collectives if not c.written}
    assert any("data" in (axes or ()) for axes in added)


def test_compute_has_the_scopes_of_the_user(explained):
    assert any("block" in cost.scope for cost in explained.compute if cost.flops)
    products = [cost for cost in explained.compute if cost.flops]
    assert {cost.source.rpartition("/")[2].partition(":")[0] for cost in products} == {
        "test_explaining.py"
    }


def test_a_gradient_that_is_not_jitted():
    found = explain(jax.grad(loss), PARAMS, *BATCH, target="cpu:8")
    # The block is multiplied twice, and twice again for each product's two cotangents.
    assert found.totals.flops > 2 * (32 / 4) * 16 * 16 * 6


def test_arguments_without_shardings_are_split_as_jit_says():
    """As for the devices that are here, for which JAX itself lowers the program."""
    on_mesh = {name: t.sharding for name, t in PARAMS.items()}
    jitted = jax.jit(
        jax.grad(loss),
        in_shardings=(on_mesh, *(t.sharding for t in BATCH)),
        out_shardings=on_mesh,
    )
    args = jax.tree.map(lambda t: np.zeros(t.shape, t.dtype), (PARAMS, *BATCH))
    found, wanted = explain(jitted, *args, target="cpu:8"), explain(jitted.lower(*args))
    assert kinds(found) == kinds(wanted) != []
    assert found.memory == wanted.memory


def kinds(explanation):
    return [(c.kind, c.axes) for c in explanation.collectives]


def test_programs_that_jax_lowered_or_compiled():
    lowered = step.lower(*ARGS)
    found = explain(lowered)
    assert found.mesh == {"data": 4, "model": 2}
    assert explain(lowered.compile()).totals == found.totals
    assert explain(step, *ARGS).totals == found.totals
    with pytest.raises(TargetError, match="which is lowered already"):
        explain(lowered, target="cpu:8")
    with pytest.raises(TargetError, match="which is compiled already"):
        explain(lowered.compile(), target="tpu:v5e:2x4")
    with pytest.raises(TargetError, match="a function with its arguments"):
        explain(3)  # pyright: ignore


def test_what_is_lowered_computes_the_same():
    """Constants among the arguments stay."""

    def f(x, scale, key):
        return scale * x + jax.random.uniform(key, x.shape), key

    x, key = jnp.arange(8.0), jax.random.key(3)
    compiled = lower_function(f, (x, 2, key), "cpu").compile("cpu:1")
    found = compiled(x, 2, key)
    np.testing.assert_allclose(found[0], f(x, 2, key)[0], rtol=1e-6)
    assert jnp.array_equal(found[1], key)
    with pytest.raises(TargetTypeError, match=r"args\[1\]\n +found: +3, an int\n +needed: 2, an"):
        compiled(x, 3, key)


def test_what_is_lowered_is_called_as_the_function_after_it_was_saved(tmp_path):
    def f(params, state, _):
        return {"w": params["w"] + state.mean, "none": None}, (state, [params["b"]])

    args = {"w": jnp.arange(8.0), "b": jnp.ones(3)}, State(jnp.ones(8), (jnp.ones(2),)), "mode"
    lower_function(f, args, "cpu").compile("cpu:1").save(tmp_path / "f")
    found, expected = load(tmp_path / "f")(*args), f(*args)
    for one, other in zip(found, expected, strict=True):
        assert str(jax.tree.structure(one)) == str(jax.tree.structure(other))
        jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(one), jax.tree.leaves(other))


def weak_scale(x, scale):
    """Of bfloat16 arrays and a weak scale; the type of a loop's state must not change."""
    return lax.fori_loop(0, 3, lambda _, x: x - scale * jnp.sin(x), x)


@pytest.mark.parametrize(
    "fun",
    [
        weak_scale,
        jax.jit(weak_scale),
        jax.jit(
            weak_scale, in_shardings=(NamedSharding(MESH, P("data")), NamedSharding(MESH, P()))
        ),
        shard_map(weak_scale, mesh=MESH, in_specs=(P("data"), P()), out_specs=P("data")),
    ],
    ids=["plain", "jitted", "split_by_jit", "split_by_shard_map"],
)
def test_weak_arguments_stay_weak(fun, tmp_path):
    x, scale = jnp.linspace(0, 3, 64, dtype=jnp.bfloat16).reshape(8, 8), jnp.asarray(0.1)
    assert scale.weak_type
    if fun is weak_scale:
        x = jax.device_put(x, NamedSharding(MESH, P("data")))
    program = lower_function(fun, (x, scale), "cpu")
    assert [t.dtype for t in program.signature.out_types] == [jnp.bfloat16]
    program.save(tmp_path / "portable")
    program.compile("cpu:8").save(tmp_path / "compiled")
    expected = jax.jit(fun)(x, scale)
    for found in (load(tmp_path / "portable").compile("cpu:8"), load(tmp_path / "compiled")):
        for each in (scale, 0.1):
            result = found(x, each)
            assert result.dtype == expected.dtype == jnp.bfloat16
            np.testing.assert_array_equal(result, expected)


def test_what_a_file_cannot_hold_of_a_function_is_flat(tmp_path):
    """A container without names for its parts, and a function among the arguments."""

    def f(pair, fun):
        return Pair(fun(pair.left), pair.right)

    args = Pair(jnp.arange(8.0), jnp.ones(3)), jnp.sin
    lower_function(f, args, "cpu").compile("cpu:1").save(tmp_path / "f")
    found = load(tmp_path / "f")(*jax.tree.leaves(args[0]))
    assert type(found) is list
    jax.tree.map(np.testing.assert_allclose, found, jax.tree.leaves(f(*args)))


def test_arrays_on_several_meshes():
    other = jax.make_mesh((8,), ("all",), axis_types=(AxisType.Auto,))
    y = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=NamedSharding(other, P("all")))
    with pytest.raises(TargetError, match="one mesh for all arguments"):
        explain(lambda x, y: x.sum() + y.sum(), BATCH[0], y, target="cpu:8")


def test_arrays_on_other_devices_than_those_of_the_mesh():
    half = jax.make_mesh((4,), ("i",), devices=jax.devices()[:4], axis_types=(AxisType.Auto,))
    f = shard_map(lambda x: 2 * x, mesh=half, in_specs=P("i"), out_specs=P("i"))
    rest = jax.make_mesh((4,), ("i",), devices=jax.devices()[4:], axis_types=(AxisType.Auto,))
    x = jax.device_put(jnp.arange(8.0), NamedSharding(rest, P("i")))
    expected = r"the devices of its arguments\n +found: .*\[4, 5, 6, 7\](.|\n)* jax\.device_put"
    for call in (lambda: explain(jax.jit(f), x, target="cpu:4"), lambda: unjit(jax.jit(f), x)):
        with pytest.raises(TargetError, match=expected):
            call()


def doubled_by_a_kernel(x):
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...] * 2

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def test_a_kernel_of_another_platform():
    whole = jax.ShapeDtypeStruct((64, 128), jnp.float32, sharding=NamedSharding(MESH, P()))
    expected = (
        r"jit of `doubled_by_a_kernel` .*\n  lowering for 'cpu'\n    found:  ValueError: Only"
    )
    with pytest.raises(TargetError, match=expected):
        explain(jax.jit(doubled_by_a_kernel), whole, target="cpu:8")


@needs_tpu_compiler
@pytest.mark.parametrize("mesh", [MESH, MESH.abstract_mesh], ids=["devices", "abstract"])
def test_a_kernel_is_lowered_for_the_target_only(mesh):
    f = shard_map(doubled_by_a_kernel, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    lowered = f.lower(jax.ShapeDtypeStruct((64, 128), jnp.float32))
    compiled = lowered.compile("tpu:v5e:2x4")
    assert "tpu_custom_call" in compiled.as_text()
    assert not compiled.explain().collectives


EXPLICIT = AbstractMesh((4, 2), ("data", "model"))  # as axes are by default
TYPES = jax.ShapeDtypeStruct((32, 16), jnp.float32), jax.ShapeDtypeStruct((16, 8), jnp.float32)


def product(mesh):
    specs = {"in_specs": (P("data", "model"), P("model")), "out_specs": P("data")}
    return shard_map(lambda x, w: lax.psum(x @ w, "model"), mesh=mesh, **specs)


@pytest.mark.parametrize("mesh", [EXPLICIT, MESH, MESH.abstract_mesh])
def test_types_are_split_by_the_specs_of_a_shard_mapped_function(mesh):
    f = product(mesh)
    assert lower_function(f, TYPES, "cpu").signature.in_specs == f.in_specs
    found, expected = explain(f, *TYPES, target="cpu:8"), f.lower(*TYPES).compile("cpu:8").explain()
    assert [c.axes for c in found.collectives] == [("model",)]
    assert found.memory.arguments == expected.memory.arguments == 4 * (8 * 8 + 8 * 8)


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="JAX 0.10 splits them itself")
def test_types_need_shardings_on_a_mesh_without_devices():
    f = product(EXPLICIT)
    expected = r"its arguments\n    found:  none\n    needed: shardings on mesh\(data=4, model=2\)"
    for fun in (jax.jit(f), lambda x, w: 2 * f(x, w)):
        with pytest.raises(TargetError, match=expected):
            explain(fun, *TYPES, target="cpu:8")
    placed = [
        jax.ShapeDtypeStruct(t.shape, t.dtype, sharding=NamedSharding(EXPLICIT, spec))
        for t, spec in zip(TYPES, f.in_specs, strict=True)
    ]
    assert explain(jax.jit(f), *placed, target="cpu:8").totals.sent_bytes


def test_a_target_of_another_size():
    with pytest.raises(TargetError, match="8 devices in the mesh"):
        explain(step, *ARGS, target="cpu:4")


def test_a_callback_in_a_shard_map_is_found():
    prints = shard_map(
        lambda x: (jax.debug.print("{}", x), x)[1],
        mesh=MESH,
        in_specs=P("data"),
        out_specs=P("data"),
    )
    with pytest.raises(TargetError, match="a call back into Python"):
        explain(jax.jit(prints), typed((8,), "data"), target="cpu:8")


def test_the_error_for_a_callback_names_the_jitted_program():
    @jax.jit
    def prints(x):
        jax.debug.print("{}", x)
        return x

    with pytest.raises(TargetError, match=r"^jit of `prints` \(.*test_explaining.py:\d+\):"):
        explain(prints, jnp.ones(8), target="cpu:8")
