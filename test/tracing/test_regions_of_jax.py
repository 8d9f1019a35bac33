"""shard_maps of JAX's own inside of ours, as in a library that the user's function calls."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import run_together
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

from shmap_compiler import BodyError, HangError, shard_map

MESH = jax.make_mesh((2, 2, 2), ("i", "j", "k"), axis_types=(AxisType.Auto,) * 3)
X = jnp.cos(jnp.arange(32.0))
NEIGHBOURS = [(0, 1), (1, 0)]

BODIES = {
    "index": lambda b: b + 10 * lax.axis_index("j") + lax.axis_index("i"),
    "psum": lambda b: b * lax.psum(b, "j") + lax.psum(b, "i"),
    "psum-over-both": lambda b: b * lax.psum(b, ("i", "j")),
    "pmean-of-one": lambda b: b * lax.pmean(1.0, "j"),
    "all_gather": lambda b: b + lax.all_gather(b, "j").sum(0) + lax.all_gather(b, "i")[0],
    "psum_scatter": lambda b: jnp.tile(lax.psum_scatter(b, "j", tiled=True), 2),
    "ppermute": lambda b: lax.ppermute(b, "j", NEIGHBOURS) * lax.ppermute(b, "i", NEIGHBOURS),
    "all_to_all": lambda b: lax.all_to_all(b, "j", 0, 0, tiled=True),
    "scan": lambda b: lax.scan(lambda c, _: (c + lax.psum(c, "j"), None), b, length=2)[0],
    "cond": lambda b: lax.cond(lax.psum(b[0], ("i", "j")) > 0, jnp.sin, lambda x: x * 2, b),
    "jit": jax.jit(lambda b: b * lax.psum(b, "j")),
    "checkpoint": jax.checkpoint(lambda b: jnp.sin(lax.psum(b, "j")) * b),
    "grad": jax.grad(lambda b: (b * lax.psum(b, "j")).sum()),
}


def inner(body, axes=("j",), mapped=jax.shard_map, check_vma=False):
    """`body` on blocks along the first of its axes."""
    spec = P(axes[0])
    return mapped(body, in_specs=spec, out_specs=spec, axis_names=set(axes), check_vma=check_vma)


def outer(shard_map, body, mesh=MESH):
    return shard_map(
        body, mesh=mesh, in_specs=P("i"), out_specs=P("i"), axis_names={"i"}, check_vma=False
    )


def both(body):
    return outer(shard_map, body), outer(jax.shard_map, body)


def assert_equal(ours, theirs, *args):
    got, want = run_together((ours, theirs), *args)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, want)


@pytest.mark.parametrize("axes", [("j",), ("j", "k")], ids=["partial", "full"])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_region_of_jax_computes_what_it_does_in_one_of_jax(body, axes):
    ours, theirs = both(lambda b: 2 * inner(body, axes)(b) + lax.axis_index("i"))
    assert_equal(ours, theirs, X)


@pytest.mark.parametrize("name", ["psum", "all_gather", "scan", "checkpoint", "jit"])
def test_its_derivative_is_that_of_jax(name):
    ours, theirs = both(lambda b: inner(BODIES[name])(jnp.sin(b)))

    def loss(f):
        return jax.value_and_grad(lambda x: (f(x) * jnp.cos(x)).sum())

    assert_equal(loss(ours), loss(theirs), X)
    assert_equal(jax.vmap(loss(ours)), jax.vmap(loss(theirs)), jnp.stack([X, 2 * X]))


def test_a_derivative_inside_of_the_outer_body():
    def body(b):
        return jax.grad(lambda b: inner(BODIES["psum"])(b).sum())(b)

    assert_equal(*both(body), X)


def test_types_that_jax_checks_in_the_region_are_erased():
    def typed(b):
        return b * lax.psum(b, "j") + lax.axis_index("i") + lax.pcast(1.0, "j", to="varying")

    def body(b):
        return inner(typed, check_vma=True)(b) + b

    assert_equal(*both(body), X)


def placed(b):
    return b * lax.psum(b, "j") + lax.axis_index("i")


CHECKED = {
    "scan": lambda region: lambda b: lax.scan(lambda c, _: (region(c), None), b, length=2)[0],
    "cond": lambda region: lambda b: lax.cond(lax.psum(b[0], "i") > 0, region, jnp.sin, b),
    "while": lambda region: (
        lambda b: lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, region(c[1])), (0, b))[1]
    ),
}


@pytest.mark.parametrize("name", CHECKED)
def test_its_types_may_be_needed_around_it(name):
    """Where results are typed, so must be what a loop or a branch has beside them."""
    body = CHECKED[name](
        inner(lambda b: b * lax.psum(b, "j") + lax.axis_index("i"), check_vma=True)
    )
    ours, theirs = (
        m(body, mesh=MESH, in_specs=P("i"), out_specs=P("i"), axis_names={"i"})
        for m in (shard_map, jax.shard_map)
    )
    assert_equal(ours, theirs, X)
    np.testing.assert_allclose(ours(X), jax.jit(ours)(X), rtol=1e-6)
    if name != "while":
        check_grads(jax.jit(ours), (X,), order=1, modes=["rev"], rtol=1e-2)


def test_a_derivative_that_jax_cannot_lower_is_refused():
    region = inner(placed, check_vma=True)
    body = jax.grad(lambda b: region(b).sum())
    f = shard_map(body, mesh=MESH, in_specs=P("i"), out_specs=P("i"), axis_names={"i"})
    with pytest.raises(BodyError, match=r"(?s)split arrays over 'i'.*pass check_vma=False"):
        jax.jit(f).lower(X)


def test_regions_in_loops_branches_and_other_regions():
    def most_inner(b):
        return inner(lambda b: b + lax.psum(b, "k") + lax.axis_index("j"), "k")(b)

    def body(b):
        def step(carry, _):
            return inner(lambda b: most_inner(b) / (1 + lax.pmax(b, "j")) ** 2)(carry), None

        b, _ = lax.scan(step, b, length=2)
        return lax.cond(lax.psum(b[0], "i") > 0, inner(BODIES["psum"]), jnp.sin, b)

    assert_equal(*both(body), X)


def test_a_rule_of_the_users_may_contain_one():
    @jax.custom_vjp
    def scaled(b):
        return inner(lambda b: b * lax.psum(1.0, "j"))(b)

    scaled.defvjp(
        lambda b: (scaled(b), b),
        lambda b, ct: (inner(lambda b: b * lax.axis_index("j"))(ct) + b,),
    )

    def loss(f):
        return jax.grad(lambda x: (f(x) ** 2).sum())

    ours, theirs = both(scaled)
    assert_equal(loss(ours), loss(theirs), X)


def with_rule(fun, *axes):
    """`fun` with a rule that gives another derivative, and that names axes, as `fun` may."""
    ruled = jax.custom_vjp(fun)

    def backward(b, ct):
        return (3 * ct * jnp.cos(b) + sum(map(lax.axis_index, axes)),)

    ruled.defvjp(lambda b: (ruled(b), b), backward)
    return ruled


RULED = {
    "plain": with_rule(jnp.sin),
    "of-i": with_rule(lambda b: jnp.sin(b) * lax.axis_index("i"), "i"),
    "of-j": with_rule(lambda b: jnp.sin(b) * (1 + lax.axis_index("j")), "j"),
}


@pytest.mark.parametrize("checked_outside", [False, True], ids=["", "checked"])
@pytest.mark.parametrize("checked_inside", [False, True], ids=["", "region-checked"])
@pytest.mark.parametrize("name", RULED)
def test_rules_of_the_users_inside_and_beside(name, checked_inside, checked_outside):
    """Types say nothing of the axes of an enclosing body that was traced without types."""
    ruled, plain = RULED[name], RULED["plain"]
    beside = ruled if name != "of-j" else plain

    def mapped(shard_map, outside, inside):
        region = inner(lambda b: ruled(b) * lax.psum(ruled(b) ** 2, "j"), check_vma=inside)
        options = {"mesh": MESH, "in_specs": P("i"), "out_specs": P("i"), "axis_names": {"i"}}
        f = shard_map(lambda b: region(beside(b)) + plain(region(b)), check_vma=outside, **options)
        return jax.grad(lambda x: (f(x) ** 2).sum())

    ours = mapped(shard_map, checked_outside, checked_inside)
    assert_equal(ours, mapped(jax.shard_map, False, False), X)


def test_axes_of_type_explicit():
    mesh = jax.make_mesh((2, 2), ("i", "j"), axis_types=(AxisType.Explicit,) * 2)
    x = jax.device_put(X, jax.NamedSharding(mesh, P(("i", "j"))))

    def body(b):
        return jax.shard_map(lambda b: b * lax.psum(b, "j"), out_specs=P("j"), axis_names={"j"})(b)

    with jax.set_mesh(mesh):
        ours, theirs = (
            f(body, out_specs=P("i"), axis_names={"i"}) for f in (shard_map, jax.shard_map)
        )
        assert_equal(ours, theirs, x)


def test_eagerly():
    ours, _ = both(inner(BODIES["psum"]))
    np.testing.assert_allclose(ours(X), jax.jit(ours)(X), rtol=1e-6)


def test_the_graph_shows_it_as_one_of_ours():
    ours, _ = both(inner(BODIES["psum"]))
    (eqn,) = ours.trace(X).jaxpr.eqns
    graph = eqn.params["graph"]
    assert (graph.manual_axes, graph.outer_manual_axes) == (("j",), ("i",))
    assert [e.primitive.name for e in graph.jaxpr.eqns] == ["psum", "mul", "psum", "add"]


def test_no_types_of_varying_values_are_left():
    ours, _ = both(lambda b: inner(placed, check_vma=True)(b) + b)
    graph = ours.trace(X)
    assert "{V:" not in str(graph.jaxpr)
    assert "{V:" not in str(graph.out_types)


HANGING = {
    "psum": lambda b: lax.cond(b[0] > 0, lambda b: lax.psum(b, "j"), lambda b: b, b),
    "ppermute": lambda b: lax.cond(
        lax.axis_index("j") > 0, lambda b: lax.ppermute(b, "i", NEIGHBOURS), lambda b: b, b
    ),
}


@pytest.mark.parametrize("name", HANGING)
def test_a_deadlock_in_it_is_found(name):
    """XLA:CPU has all devices meet in a permute, those along other axes included."""
    ours, _ = both(inner(HANGING[name]))
    with pytest.raises(HangError, match=f"{name} over"):
        jax.jit(ours).lower(X)
    jax.jit(ours.replace(check_hangs=False)).lower(X)


def test_a_nested_function_of_ours_decides_for_its_own_axes():
    unchecked = partial(shard_map, check_hangs=False)
    ours, _ = both(inner(HANGING["psum"], mapped=unchecked))
    jax.jit(ours).lower(X)


@pytest.mark.parametrize("partitioner", ["shardy", "gspmd"])
def test_its_module_compiles_for_both_partitioners(partitioner):
    ours, theirs = both(lambda b: inner(BODIES["index"])(b) + inner(BODIES["all_gather"])(b))
    got = ours.lower(X, partitioner=partitioner).compile()(X)
    np.testing.assert_allclose(got, jax.jit(theirs)(X), rtol=1e-6)


OTHER_BRANCHES = {
    "sin": jnp.sin,
    "itself": lambda b: b,
    "zeros": jnp.zeros_like,
    "psum": lambda b: lax.psum(b, "i"),
    "all_gather": lambda b: lax.all_gather(b, "i")[0],
    "all_to_all": lambda b: lax.all_to_all(b, "i", 0, 0, tiled=True),
}


@pytest.mark.parametrize("partitioner", ["shardy", "gspmd"])
@pytest.mark.parametrize("mapped", [shard_map, jax.shard_map], ids=["ours", "theirs"])
@pytest.mark.parametrize("other", OTHER_BRANCHES.values(), ids=OTHER_BRANCHES)
def test_a_branch_may_return_the_result_of_a_region(other, mapped, partitioner):
    def body(b):
        region = inner(lambda b: b * lax.psum(b, "j"), mapped=mapped)
        return lax.cond(lax.psum(b.sum(), "i") > 0, region, other, b)

    ours = outer(shard_map, body)
    for x in (jnp.abs(X), -jnp.abs(X)):
        want = (x.reshape(2, 2, 8) * x.reshape(2, 2, 8).sum(1, keepdims=True)).reshape(32)
        if x[0] < 0:
            want = jax.jit(outer(jax.shard_map, other))(x)
        got = ours.lower(x, partitioner=partitioner).compile()(x)
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_debug_print_where_an_axis_is_automatic(capfd):
    mesh = jax.make_mesh((2, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)

    def body(b):
        jax.debug.print("at {}: {}", lax.axis_index("i"), b[0])
        return inner(lambda b: b + lax.axis_index("j"))(b)

    got = jax.jit(outer(shard_map, body, mesh))(jnp.arange(32.0))
    jax.effects_barrier()
    assert sorted(capfd.readouterr().out.splitlines()) == ["at 0: 0.0", "at 1: 16.0"]
    np.testing.assert_array_equal(got, jnp.arange(32.0) + jnp.arange(32) // 8 % 2)
