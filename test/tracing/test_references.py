"""Mutable references in a body, passed as arguments, and closed over."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import HangError, ReplicationError, SpecError, shard_map
from shmap_compiler.tracing.ref_program import ValueProgram

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
ON_I = P("i")
X = (np.arange(32, dtype=np.float32).reshape(8, 4) + 1) / 7
RING = [(k, (k + 1) % 4) for k in range(4)]


def mapped(fun, shard_map=shard_map, in_specs=ON_I, out_specs=ON_I, **options):
    return shard_map(fun, mesh=MESH, in_specs=in_specs, out_specs=out_specs, **options)


# -------------------------------------------------------------------------- made in the body


def whole_and_parts(x):
    ref = jax.new_ref(x)
    ref[...] = ref[...] * 2
    jax.ref.addupdate(ref, (0,), x[1])
    old = jax.ref.swap(ref, (1, slice(0, 2)), jnp.ones(2))
    return jax.freeze(ref) + old.sum()


def indices(x):
    ref = jax.new_ref(jnp.tile(x, (4, 1)))
    rows, position = jnp.array([1, 3, 1]), lax.axis_index("i")
    jax.ref.addupdate(ref, (rows,), jnp.ones((3, 4)))  # row 1 twice
    ref[rows, jnp.arange(3)] = jnp.arange(3.0)
    old = jax.ref.swap(ref, (slice(0, 2), position), jnp.ones(2))
    return ref[2:6:2, jnp.array([0, 3])] + ref[position].sum() + old[:, None] + ref[-1, :2]


def in_scan(x):
    total, last = jax.new_ref(jnp.zeros(4)), jax.new_ref(jnp.zeros((2, 4)))

    def step(c, row):
        total[...] += row * c
        last[0] = row
        return c + 1.0, total[0]

    c, ys = lax.scan(step, 1.0, x)
    return x * total[...] + c + ys[:, None] + last[...]


def in_nested_loops(x):
    ref = jax.new_ref(x)

    def outer(k, c):
        total = jax.new_ref(jnp.zeros(4))

        def inner(row, d):
            total[...] += ref[row]
            ref[row] = total[...] * 0.5
            return d

        lax.fori_loop(0, 2, inner, 0)
        return lax.cond(k > 0, lambda: c + total[...], lambda: c)

    return lax.fori_loop(0, 2, outer, jnp.zeros(4)) + ref[...]


def in_branches(x):
    ref = jax.new_ref(x)

    def one():
        ref[...] += 1.0
        return x

    def other():
        ref[0] = ref[1]
        return 2 * x

    y = lax.cond(lax.axis_index("i") > 1, one, other)
    return ref[...] + y + lax.switch(lax.axis_index("i") % 3, [lambda: ref[...], lambda: x, other])


def in_calls(x):
    ref, unwritten = jax.new_ref(x), jax.new_ref(x)

    @jax.jit
    def scaled(ref, y):
        ref[...] = ref[...] * y
        return ref[0] + unwritten[1]

    @jax.checkpoint
    def again(y):
        own = jax.new_ref(jnp.sin(y))
        own[0] += 1.0
        return own[...]

    return ref[...] + scaled(ref, x[0]) + again(x)


def in_calls_of_calls(x, depth=3):
    """With either of two references."""
    one, other = jax.new_ref(x), jax.new_ref(2 * x)

    def calls(y):
        fun = jax.jit(lambda a, b, y: (a.__setitem__(..., a[...] + y), b[...] + y)[1])
        for _ in range(depth):
            fun = jax.jit(lambda a, b, y, fun=fun: fun(a, b, fun(a, b, y)))
        y = fun(one, other, y)
        y = lax.cond(y.sum() > 0, lambda: fun(other, one, y), lambda: fun(one, other, y))
        return fun(one, other, y)

    return calls(x / 100) + one[...] + other[...]


def in_rules(x):
    @jax.custom_vjp
    def fun(y):
        return jax.freeze(jax.new_ref(2 * y))

    def forward(y):
        return jax.freeze(jax.new_ref(2 * y)), None

    def backward(_, ct):
        ref = jax.new_ref(ct)
        ref[...] *= 3.0
        return (ref[...],)

    fun.defvjp(forward, backward)
    return fun(x)


def with_collectives(x):
    ref = jax.new_ref(x)

    def step(k, c):
        ref[...] = lax.ppermute(ref[...], "i", RING) + lax.psum(c, "j")
        return c + ref[0]

    return lax.fori_loop(0, 3, step, x[0]) + ref[...]


def mapped_over_rows(x):
    def row(v):
        ref = jax.new_ref(v)
        ref[0] = v[1] * 2
        ref[...] += lax.psum(v, "i")
        return ref[...]

    return jax.vmap(row)(x)


def made_empty(x):
    ref = jax.ref.empty_ref(jax.ShapeDtypeStruct(x.shape, x.dtype))
    ref[...] = x
    scale = jax.new_ref(1.0)  # of weak type
    scale[...] = 2.0
    y = lax.optimization_barrier(ref[...]) * scale[...]
    jax.ref.free_ref(ref)
    return y


BODIES = [whole_and_parts, indices, in_scan, in_nested_loops, in_branches, in_calls, in_rules]
BODIES += [in_calls_of_calls, with_collectives, mapped_over_rows, made_empty]
EVERY_BODY = pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)


@EVERY_BODY
def test_values(body):
    """Under jit as `jax.shard_map`, which knows references there; eagerly the same."""
    options = {"out_specs": ON_I, "check_vma": False}
    expected = jax.jit(mapped(body, jax.shard_map, **options))(X)
    np.testing.assert_allclose(jax.jit(mapped(body))(X), expected, rtol=1e-5)
    np.testing.assert_allclose(mapped(body)(X), expected, rtol=1e-5)


@pytest.mark.parametrize("start", [0, 1, "k"])
def test_read_and_write_of_no_elements(start):
    """JAX rejects a stride there, but with one a slice could begin before its end."""

    def body(x):
        ref = jax.new_ref(x)
        begin = lax.axis_index("i") if start == "k" else start
        none = ref[pl.ds(begin, 0, 2)]
        ref[pl.ds(begin, 0, 2)] = none
        return ref[...] + none.sum()

    np.testing.assert_array_equal(jax.jit(mapped(body))(X), X)
    np.testing.assert_array_equal(mapped(body)(X), X)


def test_shared_programs_are_rewritten_once(monkeypatch):
    rewritten = []
    start = ValueProgram.__init__

    def counted(self, *args):
        rewritten.append(self)
        start(self, *args)

    monkeypatch.setattr(ValueProgram, "__init__", counted)
    graph = mapped(partial(in_calls_of_calls, depth=6)).trace(X)
    assert len(rewritten) == 1 + 7 + 2  # the body, the jitted functions and the branches
    assert str(graph).count(" = jit[") == 2 * 6 + 4


@pytest.mark.parametrize(
    "body", [in_scan, in_calls, in_rules, with_collectives], ids=lambda body: body.__name__
)
def test_gradients(body):
    def gradient(shard_map):
        fun = mapped(body, shard_map, check_vma=shard_map is not jax.shard_map)
        return jax.jit(jax.grad(lambda x: jnp.sum(fun(x) ** 2)))(X)

    from shmap_compiler import shard_map as ours

    np.testing.assert_allclose(gradient(ours), gradient(jax.shard_map), rtol=1e-4)


def test_condition_of_a_loop_reads():
    """`jax.shard_map` does not end here: its condition sees the first value at every step."""

    def body(x):
        steps = jax.new_ref(0)

        def step(c):
            steps[...] += 1
            return c * 2

        return lax.while_loop(lambda c: steps[...] < 3, step, x)

    np.testing.assert_allclose(jax.jit(mapped(body))(X), 8 * X)
    np.testing.assert_allclose(mapped(body)(X), 8 * X)


def test_gradient_inside_fills_a_reference():
    def body(x):
        kept = jax.new_ref(jnp.zeros_like(x))

        @jax.custom_vjp
        def passed(y, ref):
            return y

        def backward(ref, ct):
            ref[...] = ct
            return ct, None

        passed.defvjp(lambda y, ref: (y, ref), backward)
        return jax.grad(lambda y: jnp.sin(passed(y, kept)).sum())(x) + kept[...]

    np.testing.assert_allclose(jax.jit(mapped(body))(X), 2 * np.cos(X), rtol=1e-5)


# ----------------------------------------------------------------------------- from outside


def placed(value=X, spec=ON_I):
    return jax.new_ref(jax.device_put(value, NamedSharding(MESH, spec)))


def add(ref, x):
    ref[...] += x
    return 2 * x


@pytest.mark.parametrize("run", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_arguments_are_updated(run):
    ref = placed()
    program = run(mapped(add, in_specs=(ON_I, ON_I)))
    np.testing.assert_allclose(program(ref, X), 2 * X)
    program(ref, X)
    np.testing.assert_allclose(ref[...], 3 * X)


def test_memory_of_arguments_is_updated_in_place():
    ref = placed()

    def aliased(shard_map):
        program = jax.jit(mapped(add, shard_map, in_specs=(ON_I, ON_I)))
        return program.lower(ref, X).compile().memory_analysis().alias_size_in_bytes

    from shmap_compiler import shard_map as ours

    assert aliased(ours) == aliased(jax.shard_map) > 0


@pytest.mark.parametrize("run", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_references_closed_over_are_updated(run):
    total = placed(np.zeros(4, np.float32), P())

    def body(x):
        total[...] += lax.psum(x.sum(0), "i")
        return x

    run(mapped(body))(X)
    np.testing.assert_allclose(total[...], X.sum(0), rtol=1e-5)


def test_reference_of_an_enclosing_loop():
    def program(x):
        total = jax.new_ref(jnp.zeros_like(x))
        step = mapped(add, in_specs=(ON_I, ON_I))
        lax.fori_loop(0, 3, lambda k, c: (step(total, x), c)[1], 0)
        return total[...]

    np.testing.assert_allclose(jax.jit(program)(X), 3 * X, rtol=1e-6)


def test_reference_of_an_enclosing_body():
    def body(x):
        ref = jax.new_ref(x)
        inner = shard_map(
            lambda ref, y: add(ref, lax.psum(y, "j")),
            in_specs=(P(None, "j"), P(None, "j")),
            out_specs=P(None, "j"),
            axis_names={"j"},
        )
        inner(ref, x)
        return ref[...]

    program = jax.jit(mapped(body, axis_names={"i"}))
    halves = X.reshape(8, 2, 2)
    np.testing.assert_allclose(program(X), X + np.tile(halves.sum(1), (1, 2)), rtol=1e-6)


def test_derivative_through_an_argument():
    def loss(x):
        ref = jax.new_ref(x)

        def body(ref):
            ref[0] = ref[0] ** 2
            return ref[...].sum()[None]

        y = mapped(body)(ref)
        return y.sum() + (ref[...] ** 2).sum()

    squared = np.tile([[True], [False]], (4, 4))
    expected = np.where(squared, 2 * X + 4 * X**3, 1 + 2 * X)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(X), expected, rtol=1e-5)


def test_reference_that_is_only_read():
    graph = mapped(lambda ref: ref[...] * 2).trace(placed())
    assert graph.out_specs == (ON_I,)


# ---------------------------------------------------------------------------- what varies, hangs


def test_r16_value_varies_with_what_decides_the_write():
    def body(x):
        ref = jax.new_ref(jnp.zeros(()))

        def write():
            ref[...] = 1.0

        lax.cond(lax.axis_index("i") > 0, write, lambda: None)
        return ref[...][None]

    assert mapped(body).trace(X).replication.outputs == ({"i"},)


def test_r18_predicate_read_from_a_reference():
    def body(x):
        ref = jax.new_ref(jnp.zeros(()))
        ref[...] = lax.axis_index("i").astype(jnp.float32)
        return lax.cond(ref[...] > 0, lambda: lax.psum(x, "i"), lambda: x)

    with pytest.raises(HangError, match=r"(?s)psum over 'i' .*varies along 'i'"):
        mapped(body).trace(X)


@pytest.mark.parametrize("run", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_r17_last_value_varies(run):
    def body(ref, x):
        ref[:2] = x
        return x

    program = run(mapped(body, in_specs=(P(), ON_I)))
    found = r"(?s)args\[0\] after the call with its spec=P\(\).*varies along (axis )?'?i'?"
    ref = placed(X, P())
    with pytest.raises(ReplicationError, match=found):
        program(ref, X)
    np.testing.assert_array_equal(ref[...], X)


# ------------------------------------------------------------------- refused: see test_errors


def test_reference_closed_over_and_passed():
    ref = placed()

    def body(passed, x):
        passed[...] += ref[:2]
        return x

    with pytest.raises(SpecError, match="the same mutable reference as args"):
        mapped(body, in_specs=(ON_I, ON_I))(ref, X)
