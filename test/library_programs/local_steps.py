"""Library calls that a device makes alone: jax.numpy, jax.scipy, jax.nn, jax.random, optax.

Results are of order one for operands of order one, and smooth almost everywhere.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import optax
from jax import lax

from library_programs.program import SIZE, Operation, no_params, union


def local(operands: str, result: str, function, draw=no_params) -> Operation:
    def run(how, /, *values, **params):
        return function(*values, **params)

    return Operation(operands, result, run, union, draw)


def definite(a):
    """A symmetric matrix with eigenvalues far from zero and from each other."""
    return 0.1 * (jnp.tanh(a) + jnp.tanh(a).T) + jnp.diag(jnp.arange(1.0, SIZE + 1))


def one_of(**choices):
    def draw(scope):
        return {name: scope.choose(values) for name, values in choices.items()}

    return draw


def lu_solve(a, b):
    return jsp.linalg.lu_solve(jsp.linalg.lu_factor(definite(a)), b)


def cho_solve(a, b):
    return jsp.linalg.cho_solve(jsp.linalg.cho_factor(definite(a), lower=True), b)


def triangular(a, b):
    return jsp.linalg.solve_triangular(definite(a), b, lower=True)


def eigh(a):
    values, vectors = jnp.linalg.eigh(definite(a))
    return jnp.tanh(vectors * vectors @ values)


def svd(a):
    return jnp.linalg.svd(definite(a), compute_uv=False) / SIZE


def qr(a):
    q, r = jnp.linalg.qr(definite(a))
    return q * jnp.sign(jnp.diag(r))


def krylov(a, b, solver):
    solve = {"cg": jsp.sparse.linalg.cg, "bicgstab": jsp.sparse.linalg.bicgstab}[solver]
    return solve(lambda x: definite(a) @ x, b, tol=1e-14, maxiter=20)[0]


def root(x):
    """The solution y of y + y**3 / 4 = x, by Newton's method, differentiated implicitly."""

    def f(y):
        return y + y**3 / 4 - x

    def solve(f, guess):
        def newton(_, y):
            return y - f(y) / jax.jvp(f, (y,), (jnp.ones_like(y),))[1]

        return lax.fori_loop(0, 8, newton, guess)

    def tangent(g, y):
        return y / g(jnp.ones_like(y))

    return lax.custom_root(f, jnp.zeros_like(x), solve, tangent)


def spectrum(x, how):
    if how == "rfft":
        return jnp.fft.irfft(jnp.fft.rfft(x) * 0.5, n=SIZE)
    return jnp.real(jnp.fft.ifft(jnp.fft.fft(x) ** 2)) / SIZE


def sort(x, how):
    if how == "sort":
        return jnp.sort(x)
    if how == "argsort":
        return x[jnp.argsort(-x)]
    if how == "top_k":
        return jnp.concatenate([lax.top_k(x, 2)[0], x[:2]])
    if how == "median":
        return x - jnp.median(x)
    return lax.sort((x, x[::-1]), num_keys=1)[1]


def scan_over(x, how):
    if how == "associative":
        return lax.associative_scan(lambda p, q: p * 0.5 + q, x)
    return {"sum": jnp.cumsum, "product": jnp.cumprod, "max": lax.cummax}[how](x) / 2


def scatter(x, y, how):
    indices = jnp.argsort(y)[:2]
    at = x.at[indices]
    return {"set": at.set, "add": at.add, "max": at.max}[how](y[:2]) / 2


def gather(a, x, how):
    if how == "take":
        return jnp.take(a, jnp.argmax(x), axis=0)
    if how == "along":
        return jnp.take_along_axis(a, jnp.argsort(x)[:, None], axis=1)[:, 0]
    return lax.dynamic_slice(a, (jnp.argmin(x), 0), (1, SIZE))[0]


def update(a, x):
    return lax.dynamic_update_slice(a, x[None], (jnp.argmax(x), 0))


def segments(x, y):
    groups = (y > 0).astype(jnp.int32) + 2 * (y > 0.5)
    return jax.ops.segment_sum(x, groups, num_segments=SIZE) / 2


def random(x, how, seed):
    key = jax.random.fold_in(jax.random.key(seed), jnp.int32(jnp.floor(3 * jnp.abs(x[0]))))
    if how == "normal":
        return x + 0.1 * jax.random.normal(key, x.shape)
    if how == "split":
        return x * jax.random.uniform(jax.random.split(key)[1], x.shape)
    if how == "dropout":
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)
    if how == "categorical":
        return x[jax.random.categorical(key, x)] * x
    if how == "gamma":
        return x * jax.random.gamma(key, 2.0, x.shape) / 4
    return jax.random.permutation(key, x)


def activation(x, how):
    return {
        "softmax": jax.nn.softmax,
        "log_softmax": lambda v: jax.nn.log_softmax(v) / 2,
        "gelu": jax.nn.gelu,
        "silu": jax.nn.silu,
        "standardize": lambda v: jax.nn.standardize(v) / 2,
        "relu": jax.nn.relu,
        "celu": jax.nn.celu,
        "logsumexp": lambda v: v - jax.nn.logsumexp(v),
    }[how](x)


def attention(a):
    # jax.nn.dot_product_attention computes its softmax in float32, whatever its operands are.
    heads = jnp.stack([a, a.T])  # two positions, SIZE heads of SIZE
    scores = jnp.einsum("tnh,snh->nts", heads, heads) / a.shape[-1] ** 0.5
    return jnp.einsum("nts,snh->tnh", jax.nn.softmax(scores), heads)[0]


def special(x, how):
    return {
        "erf": jsp.special.erf,
        "gammaln": lambda v: jsp.special.gammaln(v * v + 1),
        "xlogy": lambda v: jsp.special.xlogy(v, v * v + 1),
        "logit": lambda v: jsp.special.logit(jax.nn.sigmoid(v) * 0.9),
        "bessel": jsp.special.i0e,
        "logpdf": lambda v: jsp.stats.norm.logpdf(v) / 2,
        "betainc": lambda v: jsp.special.betainc(2.0, 3.0, jax.nn.sigmoid(v)),
    }[how](x)


@jax.custom_jvp
def square(x):
    """Below one, as loops inside of loops square what they have squared."""
    return x * x / (1 + x * x)


@square.defjvp
def _square_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return square(x), 2 * x * t / (1 + x * x) ** 2


@jax.custom_vjp
def halved_sine(x):
    return jnp.sin(x) / 2


halved_sine.defvjp(lambda x: (jnp.sin(x) / 2, jnp.cos(x)), lambda c, g: (g * c / 2,))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scaled(factor, x):
    return x * factor


_scaled.defvjp(lambda factor, x: (x * factor, None), lambda factor, _, g: (g * factor,))


def scaled(x):
    return _scaled(0.7, x)


def inner_vmap(a, x):
    def row(r):
        return r + lax.psum(r * x, "rows") - lax.axis_index("rows") * 0.1

    return jax.vmap(row, axis_name="rows")(a) / SIZE


def inner_gradient(x):
    return jax.grad(lambda v: jnp.sum(jnp.sin(v) * v))(x) / 2


def adam(x, y):
    optimizer = optax.adam(0.1, eps_root=1e-4)  # so that its derivative at zero is finite
    updates, _ = optimizer.update(y, optimizer.init(x), x)
    return optax.apply_updates(x, updates) * (1 + 0 * y)


def conv(a):
    kernel = jnp.linspace(-1.0, 1.0, 9).reshape(1, 1, 3, 3)
    return lax.conv_general_dilated(a[None, None], kernel, (1, 1), "SAME")[0, 0] / 4


def jitted(x, y):
    @jax.jit
    def inner(p, q):
        return jnp.where(p > q, p, 0.5 * q)

    return inner(x, y) + inner(y, x)


def interpolated(x, y):
    grid = jnp.linspace(-2.0, 2.0, SIZE)
    return jnp.interp(x, grid, y)


def roots_of_unity(x):
    z = jnp.exp(1j * x)
    return jnp.real(z * jnp.conj(z[::-1])) + jnp.imag(z)


def to_integers(x):
    count = jnp.sum((x[:, None] > x[None, :]).astype(jnp.int32), axis=1)
    return jnp.bitwise_xor(count, 1).astype(x.dtype) / SIZE + x


LOCAL: dict[str, Operation] = {
    "add": local("vv", "v", lambda x, y: (x + y) / 2),
    "subtract": local("mm", "m", lambda x, y: (x - y) / 2),
    "multiply": local("mv", "m", lambda a, x: a * x),
    "matmul": local("mm", "m", lambda a, b: a @ b / 2),
    "matvec": local("mv", "v", lambda a, x: a @ x / 2),
    "outer": local("vv", "m", jnp.outer),
    "inner": local("vv", "s", lambda x, y: x @ y / 2),
    "scale": local("sv", "v", lambda s, x: s * x),
    "shift": local("sm", "m", lambda s, a: jnp.tanh(s + a)),
    "row": local("m", "v", lambda a: a[1]),
    "diagonal": local("v", "m", jnp.diag),
    "einsum": local("mmv", "s", lambda a, b, x: jnp.einsum("ij,jk,k->", a, b, x) / 8),
    "mean": local("m", "v", lambda a: a.mean(0)),
    "norm": local("v", "s", lambda x: jnp.sqrt(jnp.sum(x * x) + 0.1)),
    "solve": local("mv", "v", lambda a, b: jnp.linalg.solve(definite(a), b)),
    "inv": local("m", "m", lambda a: jnp.linalg.inv(definite(a))),
    "slogdet": local("m", "s", lambda a: jnp.linalg.slogdet(definite(a))[1] / 2),
    "det": local("m", "s", lambda a: jnp.linalg.det(definite(a)) / 24),
    "cholesky": local("m", "m", lambda a: jnp.linalg.cholesky(definite(a)) / 2),
    "lu_solve": local("mv", "v", lu_solve),
    "cho_solve": local("mv", "v", cho_solve),
    "triangular": local("mv", "v", triangular),
    "eigh": local("m", "v", eigh),
    "svd": local("m", "v", svd),
    "qr": local("m", "m", qr),
    "expm": local("m", "m", lambda a: jsp.linalg.expm(a / 2, max_squarings=2) / 4),
    "matrix_power": local("m", "m", lambda a: jnp.linalg.matrix_power(a, 3) / 8),
    "krylov": local("mv", "v", krylov, one_of(solver=["cg", "bicgstab"])),
    "root": local("v", "v", root),
    "spectrum": local("v", "v", spectrum, one_of(how=["fft", "rfft"])),
    "sort": local("v", "v", sort, one_of(how=["sort", "argsort", "top_k", "median", "pairs"])),
    "scan_over": local("v", "v", scan_over, one_of(how=["sum", "product", "max", "associative"])),
    "scatter": local("vv", "v", scatter, one_of(how=["set", "add", "max"])),
    "gather": local("mv", "v", gather, one_of(how=["take", "along", "slice"])),
    "update": local("mv", "m", update),
    "segments": local("vv", "v", segments),
    "random": local(
        "v",
        "v",
        random,
        one_of(
            how=["normal", "split", "dropout", "categorical", "permutation", "gamma"],
            seed=range(4),
        ),
    ),
    "activation": local(
        "v",
        "v",
        activation,
        one_of(
            how=[
                "softmax",
                "log_softmax",
                "gelu",
                "silu",
                "standardize",
                "relu",
                "celu",
                "logsumexp",
            ],
        ),
    ),
    "attention": local("m", "m", attention),
    "special": local(
        "v",
        "v",
        special,
        one_of(how=["erf", "gammaln", "xlogy", "logit", "bessel", "logpdf", "betainc"]),
    ),
    "square": local("v", "v", square),
    "halved_sine": local("m", "m", halved_sine),
    "scaled": local("m", "m", scaled),
    "inner_vmap": local("mv", "m", inner_vmap),
    "inner_gradient": local("v", "v", inner_gradient),
    "adam": local("vv", "v", adam),
    "conv": local("m", "m", conv),
    "jitted": local("vv", "v", jitted),
    "interpolated": local("vv", "v", interpolated),
    "roots_of_unity": local("v", "v", roots_of_unity),
    "to_integers": local("v", "v", to_integers),
    "stop": local("v", "v", lambda x: x + lax.stop_gradient(x) / 2),
}
