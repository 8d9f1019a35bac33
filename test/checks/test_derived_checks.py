"""R17 and R18 of the programs that transformations make with rules of the user's."""

import jax
import numpy as np
import pytest
from jax import lax
from jax.custom_batching import custom_vmap
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import HangError, ReplicationError, shard_map

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
V = np.linspace(1, 2, 6, dtype=np.float32)
X = np.linspace(-1, 1, 48, dtype=np.float32).reshape(8, 6)


def with_tangent(fun, tangent):
    """`fun(v, x)`, whose tangent is `tangent(v, x, dv, dx)`."""
    ruled = jax.custom_jvp(fun)
    ruled.defjvp(lambda values, moves: (ruled(*values), tangent(*values, *moves)))
    return ruled


def twice(v, x):
    return 2 * v


RULES = {
    "of a varying operand": with_tangent(twice, lambda v, x, dv, dx: 2 * dv + dx.sum(0)),
    "by a varying value": with_tangent(twice, lambda v, x, dv, dx: 2 * dv * x.sum(0)),
    "by the position": with_tangent(twice, lambda v, x, dv, dx: dv * lax.axis_index("i")),
}
VARIES = RULES["by a varying value"]
EQUAL = with_tangent(twice, lambda v, x, dv, dx: 2 * dv + lax.psum(0 * dx.sum(0), "i"))
# The first derivative is right, and the derivative of that is not.
SECOND = with_tangent(twice, lambda v, x, dv, dx: VARIES(dv, x))


def region(fun, **options):
    def inside(v, x):
        return shard_map(fun, mesh=MESH, in_specs=(P(), P()), out_specs=P(), axis_names={"j"})(v, x)

    return inside


def in_scan(fun):
    return lambda v, x: lax.scan(lambda c, _: (fun(c, x), None), v, None, length=2)[0]


def in_cond(fun):
    return lambda v, x: lax.cond(v[0] > 0, fun, lambda v, x: v, v, x)


PLACES = {"plain": lambda fun: fun, "jit": jax.jit, "scan": in_scan, "cond": in_cond}
PLACES |= {"region": region, "checkpoint": jax.checkpoint}


def jvp(fun):
    return lambda v, x: jax.jvp(fun, (v, x), (v, x))


def linearize(fun):
    return lambda v, x: jax.linearize(fun, v, x)[1](v, x)


def grad(fun):
    return jax.grad(lambda v, x: fun(v, x).sum(), (0, 1))


def vmap_of_jvp(fun):
    return lambda v, x: jax.vmap(jvp(fun), (0, None))(v[None], x)


def jvp_of_vmap(fun):
    return jvp(lambda v, x: jax.vmap(fun, (0, None))(v[None], x))


def mapped(fun, **options):
    names = {"axis_names": {"i"}} if "region" in getattr(fun, "__qualname__", "") else {}
    return shard_map(fun, mesh=MESH, in_specs=(P(), P("i")), out_specs=P(), **names, **options)


def made(transformation, fun, **options):
    return jax.make_jaxpr(transformation(mapped(fun, **options)))(V, X)


def refused():
    return pytest.raises(ReplicationError, match="blocks that vary along 'i'")


@pytest.mark.parametrize("transformation", [jvp, linearize, grad, vmap_of_jvp, jvp_of_vmap])
@pytest.mark.parametrize("name", RULES)
def test_R17_a_tangent_that_varies_where_its_value_does_not(name, transformation):
    with refused():
        made(transformation, RULES[name])
    made(transformation, EQUAL)
    made(transformation, RULES[name], check_vma=False)


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_R17_a_tangent_anywhere_in_a_body(place):
    with refused():
        made(jvp, place(VARIES))
    made(jvp, place(EQUAL))


def test_R17_the_second_derivative_is_checked_as_well():
    made(jvp, SECOND)
    with refused():
        jax.make_jaxpr(jvp(lambda v, x: jvp(mapped(SECOND))(v, x)[1]))(V, X)


def test_R17_a_tangent_that_the_body_makes_equal():
    def body(v, x):
        return lax.psum(VARIES(v, x), "i")

    value, tangent = jax.jit(jvp(mapped(body)))(V, X)
    np.testing.assert_allclose(value, 8 * V, rtol=1e-6)
    np.testing.assert_allclose(tangent, 2 * V * X.sum(0), rtol=1e-4, atol=1e-5)


def test_R17_names_the_rule_at_fault():
    def body(v, x):
        return VARIES(v, x) + EQUAL(v, x)

    with pytest.raises(
        ReplicationError,
        match=r"(?s)the jvp of `body`:\n  the tangent of result \[0\] with the spec P\(\)\n"
        r"    found: .*varying along 'i' at\n +input \[1\], which its spec P\('i'\) splits\n"
        r" +reduce_sum at .*test_derived_checks.py:\d+ .*\n    needed: .*\n"
        r"    fix:    sum or average over 'i' in the rule of the custom_jvp function `twice` called"
        r" at \S*test_derived_checks.py:(\d+) \(\S*body\), with jax.lax.psum",
    ) as raised:
        made(jvp, body)
    assert str(raised.value).count("custom_jvp function") == 1


def test_R17_names_the_rule_at_fault_in_functions_that_share_functions():
    """The number of calls grows exponentially."""
    fun = VARIES
    for _ in range(24):
        fun = jax.jit(lambda v, x, below=fun: below(below(v, x), x))
    with pytest.raises(ReplicationError, match="the custom_jvp function `twice`") as raised:
        made(jvp, fun)
    assert str(raised.value).count("custom_jvp function") == 1


def test_R17_the_rule_of_a_vmap():
    @custom_vmap
    def doubled(v):
        return 2 * v

    def by_position(size, batched, v):
        return v * lax.axis_index("i"), True

    doubled.def_vmap(by_position)
    of = shard_map(doubled, mesh=MESH, in_specs=P(), out_specs=P())
    with pytest.raises(ReplicationError, match="the rule of the custom_vmap function `doubled`"):
        jax.make_jaxpr(jax.vmap(of))(X)


def test_R18_the_rule_of_a_tangent_that_some_devices_call():
    sums = with_tangent(twice, lambda v, x, dv, dx: lax.psum(dx.sum(0), "i"))

    def body(v, x):
        own = lax.axis_index("i") > 0
        return x + lax.cond(own, sums, lambda v, x: v, v, x)

    def of(**options):
        return shard_map(body, mesh=MESH, in_specs=(P(), P("i")), out_specs=P("i"), **options)

    with pytest.raises(HangError, match="the jvp of `body`"):
        jax.make_jaxpr(jvp(of()))(V, X)
    jax.make_jaxpr(of())(V, X)
    jax.make_jaxpr(jvp(of(check_hangs=False)))(V, X)


@pytest.mark.parametrize("activation", [jax.nn.relu, jax.nn.silu, jax.nn.gelu, jax.numpy.sinc])
def test_rules_of_jax_pass(activation):
    def body(v, x):
        return lax.pmean(activation(v * x).sum(0), "i") + activation(v)

    made(jvp, body)
    made(grad, body)
