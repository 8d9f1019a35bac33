"""JAX's types of varying values, as a body and the derivative rules in it see and need them."""

import functools
import importlib
import site
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import run_together
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import BodyError, SpecError, shard_map
from shmap_compiler.base import objects
from shmap_compiler.jaxprs.contents import equations
from shmap_compiler.tracing import library_code
from shmap_compiler.tracing.vma_queries import asks

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
X = np.arange(8 * 6, dtype=np.float32).reshape(8, 6) / 40
W = np.linspace(0.5, 1, 6, dtype=np.float32)
SPECS = (P(), P("i"))


test_module = sys.modules[__name__]


def varying(x):
    return varying_of(jax.typeof(x))


def varying_of(aval):
    return set(aval.manual_axis_type.varying)


def mapped(function, body, in_specs=SPECS, out_specs=SPECS[1], **options):
    return function(body, mesh=MESH, in_specs=in_specs, out_specs=out_specs, **options)


# ----------------------------------------------------------------------------- what a body is told


def straight(tell, shard_map, w, x):
    tell("inputs", w, x)
    tell("sum", w + x, lax.psum(x, "i"), lax.psum(w, "j"))
    tell("cast", lax.pcast(w, "j", to="varying"), lax.pcast(x, ("j",), to="varying"))
    gathered = lax.all_gather(x, "i"), lax.all_gather(x, "i", to="invarying")
    tell("collectives", lax.axis_index("j"), *gathered)
    tell("constants", jnp.zeros(3), 2 * jnp.ones(3), jnp.zeros_like(x))
    return x


def loop(tell, shard_map, w, x):
    def step(carry, row):
        tell("scan", carry, row, w)
        return carry + row, row * w

    carry, rows = lax.scan(step, lax.pcast(w, "i", to="varying"), x)
    tell("after", carry, rows)
    return rows


def branches(tell, shard_map, w, x):
    def branch(w, x):
        tell("branch", w, x)
        return x * w

    out = lax.cond(w[0] > 0, branch, lambda w, x: x, w, x)
    tell("after", out)
    return out


def calls(tell, shard_map, w, x):
    @jax.jit
    def inner(v):
        tell("jit", v)
        return v * 2

    @jax.checkpoint
    def kept(v):
        tell("checkpoint", v)
        return jnp.sin(v)

    tell("vmap", *jax.vmap(lambda row: (tell("row", row), row * w)[1])(x))
    return inner(x) + inner(w) + kept(x)


def nested(tell, shard_map, w, x):
    def inside(w, x):
        tell("inside", w, x, w * x)
        return lax.psum(w * x, "j")

    out = shard_map(inside, in_specs=(P("j"), P(None, "j")), out_specs=P(), axis_names={"j"})(w, x)
    tell("outside", out)
    return jnp.concatenate([out, out], 1)


@pytest.mark.parametrize("program", [straight, loop, branches, calls, nested])
def test_a_body_is_told_what_jax_tells(program):
    def told_by(shard_map):
        told = {}

        def tell(what, *values):
            told.setdefault(what, [varying(v) for v in values])

        axes = {"axis_names": {"i"}} if program is nested else {}
        function = mapped(shard_map, functools.partial(program, tell, shard_map), **axes)
        jax.jit(jax.grad(lambda w, x: function(w, x).sum(), (0, 1))).trace(W, X)
        return told

    expected = told_by(jax.shard_map)
    assert any(any(axes) for axes in expected.values())
    assert told_by(shard_map) == expected


def test_without_check_vma_values_have_no_varying_axes():
    def body(w, x):
        assert varying(x) == varying(lax.axis_index("i")) == set()
        return w * x

    jax.jit(mapped(shard_map, body, check_vma=False)).trace(W, X)


def as_varying(x, like):
    """As libraries write it."""
    missing = varying(like) - varying(x)
    return lax.pcast(x, tuple(missing), to="varying") if missing else x


def test_a_carry_made_varying_by_its_type():
    def body(w, x):
        start = as_varying(jnp.zeros(6), x)
        assert varying(start) == {"i"}
        return x + lax.scan(lambda c, row: (c + row * w, None), start, x)[0]

    sums = np.repeat((X * W).reshape(4, 2, 6).sum(1), 2, axis=0)
    np.testing.assert_allclose(jax.jit(mapped(shard_map, body))(W, X), X + sums, rtol=1e-6)


def test_pallas_kernel_whose_result_has_the_type_of_its_operand():
    def kernel(x_ref, out_ref):
        out_ref[...] = jnp.sin(x_ref[...])

    def body(w, x):
        kind = jax.typeof(x).manual_axis_type
        assert kind.varying == {"i"}
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype, manual_axis_type=kind)
        return w * pl.pallas_call(kernel, out_shape=shape, interpret=True)(x)

    np.testing.assert_allclose(
        jax.jit(mapped(shard_map, body))(W, X), W * np.sin(X), rtol=1e-4, atol=1e-5
    )


# -------------------------------------------------------------------- programs that types refuse


def carry_too_small(w, x):
    return x + lax.scan(lambda c, row: (c + row * w, None), jnp.zeros(6), x)[0]


def carry_too_small_and_asks(w, x):
    return carry_too_small(w, x) + as_varying(w, x)


@pytest.mark.parametrize(("body", "more"), [(carry_too_small, 0), (carry_too_small_and_asks, W)])
def test_what_types_refuse_is_accepted(body, more):
    with pytest.raises(TypeError, match="carry"):
        jax.jit(mapped(jax.shard_map, body)).trace(W, X)
    sums = np.repeat((X * W).reshape(4, 2, 6).sum(1), 2, axis=0)
    found = jax.jit(mapped(shard_map, body))(W, X)
    np.testing.assert_allclose(found, X + sums + more, rtol=1e-6)


def solved_with_a_sum(solver):
    return lambda w, x: x * solver(lambda v: v + lax.psum(w * v, "i"), w, maxiter=2)[0]


def gradient(x):
    return jax.grad(lambda x: (x * x).sum())(x)


HELD = {"of squares": gradient}


class State:
    grad = 2.0


STATE = State()
CONFIG = {"grad": 3.0}


def step(w, grad):
    return w - grad


def imports_jax(w, x):
    import jax

    return jax.grad(lambda x: jax.numpy.sum(w * x))(x)


@jax.custom_jvp
def with_gradient_in_rule(x):
    return x * x


with_gradient_in_rule.defjvp(
    lambda primals, tangents: (
        primals[0] ** 2,
        jax.grad(lambda x: lax.mul(x, x).sum())(primals[0]) * tangents[0],
    )
)


TRACES = {
    "does not ask": (lambda w, x: w * x, 1),
    "asks": (lambda w, x: w * as_varying(w, x), 1),
    "would be refused": (carry_too_small, 1),
    "asks and is refused": (carry_too_small_and_asks, 2),
    "differentiates": (lambda w, x: jax.grad(lambda x: (w * x).sum())(x), 1),
    "calls what differentiates": (lambda w, x: w * gradient(x), 1),
    "holds what differentiates": (lambda w, x: w * HELD["of squares"](x), 2),
    "imports what differentiates": (imports_jax, 1),
    "differentiates by a function of a module": (lambda w, x: w * test_module.gradient(x), 1),
    "reads an attribute named grad": (lambda w, x: jax.nn.relu(w) * x * STATE.grad, 1),
    "reads an entry named grad": (lambda w, x: w * x * CONFIG["grad"], 1),
    "names an argument grad": (lambda w, x: step(w, grad=x), 1),
    "could differentiate": (lambda w, x: w * (gradient(x) if x.ndim > 2 else x), 2),
    "could differentiate and would be refused": (
        lambda w, x: carry_too_small(w, x) * (gradient(x) if x.ndim > 2 else 1),
        2,
    ),
    "could use a rule that differentiates": (
        lambda w, x: jax.nn.relu(w) * (with_gradient_in_rule(x) if x.ndim > 2 else x),
        1,
    ),
    "uses a rule that differentiates": (lambda w, x: w * with_gradient_in_rule(x), 2),
    "solves": (lambda w, x: x * jnp.linalg.solve(jnp.diag(w), w), 1),
    "solves with a sum": (solved_with_a_sum(jax.scipy.sparse.linalg.bicgstab), 2),
    "solves a symmetric system with a sum": (solved_with_a_sum(jax.scipy.sparse.linalg.cg), 1),
    "differentiates in a solve": (
        lambda w, x: (
            x
            * lax.custom_linear_solve(
                jax.grad(lambda v: v @ v), w, lambda _, b: b / 2, symmetric=True
            )
        ),
        1,
    ),
    "asks and differentiates": (lambda w, x: jax.grad(lambda x: as_varying(w, x).sum())(x), 1),
}


def operator(w):
    return jnp.diag(w) + 0.1


SOLVERS = {
    "solve": lambda w: jnp.linalg.solve(operator(w), w),
    "inv": lambda w: jnp.linalg.inv(operator(w)) @ w,
    "cho_solve": lambda w: jax.scipy.linalg.solve(operator(w), w, assume_a="pos"),
    "cg": lambda w: jax.scipy.sparse.linalg.cg(lambda v: operator(w) @ v, w, tol=1e-7)[0],
    "bicgstab": lambda w: jax.scipy.sparse.linalg.bicgstab(operator(w), w, tol=1e-7)[0],
    "root": lambda w: lax.custom_root(
        lambda v: operator(w) @ v - w,
        w,
        lambda f, _: jnp.linalg.solve(operator(w), w),
        lambda g, y: jnp.linalg.solve(jax.jacobian(g)(y), y),
    ),
}


def summed_in_pairs(w, x):
    return lax.psum(x, "i", axis_index_groups=[[0, 1], [2, 3]])


@pytest.mark.parametrize("name", SOLVERS)
def test_a_solver_beside_what_types_refuse(name):
    """JAX transposes its operator, but nobody takes a derivative inside."""
    for beside in (carry_too_small, summed_in_pairs):
        of = mapped(shard_map, lambda w, x, beside=beside: SOLVERS[name](w) * beside(w, x))
        jax.jit(jax.grad(lambda w, x, of=of: of(w, x).sum())).trace(W, X)


@pytest.mark.parametrize("call", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_the_values_of_solvers_beside_what_types_refuse(call):
    def body(w, x):
        return sum(solver(w) for solver in SOLVERS.values()) * carry_too_small(w, x)

    found = call(mapped(shard_map, body))(W, X)
    expected = jax.jit(mapped(jax.shard_map, body, check_vma=False))(W, X)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_what_types_refuse_beside_a_derivative_inside():
    def body(w, x):
        return jax.grad(lambda w: (w * x).sum())(w) * summed_in_pairs(w, x)

    with pytest.raises(BodyError, match=r"(?s)a derivative taken inside the function.*psum over"):
        jax.jit(mapped(shard_map, body)).trace(W, X)


def test_an_assertion_of_types_beside_an_automatic_axis():
    """Some functions of JAX's end in one where `jax.shard_map` checks types, too."""

    def body(w, x):
        gradient = jax.grad(lambda x: jnp.sin(x).sum())(x[0])
        return jnp.interp(x, jnp.sort(x[0]), gradient)

    def of(function, **options):
        return jax.jit(mapped(function, body, axis_names={"i"}, **options))

    with pytest.raises(AssertionError, match="ManualAxisType"):
        of(jax.shard_map).trace(W, X)
    with pytest.raises(BodyError, match=r"(?s)a derivative taken inside.*check_vma=False"):
        of(shard_map).trace(W, X)
    with_own_shares = of(shard_map, check_vma=False)(W, X)
    np.testing.assert_array_equal(with_own_shares, of(jax.shard_map, check_vma=False)(W, X))


def test_collectives_along_an_axis_of_a_vmap_beside_a_derivative_inside():
    """`jax.shard_map` with check_vma rejects all of them, with an AssertionError."""

    def body(w, x):
        centered = jax.vmap(lambda row: row - lax.pmean(row, "rows"), axis_name="rows")(x)
        return jax.grad(lambda w: (w * centered).sum())(w)

    wanted = r"(?s)a derivative taken inside.*pmean over 'rows' at .*axis 'rows' of a vmap"
    with pytest.raises(BodyError, match=wanted):
        jax.jit(mapped(shard_map, body)).trace(W, X)


JITTED = jax.jit(jax.grad(lambda w, x: lax.sub(w, x).sum()))


@jax.custom_jvp
def of_first(w, x):
    return w * x


of_first.defjvps(lambda tangent, result, w, x: tangent, lambda tangent, result, w, x: tangent)


def of_ones(fun, w):
    """The cotangent of `w` that ones have, without an operation that has another transpose."""
    result, backward = jax.vjp(fun, w)
    return backward(jnp.ones_like(result))[0]


IDENTITIES = {
    "an argument of vjp": lambda w, x: jax.vjp(lambda w: x[:1] + w, w)[1](x[:1])[0],
    "grad": lambda w, x: jax.grad(lambda w: (w + x[0]).sum())(w),
    "grad of lax": lambda w, x: jax.grad(lambda w: lax.add(w, x[0])[0])(w),
    "a difference": lambda w, x: jax.grad(lambda w: lax.sub(w, x[0])[0])(w),
    "jacrev": lambda w, x: jax.jacrev(lambda w: lax.sub(w, x[0]))(w),
    "jit of grad": lambda w, x: JITTED(w, x[0]),
    "the same jit of grad": lambda w, x: JITTED(w, x[0]) * 2,
    "an element that is added to": lambda w, x: of_ones(lambda w: w.at[0].add(x[0, 0]), w),
    "rows that are subtracted from": lambda w, x: of_ones(lambda w: w.at[1:].subtract(x[0, 1:]), w),
    "a remainder": lambda w, x: of_ones(lambda w: lax.rem(w, x[0]), w),
    "a rule": lambda w, x: of_ones(lambda w: of_first(w, x[0]), w),
    "a position": lambda w, x: jax.grad(
        lambda w: lax.add(w[0], lax.axis_index("i").astype(w.dtype))
    )(w),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_gradients_whose_transposes_are_the_identity(name):
    """They are sums over devices like any other, and leave no equation in a jaxpr."""
    body = IDENTITIES[name]
    ours, theirs = (mapped(f, body, out_specs=P()) for f in (shard_map, jax.shard_map))
    found, expected = run_together((ours, theirs), W, X)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(ours(W, X), expected, rtol=1e-6)


def test_scopes_of_the_user_are_no_derivatives():
    def body(w, x):
        with jax.named_scope("transpose(w)"):
            y = w * x[0]
        return lax.psum(lax.fori_loop(0, 3, lambda k, total: total + y, jnp.zeros(6)), "i")

    found = jax.jit(mapped(shard_map, body, out_specs=P()))(W, X)
    np.testing.assert_allclose(found, 3 * W * X[::2].sum(0), rtol=1e-6)


def test_forward_mode_leaves_no_copies():
    def body(w, x):
        return jax.jvp(lambda w: w + x, (w,), (2 * w,))[1]

    graph = mapped(shard_map, body, out_specs=P("i")).trace(W, X)
    assert "copy" not in {eqn.primitive.name for eqn in equations(graph.jaxpr)}


@pytest.mark.parametrize("name", TRACES)
def test_only_what_needs_types_is_traced_with_them(name):
    body, traces = TRACES[name]
    count = []

    def counted(w, x):
        count.append(1)
        return body(w, x)

    jax.jit(mapped(shard_map, counted)).trace(W, X)
    assert len(count) == traces


def test_an_error_of_a_function_that_asks():
    def body(w, x):
        raise KeyError(f"theirs {varying(x)}")

    with pytest.raises(KeyError, match="theirs") as caught:
        jax.jit(mapped(shard_map, body)).trace(W, X)
    assert caught.value.__context__ is None


def test_types_leave_nothing_in_the_graph():
    def body(w, x):
        y = jnp.where(x > 0, x * 2, as_varying(w, x))
        return lax.psum(lax.pcast(y, "j", to="varying"), "j") + 3

    graph = mapped(shard_map, body).trace(W, X)
    assert (
        graph.jaxpr.in_avals == mapped(shard_map, body, check_vma=False).trace(W, X).jaxpr.in_avals
    )
    for eqn in equations(graph.jaxpr):
        assert [varying_of(v.aval) for v in eqn.outvars] == [set()] * len(eqn.outvars)


@pytest.mark.parametrize(
    "transform", [lambda f: f, jax.jit, jax.grad], ids=["eager", "jit", "grad"]
)
def test_a_sum_over_the_axes_that_a_value_varies_along(transform):
    """A norm as libraries write it, for weights split in whatever way."""

    def norm(x):
        squares, axes = jnp.sum(x * x), varying(x)
        return lax.psum(squares, tuple(axes)) if axes else squares

    function = shard_map(lambda w, x: norm(w) + norm(x), mesh=MESH, in_specs=SPECS, out_specs=P())
    found = transform(lambda w: function(w, X))(W)
    expected = transform(lambda w: jnp.sum(w * w) + jnp.sum(X * X))(W)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_an_eager_body_that_asks_and_is_refused():
    sums = np.repeat((X * W).reshape(4, 2, 6).sum(1), 2, axis=0)
    found = mapped(shard_map, carry_too_small_and_asks)(W, X)
    np.testing.assert_allclose(found, X + sums + W, rtol=1e-6)


@jax.custom_vjp
def scaled(w, x):
    return w * x


def scaled_backward(residuals, ct):
    w, x = residuals
    share = (ct * x).sum(0)
    assert varying(share) == {"i"}
    return share, ct * w


scaled.defvjp(lambda w, x: (w * x, (w, x)), scaled_backward)


@pytest.mark.parametrize(
    "body",
    [
        lambda w, x: scaled(w, x) * as_varying(w, x),
        lambda w, x: scaled(w, x) * jax.grad(lambda w: lax.psum(jnp.sum(w * w), "i"))(w) / 8,
    ],
    ids=["asks", "differentiates"],
)
def test_derivatives_through_rules_of_a_function_that_needs_types(body):
    found = jax.jit(jax.grad(lambda w, x: mapped(shard_map, body)(w, x).sum(), (0, 1)))(W, X)
    expected = jax.grad(lambda w, x: jnp.sum(w * x * w), (0, 1))(W, X)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


# ----------------------------------------------------------------------- what its rules are told


def codes(*values):
    """The axes along which values vary: 1 for "i" and 2 for "j", in six numbers."""
    found = [("i" in varying(v)) + 2 * ("j" in varying(v)) for v in values]
    return jnp.array([*found, *[0] * (6 - len(found))], jnp.float32)


def kinds_of_values(w, x):
    return w, x, w * x, lax.psum(x, "i"), lax.axis_index("j")


def cast_values(w, x):
    return lax.pcast(w, "i", to="varying"), lax.pcast(x, "j", to="varying")


def told_forward(kept=kinds_of_values, **options):
    """The product, with what its rule is told as the cotangent of `w`."""
    ruled = jax.custom_vjp(jnp.multiply)

    def forward(w, x):
        return w * x, (codes(*kept(w, x)), w)

    ruled.defvjp(forward, lambda saved, ct: (saved[0], ct * saved[1]), **options)
    return ruled


def told_backward(kept=kinds_of_values, **options):
    ruled = jax.custom_vjp(jnp.multiply)

    def backward(saved, ct):
        return codes(*saved[1], ct), ct * saved[0]

    ruled.defvjp(lambda w, x: (w * x, (w, kept(w, x))), backward, **options)
    return ruled


def told_by_an_argument():
    ruled = jax.custom_vjp(lambda tell, w, x: w * x, nondiff_argnums=(0,))
    ruled.defvjp(
        lambda tell, w, x: (w * x, (w, x)),
        lambda tell, saved, ct: (tell(*saved, ct), ct * saved[0]),
    )
    return functools.partial(ruled, codes)


def told_by_a_partial():
    ruled = jax.custom_vjp(jnp.multiply)

    def backward(tell, saved, ct):
        return tell(*saved, ct), ct * saved[0]

    ruled.defvjp(lambda w, x: (w * x, (w, x)), functools.partial(backward, codes))
    return ruled


def told_tangents():
    """The same by a `custom_jvp` function: the rule is that of a product with what it is told."""
    ruled = jax.custom_jvp(jnp.multiply)

    @ruled.defjvp
    def rule(primals, tangents):
        return jnp.multiply(*primals), tangents[0] * codes(*kinds_of_values(*primals)) + tangents[1]

    return ruled


def told_tangents_apart():
    ruled = jax.custom_jvp(jnp.multiply)
    ruled.defjvps(lambda t, out, w, x: t * codes(w, x, out) + 0 * x, lambda t, out, w, x: t)
    return ruled


def beside_one_that_does_not_ask():
    told = told_backward()
    silent = jax.custom_vjp(jnp.sin)
    silent.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: ct * jnp.cos(x))
    return lambda w, x: told(w, silent(x))


def batched(ruled):
    return lambda w, x: jax.vmap(lambda k: ruled(w, k * x))(jnp.ones(2)).sum(0)


def in_a_loop(ruled):
    return lambda w, x: lax.scan(lambda y, _: (ruled(w, y), None), x, length=2)[0]


TOLD = {
    "forward": told_forward(),
    "forward, casts": told_forward(cast_values),
    "forward, batched": batched(told_forward()),
    "backward": told_backward(),
    "backward, casts": told_backward(cast_values),
    "backward, batched": batched(told_backward()),
    "backward, in a loop": in_a_loop(told_backward()),
    "backward, kept": jax.checkpoint(told_backward()),
    "backward, by an argument": told_by_an_argument(),
    "backward, by a partial": told_by_a_partial(),
    "backward, beside another": beside_one_that_does_not_ask(),
    "tangents": told_tangents(),
    "tangents, apart": told_tangents_apart(),
}
if jax.__version_info__ >= (0, 12):
    TOLD["forward, generic"] = told_forward(generic_batching=True)
    TOLD["backward, generic"] = told_backward(generic_batching=True)


def told_outside(function, ruled, **options):
    of = mapped(function, lambda w, x: lax.psum(ruled(w, x).sum(), "i"), out_specs=P(), **options)
    return jax.grad(of)


def told_inside(function, ruled, **options):
    loss = jax.grad(lambda w, x: lax.psum(ruled(w, x).sum(), "i"))
    return mapped(function, loss, out_specs=P(), **options)


@pytest.mark.parametrize("name", TOLD)
@pytest.mark.parametrize("told", [told_outside, told_inside])
def test_a_rule_is_told_what_jax_tells(name, told):
    for check_vma in (True, False):
        of = functools.partial(told, ruled=TOLD[name], check_vma=check_vma)
        found, expected = run_together(map(of, (shard_map, jax.shard_map)), W, X)
        assert expected.any() == check_vma
        np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("name", ["forward", "backward", "tangents"])
@pytest.mark.parametrize("told", [told_outside, told_inside])
@pytest.mark.parametrize("check_vma", [True, False])
def test_an_eager_rule_is_told_what_jax_tells(name, told, check_vma):
    ours, jaxs = (told(f, TOLD[name], check_vma=check_vma) for f in (shard_map, jax.shard_map))
    np.testing.assert_allclose(ours(W, X), jax.jit(jaxs)(W, X))


@pytest.mark.parametrize("name", ["forward", "backward"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_rule_in_a_nested_shard_map_is_told_what_jax_tells(name, inside):
    def of(function):
        def body(w, x):
            specs = {"in_specs": (P(), P("j")), "out_specs": P("j"), "axis_names": {"j"}}
            return lax.psum(function(TOLD[name], **specs)(w, x).sum(), "i")

        ruled = jax.grad(body) if inside else body
        outer = mapped(function, ruled, out_specs=P(), axis_names={"i"})
        return outer if inside else jax.grad(outer)

    np.testing.assert_allclose(*run_together(map(of, (shard_map, jax.shard_map)), W, X))


def test_the_largest_of_all_by_a_backward_rule():
    """As libraries keep the scale of a quantized value."""

    def backward(largest, ct):
        axes = tuple(varying(largest))
        return lax.pmax(largest, axes) if axes else largest, 2 * ct

    doubled = jax.custom_vjp(lambda scale, x: 2 * x)
    doubled.defvjp(lambda scale, x: (2 * x, jnp.abs(x).max()), backward)

    def body(scale, x):
        return lax.psum(doubled(scale, x).sum(), "i")

    gradient = jax.grad(mapped(shard_map, body, out_specs=P()))
    assert gradient(jnp.float32(0), X) == jax.jit(gradient)(jnp.float32(0), X) == X.max()


def test_a_backward_rule_that_asks_and_is_refused():
    """It runs without types, as such a body does."""

    def backward(saved, ct):
        w, x = saved
        share = lax.scan(lambda sum_, row: (sum_ + row, None), jnp.zeros(6), ct * x)[0]
        return lax.psum(share, "i") + 0 * as_varying(w, w), ct * w

    ruled = jax.custom_vjp(jnp.multiply)
    ruled.defvjp(lambda w, x: (w * x, (w, x)), backward)
    found = told_outside(shard_map, ruled)(W, X)
    np.testing.assert_allclose(found, X.sum(0), rtol=1e-5, atol=1e-6)
    with pytest.raises(TypeError, match="carry"):
        told_outside(jax.shard_map, ruled)(W, X)


def test_axes_that_stay_explicit():
    mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto, AxisType.Explicit))
    told = []

    def body(w, x):
        split = P(None, "j")
        inner = shard_map(jnp.multiply, in_specs=(P("j"), split), out_specs=split, axis_names={"j"})
        told.extend([varying(w), varying(x), str(jax.typeof(inner(w, x)))])
        return inner(w, x)

    function = shard_map(
        body, mesh=mesh, in_specs=(P(), P("i")), out_specs=P("i"), axis_names={"i"}
    )
    w, x = (
        jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=NamedSharding(mesh, s))
        for v, s in ((W, P("j")), (X, P(None, "j")))
    )
    with jax.set_mesh(mesh):
        jax.jit(function).trace(w, x)
    assert told == [set(), {"i"}, "float32[2,6@j]{V:i}"]


def test_a_gradient_inside_through_a_nested_shard_map():
    """Each device along i owes its share for w, which is equal on all of them."""

    def body(w, x):
        def inside(w, x):
            return jnp.sin(w * x) + lax.axis_index("i")

        split = P(None, "j")
        inner = shard_map(inside, in_specs=(P("j"), split), out_specs=split, axis_names={"j"})
        return jax.grad(lambda w: lax.psum(inner(w, x).sum(), "i"))(w)

    found = jax.jit(mapped(shard_map, body, out_specs=P(), axis_names={"i"}))(W, X)
    np.testing.assert_allclose(found, (np.cos(W * X) * X).sum(0), rtol=1e-5)


def test_results_of_a_nested_shard_map_vary_along_axes_of_size_one_around_it():
    mesh = jax.make_mesh(
        (1, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:2]
    )

    def body(x):
        sine = shard_map(jnp.sin, in_specs=P("j"), out_specs=P("j"), axis_names={"j"})

        def twice(x):
            return lax.scan(lambda y, _: (sine(y), None), x, length=2)[0]

        return jax.grad(lambda x: twice(x).sum())(x)

    specs = {"in_specs": P("i"), "out_specs": P("i"), "axis_names": {"i"}}
    found = jax.jit(shard_map(body, mesh=mesh, **specs))(X)
    np.testing.assert_allclose(found, np.cos(np.sin(X)) * np.cos(X), rtol=1e-5)


def total(w, x):
    return lax.psum(lax.psum(jnp.sin(w * x).sum(), "j"), "i")


def beside_a_result_that_varies(w, x):
    return lax.psum(jnp.sin(w).sum(), "j"), lax.psum(jnp.sin(w * x).sum(), "j")


def cast(w, x):
    return lax.psum(lax.pcast(jnp.sin(w), "i", to="varying").sum(), "j")


def gathered(w, x):
    return lax.psum(jnp.sin(lax.all_gather(w * x, "i")).sum(), "j")


@pytest.mark.parametrize("inside", [total, beside_a_result_that_varies, cast, gathered])
@pytest.mark.parametrize("of", ["gradient", "hessian"])
def test_a_gradient_of_a_nested_shard_map_means_that_of_its_function(inside, of):
    """In a body that is mapped over i only, a function of blocks along j is nested."""

    def body(nested, w, x):
        def loss(w):
            first, *others = jax.tree.leaves(nested(w, x))
            return first + sum(lax.psum(other, "i") for other in others)

        return jax.grad(lambda w: loss(w) + jnp.sin(jax.grad(loss)(w)).sum() * (of == "hessian"))(w)

    def nesting(w, x):
        specs = {"in_specs": (P("j"), P(None, "j")), "out_specs": P()}
        return body(shard_map(inside, axis_names={"j"}, **specs), w, x)

    found = jax.jit(mapped(shard_map, nesting, out_specs=P(), axis_names={"i"}))(W, X)
    # Axes of size one do not change what the types along i mean.
    flat = jax.make_mesh((4, 1), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    specs = {"mesh": flat, "in_specs": (P(), P("i")), "out_specs": P()}
    plain = jax.shard_map(functools.partial(body, inside), **specs)
    np.testing.assert_allclose(found, jax.jit(plain)(W, X), rtol=1e-4)


@pytest.mark.parametrize("inside", [total, gathered])
def test_a_gradient_in_a_nested_shard_map_is_summed_along_the_axes_around_it(inside):
    def gradient(w, x):
        return jax.grad(lambda w: inside(w, x))(w)

    def body(w, x):
        specs = {"in_specs": (P("j"), P(None, "j")), "out_specs": P("j")}
        return shard_map(gradient, axis_names={"j"}, **specs)(w, x)

    found = jax.jit(mapped(shard_map, body, out_specs=P(), axis_names={"i"}))(W, X)
    split = {"in_specs": (P("j"), P("i", "j")), "out_specs": P("j")}
    expected = jax.jit(jax.shard_map(gradient, mesh=MESH, **split))(W, X)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_a_gradient_in_a_nested_shard_map_needs_types_that_accept_the_body():
    def body(w, x):
        specs = {"in_specs": (P("j"), P(None, "j")), "out_specs": P("j")}
        gradient = jax.grad(lambda w, x: (w * x).sum())
        g = shard_map(gradient, axis_names={"j"}, **specs)(w, x)
        return lax.scan(lambda c, row: (c + row, None), g, x)[0]  # a carry that begins to vary

    with pytest.raises(BodyError, match=r"(?s)a derivative taken inside the function.*carry"):
        jax.jit(mapped(shard_map, body, axis_names={"i"})).trace(W, X)


# ------------------------------------------------------------------------------------- who asks


class Layer:
    def __call__(self, x):
        return as_varying(0, x)


def wrapped(fun):
    @functools.wraps(fun)
    def inner(*args):
        return fun(*args)

    return inner


def with_default(x, ask=as_varying):
    return ask(x, x)


def closing_over(module):
    return lambda x: module.as_varying(x, x)


class Methods:
    from_class = classmethod(lambda cls, x: as_varying(x, x))
    from_nothing = staticmethod(as_varying)
    jitted = jax.jit(as_varying)
    bound = functools.partialmethod(as_varying, 0)

    @property
    def rule(self):
        return as_varying

    @functools.cached_property
    def kept(self):
        return as_varying


ASKING = {
    "itself": lambda x: jax.typeof(x).manual_axis_type,
    "by getattr": lambda x: jax.typeof(x).mat,
    "a global": lambda x: as_varying(x, x),
    "a function of a module": lambda x: test_module.as_varying(x, x),
    "a function inside": lambda x: jax.vmap(lambda y: as_varying(y, y))(x),
    "partial": functools.partial(as_varying, 0),
    "jit": jax.jit(as_varying),
    "jit of vmap": jax.jit(jax.vmap(as_varying)),
    "decorated": wrapped(as_varying),
    "an object": Layer(),
    "a method": Layer().__call__,
    "a class": lambda x: Layer()(x),
    "a shard_mapped function": mapped(shard_map, as_varying),
    "a keyword of partial": functools.partial(lambda x, ask: ask(x, x), ask=as_varying),
    "a default": with_default,
    "a class method": lambda x: Methods.from_class(x),
    "a static method": lambda x: Methods.from_nothing(x, x),
    "a jitted method": lambda x: Methods.jitted(x, x),
    "a partial method": lambda x: Methods().bound(),
    "a module closed over": closing_over(test_module),
    "a property": lambda x: Methods().rule(x, x),
    "a cached property": lambda x: Methods().kept(x, x),
}


@pytest.mark.parametrize("name", ASKING)
def test_who_asks(name):
    assert asks(ASKING[name])


def cotangent_of_a_cast(w):
    cast = functools.partial(lax.pcast, axis_name="i", to="varying")
    return jax.vjp(lambda w: lax.pcast(w, "i", to="varying"), w)[1](cast(jnp.ones_like(w)))[0]


class Holding:
    def __init__(self, fun):
        self.fun = fun

    def __call__(self, x):
        return self.fun(x)


BY_NAME = {"cotangent": cotangent_of_a_cast}


@pytest.mark.parametrize(
    "body",
    [cotangent_of_a_cast, lambda w: BY_NAME["cotangent"](w), Holding(cotangent_of_a_cast)],
)
def test_a_derivative_of_a_cast_in_a_container(body):
    """Without types it leaves no trace."""
    mapped = shard_map(body, mesh=MESH, in_specs=P(), out_specs=P())
    np.testing.assert_array_equal(mapped(np.ones(3, np.float32)), np.full(3, 4))


def test_a_derivative_of_a_cast_in_a_static_argument():
    of = shard_map(lambda fun, w: fun(w), mesh=MESH, in_specs=(None, P()), out_specs=P())
    for run in (jax.jit, lambda fun: fun):
        found = run(lambda w: of(cotangent_of_a_cast, w))(np.ones(3, np.float32))
        np.testing.assert_array_equal(found, np.full(3, 4))


def test_what_was_made_of_a_function_does_not_ask():
    """It is kept as an attribute of the function."""

    def total(x):
        return lax.psum(x, "i")

    mapped = shard_map(total, mesh=MESH, in_specs=P("i"), out_specs=P())
    text = mapped.lower(X).as_text()
    assert not asks(total)
    jax.clear_caches()
    assert mapped.lower(X).as_text() == text


def test_who_closes_over_what_does_not_exist_yet():
    def fun():
        return later

    assert not asks(fun)
    later = 1
    assert fun() == later


SILENT = [np.sin, jnp.sin, len, jax.jit(jnp.sin), lambda x: jnp.zeros_like(lax.psum(x, "i"))]


@pytest.mark.parametrize("fun", SILENT)
def test_who_does_not_ask(fun):
    assert not asks(fun)


def test_a_wrong_spec_in_a_body_that_asks_is_told_first():
    """And not what the body makes of types that it is not traced under."""
    mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Explicit,) * 2)

    def body(x):
        assert varying(x) == {"i"}
        return shard_map(lambda x: x, in_specs=P("j"), out_specs=P("j"), axis_names={"j"})(x)

    x = jax.device_put(np.zeros((8, 8)), NamedSharding(mesh, P("i", "j")))
    f = shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P("i"), axis_names={"i"})
    with pytest.raises(SpecError, match="split as"):
        jax.jit(f)(x)


# --------------------------------------------------------------- derivative rules beside a solve


def rectified_solution_in_a_branch(a, x):
    def solution(a, x):
        return jax.nn.relu(jnp.linalg.solve(a, jax.nn.softplus(x)))

    return lax.cond(x.sum() > 0, solution, lambda a, x: jax.nn.silu(a @ x), a, x)


def solution_in_one_of_three_branches(a, x):
    branches = [lambda a, x: jax.nn.relu(x), jnp.linalg.solve, lambda a, x: 2 * x]
    return lax.switch(jnp.int32(x.sum() > 0), branches, a, x)


@pytest.mark.parametrize(
    "body", [rectified_solution_in_a_branch, solution_in_one_of_three_branches]
)
def test_derivative_rules_beside_a_solve_in_a_branch(body):
    """A solve is traced under types; the rules, which JAX traces later, must not keep them."""
    a = np.eye(6, dtype=np.float32) * 3 + 0.1
    x = np.arange(8 * 6, dtype=np.float32).reshape(8, 6) / 10 - 1

    def rows(a, x):
        return lax.map(functools.partial(body, a), x)

    def gradients(fun):
        return jax.grad(lambda a, x: jnp.sum(fun(a, x) ** 2), (0, 1))

    found, expected = run_together(map(gradients, (mapped(shard_map, rows), rows)), a, x)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-4), found, expected)


# ---------------------------------------------------------------------------- installed packages

TABLES = """
HANDLERS = {}
hook = None

def apply(x):
    handler = HANDLERS.get(type(x))
    return handler(x) if handler else x

def call_hook(x):
    return hook(x) if hook else x

class Block:
    def __call__(self, x):
        return apply(x)
"""

WRAPPERS = """
import jax
import tables

class Wrapper:
    pass

def unwrapped(wrapper):
    return jax.typeof(wrapper.value).manual_axis_type

class Gradient:
    def __call__(self, fun, x):
        fun.defjvp(lambda primals, tangents: jax.value_and_grad(fun)(*primals))
        return fun(x)

tables.HANDLERS[Wrapper] = unwrapped
tables.HANDLERS[Gradient] = (lambda gradient: gradient.fun, Gradient)
"""


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Two installed packages, of which one registers its classes with the other."""
    for name, text in {"tables": TABLES, "wrappers": WRAPPERS}.items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path)])
    library_code.forget()
    yield importlib.import_module("tables"), importlib.import_module("wrappers")
    library_code.forget()


def test_who_does_not_use_what_packages_register_does_not_ask(packages):
    tables, wrappers = packages
    assert not asks(lambda x: tables.apply(x))
    assert asks(lambda x: tables.apply(wrappers.Wrapper()))


def test_a_body_beside_what_packages_register_is_traced_once(packages):
    tables, _ = packages
    count = []

    def body(w, x):
        count.append(1)
        return tables.apply(jax.nn.relu(w)) * x

    jax.jit(mapped(shard_map, body)).trace(W, X)
    assert len(count) == 1


def test_code_of_packages_is_searched_once(packages, monkeypatch):
    tables, _ = packages
    searched = []
    reads = objects.attributes

    def counted(value):
        searched.append(value is tables.apply)
        return reads(value)

    monkeypatch.setattr(objects, "attributes", counted)
    for rows in (8, 16, 24):
        searched.clear()
        body = functools.partial(lambda block, w, x: block(w) * x, tables.Block())
        jax.jit(mapped(shard_map, body)).trace(W, np.ones((rows, 6), np.float32))
        assert any(searched) == (rows == 8)


class Mine:
    pass


CHANGES = {
    "a class is registered": lambda tables, _: tables.HANDLERS.update({Mine: as_varying}),
    "a function for a class of another package": lambda tables, wrappers: tables.HANDLERS.update(
        {wrappers.Wrapper: as_varying}
    ),
    "a global is set": lambda tables, _: setattr(tables, "hook", as_varying),
    "a function is replaced": lambda tables, _: setattr(tables, "apply", as_varying),
    "a method is replaced": lambda tables, _: setattr(tables.Block, "__call__", as_varying),
    "a method is added": lambda tables, _: setattr(tables.Block, "more", as_varying),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_in_a_package_is_seen(name, packages):
    tables, wrappers = packages

    def body(x):
        return tables.call_hook(tables.Block()(x))

    assert not asks(body)
    CHANGES[name](tables, wrappers)
    assert asks(body)
