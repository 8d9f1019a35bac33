"""trace, lower and eval_shape of a pmapped function, and what was lowered."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shmap_compiler import Graph, pmap

X = np.arange(32.0, dtype=np.float32).reshape(8, 4)


@functools.partial(pmap, axis_name="i")
def centered(x):
    return x - lax.pmean(x, "i")


@pytest.fixture(scope="module")
def lowered():
    return centered.lower(X)


@pytest.fixture(scope="module")
def compiled(lowered):
    return lowered.compile()


def test_what_is_compiled_is_called_like_the_function(compiled):
    np.testing.assert_array_equal(compiled(X), centered(X))
    assert compiled.in_tree == jax.tree.structure(((0,), {}))
    with pytest.raises(TypeError, match="pytree"):
        compiled([X])
    with pytest.raises(TypeError, match=r"float32.*int32"):
        compiled(X.astype(np.int32))


def test_what_is_lowered_can_be_read(lowered, compiled):
    text = lowered.as_text()
    assert "stablehlo.all_reduce" in text
    assert "mhlo.num_partitions = 8" in text
    assert "mhlo.num_replicas = 1" in text
    assert "HloModule" in lowered.as_text("hlo")
    assert lowered.compiler_ir() is not None
    assert "all-reduce" in compiled.as_text()
    assert compiled.memory_analysis() is not None
    assert compiled.runtime_executable() is not None
    lowered.cost_analysis()
    compiled.cost_analysis()


def test_options_of_the_compiler(lowered):
    lowered.compile(compiler_options={"xla_embed_ir_in_executable": True})
    with pytest.raises(jax.errors.JaxRuntimeError, match="invalid_key"):
        lowered.compile(compiler_options={"invalid_key": True})


def test_types_are_enough():
    type_ = jax.ShapeDtypeStruct(X.shape, X.dtype)
    np.testing.assert_array_equal(centered.lower(type_).compile()(X), centered(X))
    assert centered.eval_shape(type_) == type_
    f = pmap(lambda x, k, *, y: {"a": x * k + y, "b": x.sum()}, in_axes=1, out_axes=1)
    f = pmap(f.__wrapped__, in_axes=(1, None), out_axes={"a": 1, "b": -1})
    found = f.eval_shape(jnp.ones((4, 8)), 2.0, y=type_)
    assert {k: t.shape for k, t in found.items()} == {"a": (4, 8), "b": (8,)}


def test_the_graph_is_that_of_one_device():
    graph = centered.trace(X)
    assert isinstance(graph, Graph)
    assert [str(t) for t in graph.body_in_types] == ["float32[1,4]"]
    assert [e.primitive.name for e in graph.jaxpr.eqns] == [
        "squeeze",
        "psum",
        "div",
        "sub",
        "broadcast_in_dim",
    ]
    assert "{V:i}" in str(graph)


def test_arguments_have_their_structure():
    info = pmap(lambda x: x, donate_argnums=0).lower((X, ())).args_info
    assert info[1] == {}
    assert info[0][0][1] == ()
    assert (info[0][0][0].shape, info[0][0][0].donated) == ((8, 4), True)


def test_static_arguments_are_part_of_the_program():
    f = pmap(lambda x, n: x * n, static_broadcasted_argnums=1)
    np.testing.assert_array_equal(f.lower(X, 3).compile()(X), X * 3)


def test_the_names_of_the_program_are_those_of_the_function(lowered):
    assert "module @jit_centered" in lowered.as_text()


def test_lowering_the_gradient_lowers_the_gradient():
    """`jit(grad(jax.pmap(f))).lower` lowers f."""
    text = jax.jit(jax.grad(lambda x: pmap(jnp.sin)(x).sum())).lower(X).as_text()
    assert "stablehlo.cosine" in text
    assert "stablehlo.cosine" in jax.jit(jax.vmap(jax.grad(pmap_of_one))).lower(X).as_text()


def pmap_of_one(x):
    return pmap(jnp.sin)(x[None])[0].sum()
