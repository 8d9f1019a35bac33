"""Derivatives and batching of embedded StableHLO are those of the function it was made of."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import run_together
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from jitted_programs import ROWS, Jitted, floats

from shmap_compiler import ArgumentTypeError, DerivativeError, call_stablehlo, shard_map, unjit


def floats_of(shape, dtype=jnp.float32):
    rng = np.random.default_rng(3)
    numbers = rng.standard_normal(shape)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        numbers = numbers + 1j * rng.standard_normal(shape)
    return jnp.asarray(numbers, dtype)


def positive(a):
    return a @ jnp.conj(jnp.swapaxes(a, -1, -2)) + 3 * jnp.eye(a.shape[-1], dtype=a.dtype)


def halves(x):
    def step(carry, row):
        return carry * 0.5 + jnp.sin(row), carry

    return lax.scan(step, x[0], x)


def branches(x):
    return lax.cond(x.sum() > 0, lambda x: x * x, jnp.cos, x)


def max_pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (2,), (2,), "VALID")


square = floats_of((2, 4, 4))
FUNCTIONS = {
    "elementwise": (lambda x, y: jnp.tanh(x) / (2 + y * y), (floats_of(5), floats_of(5))),
    "products": (lambda a, b: jnp.einsum("bij,bjk->ik", a, b), (square, square)),
    "calls": (lambda x: jax.nn.softmax(jax.nn.relu(x)), (floats_of((3, 4)),)),
    "loops": (halves, (floats_of((4, 3)),)),
    "branches": (branches, (floats_of(4),)),
    "gather": (lambda x: x[jnp.array([2, 0, 2])], (floats_of((4, 3)),)),
    "composites": (lambda x: lax.top_k(x, 2)[0], (floats_of((3, 5)),)),
    "special_functions": (lambda x: lax.digamma(x) + lax.erf(x) + jnp.sinh(x), (floats_of(4),)),
    "integers_beside": (lambda x: (x * 2, jnp.argmax(x, 1)), (floats_of((3, 4)),)),
    "cholesky": (lambda a: jnp.linalg.cholesky(positive(a)), (square,)),
    "upper_cholesky": (
        lambda a: jnp.linalg.cholesky(positive(a), upper=True),
        (floats_of((4, 4), jnp.complex64),),
    ),
    "triangular_solve": (
        lambda a, b: lax.linalg.triangular_solve(
            positive(a), b, lower=True, transpose_a=True, conjugate_a=True
        ),
        (floats_of((3, 3), jnp.complex64), floats_of((2, 3), jnp.complex64)),
    ),
    "solve": (lambda a, b: jnp.linalg.solve(a, b), (square, floats_of((2, 4, 3)))),
    "qr": (lambda a: jnp.linalg.qr(a), (floats_of((2, 4, 3)),)),
    "complex_qr": (lambda a: jnp.linalg.qr(a)[0], (floats_of((3, 3), jnp.complex64),)),
    "eigh": (lambda a: jnp.linalg.eigh(positive(a)), (square,)),
    "svd": (lambda a: jnp.linalg.svd(a, full_matrices=False), (floats_of((2, 4, 3)),)),
    "full_svd": (lambda a: jnp.linalg.svd(a), (floats_of((3, 3), jnp.complex64),)),
    "singular_values": (lambda a: jnp.linalg.svd(a, compute_uv=False), (floats_of((2, 3, 4)),)),
    "eigenvalues": (jnp.linalg.eigvals, (square,)),
    "complex_eigenvalues": (jnp.linalg.eigvals, (floats_of((3, 3), jnp.complex64),)),
    "tridiagonal_solve": (
        lambda lower, d, upper, b: lax.linalg.tridiagonal_solve(lower, 4 + d * d, upper, b),
        (floats_of(3), floats_of(3), floats_of(3), floats_of((3, 2))),
    ),
    "descending_sort": (lambda x: jnp.sort(x, descending=True), (floats_of((3, 5)),)),
    "max_pool_backward": (
        jax.grad(lambda x: (max_pool(x) ** 2).sum()),
        (floats_of(6),),
    ),
}


def embedded(fun, args):
    text = jax.jit(fun).lower(*args).as_text()

    def call(*args):
        leaves = call_stablehlo(text, *args)
        structure = jax.tree.structure(jax.eval_shape(fun, *args))
        return jax.tree.unflatten(structure, leaves if isinstance(leaves, tuple) else [leaves])

    return call


def assert_close(ours, theirs):
    for found, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        if found.dtype != jax.dtypes.float0:
            np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)


LONG = ("upper_cholesky", "complex_qr", "solve")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long) if n in LONG else n for n in FUNCTIONS]
)
def test_derivatives_and_batching_are_those_of_the_function(name):
    fun, args = FUNCTIONS[name]
    ours = embedded(fun, args)
    tangents = tuple(np.cos(x) for x in args)
    many = tuple(np.stack([x, 1.25 * np.asarray(x)]) for x in args)

    def gradient(fun):
        def weighted(*args):
            leaves = [x for x in jax.tree.leaves(fun(*args)) if x.dtype.kind in "fc"]
            weights = [np.cos(np.arange(x.size, dtype=np.float32)) for x in leaves]
            pairs = zip(leaves, weights, strict=True)
            return sum(jnp.sum(jnp.abs(x) * w.reshape(x.shape)) for x, w in pairs)

        return jax.grad(weighted, argnums=range(len(args)))

    def transformed(fun):
        return lambda args, tangents, many: (
            jax.jvp(fun, args, tangents),
            gradient(fun)(*args),
            jax.vmap(fun)(*many),
        )

    assert_close(*run_together(map(transformed, (ours, fun)), args, tangents, many))


CBRT = """
func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %y = stablehlo.composite "mine.root" %x {decomposition = @root}
      : (tensor<3xf32>) -> tensor<3xf32>
  return %y : tensor<3xf32>
}
func.func private @root(%x: tensor<3xf32>) -> tensor<3xf32> {
  %y = stablehlo.cbrt %x : tensor<3xf32>
  return %y : tensor<3xf32>
}"""
SCHUR = """
func.func @main(%x: tensor<3x3xf32>) -> tensor<3x3xf32> {
  %t, %v, %r, %i, %n, %info = stablehlo.custom_call @lapack_sgees_ffi(%x) {api_version = 4 : i32,
      backend_config = {mode = 86 : ui8, sort = 78 : ui8},
      operand_layouts = [dense<[0, 1]> : tensor<2xindex>],
      result_layouts = [dense<[0, 1]> : tensor<2xindex>, dense<[0, 1]> : tensor<2xindex>,
          dense<0> : tensor<1xindex>, dense<0> : tensor<1xindex>,
          dense<> : tensor<0xindex>, dense<> : tensor<0xindex>]}
      : (tensor<3x3xf32>) -> (tensor<3x3xf32>, tensor<3x3xf32>, tensor<3xf32>, tensor<3xf32>,
          tensor<i32>, tensor<i32>)
  %two = stablehlo.add %t, %t : tensor<3x3xf32>
  return %two : tensor<3x3xf32>
}"""


def test_composites_are_what_they_decompose_to():
    x = jnp.array([1.0, 8.0, 27.0])
    assert_close(jax.grad(lambda x: call_stablehlo(CBRT, x).sum())(x), 1 / (3 * jnp.cbrt(x) ** 2))


def next_number(x):
    return lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.int32) + 1, jnp.float32)


def test_operations_without_a_derivative_are_named():
    x = floats_of((3, 3))
    found = r"test_embedded_derivatives.py(.|\n)*lapack_sgees_ffi, which has no derivative"
    with pytest.raises(DerivativeError, match=found):
        jax.grad(lambda x: call_stablehlo(SCHUR, x).sum())(x)
    with pytest.raises(NotImplementedError, match="computes with the bits of numbers"):
        jax.grad(embedded(next_number, (x[0, 0],)))(x[0, 0])


def test_derivatives_that_jax_refuses_are_refused_with_its_reason():
    x = floats_of((3, 3))
    vectors = embedded(lambda a: jnp.linalg.eig(a).eigenvectors, (x,))
    with pytest.raises(DerivativeError, match="non-symmetric eigenvectors"):
        jax.grad(lambda x: jnp.abs(vectors(x)).sum())(x)
    wide = floats_of((2, 4))
    whole = embedded(lambda a: jnp.linalg.svd(a), (wide,))
    with pytest.raises(DerivativeError, match="full matrices"):
        jax.grad(lambda x: whole(x)[1].sum())(wide)


def test_what_a_routine_leaves_in_place_of_a_matrix_has_no_derivative():
    text = jax.jit(lambda a: jnp.linalg.svd(a, full_matrices=False)).lower(floats_of((3, 3)))
    left = re.sub(r"return %\w+, %\w+, %\w+ :", "return %0#0, %0#1, %0#3 :", text.as_text())
    with pytest.raises(DerivativeError, match="lapack_sgesdd_ffi"):
        jax.grad(lambda x: call_stablehlo(left, x)[0].sum())(floats_of((3, 3)))


def test_examples_of_what_cannot_be_read_are_computed_one_after_the_other():
    many = floats_of((4, 3, 3))
    ours = jax.jit(jax.vmap(lambda x: call_stablehlo(SCHUR, x), 1, 1))(many.transpose(1, 0, 2))
    for k, one in enumerate(many):
        assert_close(ours[:, k], 2 * lax.linalg.schur(one)[0])


def test_modules_that_communicate_are_refused():
    text = """
    func.func @main(%x: tensor<ui32>) -> tensor<ui32> {
      %y = stablehlo.partition_id : tensor<ui32>
      return %y : tensor<ui32>
    }"""
    with pytest.raises(ArgumentTypeError, match=r"a module with stablehlo\.partition_id"):
        call_stablehlo(text, jnp.uint32(1))


def test_derivatives_in_a_body_are_those_of_the_devices():
    mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))
    factor = embedded(jnp.linalg.cholesky, (square[0],))

    def body(ours):
        def f(a, scale):
            return lax.psum(ours(positive(a[0]) * scale), "i")

        return shard_map(f, mesh=mesh, in_specs=(P("i"), P()), out_specs=P())

    args = floats_of((4, 4, 4)), jnp.float32(1.5)
    ours, theirs = (
        jax.grad(lambda *args, f=f: jnp.sin(f(*args)).sum(), (0, 1))(*args)
        for f in map(body, (factor, jnp.linalg.cholesky))
    )
    assert_close(ours, theirs)


def test_the_gradient_of_unjitted_factorizations_is_that_of_the_program():
    def solved(a, b):
        return jnp.linalg.solve(positive(a), b)

    program = Jitted(solved, (), (ROWS, ROWS), ROWS).jitted()
    args = floats(8, 4, 4), floats(8, 4, 3)
    made = unjit(program, *args)
    assert made.embedded.count("stablehlo.custom_call") > 0
    ours, theirs = (
        jax.jit(jax.grad(lambda *args, f=f: jnp.sin(f(*args)).sum(), (0, 1)))(*args)
        for f in (made.shard_map(), program)
    )
    assert_close(ours, theirs)


def test_outside_of_jit_values_and_tangents_are_one_program():
    """XLA computes once what they share; operation by operation, values would be computed twice."""
    x, y = floats_of(7), floats_of(7)
    ours = embedded(FUNCTIONS["elementwise"][0], (x, y))
    programs = []

    def count(event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            programs.append(event)

    jax.monitoring.register_event_duration_secs_listener(count)
    found = jax.jvp(ours, (x, y), (y, x))
    assert len(programs) == 1
    assert_close(found, jax.jvp(FUNCTIONS["elementwise"][0], (x, y), (y, x)))
