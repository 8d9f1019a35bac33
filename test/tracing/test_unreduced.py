"""Unreduced and reduced arrays: each program gives what it gives with `jax.shard_map`."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from shmap_tools.cli.hlo_collectives import collectives

from shmap_compiler import BodyError, SpecError, load, shard_map

EXPLICIT = (AxisType.Explicit,) * 2
BEFORE_0_12 = jax.__version_info__ < (0, 12)
MESH = jax.make_mesh((2, 4), ("x", "y"), axis_types=EXPLICIT)


@pytest.fixture(autouse=True)
def mesh_in_scope():
    with jax.set_mesh(MESH):
        yield


def array(shape, spec, seed=0):
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return jax.device_put(values, NamedSharding(MESH, spec))


def summands(shape, axes, seed):
    """An unreduced array: its devices along `axes` hold different summands."""
    parts = array((math.prod(MESH.shape[a] for a in axes), *shape), P(axes), seed)
    specs = {"in_specs": P(axes), "out_specs": P(unreduced=set(axes))}
    cast = jax.shard_map(lambda x: lax.pcast(x[0], axes, to="unreduced"), mesh=MESH, **specs)
    return jax.jit(cast)(parts)


# Each program: a function of `shard_map` that makes a function of full arrays; the arrays; the
# result may be unreduced, and is reduced here for a loss.

SPLIT = array((8, 8), P("x", "y"))
ROWS = array((8, 8), P("x"), 1)
COLUMNS = array((8, 8), P("y"), 2)
WHOLE = array((8,), P(), 3)
SUMMANDS = summands((8,), ("x",), 4)
SUMMANDS_OF_ALL = summands((8,), ("x", "y"), 5)
REDUCED = array((8,), P(reduced={"x"}), 6)
REDUCED_MATRIX = array((8, 8), P(None, "y", reduced={"x"}), 7)


def matmul_left_unreduced(shard_map):
    @shard_map(in_specs=(P("x", "y"), P("y")), out_specs=P("x", unreduced={"y"}))
    def f(a, b):
        return lax.pcast(a @ b, "y", to="unreduced")

    return f


def summed(shard_map):
    return shard_map(lambda u: lax.psum(u, "x"), in_specs=P(unreduced={"x"}), out_specs=P())


def scattered(shard_map):
    return shard_map(lambda u: lax.psum_scatter(u, "x", tiled=True), out_specs=P("x"))


def summed_one_axis_after_the_other(shard_map):
    rest = shard_map(lambda u: lax.psum(u, "x"), out_specs=P())
    one = shard_map(lambda u: lax.psum(u, "y"), out_specs=P(unreduced={"x"}))
    return lambda u: rest(one(u))


def times_reduced(shard_map):
    return shard_map(lambda a, r: jnp.sin(a * r), out_specs=P("x"))


def reduced_stays(shard_map):
    return shard_map(lambda r: jnp.sin(r) * r, out_specs=P(reduced={"x"}))


def reduced_to_varying(shard_map):
    return shard_map(lambda r: lax.pcast(r, "x", to="varying") ** 2, out_specs=P("x"))


def gathered(shard_map):
    gather = partial(lax.all_gather, axis_name="x", tiled=True, to="reduced")
    return shard_map(gather, in_specs=P("x"), out_specs=P(reduced={"x"}))


def fsdp(shard_map):
    """Weights split over y, one copy for each x; data split over both."""

    def layer(a, w):
        w = lax.pcast(w, "x", to="reduced")
        w = lax.all_gather(w, "y", tiled=True, to="reduced")
        return jnp.tanh(a @ w)

    in_specs = (P(("x", "y")), P("y"))
    return shard_map(layer, in_specs=in_specs, out_specs=P(("x", "y")))


def fsdp_in_three(shard_map):
    to_reduced = partial(lax.pcast, axis_name="x", to="reduced")
    copies = shard_map(to_reduced, in_specs=P("y"), out_specs=P("y", reduced={"x"}))
    gather = partial(lax.all_gather, axis_name="y", tiled=True, to="reduced")
    whole = shard_map(gather, out_specs=P(reduced={"x", "y"}))
    layer = shard_map(lambda a, w: jnp.tanh(a @ w), out_specs=P(("x", "y")))
    return lambda a, w: layer(a, whole(copies(w)))


def product(shard_map):
    return shard_map(lambda u, r: (u * r).sum(), out_specs=P(unreduced={"x"}))


def cast_before_it_grows(shard_map):
    """The gradient of w is summed before it is broadcast, not after."""

    def f(a, w):
        w = lax.pcast(w, ("x", "y"), to="reduced")
        return a * jnp.sin(jnp.broadcast_to(w, (16, *w.shape))).sum(0)

    return shard_map(f, in_specs=(P("x", "y"), P()), out_specs=P("x", "y"))


def in_branches(shard_map):
    def f(a, r):
        return lax.cond(a.sum() > 0, lambda: a * r, lambda: jnp.sin(a) * r)

    return shard_map(f, in_specs=(P("x"), P(reduced={"x"})), out_specs=P("x"))


def rematerialized(shard_map):
    f = jax.checkpoint(lambda a, r: jnp.sin(jnp.sin(a * r) * r))
    return shard_map(f, in_specs=(P("x"), P(reduced={"x"})), out_specs=P("x"))


def rematerialized_outside(shard_map):
    return jax.checkpoint(times_reduced(shard_map))


def accumulated(shard_map):
    """Gradients of two microbatches, added before they are reduced."""

    def f(a, r):
        def loss(r, rows):
            return jnp.sin(rows * r).sum()

        one, two = (jax.grad(loss)(r, rows) for rows in jnp.split(a, 2))
        return lax.psum(one + two, "x")

    return shard_map(f, in_specs=(P("x"), P(reduced={"x"})), out_specs=P())


def with_own_rule(shard_map):
    @jax.custom_vjp
    def scale(a, r):
        return a * r

    def backward(residuals, ct):
        a, r = residuals
        return ct * r, lax.pcast((ct * a).sum(0), "x", to="unreduced")

    scale.defvjp(lambda a, r: (a * r, (a, r)), backward)
    return shard_map(scale, in_specs=(P("x"), P(reduced={"x"})), out_specs=P("x"))


def of_a_batch(shard_map):
    return lambda a, r: jax.vmap(times_reduced(shard_map), in_axes=(1, None), out_axes=1)(a, r)


def nothing_checked(shard_map):
    options = {"in_specs": (P("x"), P(reduced={"x"})), "out_specs": P("x"), "check_vma": False}
    return shard_map(lambda a, r: jnp.sin(a * r), **options)


def bits_taken_for_summands(shard_map):
    return shard_map(
        lambda a: a * 2, in_specs=P("x"), out_specs=P(unreduced={"x"}), check_vma=False
    )


def summands_taken_for_parts(shard_map):
    return shard_map(
        lambda u: u * 2, in_specs=P(unreduced={"x"}), out_specs=P("x"), check_vma=False
    )


def scattered_unchecked(shard_map):
    scatter = partial(lax.psum_scatter, axis_name="x", tiled=True)
    return shard_map(scatter, in_specs=P(unreduced={"x"}), out_specs=P("x"), check_vma=False)


def summed_unchecked(shard_map):
    scatter = partial(lax.psum, axis_name="x")
    return shard_map(scatter, in_specs=P(unreduced={"x"}), out_specs=P(), check_vma=False)


PROGRAMS = [
    (matmul_left_unreduced, SPLIT, COLUMNS),
    (summed, SUMMANDS),
    (scattered, SUMMANDS),
    (summed_one_axis_after_the_other, SUMMANDS_OF_ALL),
    (times_reduced, ROWS, REDUCED),
    (reduced_stays, REDUCED),
    (reduced_to_varying, REDUCED),
    (gathered, ROWS),
    (fsdp, array((8, 8), P(("x", "y"))), COLUMNS),
    (fsdp_in_three, array((8, 8), P(("x", "y"))), COLUMNS),
    (product, SUMMANDS, REDUCED),
    (cast_before_it_grows, array((2, 8), P("x", "y")), array((2,), P())),
    (in_branches, ROWS, REDUCED),
    (rematerialized, ROWS, REDUCED),
    (rematerialized_outside, ROWS, REDUCED),
    (accumulated, ROWS, REDUCED),
    (with_own_rule, ROWS, REDUCED),
    (of_a_batch, array((8, 2, 8), P("x")), REDUCED),
    (nothing_checked, ROWS, REDUCED),
    (bits_taken_for_summands, ROWS),
    (summands_taken_for_parts, SUMMANDS),
    (scattered_unchecked, SUMMANDS),
    (summed_unchecked, SUMMANDS),
]


def shards(x):
    return [np.asarray(s.data) for s in x.addressable_shards]


def assert_same(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert jax.typeof(a) == jax.typeof(b)
        assert a.sharding == b.sharding
        np.testing.assert_allclose(shards(a), shards(b), rtol=1e-5, atol=1e-6)


def assert_no_more_sent(ours, theirs):
    found = {c.kind: c for c in collectives(theirs)}
    for mine in collectives(ours):
        assert mine.kind in found
        assert mine.count <= found[mine.kind].count
        assert mine.bytes <= found[mine.kind].bytes


def loss_of(f):
    def loss(*args):
        whole = jax.tree.map(lambda x: jax.sharding.reshard(x, P()), f(*args))
        return sum(jnp.sin(x).sum() for x in jax.tree.leaves(whole))

    return loss


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p[0].__name__)
def test_value_gradient_types_and_collectives_are_those_of_jax(program):
    make, *args = program
    ours, theirs = make(shard_map), make(jax.shard_map)
    every = tuple(range(len(args)))
    for of in (lambda f: f, lambda f: jax.grad(loss_of(f), argnums=every)):
        mine, other = (jax.jit(of(f)).lower(*args).compile() for f in (ours, theirs))
        assert_same(mine(*args), other(*args))
        assert_no_more_sent(mine.as_text(), other.as_text())


def test_a_loop_over_reduced_values_has_the_gradient_of_one_over_replicated_ones():
    """JAX itself refuses this gradient."""

    def in_a_scan(shard_map, spec):
        def f(a, r):
            def step(carry, row):
                return jnp.tanh(carry * r + row), (carry * r).sum()

            return lax.scan(step, lax.pcast(r, "x", to="varying"), a)

        return shard_map(f, in_specs=(P("x"), spec), out_specs=(P("x"), P("x")))

    ours = jax.jit(jax.grad(loss_of(in_a_scan(shard_map, P(reduced={"x"}))), argnums=(0, 1)))
    theirs = jax.jit(jax.grad(loss_of(in_a_scan(jax.shard_map, P())), argnums=(0, 1)))
    found = ours(ROWS, REDUCED)
    assert jax.typeof(found[1]).sharding.spec.unreduced == {"x"}
    reduced = jax.jit(lambda x: jax.sharding.reshard(x, P()))
    expected = theirs(ROWS, jax.device_put(REDUCED, NamedSharding(MESH, P())))
    assert_same((found[0], reduced(found[1])), expected)


IN_ONE_CALL = [p for p in PROGRAMS[:8] if p[0] is not summed_one_axis_after_the_other]


@pytest.mark.parametrize("program", IN_ONE_CALL, ids=lambda p: p[0].__name__)
def test_calls_outside_jit_have_the_shardings_of_jax(program):
    make, *args = program
    assert_same(make(shard_map)(*args), make(jax.shard_map)(*args))


def test_a_cast_that_no_spec_tells_of():
    def body(a, to):
        return lax.psum(lax.pcast(a, "x", to=to), "x")

    to = "un" + "reduced"  # nor any name in the code
    ours, theirs = (s(partial(body, to=to), out_specs=P()) for s in (shard_map, jax.shard_map))
    assert_same(jax.jit(ours)(ROWS), jax.jit(theirs)(ROWS))
    assert_same(ours(ROWS), theirs(ROWS))


def test_types_in_the_body_are_those_of_jax():
    def told(shard_map):
        seen = []

        def body(u, r, a):
            cast = lax.pcast(r, "x", to="varying")
            total = lax.psum(u, "x")
            gathered = lax.all_gather(a, "y", to="reduced")
            again = lax.pcast(total, ("x", "y"), to="reduced")
            values = (u, r, a, cast, total, gathered, again, u * r, lax.psum_scatter(u, "x"))
            seen.extend(jax.typeof(x).manual_axis_type for x in values)
            return total

        specs = P(unreduced={"x"}), P(reduced={"x"}), P("y")
        f = shard_map(body, in_specs=specs, out_specs=P())
        jax.eval_shape(f, summands((2,), ("x",), 8), array((2,), P(reduced={"x"})), COLUMNS)
        return seen

    assert told(shard_map) == told(jax.shard_map)


def test_each_result_of_a_graph_says_what_is_unreduced():
    f = matmul_left_unreduced(shard_map)
    graph = f.trace(SPLIT, COLUMNS)
    assert "P('x', unreduced={'y'})" in str(graph)
    assert graph.out_types == [jax.typeof(jax.jit(f)(SPLIT, COLUMNS))]
    assert graph.replication.outputs == (frozenset({"x", "y"}),)


def test_reduced_inputs_are_equal_on_all_devices():
    graph = times_reduced(shard_map).trace(ROWS, REDUCED)
    assert [graph.replication.of(v) for v in graph.jaxpr.jaxpr.invars] == [{"x"}, set()]


def test_a_compiled_program_is_saved_with_its_specs(tmp_path):
    f = product(shard_map)
    executable = f.lower(SUMMANDS, REDUCED).compile()
    executable.save(tmp_path / "program")
    loaded = load(tmp_path / "program")
    assert loaded.signature.in_specs == executable.signature.in_specs
    assert loaded.signature.out_specs == executable.signature.out_specs
    expected = jax.jit(product(jax.shard_map))(SUMMANDS, REDUCED)
    for program in (executable, loaded):
        result = program(SUMMANDS, REDUCED)
        assert result.sharding == expected.sharding
        np.testing.assert_allclose(shards(result), shards(expected), rtol=1e-5)
    assert [layout.spec for layout in loaded.explain().layouts][-1] == "P(unreduced={'x'})"


@pytest.mark.skipif(BEFORE_0_12, reason="JAX 0.10 and 0.11 or their XLA refuse them, or abort")
class TestPartlyManual:
    def casts(self, shard_map):
        options = {"axis_names": {"x"}}
        cast = shard_map(
            lambda a: lax.pcast(jnp.sin(a).sum(0), "x", to="unreduced"),
            in_specs=P("x"),
            out_specs=P(unreduced={"x"}),
            **options,
        )
        total = shard_map(
            lambda u: lax.psum(u, "x"), in_specs=P(unreduced={"x"}), out_specs=P(), **options
        )
        return cast, lambda a: total(cast(a))

    @pytest.mark.parametrize("which", [0, 1])
    def test_summands_over_one_axis_while_the_other_splits(self, which):
        ours, theirs = self.casts(shard_map)[which], self.casts(jax.shard_map)[which]
        assert_same(jax.jit(ours)(SPLIT), jax.jit(theirs)(SPLIT))
        assert_same(*(jax.jit(jax.grad(loss_of(f)))(SPLIT) for f in (ours, theirs)))

    def test_summands_over_an_axis_that_is_not_manual_stay(self):
        def total(shard_map):
            return shard_map(lambda u: lax.psum(u, "x"), out_specs=P(), axis_names={"x"})

        ours, theirs = (jax.jit(total(s))(SUMMANDS_OF_ALL) for s in (shard_map, jax.shard_map))
        assert jax.typeof(ours).sharding.spec.unreduced == {"y"}
        assert_same(ours, theirs)

    def test_within_another_region(self):
        def nested(shard_map):
            def inner(a):
                cast = shard_map(
                    lambda a: lax.pcast(a, "y", to="unreduced"),
                    in_specs=P(None, "y"),
                    out_specs=P(unreduced={"y"}),
                    axis_names={"y"},
                )
                total = partial(lax.psum, axis_name="y")
                return shard_map(
                    total, in_specs=P(unreduced={"y"}), out_specs=P(), axis_names={"y"}
                )(cast(a))

            return shard_map(inner, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})

        assert_same(*(jax.jit(nested(s))(SPLIT) for s in (shard_map, jax.shard_map)))


@pytest.mark.skipif(not BEFORE_0_12, reason="JAX 0.12 takes them")
def test_summands_of_a_partly_manual_region_are_refused():
    """XLA of this version aborts the process."""
    f = shard_map(lambda u: u, out_specs=P(unreduced={"x"}), axis_names={"x"})
    with pytest.raises(SpecError, match="all axes manual"):
        jax.jit(f)(SUMMANDS)


def test_an_axis_of_one_device():
    mesh = jax.make_mesh((2, 1), ("x", "y"), axis_types=EXPLICIT, devices=jax.devices()[:2])

    def f(shard_map):
        def body(a):
            return lax.pcast(a.sum(0), ("x", "y"), to="unreduced")

        return shard_map(body, in_specs=P("x", "y"), out_specs=P(unreduced={"x", "y"}))

    with jax.set_mesh(mesh):
        a = jax.device_put(np.arange(8, dtype=np.float32).reshape(4, 2), P("x", "y"))
        assert_same(*(jax.jit(f(s))(a) for s in (shard_map, jax.shard_map)))


# ------------------------------------------------------------------------- maxima and minima

KINDS = {"max": (lax.reduce_max, lax.pmax), "min": (lax.reduce_min, lax.pmin)}


@pytest.fixture(params=KINDS)
def pending(request):
    """(a full array, what is pending of it along "x", what reduces that, how it is called)."""
    kinds = getattr(jax.sharding, "UnreducedKind", None)
    if kinds is None:
        pytest.skip("this JAX knows sums only")
    reduce, collective = KINDS[request.param]
    spec = P(None, unreduced={"x"}, unreduced_kind=kinds[request.param])
    full = array((8, 8), P("x"), 8)
    return full, jax.jit(partial(reduce, axes=(0,), out_sharding=spec))(full), collective, spec


@pytest.mark.parametrize("call", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_a_pending_extremum_is_reduced_by_its_collective_only(pending, call):
    full, extremum, collective, spec = pending
    f = call(shard_map(lambda b: collective(b, "x"), in_specs=spec, out_specs=P()))
    expected = getattr(np, collective.__name__[1:])(np.asarray(full), axis=0)
    np.testing.assert_array_equal(f(extremum), expected)
    for other in {lax.psum, lax.pmax, lax.pmin} - {collective}:
        g = call(shard_map(lambda b, other=other: other(b, "x"), in_specs=spec, out_specs=P()))
        with pytest.raises(BodyError, match="cannot accept args with unreduced_kind"):
            g(extremum)


def test_a_pending_extremum_stays_one(pending):
    _, extremum, _, spec = pending
    f = jax.jit(shard_map(lambda b: b, in_specs=spec, out_specs=spec))
    result = f(extremum)
    assert result.sharding.spec == spec
    for shard, before in zip(result.addressable_shards, extremum.addressable_shards, strict=True):
        np.testing.assert_array_equal(shard.data, before.data)
