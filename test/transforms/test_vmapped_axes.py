"""Collectives over a named axis of vmap, of which a part may lie on mesh axes.

The oracle has no vmap: a vmapped axis is one more axis of its mesh.
"""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from compilers import fast_jit
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

MESH = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
SIZES = {"b": 4, "c": 2}

LINEAR = ("psum", "all_gather", "psum_scatter", "all_to_all", "ppermute", "pbroadcast")

ARRANGEMENTS = [  # the axes of the collectives, and each vmapped axis with its spmd_axis_name
    ("b", {"b": "x"}),
    ("b", {"b": "y"}),  # one position on each device
    (("x", "b"), {"b": None}),
    (("b", "x", "c"), {"b": None, "c": None}),
    (("c", "y", "b"), {"b": "x", "c": None}),
]


def cases(n):
    """The parameters of collectives on blocks of (n, 2n) elements, along n positions."""
    return {
        "psum": {},
        "pmax": {},
        "pmin": {},
        "all_gather": {"axis": 1},
        "all_gather tiled": {"axis": 1, "tiled": True},
        "psum_scatter": {},
        "psum_scatter tiled": {"scatter_dimension": 1, "tiled": True},
        "all_to_all": {"split_axis": 0, "concat_axis": 1},
        "all_to_all in place": {"split_axis": 0, "concat_axis": 0},
        "all_to_all tiled": {"split_axis": 0, "concat_axis": 1, "tiled": True},
        "all_to_all tiled back": {"split_axis": 1, "concat_axis": 0, "tiled": True},
        "ppermute": {"perm": [(k, (k + 3) % n) for k in range(n)]},
        "ppermute that mixes": {"perm": [(k, (5 * k + 2) % n) for k in range(n)]},
        "ppermute of some": {"perm": [(0, n - 1), (1, 1), (n - 2, 0)]},
        "ppermute of none": {"perm": []},
        "pbroadcast": {"source": n - 2},
        "axis_index": {},
    }


def collectives(axes, x, only=("pmax", "pmin", "axis_index", *LINEAR)):
    """The results of all collectives on one device's `x`."""
    found = {}
    for case, params in cases(lax.axis_size(axes)).items():
        name = case.split()[0]
        if name in only:
            operand = () if name == "axis_index" else (x,)
            found[case] = getattr(lax, name)(*operand, axis_name=axes, **params)
    return found


def sizes(arrangement):
    """The axes in the order of the leading dimensions of arguments.

    Nothing else is split over the mesh axes of a spmd_axis_name.
    """
    _, vmaps = arrangement
    outside = {a: 1 if a in vmaps.values() else n for a, n in MESH.shape.items()}
    return {a: SIZES[a] for a in vmaps} | outside


def mapped(fun, arrangement):
    """`fun` of one device's block, on arrays `[x, y, ...]`."""
    spec = P(*[a if n > 1 else None for a, n in sizes(arrangement).items() if a in MESH.shape])

    def body(block):
        return jax.tree.map(lambda v: jnp.expand_dims(v, (0, 1)), fun(block[0, 0]))

    return shard_map(body, mesh=MESH, in_specs=spec, out_specs=spec)


def vmapped(fun, arrangement):
    for name, spmd in reversed(arrangement[1].items()):
        fun = jax.vmap(fun, axis_name=name, spmd_axis_name=spmd)
    return fun


def argument(arrangement, seed=0):
    shape = sizes(arrangement)
    n = len(oracle.teams(shape, arrangement[0])[0])
    rng = np.random.default_rng(seed)
    return rng.integers(-9, 9, size=(*shape.values(), n, 2 * n)).astype(np.float32)


def expected(arrangement, x):
    shape = sizes(arrangement)
    blocks = list(x.reshape(-1, *x.shape[len(shape) :]))
    found = {}
    for case, params in cases(blocks[0].shape[0]).items():
        operand = () if case == "axis_index" else (blocks,)
        name = case.split()[0]
        results = oracle.collective(name, shape, *operand, axis_name=arrangement[0], **params)
        found[case] = np.stack(results).reshape(*shape.values(), *results[0].shape)
    return found


@pytest.mark.parametrize("arrangement", ARRANGEMENTS, ids=str)
def test_collectives_over_vmapped_axes(arrangement):
    x = argument(arrangement)
    fun = mapped(lambda x: collectives(arrangement[0], x), arrangement)
    found = fast_jit(vmapped(fun, arrangement))(x)
    wanted = expected(arrangement, x)
    assert set(found) == set(wanted)
    for case, value in wanted.items():
        np.testing.assert_array_equal(found[case], value, case)


@pytest.mark.parametrize("order", ["vjp of vmap", "vmap of vjp"])
@pytest.mark.parametrize("arrangement", ARRANGEMENTS[::2], ids=str)
def test_transposes_of_collectives_over_vmapped_axes(arrangement, order):
    """They are linear: what the pulled-back cotangents make of v, the cotangents make of f(v)."""
    fun = mapped(lambda x: collectives(arrangement[0], x, LINEAR), arrangement)

    def pull(f):
        return lambda x, w: jax.vjp(f, x)[1](w)[0]

    x, v = argument(arrangement), argument(arrangement, seed=1)
    of_v = {k: y for k, y in expected(arrangement, v).items() if k.split()[0] in LINEAR}
    rng = np.random.default_rng(2)
    w = {k: rng.integers(-2, 3, size=y.shape).astype(np.float32) for k, y in of_v.items()}
    if order == "vjp of vmap":
        pulled = pull(vmapped(fun, arrangement))
    else:
        pulled = vmapped(pull(fun), arrangement)
    product = sum(np.vdot(w[k].astype(np.float64), of_v[k]) for k in w)
    found = np.vdot(np.asarray(fast_jit(pulled)(x, w), np.float64), v)
    np.testing.assert_allclose(found, product, rtol=1e-6)


# From 0.12 on JAX takes a source that is computed.
@pytest.mark.parametrize("computed", [False, True][: 1 + (jax.__version_info__ >= (0, 12))])
def test_gradient_of_pbroadcast_inside_of_a_body(computed):
    """Along a vmapped axis and along one of the mesh; JAX's own rule refuses both.

    With check_vma JAX's types, under which such bodies are traced, refuse the vmapped axis.
    """
    source = 1

    def body(x, k):
        def gradient(axis, x):
            def loss(y):
                found = lax.pbroadcast(y * y, axis, k if computed else source)
                return jnp.sum(jnp.sin(found) * (1 + lax.axis_index(axis)))

            return jax.grad(loss)(x)

        vmapped = jax.vmap(lambda r: gradient("b", r), axis_name="b")(x.reshape(3, -1))
        return vmapped, gradient("y", x)

    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
    specs = {"in_specs": (P("y"), P()), "out_specs": (P("y"), P("y"))}
    results = fast_jit(shard_map(body, mesh=MESH, check_vma=False, **specs))(x, np.int32(source))
    for found, positions in zip(results, (3, 4), strict=True):
        y = x.reshape(-1, positions, found.shape[-1])
        wanted = np.zeros_like(y)
        weights = np.arange(1, positions + 1).sum()
        wanted[:, source] = weights * np.cos(y[:, source] ** 2) * 2 * y[:, source]
        np.testing.assert_allclose(found, wanted.reshape(found.shape), rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------ beside a vmap without a mesh


def compare(fun, x, out_axes=0, rtol=1e-6, **options):
    """`fun` vmapped over 'b' on devices along 'x', and by jax.vmap alone."""
    body = shard_map(fun, mesh=MESH, in_specs=P(), out_specs=P(), **options)
    named = {"axis_name": "b", "out_axes": out_axes}
    found = jax.jit(jax.vmap(body, spmd_axis_name="x", **named))(x)
    wanted = jax.vmap(fun, **named)(x)
    jax.tree.map(lambda f, w: np.testing.assert_allclose(f, w, rtol=rtol), found, wanted)


BATCH = np.arange(1.0, 25, dtype=np.float32).reshape(8, 3)


def test_results_that_are_not_vmapped():
    """A sum over the axis is one value for all examples, as `out_axes=None` asks."""
    compare(lambda v: (lax.psum(v, "b"), lax.all_gather(v, "b")), BATCH, out_axes=None)
    compare(lambda v: (v * 2, lax.pmax(v, "b")), BATCH, out_axes=(0, None))


def test_collectives_inside_of_control_flow():
    def fun(v):
        def step(carry, k):
            moved = lax.ppermute(carry, "b", [(i, (i + 1) % 8) for i in range(8)])
            return jax.jit(lambda c: c + lax.psum(moved, "b") * k)(carry), moved

        total, rows = lax.scan(step, v, jnp.arange(1.0, 4))
        larger = lax.pmax(v, "b").sum() > 3
        return lax.cond(larger, lambda u: u + lax.axis_index("b"), jnp.sin, total), rows

    compare(fun, BATCH)


def test_derivative_rules_of_the_user_that_name_the_axis():
    """JAX traces them late, after the vmap."""

    @jax.custom_vjp
    def scaled(v):
        return v * lax.psum(v, "b")

    def forward(v):
        return scaled(v), v

    def backward(v, ct):
        return (ct * lax.psum(v, "b") + lax.psum(ct * v, "b") + lax.axis_index("b"),)

    scaled.defvjp(forward, backward)

    @jax.custom_jvp
    def centred(v):
        return v - lax.pmean(v, "b")

    @centred.defjvp
    def _(primals, tangents):
        (v,), (t,) = primals, tangents
        return centred(v), t - lax.pmean(t, "b") * 0.5

    def fun(v):
        return jnp.sin(centred(scaled(v) / 100))

    body = shard_map(fun, mesh=MESH, in_specs=P(), out_specs=P())

    def slope(f, **spmd):
        return jax.grad(lambda x: (BATCH * jax.vmap(f, axis_name="b", **spmd)(x)).sum())

    found = jax.jit(slope(body, spmd_axis_name="x"))(BATCH)
    np.testing.assert_allclose(found, slope(fun)(BATCH), rtol=1e-4)


def test_axis_index_where_no_operand_is_mapped():
    body = shard_map(
        lambda v: v + lax.axis_index("b"), mesh=MESH, in_specs=P("y"), out_specs=P("y")
    )
    v = np.arange(4.0, dtype=np.float32)
    for spmd in (None, "x"):
        options = {"axis_size": 6, "axis_name": "b", "spmd_axis_name": spmd}
        found = jax.jit(jax.vmap(body, in_axes=None, **options))(v)
        np.testing.assert_array_equal(found, v + np.arange(6.0)[:, None])


def test_dimension_that_its_type_splits():
    """The named axis of a vmap over it lies on the axes that the type mentions."""
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    x = jax.device_put(BATCH, NamedSharding(mesh, P("x", None)))
    body = shard_map(
        lambda v: v / lax.psum(v, "b") + lax.axis_index("b"),
        mesh=mesh,
        in_specs=P(None),
        out_specs=P(None),
    )
    found = jax.jit(jax.vmap(body, axis_name="b"))(x)
    np.testing.assert_allclose(found, BATCH / BATCH.sum(0) + np.arange(8)[:, None], rtol=1e-6)
    assert found.sharding.spec == P("x", None)


def test_nested_regions_share_a_vmapped_axis():
    """The outer region splits it over one mesh axis, the inner one over another."""

    def inner(v):
        return v - lax.pmean(v, "b") + lax.axis_index("b")

    def outer(v):
        return shard_map(inner, axis_names={"y"}, in_specs=P(), out_specs=P())(v) * 2

    body = shard_map(outer, mesh=MESH, axis_names={"x"}, in_specs=P(), out_specs=P())
    found = jax.jit(jax.vmap(body, axis_name="b", spmd_axis_name=("x", "y")))(BATCH)
    wanted = jax.vmap(lambda v: inner(v) * 2, axis_name="b")(BATCH)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("axes", [("rows", "y"), ("y", "rows"), "rows"])
def test_vmap_inside_of_a_body(axes, compiled):
    sizes = {"x": 1, "y": 4, "rows": 2}
    x = np.random.default_rng(3).integers(-9, 9, size=(4, 2, 8)).astype(np.float32)
    perm = [(0, 1), (1, 0)]  # positions that are there also without the vmapped axis

    def fun(v):
        def row(u):
            gathered = u if axes == "rows" else lax.all_gather(u, axes, tiled=True)
            return {"permuted": lax.ppermute(u, axes, perm), "gathered": gathered}

        return jax.tree.map(lambda r: r[None], jax.vmap(row, axis_name="rows")(v[0]))

    body = shard_map(fun, mesh=MESH, in_specs=P("y"), out_specs=P("y"))
    found = (jax.jit(body) if compiled else body)(x)
    blocks = list(x.reshape(8, 8))
    permuted = oracle.collective("ppermute", sizes, blocks, axis_name=axes, perm=perm)
    np.testing.assert_array_equal(found["permuted"], np.reshape(permuted, x.shape))
    if axes != "rows":
        gathered = oracle.collective("all_gather", sizes, blocks, axis_name=axes, tiled=True)
        np.testing.assert_array_equal(found["gathered"], np.reshape(gathered, (4, 2, 64)))


def test_groups_along_an_axis_with_one_position_on_each_device():
    groups = [[0, 3], [2, 1]]

    def fun(v):
        total = lax.psum(v, "b", axis_index_groups=groups)
        rows = lax.all_gather(v, "b", axis_index_groups=groups)
        parts = lax.psum_scatter(rows, "b", axis_index_groups=groups)
        turned = lax.all_to_all(rows, "b", 0, 0, axis_index_groups=groups)
        return total, rows, parts, turned

    body = shard_map(fun, mesh=MESH, in_specs=P(), out_specs=P())
    found = jax.jit(jax.vmap(body, axis_name="b", spmd_axis_name="y"))(BATCH[:4])
    partner = BATCH[[3, 2, 1, 0]]
    first = np.array([True, False, True, False])[:, None]
    total = BATCH[:4] + partner
    rows = np.stack([np.where(first, BATCH[:4], partner), np.where(first, partner, BATCH[:4])], 1)
    np.testing.assert_array_equal(found[0], total)
    np.testing.assert_array_equal(found[1], rows)
    np.testing.assert_array_equal(found[2], 2 * BATCH[:4])
    np.testing.assert_array_equal(found[3][:, 0], np.where(first, rows[:, 0], rows[:, 1]))


@pytest.mark.parametrize(("split", "concat"), [(0, 0), (0, 1), (1, 0)])
def test_an_exchange_of_what_is_vmapped_moves_as_little_as_with_jax(split, concat):
    def body(x):
        def exchanged(row):
            return jnp.sin(lax.all_to_all(row, "b", split, concat, tiled=True))

        return jax.vmap(exchanged, axis_name="b")(x)

    def moves(shard_map, **options):
        of = shard_map(body, mesh=MESH, in_specs=P(None, "x"), out_specs=P(None, "x"), **options)
        text = jax.jit(of).lower(jnp.ones((8, 16, 8))).compile().as_text()
        return [text.count(f" {name}(") for name in ("copy", "transpose", "fusion")]

    assert moves(shard_map) == moves(jax.shard_map, check_vma=False)
