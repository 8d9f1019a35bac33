"""Programs exported by `jax.export`, whose lowering has leading arguments of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import TargetError, shard_map
from shmap_compiler.base.jax_compat import partitioner as partitioner_is

MESH = Mesh(np.array(jax.devices()[:8]), ("i",))
X = np.arange(8, dtype=np.float32)
Y = np.arange(4, dtype=np.float32)

both_partitioners = pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])


def symbolic(shape):
    return jax.ShapeDtypeStruct(export.symbolic_shape(shape), np.float32)


def by_platform(x):
    own = lax.platform_dependent(x, cpu=lambda x: 2 * x, default=lambda x: 3 * x)
    return lax.psum(own, "i") + x


def loop(x):
    return lax.fori_loop(0, 3, lambda k, c: lax.psum(c, "i") / 8 + k + x, x)


BODIES = {"psum": lambda x: lax.psum(x, "i") + x, "by platform": by_platform, "loop": loop}


def of(shard_map, body):
    return shard_map(body, mesh=MESH, in_specs=P("i"), out_specs=P("i"), check_vma=False)


def called(program, types, arguments, partitioner, **options):
    """What an exported program returns, after it was written and read."""
    with partitioner_is(partitioner):
        written = export.export(jax.jit(program), **options)(*types).serialize()
        on_mesh = [jax.device_put(x, NamedSharding(MESH, P())) for x in arguments]
        return jax.tree.map(np.asarray, jax.jit(export.deserialize(written).call)(*on_mesh))


def check(program, types, arguments, partitioner, **options):
    ours, theirs = (
        called(program(each), types, arguments, partitioner, **options)
        for each in (shard_map, jax.shard_map)
    )
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@both_partitioners
@pytest.mark.parametrize("body", BODIES)
def test_export_for_several_platforms(body, partitioner):
    platforms = ["cpu", "cuda"]
    types = [jax.ShapeDtypeStruct(X.shape, X.dtype)]
    program = lambda each: of(each, BODIES[body])  # noqa: E731
    check(program, types, [X], partitioner, platforms=platforms)


@both_partitioners
@pytest.mark.parametrize("body", BODIES)
def test_symbolic_dimension_outside_of_the_body(body, partitioner):
    def program(each):
        return lambda x, y: (of(each, BODIES[body])(x * y.shape[0]), 2 * y)

    types = [jax.ShapeDtypeStruct(X.shape, X.dtype), symbolic("b")]
    check(program, types, [X, Y], partitioner)


def test_symbolic_dimension_outside_of_a_gradient():
    def program(each):
        loss = lambda x: (of(each, loop)(x) ** 2).sum()  # noqa: E731
        return lambda x, y: (jax.grad(loss)(x), 2 * y)

    types = [jax.ShapeDtypeStruct(X.shape, X.dtype), symbolic("b")]
    check(program, types, [X, Y], "shardy")


@both_partitioners
def test_body_that_computes_with_a_symbolic_size(partitioner):
    def program(each):
        return lambda x, y: of(each, lambda x: lax.psum(x, "i") / y.shape[0])(x)

    types = [jax.ShapeDtypeStruct(X.shape, X.dtype), symbolic("b")]
    check(program, types, [X, Y], partitioner)


SYMBOLIC = {
    "not split": ("b, 8", P(None, "i"), lambda x: lax.psum(x, "i"), "'b'"),
    "split": ("8*b, 8", P("i"), lambda x: 2 * x, "'8*b'|'b'"),
    "without equations": ("b, 8", P(None, "i"), lambda x: x, "'b'"),
    "two": ("b, 8*c", P(None, "i"), lambda x: 2 * x, "dimensions 'b', 'c'"),
    "in the body only": (
        "b",
        P(),
        lambda x: jnp.zeros((8, *x.shape)).sum() + lax.axis_index("i"),
        "'b'",
    ),
}


@both_partitioners
@pytest.mark.parametrize("case", SYMBOLIC)
def test_symbolic_dimension_in_the_body(case, partitioner):
    """jax.shard_map exports these; to call the second ends the process with JAX 0.12."""
    shape, spec, body, dimensions = SYMBOLIC[case]
    f = shard_map(body, mesh=MESH, in_specs=spec, out_specs=P(), check_vma=False)
    assert jax.eval_shape(f, symbolic(shape)) is not None
    with partitioner_is(partitioner), pytest.raises(TargetError, match=dimensions) as caught:
        export.export(jax.jit(f))(symbolic(shape))
    text = str(caught.value)
    assert "export with concrete shapes" in text
    assert case == "without equations" or "test_export.py:" in text
