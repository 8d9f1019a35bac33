"""The Graph: what tracing keeps, what it normalises, what it checks, how it prints."""

import dataclasses
import inspect
import os
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import Graph, collectives, shard_map
from shmap_compiler.graph.graph import GraphError
from shmap_compiler.jaxprs.contents import equations

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
X = jax.ShapeDtypeStruct((16, 8), jnp.float32)
FLAG = jax.ShapeDtypeStruct((), jnp.int32)


def traced(fun, *args, in_specs=None, out_specs=None, **options) -> Graph:
    in_specs = P(("i", "j")) if in_specs is None else in_specs
    out_specs = P(("i", "j")) if out_specs is None else out_specs
    mapped = shard_map(fun, mesh=MESH, in_specs=in_specs, out_specs=out_specs, **options)
    return mapped.trace(*(args or (X,)))


def names(jaxpr):
    return [eqn.primitive.name for eqn in equations(jaxpr)]


def one(graph, name):
    (eqn,) = [eqn for eqn in equations(graph.jaxpr) if eqn.primitive.name == name]
    return eqn


# ------------------------------------------------------------------------------------- contents


def test_types_specs_and_mesh():
    def body(params, x):
        return lax.psum(x @ params["w"], "j"), params["b"]

    params = {"w": jnp.ones((8, 4)), "b": jnp.ones(6, jnp.bfloat16)}
    graph = traced(
        body,
        params,
        X,
        in_specs=({"w": P("j"), "b": P("j")}, P("i", "j")),
        out_specs=(P("i"), P("j")),
    )
    assert graph.name == "body"
    assert graph.mesh is MESH
    assert (graph.manual_axes, graph.outer_manual_axes) == (("i", "j"), ())
    assert graph.in_specs == (P("j"), P("j"), P("i", "j"))
    assert graph.out_specs == (P("i"), P("j"))
    assert [t.shape for t in graph.in_types] == [(6,), (8, 4), (16, 8)]
    assert [t.shape for t in graph.body_in_types] == [(3,), (4, 4), (4, 4)]
    assert [t.shape for t in graph.body_out_types] == [(4, 4), (3,)]
    assert [t.shape for t in graph.out_types] == [(16, 4), (6,)]
    assert [t.dtype for t in graph.out_types] == [jnp.float32, jnp.bfloat16]


def test_values_closed_over_become_leading_inputs():
    w = jnp.ones((8, 3))
    graph = traced(lambda x: x @ w)
    assert graph.in_specs == (P(), P(("i", "j")))
    assert [t.shape for t in graph.body_in_types] == [(8, 3), (2, 8)]
    assert graph.jaxpr.consts in ([], ())


def test_manual_axes_are_those_named():
    graph = traced(lambda x: lax.psum(x, "j"), in_specs=P("j"), out_specs=P(), axis_names={"j"})
    assert graph.manual_axes == ("j",)
    assert "automatic: i" in str(graph)


def test_every_equation_knows_its_line_in_the_users_function():
    def body(x):
        y = lax.psum(x, "j")
        return jnp.sin(y)

    _, first = inspect.getsourcelines(body)
    lines = {line.rpartition("  # ")[2] for line in str(traced(body)).splitlines() if "#" in line}
    here = os.path.basename(__file__)
    for number in (first + 1, first + 2):
        assert any(f"{here}:{number}" in line for line in lines)


# ----------------------------------------------------------------------------- nested control flow


def summed(x):
    return lax.psum(x, ("i", "j"))


@jax.custom_jvp
def with_jvp(x):
    return summed(x)


@with_jvp.defjvp
def _(primals, tangents):
    return with_jvp(*primals), summed(*tangents)


@jax.custom_vjp
def with_vjp(x):
    return summed(x)


with_vjp.defvjp(lambda x: (with_vjp(x), None), lambda _, ct: (ct,))


def scan(flag, x):
    return lax.scan(lambda c, row: (summed(c), row), x[0], x)


def while_loop(flag, x):
    return lax.while_loop(lambda c: c[0] < flag, lambda c: (c[0] + 1, summed(c[1])), (0, x))[1]


CONTROL_FLOW = {
    "scan": (scan, "scan", 1),
    "fori_loop": (lambda flag, x: lax.fori_loop(0, 3, lambda _, c: summed(c), x), "scan", 1),
    "while": (while_loop, "while", 2),
    "cond": (lambda flag, x: lax.cond(flag > 0, summed, jnp.sin, x), "cond", 2),
    "switch": (lambda flag, x: lax.switch(flag, [summed, jnp.sin, jnp.cos], x), "cond", 3),
    "jit": (lambda flag, x: jax.jit(summed)(x), "jit", 1),
    "custom_jvp": (lambda flag, x: with_jvp(x), "custom_jvp_call", 1),
    "custom_vjp": (lambda flag, x: with_vjp(x), "custom_vjp_call", 1),
    "checkpoint": (lambda flag, x: jax.checkpoint(summed)(x), "remat2", 1),
}


def nested_programs(eqn):
    for value in eqn.params.values():
        for inner in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(inner, "eqns"):
                yield inner


@pytest.mark.parametrize("name", CONTROL_FLOW)
def test_control_flow_stays_one_equation_with_its_nested_programs(name):
    body, primitive, programs = CONTROL_FLOW[name]
    graph = traced(body, FLAG, X, in_specs=(P(), P(("i", "j"))))
    eqn = one(graph, primitive)
    assert eqn in graph.jaxpr.eqns
    nested = list(nested_programs(eqn))
    assert len(nested) == programs
    inside = [e for program in nested for e in equations(program)]
    (psum,) = [e for e in inside if e.primitive is collectives.psum_p]
    assert psum.params == {"axes": ("i", "j"), "groups": None, "size": 8}
    assert collectives.psum_p not in [e.primitive for e in graph.jaxpr.eqns]


def test_control_flow_within_control_flow():
    def body(flag, x):
        def step(carry, _):
            return jax.jit(lambda c: lax.cond(flag > 0, summed, jnp.sin, c))(carry), None

        return lax.scan(step, x, length=2)[0]

    graph = traced(body, FLAG, X, in_specs=(P(), P(("i", "j"))))
    inside = names(graph.jaxpr)
    outer_first = [inside.index(n) for n in ("scan", "jit", "cond", "psum")]
    assert outer_first == sorted(outer_first)


# ------------------------------------------------------------------------------------ collectives

GROUPS = [[0, 1], [2, 3]]
ON_IJ = {"axes": ("i", "j"), "groups": None, "size": 8}
ON_JI = {"axes": ("j", "i"), "groups": None, "size": 8}
ON_I = {"axes": ("i",), "groups": None, "size": 4}
IN_GROUPS = {"axes": ("i",), "groups": ((0, 1), (2, 3)), "size": 2}
RING = ((0, 1), (1, 2), (2, 3), (3, 0))

# what the user calls on f32[4,8] -> the collective it becomes, its parameters, the result
NORMALISED = {
    "psum": (lambda x: lax.psum(x, "i"), "psum", ON_I, (4, 8)),
    "psum of several axes": (lambda x: lax.psum(x, ("j", "i")), "psum", ON_JI, (4, 8)),
    "psum in groups": (
        lambda x: lax.psum(x, "i", axis_index_groups=GROUPS),
        "psum",
        IN_GROUPS,
        (4, 8),
    ),
    "pmean": (lambda x: lax.pmean(x, "i"), "psum", ON_I, (4, 8)),
    "pmax": (lambda x: lax.pmax(x, ("i", "j")), "pmax", ON_IJ, (4, 8)),
    "pmin": (lambda x: lax.pmin(x, ("i", "j")), "pmin", ON_IJ, (4, 8)),
    "all_gather": (
        lambda x: lax.all_gather(x, "i", axis=1),
        "all_gather",
        {**ON_I, "dimension": 1},
        (4, 4, 8),
    ),
    "all_gather tiled": (
        lambda x: lax.all_gather(x, ("i", "j"), axis=1, tiled=True),
        "all_gather",
        {**ON_IJ, "dimension": 1},
        (4, 64),
    ),
    "all_gather in groups": (
        lambda x: lax.all_gather(x, "i", axis_index_groups=GROUPS, tiled=True),
        "all_gather",
        {**IN_GROUPS, "dimension": 0},
        (8, 8),
    ),
    "psum_scatter": (
        lambda x: lax.psum_scatter(x, "i"),
        "psum_scatter",
        {**ON_I, "dimension": 0},
        (8,),
    ),
    "psum_scatter tiled": (
        lambda x: lax.psum_scatter(x, ("i", "j"), scatter_dimension=-1, tiled=True),
        "psum_scatter",
        {**ON_IJ, "dimension": 1},
        (4, 1),
    ),
    "all_to_all": (
        lambda x: lax.all_to_all(x, "i", 0, 1),
        "all_to_all",
        {**ON_I, "split": 0},  # JAX moves the dimension of the group to its place afterwards
        (8, 4),
    ),
    "all_to_all tiled": (
        lambda x: lax.all_to_all(x, "i", -1, -2, tiled=True),
        "all_to_all",
        {**ON_I, "split": 1, "concat": 0},
        (16, 2),
    ),
    "ppermute": (lambda x: lax.ppermute(x, "i", RING), "ppermute", {"perm": RING}, (4, 8)),
    "pshuffle": (
        lambda x: lax.pshuffle(x, "i", [3, 0, 1, 2]),
        "ppermute",
        {"perm": ((3, 0), (0, 1), (1, 2), (2, 3))},
        (4, 8),
    ),
    "pbroadcast": (
        lambda x: lax.pbroadcast(x, ("j", "i"), 5),
        "pbroadcast",
        {"axes": ("j", "i"), "source": 5, "size": 8},
        (4, 8),
    ),
    "axis_index": (lambda x: lax.axis_index("i"), "axis_index", {"axes": ("i",)}, ()),
}


@pytest.mark.parametrize("name", NORMALISED)
def test_collective_is_normalised(name):
    use, primitive, params, shape = NORMALISED[name]
    graph = traced(lambda x: jnp.ravel(use(x)), in_specs=P("i"), out_specs=P(("i", "j")))
    found = [e for e in equations(graph.jaxpr) if e.primitive in collectives.COLLECTIVES]
    assert {e.primitive.name for e in found} == {primitive}
    for eqn in found:
        assert params.items() <= eqn.params.items()
    assert graph.body_out_types[0].shape == (int(np.prod(shape)),)


def test_axis_index_of_several_axes_is_arithmetic():
    graph = traced(lambda x: x + lax.axis_index(("j", "i")))
    indices = [e for e in equations(graph.jaxpr) if e.primitive is collectives.axis_index_p]
    assert sorted(e.params["axes"] for e in indices) == [("i",), ("j",)]


def test_axis_size_is_a_number():
    graph = traced(lambda x: x * lax.axis_size(("i", "j")))
    assert names(graph.jaxpr) == ["mul"]
    assert "8.0" in str(graph)


def test_psum_of_a_pytree_and_of_a_constant():
    graph = traced(lambda x: x + lax.psum({"a": x, "b": 3}, "i")["b"])
    assert set(names(graph.jaxpr)) <= {"psum", "add"}
    assert "12.0" in str(graph)  # 3, once per device along the axis


def test_collective_over_an_axis_of_an_inner_vmap_is_left_to_jax():
    def body(x):
        return jax.vmap(lambda row: lax.psum(row, ("rows", "i")), axis_name="rows")(x)

    graph = traced(body, in_specs=P("i"), out_specs=P("i"))
    (psum,) = [e for e in equations(graph.jaxpr) if e.primitive is collectives.psum_p]
    assert psum.params == ON_I
    assert "reduce_sum" in names(graph.jaxpr)


# ------------------------------------------------------------------------------------- the checks


def test_immutable():
    graph = traced(lambda x: x)
    for field in dataclasses.fields(graph):
        with pytest.raises(dataclasses.FrozenInstanceError, match=field.name):
            setattr(graph, field.name, None)


def rebuilt(graph, **eqn_fields):
    """The graph with its only equation changed."""
    jaxpr = graph.jaxpr.jaxpr
    (eqn,) = jaxpr.eqns
    changed = jaxpr.replace(eqns=[eqn.replace(**eqn_fields)])
    return dataclasses.replace(graph, jaxpr=graph.jaxpr.replace(jaxpr=changed))


PSUM = partial(traced, lambda x: lax.psum(x, "i"))


def with_params(**params):
    graph = PSUM()
    (eqn,) = graph.jaxpr.eqns
    return rebuilt(graph, params={**eqn.params, **params})


BROKEN = {
    "too few in_specs": (lambda: dataclasses.replace(PSUM(), in_specs=()), "one spec per input"),
    "too many out_specs": (
        lambda: dataclasses.replace(PSUM(), out_specs=(P(), P())),
        "one spec per output",
    ),
    "manual axis the mesh lacks": (
        lambda: dataclasses.replace(PSUM(), manual_axes=("i", "j", "k")),
        "manual axes are mesh axes",
    ),
    "axis manual twice": (
        lambda: dataclasses.replace(PSUM(), outer_manual_axes=("i",)),
        "an axis is manual once",
    ),
    "spec over an axis not manual": (
        lambda: dataclasses.replace(PSUM(), out_specs=(P("k"),)),
        "mentions manual axes only",
    ),
    "spec names an axis twice": (
        lambda: dataclasses.replace(PSUM(), in_specs=(P("i", "i"),)),
        "mentions an axis once",
    ),
    "spec longer than rank": (
        lambda: dataclasses.replace(PSUM(), in_specs=(P(None, None, "i"),)),
        "fits the rank of",
    ),
    "collective over an axis not manual": (
        lambda: with_params(axes=("k",)),
        "psum names manual axes, not",
    ),
    "collective over an axis twice": (
        lambda: with_params(axes=("i", "i")),
        "psum names distinct axes",
    ),
    "collective over no axis": (lambda: with_params(axes=()), "psum names distinct axes"),
    "collective of another type": (
        lambda: rebuilt(
            PSUM(), primitive=collectives.all_gather_p, params={**ON_I, "dimension": 0}
        ),
        "all_gather gives",
    ),
    "value used before it is set": (
        lambda: rebuilt(PSUM(), invars=traced(lambda x: x).jaxpr.jaxpr.invars),
        "is set before it is used",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_graph_is_refused_when_made(name):
    make, rule = BROKEN[name]
    with pytest.raises(GraphError, match=re.escape(rule)):
        make()


def test_broken_nested_program_is_refused_when_made():
    graph = traced(lambda x: jax.jit(summed)(x))
    (call,) = graph.jaxpr.eqns
    inner = call.params["jaxpr"]
    (psum,) = inner.eqns
    broken = psum.replace(params={**psum.params, "axes": ("k",)})
    broken = inner.replace(jaxpr=inner.jaxpr.replace(eqns=[broken]))
    with pytest.raises(GraphError, match="psum names manual axes, not"):
        rebuilt(graph, params={**call.params, "jaxpr": broken})


# ---------------------------------------------------------------------------------------- printing


def test_prints_like_a_jaxpr_with_mesh_specs_and_lines():
    def body(x, scale):
        y = jnp.sin(x) * scale
        return lax.psum(y, "j")

    scale = jax.ShapeDtypeStruct((), jnp.bfloat16)
    graph = traced(body, X, scale, in_specs=(P("i", "j"), P()), out_specs=P("i", None))
    line = body.__code__.co_firstlineno
    lines = [
        "graph body on mesh(i=4, j=2):",
        "{ lambda ; a:f32[4,4]@P('i', 'j') b:bf16[]@P(). let",
        f"    c:f32[4,4] = sin a  # LINE {line + 1}",
        f"    d:f32[] = convert_element_type[new_dtype=float32] b  # LINE {line + 1}",
        f"    e:f32[4,4] = mul c d  # LINE {line + 1}",
        f"    f:f32[4,4] = psum[axes=('j',) size=2] e  # LINE {line + 2}",
        "  in (f@P('i', None),) }",
    ]
    assert without_replication(str(graph)) == "\n".join(lines)


def test_nested_programs_print_inside_their_equation():
    def body(x):
        return jax.jit(summed)(x)

    graph = traced(body, out_specs=P())
    text = without_replication(str(graph))
    call, here = body.__code__.co_firstlineno + 1, summed.__code__.co_firstlineno + 1
    assert re.search(rf"^    d:f32\[2,8\] = jit\[  # LINE {call}$", text, re.M)
    assert "jaxpr={ lambda ; b:f32[2,8]. let\n" in text
    assert f"          c:f32[2,8] = psum[axes=('i', 'j') size=8] b  # LINE {here}\n" in text
    assert "        in (c,) }\n    ] a\n  in (d@P(),) }" in text


def test_programs_held_more_than_once_print_once():
    """Under the name of their function, before the programs that hold them."""

    @jax.jit
    def inner(x):
        return jnp.sin(x)

    def outer(x):
        return inner(inner(x))

    def body(x, flag):
        return inner(lax.switch(flag, (jnp.cos, outer, outer), x))

    graph = traced(body, X, FLAG, in_specs=(P(("i", "j")), P()))
    text = re.sub("  # .*| inline=Inline.AUTO", "", without_replication(str(graph)))
    lines = [
        "graph body on mesh(i=4, j=2):",
        "let inner = { lambda ; a:f32[2,8]. let",
        "    b:f32[2,8] = sin a",
        "  in (b,) } in",
        "let outer = { lambda ; c:f32[2,8]. let",
        "    d:f32[2,8] = jit[name=inner jaxpr=inner] c",
        "    e:f32[2,8] = jit[name=inner jaxpr=inner] d",
        "  in (e,) } in",
        "{ lambda ; f:f32[2,8]@P(('i', 'j')) g:i32[]@P(). let",
        "    h:i32[] = clamp 0:i32[] g 2:i32[]",
        "    k:f32[2,8] = cond[",
        "      branches={ lambda ; i:f32[2,8]. let",
        "          j:f32[2,8] = cos i",
        "        in (j,) }",
        "      branches=outer",
        "      branches=outer",
        "    ] h f",
        "    l:f32[2,8] = jit[name=inner jaxpr=inner] k",
        "  in (l@P(('i', 'j')),) }",
    ]
    assert text == "\n".join(lines)


def test_calls_of_calls_print_in_a_size_that_grows_with_their_number():
    def twice(f, name):
        def g(x):
            return f(f(x))

        g.__name__ = name
        return jax.jit(g)

    fun = jnp.sin
    for depth in range(10):
        fun = twice(fun, f"f{depth}")
    text = str(traced(fun))
    assert text.count(" = jit[") == 2 * 9 + 1
    assert re.findall(r"^let (\w+) = ", text, re.M) == [f"f{depth}" for depth in range(9)]


def without_replication(text):
    """The text without the axes along which values vary, and with bare line numbers."""
    text = re.sub(r"\{V:[a-z,]+\}", "", text)
    return re.sub(r"# \S*test_graph\.py:(\d+)(:\d+)? \(.*\)$", r"# LINE \1", text, flags=re.M)


def test_prints_random_keys_and_literals():
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 8))
    graph = traced(lambda k: jax.random.key_data(k) + 1, keys)
    text = without_replication(str(graph))
    assert "a:key<fry>[1]@P(('i', 'j'))" in text
    assert " 1:u32[]" in text


def test_text_is_the_same_on_another_machine(tmp_path, monkeypatch):
    """Neither folders of this machine, nor helpers of ours, nor classes of JAX."""

    def inner(x):
        return lax.psum(x * 2, "j")

    def body(x):
        x = shard_map(inner, in_specs=P(None, "j"), out_specs=P(), axis_names={"j"})(x)
        return lax.fori_loop(0, 3, lambda k, c: c + k, lax.dynamic_slice(x, (0, 0), (1, 2))) * 0.1

    graph = traced(body, in_specs=P("i"), out_specs=P("i"), axis_names={"i"})
    monkeypatch.chdir(tmp_path)
    text = str(graph)
    assert re.findall(r"/|witness|Typed| at 0x|# *$", text, re.M) == []
    line = inner.__code__.co_firstlineno
    assert f"shard_map[  # test_graph.py:{line + 4} " in text
    assert "graph inner on mesh(i=4, j=2), manual outside: i:" in text
    assert f"psum[axes=('j',) size=2] b  # test_graph.py:{line + 1} " in text


@pytest.mark.parametrize("name", CONTROL_FLOW)
def test_printing_is_deterministic(name):
    body = CONTROL_FLOW[name][0]
    first, second = (str(traced(body, FLAG, X, in_specs=(P(), P(("i", "j"))))) for _ in range(2))
    assert first == second
    assert " at 0x" not in first


def test_jaxprs_print_the_program_indented():
    """As JAX prints programs that its own primitives hold: without what only jit reads."""
    double = shard_map(
        lambda x: lax.psum(jnp.sin(x), "i"), mesh=MESH, in_specs=P("i"), out_specs=P()
    )
    lines = str(jax.make_jaxpr(lambda x: 2 * double(x))(X)).splitlines()
    (start,) = [k for k, line in enumerate(lines) if "= shard_map[" in line]
    (end,) = [k for k, line in enumerate(lines) if line.startswith("    ] ")]
    assert all(line.startswith("      ") for line in lines[start + 1 : end])
    (sin,) = [line for line in lines if "= sin " in line]
    assert sin.startswith(" " * 10)
    text = "\n".join(lines)
    assert "in_specs=[P('i')]" in text
    assert "mesh=mesh(i=4, j=2)" in text
    assert "witness" not in text
    assert "sharding_constraint" not in text
