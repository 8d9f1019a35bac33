"""The search for shardings: what it tries, in which order, and what it reports."""

import functools
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from compilers import needs_tpu_compiler
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import TargetError, pmap, search_shardings, shard_map, xmap
from shmap_compiler.unjit import sharding_candidates


def types(*shapes):
    return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]


def product(a, b):
    return jnp.tanh(a @ b)


def test_meshes_have_one_or_two_axes():
    assert sharding_candidates.meshes(12) == [{"x": 12}, {"x": 4, "y": 3}, {"x": 6, "y": 2}]
    assert sharding_candidates.meshes(1) == [{"x": 1}]


def test_axes_divide_what_they_split():
    mesh = {"x": 4, "y": 2}
    assert set(sharding_candidates.specs((8, 6), mesh)) == {
        P(),
        P("x"),
        P("y"),
        P(("x", "y")),
        P(None, "y"),
        P("x", "y"),
    }
    assert sharding_candidates.specs((), mesh) == [P()]
    assert sharding_candidates.block_bytes((8, 6), 4, P("x", "y"), mesh) == 24


def test_all_choices_are_compiled_if_they_are_few():
    search = search_shardings(product, *types((8, 3), (3, 8)), target="cpu:8", mesh={"x": 8})
    assert search.possible == len(search.choices) == 4
    assert search.best.sent_bytes == 0
    assert [choice.cost for choice in search.choices] == sorted(c.cost for c in search.choices)
    text = str(search)
    assert "on cpu:8: 4 of 4 choices compiled" in text
    assert "args[0]" in text.splitlines()[1]
    phases = []
    made = search.unjit(progress=phases.append)
    assert phases == ["compiling", "converting", "comparing"]
    assert made.validate().holds
    assert made.as_python().count(str(search.best.specs[0]).replace("PartitionSpec", "P")[:3]) > 0


def test_the_search_changes_one_argument_at_a_time():
    phases = []
    search = search_shardings(
        jax.jit(product),
        *types((8, 16), (16, 8)),
        target="cpu:8",
        mesh={"x": 4, "y": 2},
        limit=6,
        progress=phases.append,
    )
    assert len(search.choices) == len(phases) == 6
    assert search.possible == 81
    first = phases[0].partition(": ")[2]
    assert first == "4x2, P(('x', 'y')), P(('x', 'y'))"
    assert search.best.cost <= min(choice.cost for choice in search.choices)


@pytest.mark.parametrize("scale", [0.1, jnp.asarray(0.1)], ids=["number", "array"])
def test_numbers_stay_weakly_typed(scale):
    def step(w, scale):
        return lax.fori_loop(0, 3, lambda _, w: w - scale * jnp.sin(w), w)

    w = jnp.linspace(0, 1, 64, dtype=jnp.bfloat16)
    search = search_shardings(step, w, scale, target="cpu:8", mesh={"x": 8})
    assert [tuple(choice.specs[0]) for choice in search.choices] == [("x",), ()]
    assert search.jitted()(w, scale).dtype == jnp.bfloat16
    result = search.unjit().shard_map()(w, scale)
    assert result.dtype == jnp.bfloat16
    assert jnp.allclose(result, step(w, scale), rtol=1 / 64)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"target": "cpu:8", "mesh": {"x": 16}}, "16 devices in the mesh"),
        (
            {"target": "cpu:8", "mesh": {"x": 4}},
            "4 devices in the mesh\n +needed: 8, the devices of",
        ),
        ({"target": "cpu:8", "limit": 0}, "found: +0"),
        ({"target": "tpu:v99:2x2"}, "a generation"),
    ],
)
def test_what_cannot_be_searched_is_refused(options, found):
    with pytest.raises(TargetError, match=found):
        search_shardings(product, *types((8, 8), (8, 8)), **options)


def test_functions_without_arrays_are_refused():
    with pytest.raises(TargetError, match="the arguments"):
        search_shardings(lambda: 1.0, target="cpu:8")


@pytest.mark.parametrize("static", [{"static_argnums": 1}, {"static_argnames": "n"}])
def test_static_arguments_are_bound_first(static):
    power = jax.jit(lambda x, n: functools.reduce(lambda y, _: x * y, range(n), x), **static)
    (x,) = types((16,))
    found = (
        r"found: +1 that jax\.jit takes as static, of 2\n.*\n +fix: +bind the static values first"
    )
    with pytest.raises(TargetError, match=found):
        search_shardings(power, x, 2, target="cpu:8")
    search = search_shardings(partial(power, n=2), x, target="cpu:8", mesh={"x": 8})
    assert search.jitted()(jnp.full(16, 2.0)).tolist() == [8.0] * 16


def test_arguments_that_are_not_numbers_are_bound_first():
    found = r"args\[0\]\['mode'\]\n +found: +'exact', a str\n.*\n +fix: +bind other values first"
    with pytest.raises(TargetError, match=found):
        search_shardings(lambda options: options["x"], {"x": 1.0, "mode": "exact"}, target="cpu:8")


@pytest.mark.parametrize("axis", ["x", "rows"])
def test_results_are_split_by_out_shardings(axis):
    """And not by in_shardings, also if these are on a mesh with other names."""
    mesh = jax.make_mesh((8,), (axis,), axis_types=(AxisType.Auto,))
    shardings = {"twice": NamedSharding(mesh, P()), "same": None}

    @partial(jax.jit, in_shardings=NamedSharding(mesh, P(axis)), out_shardings=shardings)
    def doubled(a):
        return {"twice": 2 * a, "same": a}

    (a,) = types((8, 128))
    search = search_shardings(doubled, a, target="cpu:8", mesh={"x": 8})
    sent = {tuple(choice.specs[0]): choice.sent_bytes for choice in search.choices}
    gathered = 7 * a.size * 4 // 8
    assert sent == {(): 0, ("x",): gathered, (None, "x"): gathered}
    split = next(choice for choice in search.choices if tuple(choice.specs[0]) == ("x",))
    found = search.jitted(split)(jnp.ones(a.shape))
    assert found["twice"].sharding.is_fully_replicated
    assert tuple(found["same"].sharding.spec)[:1] == ("x",)
    assert "lax.all_gather(" in search.unjit(split).as_python()


def test_out_shardings_are_on_as_many_devices_as_the_target():
    mesh = jax.make_mesh((4,), ("x",), (AxisType.Auto,), devices=jax.devices()[:4])
    jitted = jax.jit(jnp.sin, out_shardings=NamedSharding(mesh, P("x")))
    with pytest.raises(TargetError, match=r"out_shardings\n +found: +4 devices\n +needed: 8, the"):
        search_shardings(jitted, *types((16,)), target="cpu:8")


MESH = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))


@pytest.mark.parametrize(
    "mapped",
    [
        shard_map(jnp.sin, mesh=MESH, in_specs=P("x"), out_specs=P("x")),
        xmap(jnp.sin, in_axes=["i"], out_axes=["i"], axis_resources={"i": "x"}, mesh=MESH),
        pmap(jnp.sin),
    ],
    ids=lambda mapped: type(mapped).__name__,
)
def test_functions_of_blocks_are_refused(mapped):
    with pytest.raises(TargetError, match=f"{type(mapped).__name__}: how it .*\n.*whole arrays"):
        search_shardings(mapped, *types((8,)), target="cpu:8", limit=1)


def test_a_source_needs_as_many_devices_as_the_mesh():
    search = search_shardings(jnp.sin, *types((16,)), target="cpu:8", mesh={"x": 8})
    with pytest.raises(TargetError, match="8 devices here"):
        search.jitted(replace(search.best, mesh={"x": 16}))


@pytest.mark.slow
@needs_tpu_compiler
def test_shardings_for_tpus_are_ranked_by_time():
    search = search_shardings(
        product, *types((8, 64), (64, 8)), target="tpu:v5e:2x2", mesh={"x": 4}, limit=3
    )
    assert len(search.choices) == 3
    seconds = [choice.seconds or 0.0 for choice in search.choices]
    assert seconds == sorted(seconds)
    assert search.best.memory_bytes
    assert "on tpu:v5e:2x2: 3 of" in str(search)
