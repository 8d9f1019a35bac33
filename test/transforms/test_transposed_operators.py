"""Gradients through solvers whose operator communicates: JAX transposes it inside the body."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import HangError, shard_map

MESH = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))
SPECS = (P("i"), P(), P())

_RNG = np.random.default_rng(0)
# Shares so unequal that devices which solve for theirs alone stop after different steps.
ROWS = (_RNG.normal(size=(4, 8)) * np.array([0, 0.1, 1, 2])[:, None]).astype(np.float32)
A = (4 * np.eye(8) + 0.1 * _RNG.normal(size=(8, 8))).astype(np.float32)
B = _RNG.normal(size=8).astype(np.float32)


def gmres(operator, b):
    return jsp.sparse.linalg.gmres(operator, b, tol=1e-6, restart=8, maxiter=4)[0]


def bicgstab(operator, b):
    return jsp.sparse.linalg.bicgstab(operator, b, tol=1e-6, maxiter=60)[0]


def stationary(operator, b):
    def solve(operator, b):
        return lax.fori_loop(0, 60, lambda _, v: v + 0.1 * (b - operator(v)), jnp.zeros_like(b))

    return lax.custom_linear_solve(operator, b, solve, transpose_solve=solve)


SOLVERS = [gmres, bicgstab, stationary]


def mapped(solver, function=shard_map, **options):
    def body(rows, a, b):
        return solver(lambda v: a @ v + lax.psum(rows.T @ (rows @ v), "i"), b)

    return function(body, mesh=MESH, in_specs=SPECS, out_specs=P(), **options)


def truth(rows, a, b):
    return jnp.linalg.solve(a + rows.T @ rows, b)


def gradient(fun):
    return jax.grad(lambda *args: jnp.sin(fun(*args)).sum(), argnums=(0, 1, 2))


def assert_gradient(fun, expected_of=truth):
    found, expected = gradient(fun)(ROWS, A, B), gradient(expected_of)(ROWS, A, B)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: solver.__name__)
def test_the_gradient_of_a_solver_with_a_sum_in_its_operator(solver):
    assert_gradient(jax.jit(mapped(solver)))


def test_the_gradient_of_an_eager_call():
    assert_gradient(mapped(bicgstab))


def test_a_gathered_operator():
    """Its transpose takes each device's part of what is equal on all devices."""

    def body(rows, a, b):
        def operator(v):
            mine = lax.dynamic_slice(v, (2 * lax.axis_index("i"),), (2,))
            return a @ v + lax.all_gather(rows[0, 0] * mine, "i", tiled=True, to="invarying")

        return bicgstab(operator, b)

    def expected(rows, a, b):
        return jnp.linalg.solve(a + jnp.diag(jnp.repeat(rows[:, 0], 2)), b)

    fun = shard_map(body, mesh=MESH, in_specs=SPECS, out_specs=P())
    assert_gradient(jax.jit(fun), expected)


def test_an_operator_on_each_devices_own_vector_keeps_its_psum():
    """It couples the systems of the devices. JAX's types reject its transposition."""

    def body(rows, a, b):
        def operator(v):
            return a @ v + rows[0] * v + 0.1 * lax.psum(v, "i")

        def solve(operator, b):
            v = 0 * b
            for _ in range(24):
                v = v + 0.2 * (b - operator(v))
            return v

        return lax.custom_linear_solve(operator, b, solve, transpose_solve=solve)[None]

    def expected(rows, a, b):
        own = jax.scipy.linalg.block_diag(*(a + jnp.diag(row) for row in rows))
        coupled = own + 0.1 * jnp.tile(jnp.eye(8), (4, 4))
        return jnp.linalg.solve(coupled, jnp.tile(b, 4)).reshape(4, 8)

    fun = shard_map(body, mesh=MESH, in_specs=SPECS, out_specs=P("i"))
    assert_gradient(jax.jit(fun), expected)


@pytest.mark.parametrize("solver", [gmres, bicgstab], ids=lambda solver: solver.__name__)
def test_without_types_the_gradient_is_refused(solver):
    """Each device would solve for its own share, and stop when that is small."""
    fun = mapped(solver, check_vma=False)
    jax.eval_shape(fun, ROWS, A, B)
    with pytest.raises(
        HangError, match=r"(?s)psum over 'i'.*whose number of steps varies along 'i'"
    ):
        jax.eval_shape(gradient(fun), ROWS, A, B)


@pytest.mark.subprocess
@pytest.mark.long
def test_without_types_the_gradient_deadlocks_with_jax():
    """It shows that the refusal above is no false alarm."""
    program = (
        "import jax, test_transposed_operators as t\n"
        "fun = t.mapped(t.bicgstab, jax.shard_map, check_vma=False)\n"
        "jax.block_until_ready(jax.jit(fun)(t.ROWS, t.A, t.B))\n"
        "print('values', flush=True)\n"
        "jax.block_until_ready(jax.jit(t.gradient(fun))(t.ROWS, t.A, t.B))\n"
        "print('gradient', flush=True)\n"
    )
    command = [sys.executable, "-c", program]
    with pytest.raises(subprocess.TimeoutExpired, match="timed out") as stopped:
        subprocess.run(
            command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, timeout=60, check=True
        )
    assert stopped.value.stdout == b"values\n"
