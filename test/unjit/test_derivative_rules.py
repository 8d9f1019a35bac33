"""Derivative rules, which XLA does not compile: the source says if it lacks some."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jitted_programs import ROWS, Jitted, floats, mesh

from shmap_compiler import unjit
from shmap_compiler.jaxprs.contents import names_any
from shmap_compiler.unjit import validation
from shmap_compiler.unjit.derivative_rules import SURVIVING, SURVIVING_IF_REAL, rules_of
from shmap_compiler.unjit.gradients import differing_gradients

X, W = floats(8, 16), floats(16, 16)


def program(fun, *args):
    args = args or (X, W)
    return Jitted(fun, args, (ROWS, P("j"))[: len(args)]).jitted(), args


def unjitted(fun, *args):
    jitted, args = program(fun, *args)
    return unjit(jitted, *args)


@jax.custom_vjp
def rounds(x):
    return jnp.round(x)


rounds.defvjp(lambda x: (jnp.round(x), None), lambda _, ct: (ct,))


@jax.custom_vjp
def twice_the_slope(x):
    return jnp.sin(x)


twice_the_slope.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (2 * jnp.cos(x) * ct,))


@jax.custom_vjp
def with_small_gradients(x):
    return x


with_small_gradients.defvjp(lambda x: (x, None), lambda _, ct: (jnp.clip(ct, -1, 1),))


@jax.custom_jvp
def softplus(x):
    return jnp.log(1 + jnp.exp(x))


@softplus.defjvp
def _(primals, tangents):
    return softplus(*primals), tangents[0] * jax.nn.sigmoid(primals[0])


@jax.custom_vjp
def until_small(x):
    return lax.while_loop(lambda y: jnp.max(jnp.abs(y)) > 1, lambda y: y / 2, x)


until_small.defvjp(lambda x: (until_small(x), None), lambda _, ct: (ct,))


def straight_through(x, w):
    return rounds(x * 4) / 4 @ w


def quantized(x, w):
    return (x + lax.stop_gradient(jnp.round(x) - x)) @ w


def half_of_a_square(x, w):
    return x * lax.stop_gradient(x) @ w


def scaled(x, w):
    return twice_the_slope(x @ w)


def tree_of_targets(x, w):
    targets = jax.tree.map(lax.stop_gradient, {"y": jnp.tanh(x @ w)})
    return (x @ w - targets["y"]) ** 2


def beside_library_functions(x, w):
    return jax.nn.softmax(jax.nn.relu(rounds(x * 4) @ w))


def in_steps(x, w):
    step = jax.checkpoint(lambda h, _: (jnp.tanh(rounds(h * 4) @ w), None))
    return lax.scan(step, x, None, length=3)[0]


def in_branches(x, w):
    return lax.cond(w[0, 0] > 5, lambda: x @ w, jax.jit(lambda: rounds(x * 4) @ w))


def mean_of_small_gradients(x, w):
    return jnp.mean(with_small_gradients(x) @ w)


def narrow(x, w):
    return rounds(x.astype(jnp.bfloat16) * 4) @ w.astype(jnp.bfloat16)


def forward_only(x, w):
    return lax.while_loop(
        lambda y: jnp.max(jnp.abs(y)) > 1, lambda y: y / 2, x * lax.stop_gradient(x) @ w
    )


@pytest.mark.parametrize(
    ("fun", "rule"),
    [
        (straight_through, "jax.custom_vjp"),
        (quantized, "jax.lax.stop_gradient"),
        (half_of_a_square, "jax.lax.stop_gradient"),
        (scaled, "jax.custom_vjp"),
        (tree_of_targets, "jax.lax.stop_gradient"),
        (beside_library_functions, "jax.custom_vjp"),
        (in_steps, "jax.custom_vjp"),
        (in_branches, "jax.custom_vjp"),
        (mean_of_small_gradients, "jax.custom_vjp"),
        (narrow, "jax.custom_vjp"),
        (forward_only, "jax.lax.stop_gradient"),
    ],
)
def test_the_source_names_the_rules_that_its_gradients_lack(fun, rule):
    made = unjitted(fun)
    head, _, _ = made.as_python().partition("\n\n")
    assert "# Its gradients are not those of the jitted function.\n" in head
    (line,) = made.hidden_rules
    assert head.endswith(f"#   {line}")
    place, _, found = line.partition(": ")
    assert found == rule
    assert f"test_derivative_rules.py:{line_in(fun, place)} ({fun.__name__}" in place


def line_in(fun, place):
    """The line of a place, which must be in the function."""
    line, first = int(place.partition(".py:")[2].split()[0]), fun.__code__.co_firstlineno
    assert first < line <= max(filter(None, (number for *_, number in fun.__code__.co_lines())))
    return line


# Calls that name the library would be in the source, with their derivatives.
log_beta, erf_inv = jax.scipy.special.betaln, lax.erf_inv


def betaln(x):
    return log_beta(jnp.abs(x) + 0.1, 2.0)


def inverse_of_erf(x):
    return erf_inv(jnp.tanh(x) / 2)


def products_along_rows(x):
    return jnp.cumprod(x, axis=0)


def logsumexp_along_rows(x):
    return lax.cumlogsumexp(x, axis=0)


def gammainc(x):
    return jax.scipy.special.gammainc(2.0, jnp.abs(x))


@pytest.mark.parametrize(
    ("fun", "function", "gradients"),
    [
        (betaln, "jax.lax.lgamma", "are not those of the jitted function"),
        (inverse_of_erf, "jax.lax.erf_inv", "are not those of the jitted function"),
        (products_along_rows, "jax.lax.cumprod", "cannot be computed (ValueError: Lineariz"),
        (
            logsumexp_along_rows,
            "jax.lax.cumlogsumexp",
            "cannot be computed (DerivativeError: stablehlo.reduce_window, which has no",
        ),
        (gammainc, "jax.lax.igamma", "cannot be computed (ValueError: Reverse-mode"),
    ],
)
def test_the_source_names_the_functions_whose_derivative_it_lacks(fun, function, gradients):
    jax.clear_caches()  # else JAX names the lines that called its functions before
    made = unjitted(fun, X)
    head, _, _ = made.as_python().partition("\n\n")
    assert f"# Its gradients {gradients}" in head
    (line,) = made.hidden_rules
    assert head.endswith(f"#   {line}")
    place, _, found = line.partition(": ")
    assert found == function
    line_in(fun, place)
    assert str(made.validate()).endswith("PASS: values agree; gradients differ")


@pytest.mark.parametrize(
    ("fun", "function"),
    [
        (partial(jnp.cumsum, axis=0), "jax.lax.cumsum"),
        (lambda x: jnp.exp(1j * x).real, "jax.lax.exp"),
        (lambda x: lax.fori_loop(0, jnp.int32(x[0, 0]), lambda _, y: y * 2, x), "while_loop"),
        (lambda x: jnp.linalg.svd(x.T @ x, compute_uv=False), "jax.lax.linalg.svd"),
    ],
    ids=["cumsum", "complex", "loop", "svd"],
)
def test_other_derivatives_are_compared_and_there_is_no_comment_if_they_are_the_same(fun, function):
    made = unjitted(fun, X)
    assert [rule for rule in made._rules if rule.endswith(function)]
    assert made.hidden_rules == ()
    assert "gradients" not in made.as_python()


ELEMENTWISE = {
    "abs": jnp.abs,
    "add": lambda x: x + 1,
    "atan2": lambda x: lax.atan2(x, x + 2),
    "bitcast_convert_type": lambda x: x * lax.bitcast_convert_type(x, np.int32),
    "cbrt": jnp.cbrt,
    "ceil": lambda x: x * jnp.ceil(x),
    "clamp": lambda x: lax.clamp(-0.5, x, 0.5),
    "conj": lambda x: jnp.conj(x * (1 + 2j)).imag,
    "convert_element_type": lambda x: x.astype(jnp.bfloat16),
    "copy": jnp.copy,
    "copy_p": jnp.array,
    "cos": jnp.cos,
    "div": lambda x: 1 / (x * x + 1),
    "erf": lax.erf,
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "floor": lambda x: x * jnp.floor(x),
    "imag": lambda x: jnp.imag(x * (1 + 2j)),
    "integer_pow": lambda x: x**3,
    "log": lambda x: jnp.log(x * x + 1),
    "log1p": lambda x: jnp.log1p(x * x),
    "logistic": lax.logistic,
    "max": lambda x: jnp.maximum(x, 0.25),
    "min": lambda x: jnp.minimum(x, 0.25),
    "mul": lambda x: x * x,
    "name": lambda x: checkpoint_name(x * x, "square"),
    "neg": lambda x: -x,
    "optimization_barrier": lambda x: lax.optimization_barrier(x * x),
    "pow": lambda x: (x * x + 1) ** (x / 2),
    "real": lambda x: jnp.real(x * (1 + 2j)),
    "round": lambda x: x * jnp.round(4 * x),
    "rsqrt": lambda x: lax.rsqrt(x * x + 1),
    "select_n": lambda x: jnp.where(x > 0, x, 2 * x),
    "sign": lambda x: x * jnp.sign(x),
    "sin": jnp.sin,
    "sqrt": lambda x: jnp.sqrt(x * x + 1),
    "square": jnp.square,
    "sub": lambda x: 1 - x,
    "tan": lambda x: jnp.tan(x / 4),
    "tanh": jnp.tanh,
}
ON_ARRAYS = {
    "add_any": jax.grad(lambda x: jnp.sum(jnp.sin(x) * x)),
    "broadcast_in_dim": lambda x: jnp.broadcast_to(x, (2, 8, 16)),
    "cholesky": lambda x: jnp.linalg.cholesky(x.T @ x + jnp.eye(16)),
    "concatenate": lambda x: jnp.concatenate([x, x * x]),
    "conv_general_dilated": lambda x: lax.conv(x[None, None], W[None, None, :3], (1, 1), "SAME"),
    "dot_general": lambda x: x @ x.T,
    "dynamic_slice": lambda x: lax.dynamic_slice(x, (jnp.argmax(x[0]) // 8, 0), (5, 16)),
    "dynamic_update_slice": lambda x: lax.dynamic_update_slice(
        x, x[:2] * 2, (jnp.argmax(x[0]) // 4, 0)
    ),
    "fft": lambda x: jnp.fft.fft(x).real,
    "gather": lambda x: x[jnp.argsort(x[:, 0])],
    "lu": lambda x: lax.linalg.lu(x.T @ x + jnp.eye(16))[0],
    "one_minus_square": jax.grad(lambda x: jnp.sum(jnp.tanh(x))),
    "pad": lambda x: jnp.pad(x, 1),
    "reduce_max": lambda x: jnp.max(x, axis=0),
    "reduce_min": lambda x: jnp.min(x, axis=0),
    "reduce_sum": lambda x: jnp.sum(x, axis=0),
    "reduce_window_sum": lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 2), (1, 1), "VALID"),
    "reshape": lambda x: x.reshape(4, 32) ** 2,
    "rev": lambda x: x[::-1] * x,
    "scatter-add": lambda x: x.at[jnp.argsort(x[0])[:4] // 2].add(x[:4] ** 2),
    "sharding_constraint": lambda x: lax.with_sharding_constraint(
        x * x, NamedSharding(mesh(), P("j", "i"))
    ),
    "slice": lambda x: x[1:7] * x[:6],
    "sort": lambda x: jnp.sort(x, axis=0),
    "split": lambda x: jnp.multiply(*jnp.split(x, 2)),
    "squeeze": lambda x: jnp.squeeze(x[2:3] ** 2, 0),
    "stack": lambda x: jnp.stack([x, x * x]),
    "tile": lambda x: jnp.tile(x, (2, 1)),
    "top_k": lambda x: lax.top_k(x.T, 3)[0],
    "transpose": lambda x: x.T * 2,
    "triangular_solve": lambda x: jax.scipy.linalg.solve_triangular(
        x.T @ x + jnp.eye(16), x.T, lower=True
    ),
    "unstack": lambda x: jnp.unstack(x)[1] * jnp.unstack(x)[2],
}
IN_SOME_VERSIONS = {"copy", "copy_p", "one_minus_square", "stack", "tile", "unstack", "square"}


@pytest.mark.parametrize("functions", [ELEMENTWISE, ON_ARRAYS], ids=["elementwise", "on_arrays"])
def test_derivatives_that_are_said_to_survive_do(functions):
    for name, fun in functions.items():
        jaxpr = jax.make_jaxpr(fun)(X)
        assert names_any(jaxpr, (name,)) or name in IN_SOME_VERSIONS, name
        assert rules_of(jaxpr) == (), name
    xs = (X / 2,) * len(functions)
    jitted = Jitted(
        lambda *xs: [fun(x) for fun, x in zip(functions.values(), xs, strict=True)],
        xs,
        (ROWS,) * len(xs),
    ).jitted()
    made = unjit(jitted, *xs)
    assert made.hidden_rules == ()
    assert differing_gradients(jitted, made.shard_map(), xs, 0.0) == ""


def test_all_derivatives_that_are_said_to_survive_are_tested():
    assert ELEMENTWISE.keys() | ON_ARRAYS.keys() == SURVIVING | SURVIVING_IF_REAL


def test_differing_gradients_are_reported_and_values_pass():
    made = unjitted(straight_through)
    found = made.validate()
    assert found.holds
    assert found.source == 0
    assert found.rules == made.hidden_rules
    lines = str(found).splitlines()
    assert "its gradients are not those of the jitted function: it lacks" in lines[-3]
    assert lines[-2].strip() == found.rules[0]
    assert lines[-1] == "PASS: values agree; gradients differ"


def test_arguments_of_zeros_do_not_hide_rules():
    assert unjitted(straight_through, jnp.zeros((8, 16)), jnp.zeros((16, 16))).hidden_rules


def test_a_source_without_gradients_is_reported():
    made = unjitted(lambda x: until_small(x) * 2, X)
    assert "# Its gradients cannot be computed (ValueError: Reverse-mode" in made.as_python()
    assert made.hidden_rules[0].endswith(": jax.custom_vjp")


def test_variables_are_found_below_the_comment():
    source = unjitted(scaled)._source
    lines = source.text.splitlines()
    assert source.assigned
    assert all(re.match(rf" +(# )?{v.name}\b", lines[v.line - 1]) for v in source.assigned)


def library_functions(x, w):
    y = jax.nn.relu(x @ w) + jax.nn.silu(x) + jax.nn.gelu(x) + jax.nn.elu(x)
    y = jax.nn.softmax(y) - jax.nn.log_softmax(y, axis=0) * jax.nn.logsumexp(y)
    return y @ jnp.linalg.solve(w.T @ w + jnp.eye(16), w)


def rules_that_are_derivatives(x, w):
    return softplus(jax.nn.relu(jnp.logaddexp(x, 1)) @ w)


@pytest.mark.parametrize(
    ("fun", "args"),
    [
        (library_functions, (X, W)),
        (rules_that_are_derivatives, (X, W)),
        (rules_that_are_derivatives, (X.astype(jnp.bfloat16), W.astype(jnp.bfloat16))),
        (rules_that_are_derivatives, (jnp.zeros((8, 16)), jnp.zeros((16, 16)))),
        (lambda x, w: jnp.round(lax.stop_gradient(x)) + w[:8], (X, W)),
    ],
    ids=["library", "rules", "narrow", "zeros", "without_slope"],
)
def test_there_is_no_comment_where_gradients_are_the_same(fun, args):
    made = unjitted(fun, *args)
    assert made.hidden_rules == ()
    assert "gradients" not in made.as_python()
    assert str(made.validate()).endswith("\nPASS")


def test_the_usual_rules_of_jax_are_derivatives_and_not_compared():
    jitted, args = program(library_functions)
    assert rules_of(jax.make_jaxpr(jitted)(*args)) == ()
    assert differing_gradients(jitted, unjit(jitted, *args).shard_map(), args, 0.0) == ""
    other, _ = program(scaled)
    assert differing_gradients(jitted, other, args, 0.0) != ""


def test_only_programs_with_rules_are_differentiated(monkeypatch):
    def fails(*args):
        raise AssertionError("differentiated")

    monkeypatch.setattr(validation, "differing_gradients", fails)
    assert unjitted(library_functions).hidden_rules == ()
    with pytest.raises(AssertionError, match="differentiated"):
        unjitted(rules_that_are_derivatives)


def test_a_function_is_traced_once():
    calls = []

    def counted(x, w):
        calls.append(x)
        return x @ w

    unjitted(counted)
    assert len(calls) == 1


def test_rules_are_found_in_nested_programs():
    @jax.jit
    def inner(x):
        return lax.stop_gradient(x) * jnp.logaddexp(x, 1)

    jaxpr = jax.make_jaxpr(lambda xs: lax.map(jax.checkpoint(inner), xs))(np.ones(3))
    assert [rule.rpartition(": ")[2] for rule in rules_of(jaxpr)] == [
        "jax.lax.stop_gradient",
        "jax.custom_jvp",
    ]
    assert rules_of(jax.make_jaxpr(partial(jnp.sum, axis=0))(np.ones(3))) == ()
