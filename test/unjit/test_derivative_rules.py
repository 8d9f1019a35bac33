"""Derivative rules, which XLA does not compile: the source says if it lacks some."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from jitted_programs import ROWS, Jitted, floats

from shmap_compiler import unjit
from shmap_compiler.unjit import validation
from shmap_compiler.unjit.derivative_rules import rules_of
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
