"""Correct programs, none of which may be refused: README promises no false alarms.

Each is compiled in one program with a reference on full arrays that knows no device. Half of them
are calls of libraries, whose loops and branches nobody wrote with devices in mind.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.experimental.ode
import jax.experimental.sparse
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
import optax
import pytest
from compilers import fast_jit
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

SIZE = 4
MESH = jax.make_mesh((SIZE,), ("i",), axis_types=(AxisType.Auto,), devices=jax.devices()[:SIZE])
RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 4)).astype(np.float32)  # rows, split over the devices
A = (X.T @ X + 4 * np.eye(4)).astype(np.float32)  # positive definite, equal on all devices
B = RNG.normal(size=4).astype(np.float32)  # equal on all devices
ROWS, WHOLE = P("i"), P()


@dataclass(frozen=True)
class Correct:
    """A body of x (own rows), a and b; `reference` is the same of full arrays."""

    body: Any
    reference: Any
    out: Any


CORRECT: dict[str, Correct] = {}


def correct(name, body, reference, out=WHOLE):
    assert name not in CORRECT
    CORRECT[name] = Correct(body, reference, out)


def on_whole(name, fun):
    """`fun` of what all devices have, made of sums over all rows and of a and b."""
    correct(
        name,
        lambda x, a, b: fun(lax.psum(x.T @ x, "i") + a, b + lax.pmean(x.mean(0), "i")),
        lambda x, a, b: fun(x.T @ x + a, b + x.mean(0)),
    )


def on_rows(name, fun):
    """`fun` of each row by itself, beside a collective."""
    correct(
        name,
        lambda x, a, b: jax.vmap(fun)(x) * lax.psum(1, "i"),
        lambda x, a, b: jax.vmap(fun)(x) * SIZE,
        ROWS,
    )


# ------------------------------------------------------------------------------- linear algebra

on_whole("cholesky", lambda a, b: jnp.linalg.cholesky(a))
on_whole("cho_solve", lambda a, b: jsp.linalg.cho_solve(jsp.linalg.cho_factor(a), b))
on_whole("solve", jnp.linalg.solve)
on_whole("inv", lambda a, b: jnp.linalg.inv(a))
on_whole("det", lambda a, b: jnp.linalg.slogdet(a))
on_whole("eigh", lambda a, b: jnp.linalg.eigvalsh(a))
on_whole("svd", lambda a, b: jnp.linalg.svd(a, compute_uv=False))
on_whole("qr", lambda a, b: jnp.abs(jnp.linalg.qr(a)[1]))
on_whole("lu", lambda a, b: jsp.linalg.lu_solve(jsp.linalg.lu_factor(a), b))
on_whole("lstsq", lambda a, b: jnp.linalg.lstsq(a, b)[0])
on_whole("expm", lambda a, b: jsp.linalg.expm(a / 16))
on_whole("triangular", lambda a, b: jsp.linalg.solve_triangular(jnp.tril(a), b, lower=True))
on_rows("expm_of_each_row", lambda r: jsp.linalg.expm(jnp.diag(r) / 4).sum())


def gathering(x, a):
    """The product of a matrix whose rows are split, as an operator on whole vectors."""

    def operator(v):
        return lax.all_gather(x @ v, "i", tiled=True)

    def gram(v):
        return a @ v + lax.psum(x.T @ (x @ v), "i")

    return operator, gram


def solved_by(solver, **options):
    def body(x, a, b):
        return solver(gathering(x, a)[1], b, tol=1e-6, **options)[0]

    def reference(x, a, b):
        return jnp.linalg.solve(a + x.T @ x, b)

    return body, reference


correct("cg_with_psum", *solved_by(jsp.sparse.linalg.cg, maxiter=30))
correct("bicgstab_with_psum", *solved_by(jsp.sparse.linalg.bicgstab, maxiter=30))


def cg_with_gather(x, a, b):
    rows = lax.dynamic_slice_in_dim(a, lax.axis_index("i"), 1)
    return jsp.sparse.linalg.cg(gathering(rows, a)[0], b, tol=1e-6, maxiter=30)[0]


correct("cg_with_gather", cg_with_gather, lambda x, a, b: jnp.linalg.solve(a, b))


def cg_in_a_branch(x, a, b):
    far = lax.psum(jnp.sum(x), "i") < 1e6
    return lax.cond(far, lambda: cg_with_gather(x, a, b), lambda: b)


correct("cg_in_a_branch", cg_in_a_branch, lambda x, a, b: jnp.linalg.solve(a, b))


def with_a_root(x, a, b):
    def f(v):
        return v**3 + v - lax.pmean(x.mean(0), "i") - b

    def newton(f, v):
        step = lambda _, v: v - f(v) / (3 * v**2 + 1)  # noqa: E731
        return lax.fori_loop(0, 20, step, v)

    return lax.custom_root(f, b, newton, lambda g, y: y / g(jnp.ones_like(y)))


def root(x, a, b):
    wanted = x.mean(0) + b
    return lax.fori_loop(0, 40, lambda _, v: v - (v**3 + v - wanted) / (3 * v**2 + 1), b)


correct("custom_root", with_a_root, root)
correct(
    "sparse_product",
    lambda x, a, b: lax.psum(jax.experimental.sparse.BCOO.fromdense(x, nse=8) @ b, "i"),
    lambda x, a, b: (x @ b).reshape(SIZE, 2).sum(0),
)

# ------------------------------------------------------------- special functions and statistics

on_rows("special_gammaln", lambda r: jsp.special.gammaln(1 + r**2))
on_rows("special_digamma", lambda r: jsp.special.digamma(1 + r**2))
on_rows("special_ndtri", lambda r: jsp.special.ndtri(jax.nn.sigmoid(r)))
on_rows("special_i1e", jsp.special.i1e)
on_rows("special_entr", lambda r: jsp.special.entr(jax.nn.sigmoid(r)))
on_rows("special_logit", lambda r: jsp.special.logit(jax.nn.sigmoid(r)))
# These loop until all elements are good enough, on each device as often as it needs.
on_rows("special_gammainc", lambda r: jsp.special.gammainc(1 + r**2, 1.5))
on_rows("special_betainc", lambda r: jsp.special.betainc(1 + r**2, 2.0, 0.3))
on_rows("special_zeta", lambda r: jsp.special.zeta(2 + r**2, 1.0))
on_whole("special_gammaincc_of_equal", lambda a, b: jsp.special.gammaincc(1 + b**2, 1.0))
on_whole("stats_norm", lambda a, b: jsp.stats.norm.logcdf(b))
on_whole(
    "stats_multivariate_normal", lambda a, b: jsp.stats.multivariate_normal.logpdf(b, b / 2, a)
)
on_rows("stats_rankdata", lambda r: jsp.stats.rankdata(r))
on_whole("stats_kde", lambda a, b: jsp.stats.gaussian_kde(a)(b))
on_whole("logsumexp", lambda a, b: jsp.special.logsumexp(a, axis=0))

# -------------------------------------------------------------------------- arrays and numbers

on_rows("fft", lambda r: jnp.abs(jnp.fft.fft(r)))
on_rows("sort", jnp.sort)
on_rows("top_k", lambda r: lax.top_k(r, 2)[0])
on_rows("searchsorted", lambda r: jnp.searchsorted(jnp.arange(4.0), r, method="scan"))
on_rows("interp", lambda r: jnp.interp(r, jnp.arange(4.0), jnp.arange(4.0) ** 2))
on_rows("associative_scan", lambda r: lax.associative_scan(jnp.add, r))
on_rows("unique", lambda r: jnp.unique(r > 0, size=2, fill_value=False))
on_whole("percentile", lambda a, b: jnp.percentile(a, 30.0))
on_whole("histogram", lambda a, b: jnp.histogram(b, bins=3, range=(-1, 1))[0])
on_whole("segment_sum", lambda a, b: jax.ops.segment_sum(b, jnp.array([0, 1, 0, 1]), 2))
on_whole("convolve", lambda a, b: jnp.convolve(b, b))
on_whole("piecewise", lambda a, b: jnp.piecewise(b, [b < 0, b >= 0], [jnp.negative, jnp.sqrt]))
on_whole("attention", lambda a, b: jax.nn.dot_product_attention(*[a.reshape(1, 4, 2, 2)] * 3))

# ------------------------------------------------------------------------------- random numbers

KEY = jax.random.key(3)
# Rejection loops as long as a draw needs; with equal keys on all devices that is equally long.
on_whole("random_gamma", lambda a, b: jax.random.gamma(KEY, 1 + b**2))
on_whole("random_poisson", lambda a, b: jax.random.poisson(KEY, 1 + b**2))
on_whole("random_permutation", lambda a, b: jax.random.permutation(KEY, b))
on_whole("random_choice", lambda a, b: jax.random.choice(KEY, b, (2,), p=jax.nn.softmax(b)))
on_whole("random_categorical", lambda a, b: jax.random.categorical(KEY, a))


def drawn_until_all_agree(x, a, b):
    """A rejection loop on own data, which goes on until every device has accepted."""

    def step(state):
        k, total = state
        total += lax.psum(jax.random.uniform(jax.random.fold_in(KEY, k)), "i")
        return k + 1, total

    def missing(state):
        return lax.pmax(jnp.max(x), "i") * 4 > state[1]

    return lax.while_loop(missing, step, (0, 0.0))[1]


def drawn(x, a, b):
    def step(state):
        return state[0] + 1, state[1] + SIZE * jax.random.uniform(jax.random.fold_in(KEY, state[0]))

    return lax.while_loop(lambda s: x.max() * 4 > s[1], step, (0, 0.0))[1]


correct("drawn_until_all_agree", drawn_until_all_agree, drawn)

# ------------------------------------------------------------------------- loops and branches


def power_iteration(x, a, b):
    def step(state):
        v, _ = state
        new = a @ v + lax.psum(x.T @ (x @ v), "i")
        new /= jnp.linalg.norm(new)
        return new, jnp.linalg.norm(new - v)

    return lax.while_loop(lambda s: s[1] > 1e-5, step, (jnp.ones(4) / 2, jnp.float32(1)))[0]


def largest(x, a, b):
    v = jnp.linalg.eigh(a + x.T @ x)[1][:, -1]
    return v * jnp.sign(v.sum())


def of_sign(f):
    return lambda x, a, b: f(x, a, b) * jnp.sign(f(x, a, b).sum())


correct("power_iteration", of_sign(power_iteration), largest)
correct(
    "branch_on_a_sum",
    lambda x, a, b: lax.cond(lax.psum(x.sum(), "i") > 1e3, lambda: b, lambda: lax.psum(b, "i")),
    lambda x, a, b: jnp.where(x.sum() > 1e3, b, SIZE * b),
)
correct(
    "switch_on_the_step",
    lambda x, a, b: lax.fori_loop(
        0,
        3,
        lambda k, v: lax.switch(k, [lambda v: v, lambda v: lax.psum(v, "i"), jnp.negative], v),
        b,
    ),
    lambda x, a, b: -SIZE * b,
)
correct(
    "own_steps_without_a_collective",
    lambda x, a, b: lax.psum(
        lax.while_loop(lambda s: s[0] < jnp.abs(x).max(), lambda s: (s[0] + 1, s[1] + 1), (0.0, 0))[
            1
        ],
        "i",
    ),
    lambda x, a, b: jnp.ceil(jnp.abs(x).reshape(SIZE, -1).max(1)).sum().astype(int),
)
correct(
    "early_exit_of_a_ring",
    lambda x, a, b: lax.while_loop(
        lambda s: s[0] < SIZE,
        lambda s: (s[0] + 1, lax.ppermute(s[1], "i", [(k, (k + 1) % SIZE) for k in range(SIZE)])),
        (0, x),
    )[1],
    lambda x, a, b: x,
    ROWS,
)
correct(
    "ode_with_a_psum",
    lambda x, a, b: jax.experimental.ode.odeint(
        lambda y, t: -y + lax.pmean(x.mean(0), "i"), b, jnp.array([0.0, 1.0]), rtol=1e-5
    )[-1],
    lambda x, a, b: x.mean(0) + (b - x.mean(0)) * np.exp(-1.0),
)

# ----------------------------------------------------------------------------------- optimizers


def loss(v, x, mean):
    return mean(jnp.mean(optax.huber_loss(x @ v, jnp.ones(len(x)))))


def over_devices(value):
    return lax.pmean(value, "i")


def itself(value):
    return value


def trained(optimizer, steps=4):
    """The gradient of a mean over all devices is equal on all of them."""

    def run(mean):
        def body(x, a, b):
            def step(state, _):
                v, opt = state
                grad = jax.grad(lambda v: loss(v, x, mean))(v)
                update, opt = optimizer.update(grad, opt, v)
                return (optax.apply_updates(v, update), opt), None

            return lax.scan(step, (b, optimizer.init(b)), length=steps)[0][0]

        return body

    return run(over_devices), run(itself)


OPTIMIZERS = {
    "adam": optax.adam(0.1),
    "adamw_clipped": optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(0.1)),
    "sgd_momentum": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "apply_if_finite": optax.apply_if_finite(optax.sgd(0.1), 3),
    "multi_steps": optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation(),
    "lamb": optax.lamb(0.1),
    "adafactor": optax.adafactor(0.1),
    "schedule": optax.sgd(optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 4)),
}
for each, optimizer in OPTIMIZERS.items():
    correct(f"optax_{each}", *trained(optimizer))

# --------------------------------------------------------------------------------------- models

MODELS = {
    "mlp": eqx.nn.MLP(4, 4, 8, 2, key=KEY),
    "layer_norm": eqx.nn.LayerNorm(4),
    "gru": lambda r: eqx.nn.GRUCell(4, 4, key=KEY)(r, jnp.zeros(4)),
    "spectral": lambda r: eqx.nn.Linear(4, 2, key=KEY)(jax.nn.gelu(r)),
    "dropout": lambda r: eqx.nn.Dropout(0.5)(r, key=KEY),
}
for each, model in MODELS.items():
    on_rows(f"equinox_{each}", model)
on_whole(
    "equinox_attention",
    lambda a, b: eqx.nn.MultiheadAttention(2, 4, key=KEY)(a, a, a),
)
on_whole("equinox_filter_cond", lambda a, b: eqx.filter_jit(lambda a: jnp.tanh(a))(a))


# These take seconds to compile.
LONG = {
    "equinox_attention",
    "equinox_gru",
    "expm_of_each_row",
    "random_choice",
    "random_gamma",
    "random_poisson",
    "special_betainc",
    "special_gammaincc_of_equal",
}


def programs():
    return [pytest.param(n, marks=pytest.mark.long) if n in LONG else n for n in CORRECT]


@pytest.mark.parametrize("name", programs())
def test_correct_program_is_accepted(name):
    program = CORRECT[name]
    specs = {"in_specs": (ROWS, WHOLE, WHOLE), "out_specs": program.out}
    mapped = shard_map(program.body, mesh=MESH, **specs)

    def both(x, a, b):
        return mapped(x, a, b), program.reference(x, a, b)

    found, expected = fast_jit(both)(X, A, B)
    for ours, whole in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, whole, rtol=2e-3, atol=2e-4)


def test_there_are_enough():
    assert set(CORRECT) >= LONG
    assert len(set(CORRECT) - LONG) >= 60
