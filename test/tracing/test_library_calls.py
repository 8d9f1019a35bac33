"""Programs of libraries that know nothing of shard_map: what jax.shard_map runs, ours runs alike.

Optimizers, samplers, differential equations, and neural networks call collectives inside of their
loops, branches and derivative rules.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import jax.scipy.optimize
import numpy as np
import pytest
from compilers import fast_jit
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

with warnings.catch_warnings():  # those of their imports
    warnings.simplefilter("ignore")
    import blackjax
    import diffrax
    import equinox.internal as eqxi
    import numpyro
    import numpyro.distributions as dist
    import optax
    from flax import nnx
    from numpyro.infer.hmc import hmc
    from numpyro.infer.util import log_density

MESH = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 4)).astype(np.float32)  # rows, split over the devices
A = (X.T @ X + 4 * np.eye(4)).astype(np.float32)  # positive definite, equal on all devices
B = RNG.normal(size=4).astype(np.float32)  # equal on all devices
KEY = jax.random.key(0)


@dataclass(frozen=True)
class Program:
    """A body of x (own rows), a and b; and whether its gradient is compared, too."""

    body: Any
    rows: bool
    gradient: bool
    long: bool


PROGRAMS: dict[str, Program] = {}


def program(rows=False, gradient=False, long=False):
    """
    Args:
      rows: whether results lie along the devices.
    """

    def add(body):
        PROGRAMS[body.__name__] = Program(body, rows, gradient, long)
        return body

    return add


def mean(x):
    return lax.pmean(x.mean(0), "i")


# ------------------------------------------------------------------------------------- jax.scipy


@program()
def minimize_bfgs(x, a, b):
    def loss(v):
        return 0.5 * v @ a @ v - b @ v + lax.pmean(jnp.sum((x @ v) ** 2), "i")

    return jsp.optimize.minimize(loss, b, method="BFGS", options={"maxiter": 5}).x


@program(long=True)
def gmres(x, a, b):
    return jsp.sparse.linalg.gmres(lambda v: a @ v, b + mean(x), restart=4, maxiter=3)[0]


@program(gradient=True)
def map_coordinates(x, a, b):
    return jsp.ndimage.map_coordinates(a, [b + mean(x), b], order=1)


@program(gradient=True)
def fftconvolve(x, a, b):
    return jsp.signal.fftconvolve(a + lax.psum(x.T @ x, "i"), a, mode="same")


@program(gradient=True, long=True)
def welch(x, a, b):
    return jsp.signal.welch((a + mean(x)).ravel(), nperseg=8)[1]


@program()
def vector_quantization(x, a, b):
    return jsp.cluster.vq.vq(a + mean(x), a[:2])[1]


@program(gradient=True, long=True)
def student_and_gamma(x, a, b):
    v = b + mean(x)
    return jsp.stats.t.logpdf(v, 3.0) + jsp.stats.gamma.logpdf(1 + v**2, 2.0)


# ----------------------------------------------------------------------------------------- optax


@program(long=True)
def lbfgs(x, a, b):
    optimizer = optax.lbfgs()

    def loss(v):
        return lax.pmean(jnp.mean((x @ v - 1) ** 2), "i")

    def step(carry, _):
        v, state = carry
        value, grad = optax.value_and_grad_from_state(loss)(v, state=state)
        update, state = optimizer.update(grad, state, v, value=value, grad=grad, value_fn=loss)
        return (optax.apply_updates(v, update), state), None

    return lax.scan(step, (b, optimizer.init(b)), length=2)[0][0]


@program(gradient=True, long=True)
def ctc_loss(x, a, b):
    logits = (a + mean(x))[None]
    return optax.ctc_loss(logits, jnp.zeros((1, 4)), jnp.array([[1, 2]]), jnp.zeros((1, 2)))


@program(gradient=True)
def projection_simplex(x, a, b):
    return optax.projections.projection_simplex(b + mean(x))


# ----------------------------------------------------------------------------------- equinox loops


def contraction(x, a, b):
    return lambda v: jnp.tanh(a @ v * 0.1 + lax.psum(x.sum(0) * v, "i"))


def looped(kind):
    def body(x, a, b):
        step = contraction(x, a, b)
        return eqxi.while_loop(
            lambda s: s[0] < 3, lambda s: (s[0] + 1, step(s[1])), (0, b), max_steps=4, kind=kind
        )[1]

    return body


# JAX's shard_map refuses the gradient of a checkpointed loop, too: equinox compares types by their
# shardings, and constants have none.
PROGRAMS["loop_checkpointed"] = Program(looped("checkpointed"), False, False, False)
PROGRAMS["loop_bounded"] = Program(looped("bounded"), False, True, False)
PROGRAMS["loop_lax"] = Program(looped("lax"), False, False, False)


# ---------------------------------------------------------------------------------------- diffrax


def solved(adjoint=None, gradient=False, long=False, controller=None, solver=None, event=None):
    def body(x, a, b):
        term = diffrax.ODETerm(lambda t, y, _: mean(x) * jnp.cos(y) - y)
        options = {"adjoint": adjoint} if adjoint else {}
        if controller:
            options["stepsize_controller"] = controller
        solution = diffrax.diffeqsolve(
            term, solver or diffrax.Heun(), 0.0, 1.0, 0.5, b, max_steps=8, event=event, **options
        )
        return solution.ys[0]

    return Program(body, False, gradient, long)


PROGRAMS["diffrax_checkpointed"] = solved()
PROGRAMS["diffrax_direct"] = solved(diffrax.DirectAdjoint(), gradient=True, long=True)
PROGRAMS["diffrax_backsolve"] = solved(diffrax.BacksolveAdjoint(), long=True)
PROGRAMS["diffrax_forward"] = solved(diffrax.ForwardMode(), long=True)
PROGRAMS["diffrax_adaptive"] = solved(
    controller=diffrax.PIDController(rtol=1e-2, atol=1e-2), solver=diffrax.Tsit5(), long=True
)
PROGRAMS["diffrax_event"] = solved(
    event=diffrax.Event(lambda t, y, args, **_: y.sum() < 0.1), long=True
)


# -------------------------------------------------------------------------------------- samplers


def log_posterior(x):
    return lambda v: -lax.psum(0.5 * jnp.sum((x @ v - x[:, 0]) ** 2), "i") - 0.5 * v @ v


SCALE = jnp.ones(4)
KERNELS = {
    "hmc": lambda f: blackjax.hmc(f, 0.05, SCALE, num_integration_steps=2),
    "mala": lambda f: blackjax.mala(f, 0.01),
    "rmh": lambda f: blackjax.rmh(f, blackjax.mcmc.random_walk.normal(0.1 * SCALE)),
    "nuts": lambda f: blackjax.nuts(f, 0.05, SCALE, max_num_doublings=2),
}


def sampled(kernel):
    def body(x, a, b):
        sampler = kernel(log_posterior(x))
        state = sampler.init(b)
        for key in jax.random.split(KEY, 1):
            state, _ = sampler.step(key, state)
        return state.position

    return body


for each, kernel in KERNELS.items():
    PROGRAMS[f"blackjax_{each}"] = Program(sampled(kernel), False, False, each != "hmc")


def numpyro_sampler(algorithm):
    def body(x, a, b):
        init, sample = hmc(lambda v: -log_posterior(x)(v), algo=algorithm)
        options = {"max_tree_depth": 2} if algorithm == "NUTS" else {"num_steps": 2}
        fixed = {"adapt_step_size": False, "adapt_mass_matrix": False, "step_size": 0.05}
        state = init(b, num_warmup=0, rng_key=KEY, **fixed, **options)
        return sample(state).z

    return body


PROGRAMS["numpyro_hmc"] = Program(numpyro_sampler("HMC"), False, False, True)
PROGRAMS["numpyro_nuts"] = Program(numpyro_sampler("NUTS"), False, False, True)


@program(gradient=True)
def numpyro_log_density(x, a, b):
    def model():
        w = numpyro.sample("w", dist.Normal(jnp.zeros(4), 1.0).to_event(1))
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=x[:, 0])

    return lax.psum(log_density(model, (), {}, {"w": b})[0], "i")


@program(gradient=True, long=True)
def numpyro_truncated(x, a, b):
    return dist.TruncatedNormal(b + mean(x), 1.0, low=-1.0, high=1.0).log_prob(0.1)


@program(gradient=True, long=True)
def numpyro_multivariate(x, a, b):
    return dist.MultivariateNormal(b, a).log_prob(mean(x))


# -------------------------------------------------------------------------------------- flax.nnx


class Normalized(nnx.Module):
    """Its batch normalization averages over the devices."""

    def __init__(self, rngs):
        self.linear = nnx.Linear(4, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, axis_name="i", rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.dropout(jax.nn.relu(self.norm(self.linear(x))))


@program(rows=True, gradient=True, long=True)
def nnx_batch_norm(x, a, b):
    model = Normalized(nnx.Rngs(0))
    model.train()
    return model(x)


@program(long=True)
def nnx_train(x, a, b):
    model = nnx.Linear(4, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    for _ in range(2):
        grads = nnx.grad(lambda m: lax.pmean(jnp.mean((m(x) - 1) ** 2), "i"))(model)
        optimizer.update(model, grads)
    return model.kernel[...]


def layer(x):
    return nnx.LayerNorm(4, rngs=nnx.Rngs(0)), x * lax.psum(1, "i")


TRANSFORMED = {
    "call": lambda m, x: m(x),
    "jit": nnx.jit(lambda m, x: jnp.tanh(m(x))),
    "remat": nnx.remat(lambda m, x: jnp.tanh(m(x))),
    "cond": lambda m, x: nnx.cond(
        lax.psum(x.sum(), "i") > 0, lambda m, x: m(x), lambda m, x: x, m, x
    ),
    "loop": lambda m, x: nnx.fori_loop(0, 2, lambda _, c: (c[0], jnp.tanh(c[0](c[1]))), (m, x))[1],
}
for each, transformed in TRANSFORMED.items():
    PROGRAMS[f"nnx_{each}"] = Program(
        lambda x, a, b, f=transformed: f(*layer(x + b)), True, True, each in ("loop", "remat")
    )


def names():
    return [
        pytest.param(name, marks=pytest.mark.long) if each.long else name
        for name, each in PROGRAMS.items()
    ]


def total(y):
    """A number that depends on each element in its own way."""
    return jnp.sum(jnp.sin(y) * (1 + jnp.arange(y.size, dtype=y.dtype).reshape(y.shape)))


@pytest.mark.filterwarnings("ignore")  # of the libraries
@pytest.mark.parametrize("name", names())
def test_program_runs_as_with_jax(name):
    """Values, and gradients taken outside, in one compiled program of ours and of JAX's."""
    each = PROGRAMS[name]
    specs = {"in_specs": (P("i"), P(), P()), "out_specs": P("i") if each.rows else P()}

    def results(with_shard_map):
        f = with_shard_map(each.body, mesh=MESH, **specs)
        if not each.gradient:
            return lambda *args: f(*args)

        def loss(*args):
            y = f(*args)
            return total(y), y

        return lambda *args: jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(*args)

    def both(x, a, b):
        return results(shard_map)(x, a, b), results(jax.shard_map)(x, a, b)

    ours, theirs = fast_jit(both)(X, A, B)
    assert len(jax.tree.leaves(ours)) == len(jax.tree.leaves(theirs))
    for found, wanted in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_there_are_enough():
    assert sum(not each.long for each in PROGRAMS.values()) >= 14
    assert len(PROGRAMS) >= 34
