"""Functions that have the derivatives of operations: of LAPACK, on batches, and of others."""

from __future__ import annotations

from functools import partial
from typing import NoReturn

import jax
import jax.numpy as jnp
from jax import lax

from shmap_compiler.base.untyped import DType, Function, PyTree


def cholesky_factor(x: jax.Array, lower: bool) -> jax.Array:
    """The factor in one half of the matrix, with the other half as it was."""
    half, other = (jnp.tril, jnp.triu) if lower else (jnp.triu, jnp.tril)
    whole = half(x) + jnp.conj(jnp.swapaxes(half(x, -1 if lower else 1), -1, -2))
    factor = lax.linalg.cholesky(whole, symmetrize_input=False)
    if not lower:
        factor = jnp.conj(jnp.swapaxes(factor, -1, -2))
    return factor + other(x, 1 if lower else -1)


def lu_factor(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Both factors in one matrix, the pivots, counted from 1, and 0 for success."""
    factors, pivots, _ = lax.linalg.lu(x)
    return factors, pivots + 1, jnp.zeros(x.shape[:-2], jnp.int32)


def householder_factor(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The upper factor with the reflectors below it, and their scales."""
    return jnp.vectorize(_householder_factor, signature="(m,n)->(m,n),(k)")(x)


def _householder_factor(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    rows, columns = jnp.arange(x.shape[0]), jnp.arange(x.shape[1])

    def reflect(k, state):
        a, scales = state
        column, diagonal = a[:, k], a[k, k]
        below = jnp.where(rows > k, column, 0)
        squares = jnp.sum(jnp.square(jnp.abs(below)))
        is_done = (squares == 0) & (jnp.imag(diagonal) == 0)
        # Where there is nothing to reflect, the derivative of the root would be infinite.
        squares = jnp.where(is_done, 1, squares + jnp.square(jnp.abs(diagonal)))
        sign = jnp.where(jnp.real(diagonal) < 0, -1, 1)
        first = (-sign * jnp.sqrt(squares)).astype(a.dtype)
        scale = jnp.where(is_done, 0, (first - diagonal) / first)
        reflector = jnp.where(rows == k, 1, below / jnp.where(is_done, 1, diagonal - first))
        moved = jnp.conj(scale) * jnp.outer(reflector, jnp.conj(reflector) @ a)
        a = a - jnp.where(columns > k, moved, 0)
        column = jnp.where(rows > k, reflector, column)
        column = jnp.where(rows == k, jnp.where(is_done, diagonal, first), column)
        return a.at[:, k].set(column), scales.at[k].set(scale)

    count = min(x.shape)
    return lax.fori_loop(0, count, reflect, (x, jnp.zeros(count, x.dtype)))


def householder_product(reflectors: jax.Array, scales: jax.Array) -> jax.Array:
    """The product of reflectors, each of which is below the diagonal of a column."""
    product = jnp.vectorize(_householder_product, signature="(m,n),(k)->(m,n)")
    return product(reflectors, scales)


def _householder_product(reflectors: jax.Array, scales: jax.Array) -> jax.Array:
    rows = jnp.arange(reflectors.shape[0])
    count = scales.shape[0]

    def reflect(step, product):
        k = count - 1 - step
        below = jnp.where(rows > k, reflectors[:, k], 0)
        reflector = jnp.where(rows == k, 1, below)
        return product - scales[k] * jnp.outer(reflector, jnp.conj(reflector) @ product)

    return lax.fori_loop(0, count, reflect, jnp.eye(*reflectors.shape, dtype=reflectors.dtype))


def singular_values(x: jax.Array) -> tuple[None, jax.Array, None, None]:
    """The singular values, where a routine returns them."""
    return None, lax.linalg.svd(x, compute_uv=False), None, None


def singular_vectors(x: jax.Array, full: bool) -> tuple[None, jax.Array, jax.Array, jax.Array]:
    """The singular values and both kinds of vectors, where a routine returns them."""
    left, values, right = lax.linalg.svd(x, full_matrices=full)
    return None, values, left, right


def eigenvectors(x: jax.Array, left: bool, right: bool) -> list[jax.Array | None]:
    """The eigenvalues and the vectors that are wanted, where a routine returns them.

    The values of a real matrix are two arrays, of the real and the imaginary parts.
    """
    values, *vectors = lax.linalg.eig(
        x, compute_left_eigenvectors=left, compute_right_eigenvectors=right
    )
    parts = [values] if jnp.iscomplexobj(x) else [jnp.real(values), jnp.imag(values)]
    found = iter(vectors)
    return [*parts, next(found) if left else None, next(found) if right else None]


def select_and_add(
    operand: jax.Array,
    cotangents: jax.Array,
    reduce: Function,
    window: tuple[int, ...],
    strides: tuple[int, ...],
    padding: list[tuple[int, int]],
) -> jax.Array:
    """Adds the cotangent of each window to the element that the window's reduction selects."""
    start = -jnp.inf if reduce is lax.max else jnp.inf

    def windows(x):
        return lax.reduce_window(x, start, reduce, window, strides, padding)

    (result,) = jax.linear_transpose(jax.linearize(windows, operand)[1], operand)(cotangents)
    return result


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def bits(x: jax.Array, dtype: DType) -> jax.Array:
    """The bits of numbers, as integers.

    A module that makes numbers of them again, as that of `lax.lgamma` does, has a derivative, which
    operations on bits do not show.
    """
    return lax.bitcast_convert_type(x, dtype)


@bits.defjvp
def _bits_derivative(dtype: DType, primals: PyTree, tangents: PyTree) -> NoReturn:
    raise NotImplementedError("computes with the bits of numbers")
