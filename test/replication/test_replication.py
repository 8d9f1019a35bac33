"""Replication inference, rule by rule (`docs/replication.md`): as precise as promised."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.custom_derivatives import linear_call
from jax.experimental import io_callback
from jax.extend.core import Primitive, primitives
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from shmap_passes.ir.axis_set import AxisSet

from shmap_compiler import assume_replicated, shard_map
from shmap_compiler.base.jax_compat import open_jaxpr
from shmap_compiler.jaxprs.contents import equations
from shmap_compiler.replication.collective_rules import _varying, result_mask
from shmap_compiler.replication.inference import infer_program, infer_types
from shmap_compiler.tracing.trace import trace

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
BLOCK = jax.ShapeDtypeStruct((4, 8), jnp.float32)
NONE, ON_I, ON_J, ON_IJ = (frozenset(axes) for axes in ("", "i", "j", "ij"))


def traced(fun, *specs, mesh=MESH, manual_axes=("i", "j")):
    """The Graph of `fun` on blocks f32[4,8], one for each spec; unchecked."""
    sizes = mesh.shape
    types = [
        jax.ShapeDtypeStruct(
            tuple(
                n * math.prod(sizes[a] for a in axes)
                for n, axes in zip(BLOCK.shape, oracle.axes_of_dims(spec, 2), strict=True)
            ),
            BLOCK.dtype,
        )
        for spec in specs
    ]
    return trace(
        lambda *blocks: jax.tree.leaves(fun(*blocks)),
        name="f",
        who="`f`",
        mesh=mesh,
        manual_axes=manual_axes,
        in_specs=specs,
        out_specs=lambda results: [P()] * len(results),
        in_types=types,
    ).graph


def varying(fun, *specs, **options):
    """Along which axes each result of `fun` may vary."""
    return traced(fun, *specs, **options).replication.outputs


def group_of_two(x):
    """Devices 0 and 1 along i, and devices 2 and 3."""
    return lax.psum(x, "i", axis_index_groups=[[0, 1], [2, 3]])


def ring(x, axis="i", size=4):
    return lax.ppermute(x, axis, [(k, (k + 1) % size) for k in range(size)])


def host(x):
    return np.asarray(x)


def type_of(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


@jax.custom_jvp
def with_jvp(x):
    return x + lax.axis_index("i")


with_jvp.defjvp(lambda primals, tangents: (with_jvp(*primals), tangents[0]))


@jax.custom_vjp
def with_vjp(x):
    return x + lax.axis_index("i")


with_vjp.defvjp(lambda x: (with_vjp(x), None), lambda _, ct: (ct,))


def write(x, y):
    """A reference that starts as x and is then set to y."""
    ref = jax.new_ref(x)
    ref[...] = y
    return ref[...]


def write_in_branch(x, y, z):
    ref = jax.new_ref(x)

    def store(v):
        ref[...] = v

    lax.cond(jnp.sum(z) > 0, store, lambda v: None, y)
    return ref[...]


def write_in_loop(x, y):
    """After the first step the reference holds what the step before has written."""
    ref = jax.new_ref(x)

    def step(_, carry):
        seen = ref[...]
        ref[...] = y
        return carry + seen

    return lax.fori_loop(0, 3, step, jnp.zeros_like(x))


# (rule and case, function of blocks that vary along: i, j, i and j, nothing; axes of the result)
RULES = [
    ("R1-split-over-i", lambda i, j, ij, n: i, ON_I),
    ("R1-split-over-both", lambda i, j, ij, n: ij, ON_IJ),
    ("R1-not-split", lambda i, j, ij, n: n, NONE),
    ("R3-join", lambda i, j, ij, n: i + j, ON_IJ),
    ("R3-join-with-replicated", lambda i, j, ij, n: jnp.sin(i) * n, ON_I),
    ("R3-constant", lambda i, j, ij, n: jnp.arange(4.0) + 1, NONE),
    ("R3-closed-over", lambda i, j, ij, n: n + np.ones((4, 8), np.float32), NONE),
    ("R3-shape-only", lambda i, j, ij, n: jnp.zeros_like(ij), NONE),
    ("R3-equal-keys", lambda i, j, ij, n: jax.random.normal(jax.random.key(0), (3,)), NONE),
    (
        "R3-own-keys",
        lambda i, j, ij, n: jax.random.normal(
            jax.random.fold_in(jax.random.key(0), lax.axis_index("j")), (3,)
        ),
        ON_J,
    ),
    ("R3-barrier-keeps-apart", lambda i, j, ij, n: lax.optimization_barrier((i, n))[1], NONE),
    ("R4-psum", lambda i, j, ij, n: lax.psum(ij, "i"), ON_J),
    ("R4-psum-both", lambda i, j, ij, n: lax.psum(ij, ("j", "i")), NONE),
    ("R4-psum-other-axis", lambda i, j, ij, n: lax.psum(i, "j"), ON_I),
    ("R4-pmean", lambda i, j, ij, n: lax.pmean(ij, "j"), ON_I),
    ("R4-pmax", lambda i, j, ij, n: lax.pmax(ij, "i"), ON_J),
    ("R4-pmin", lambda i, j, ij, n: lax.pmin(ij, "j"), ON_I),
    ("R4-all_gather", lambda i, j, ij, n: lax.all_gather(ij, "i"), ON_J),
    ("R4-all_gather-tiled", lambda i, j, ij, n: lax.all_gather(i, "i", tiled=True), NONE),
    ("R5-assume_replicated", lambda i, j, ij, n: assume_replicated(ij, "i"), ON_J),
    ("R6-psum_scatter", lambda i, j, ij, n: lax.psum_scatter(j, "i", tiled=True), ON_IJ),
    ("R5-pbroadcast", lambda i, j, ij, n: lax.pbroadcast(ij, "i", 1), ON_J),
    ("R6-psum_scatter-replicated", lambda i, j, ij, n: lax.psum_scatter(n, "i"), ON_I),
    ("R6-all_to_all", lambda i, j, ij, n: lax.all_to_all(i, "i", 0, 1), ON_I),
    ("R6-all_to_all-replicated", lambda i, j, ij, n: lax.all_to_all(n, "i", 0, 1), ON_I),
    ("R7-groups", lambda i, j, ij, n: group_of_two(ij), ON_IJ),
    ("R7-groups-replicated", lambda i, j, ij, n: group_of_two(j), ON_J),
    (
        "R7-one-group-spelt-out",
        lambda i, j, ij, n: lax.psum(ij, "i", axis_index_groups=[[0, 1, 2, 3]]),
        ON_J,
    ),
    (
        # Position 2 * i + j along (i, j): a group holds one j and every i, or the other.
        "R7-groups-that-are-an-axis",
        lambda i, j, ij, n: lax.psum(
            ij, ("i", "j"), axis_index_groups=[[0, 2, 4, 6], [1, 3, 5, 7]]
        ),
        ON_J,
    ),
    (
        "R7-scatter-in-groups-of-one",
        lambda i, j, ij, n: lax.psum_scatter(
            n, "i", tiled=True, axis_index_groups=[[0], [1], [2], [3]]
        ),
        NONE,
    ),
    ("R7-ring", lambda i, j, ij, n: ring(i), ON_I),
    ("R7-ring-replicated", lambda i, j, ij, n: ring(j), ON_J),
    ("R7-partial-permutation", lambda i, j, ij, n: lax.ppermute(n, "i", [(0, 1)]), ON_I),
    ("R7-empty-permutation", lambda i, j, ij, n: lax.ppermute(ij, "i", []), ON_J),
    ("R7-ring-over-both", lambda i, j, ij, n: ring(i, ("i", "j"), 8), ON_IJ),
    (
        "R7-swap-within-i",
        lambda i, j, ij, n: lax.ppermute(i, ("i", "j"), [(k, k ^ 1) for k in range(8)]),
        ON_I,
    ),
    ("R7-pshuffle", lambda i, j, ij, n: lax.pshuffle(n, "i", [3, 1, 2, 0]), NONE),
    ("R8-axis_index", lambda i, j, ij, n: lax.axis_index("i"), ON_I),
    ("R8-axis_index-of-both", lambda i, j, ij, n: lax.axis_index(("i", "j")), ON_IJ),
    ("R8-axis_size", lambda i, j, ij, n: n * lax.axis_size("i"), NONE),
    ("R9-jit", lambda i, j, ij, n: jax.jit(jnp.add)(i, n), ON_I),
    (
        "R9-jit-for-each-call",
        lambda i, j, ij, n: (jax.jit(jnp.sin)(i), jax.jit(jnp.sin)(n))[1],
        NONE,
    ),
    ("R9-checkpoint", lambda i, j, ij, n: jax.checkpoint(lambda x: lax.psum(x, "i"))(ij), ON_J),
    ("R9-custom_jvp", lambda i, j, ij, n: with_jvp(j), ON_IJ),
    ("R9-custom_vjp", lambda i, j, ij, n: with_vjp(n), ON_I),
    ("R10-carry", lambda i, j, ij, n: lax.fori_loop(0, 3, lambda _, c: c + i, n), ON_I),
    (
        "R10-carry-psum",
        lambda i, j, ij, n: lax.fori_loop(0, 3, lambda _, c: lax.psum(c * i, "i"), n),
        NONE,
    ),
    (
        # What the first step takes from outside is still varying.
        "R10-carry-first-value",
        lambda i, j, ij, n: lax.fori_loop(0, 3, lambda _, c: lax.psum(c, "i"), i),
        ON_I,
    ),
    (
        "R10-carry-chain",
        lambda i, j, ij, n: lax.scan(lambda c, _: ((i, *c[:-1]), None), (n,) * 4, length=5)[0][3],
        ON_I,
    ),
    ("R10-xs", lambda i, j, ij, n: lax.scan(lambda c, x: (c + x, n), n[0], j)[0], ON_J),
    ("R10-ys", lambda i, j, ij, n: lax.scan(lambda c, x: (c + x, n), n[0], j)[1], NONE),
    (
        "R11-steps-vary",
        lambda i, j, ij, n: lax.while_loop(lambda c: jnp.sum(c + i) < 9, lambda c: c + 1, n),
        ON_I,
    ),
    (
        "R11-steps-equal",
        lambda i, j, ij, n: lax.while_loop(
            lambda c: lax.pmax(jnp.sum(c[0]), "i") < 9, lambda c: (c[0] + i, c[1] + 1), (i, n)
        )[1],
        NONE,
    ),
    (
        "R11-unchanged-carry",
        lambda i, j, ij, n: lax.while_loop(
            lambda c: jnp.sum(c[0] + i) < 9, lambda c: (c[0] + 1, c[1]), (n, n)
        )[1],
        NONE,
    ),
    (
        "R12-branches",
        lambda i, j, ij, n: lax.cond(jnp.sum(n) > 0, lambda: i, lambda: j),
        ON_IJ,
    ),
    (
        "R12-predicate",
        lambda i, j, ij, n: lax.cond(jnp.sum(i) > 0, lambda: n + 1, lambda: n),
        ON_I,
    ),
    (
        "R12-same-operand-in-all-branches",
        lambda i, j, ij, n: lax.cond(
            jnp.sum(i) > 0, lambda a, b: (a + 1, b), lambda a, b: (a, b), n, n
        )[1],
        NONE,
    ),
    (
        "R12-switch",
        lambda i, j, ij, n: lax.switch(
            lax.axis_index("j"), [lambda: n, lambda: n + 1, lambda: n + 2]
        ),
        ON_J,
    ),
    (
        "R9-linear_call",
        lambda i, j, ij, n: linear_call(lambda r, v: r * v, lambda r, ct: r * ct, i, n),
        ON_I,
    ),
    (
        "R9-linear_call-psum",
        lambda i, j, ij, n: linear_call(
            lambda r, v: lax.psum(r * v, "i"), lambda r, ct: r * ct, n, ij
        ),
        ON_J,
    ),
    (
        "R9-linear_call-second-result",
        lambda i, j, ij, n: linear_call(
            lambda r, v: (v[0], lax.psum(v[1], "j")), lambda r, ct: ct, (), (i, j)
        )[1],
        NONE,
    ),
    (
        "R14-custom_linear_solve",
        lambda i, j, ij, n: lax.custom_linear_solve(
            lambda v: 2 * v, i, lambda _, b: b / 2, symmetric=True
        ),
        ON_I,
    ),
    (
        "R14-custom_linear_solve-inner-index",
        lambda i, j, ij, n: lax.custom_linear_solve(
            lambda v: 2 * v, n, lambda _, b: b / (1 + lax.axis_index("j")), symmetric=True
        ),
        ON_J,
    ),
    ("R14-reduce", lambda i, j, ij, n: lax.reduce(j, 0.0, lax.add, (0,)), ON_J),
    ("R15-rng_uniform", lambda i, j, ij, n: lax.rng_uniform(0.0, 1.0, (3,)), ON_IJ),
    ("R15-pure_callback", lambda i, j, ij, n: jax.pure_callback(host, type_of(j), j), ON_J),
    ("R15-io_callback", lambda i, j, ij, n: io_callback(host, type_of(n), n), ON_IJ),
    ("R15-ordered", lambda i, j, ij, n: io_callback(host, type_of(n), n, ordered=True), ON_IJ),
    (
        "R15-io_callback-in-jit",
        lambda i, j, ij, n: jax.jit(lambda x: io_callback(host, type_of(x), x) + 1)(n),
        ON_IJ,
    ),
    ("R15-print-beside", lambda i, j, ij, n: (jax.debug.print("{}", i), n * 2)[1], NONE),
    (
        "R15-assume-after-callback",
        lambda i, j, ij, n: assume_replicated(io_callback(host, type_of(n), n), ("i", "j")),
        NONE,
    ),
    ("R16-read", lambda i, j, ij, n: jax.new_ref(j)[...], ON_J),
    ("R16-write", lambda i, j, ij, n: write(n, i), ON_I),
    ("R16-write-replicated", lambda i, j, ij, n: write(n, n), NONE),
    ("R16-write-in-branch", lambda i, j, ij, n: write_in_branch(n, n, i), ON_I),
    ("R16-write-in-branch-value", lambda i, j, ij, n: write_in_branch(n, j, n), ON_J),
    ("R16-write-in-loop", lambda i, j, ij, n: write_in_loop(n, j), ON_J),
]


@pytest.mark.parametrize(
    ("fun", "expected"), [rule[1:] for rule in RULES], ids=[rule[0] for rule in RULES]
)
def test_rule(fun, expected):
    assert varying(fun, P("i"), P("j"), P("i", "j"), P()) == (expected,)


@pytest.mark.parametrize(
    ("fun", "expected"),
    [rule[1:] for rule in RULES if rule[0].startswith("R16")],
    ids=[rule[0] for rule in RULES if rule[0].startswith("R16")],
)
def test_rule_of_references_that_a_program_keeps(fun, expected):
    """A Graph has none, but kernels and the programs of unknown equations do."""
    graph, program = traced(lambda n: n, P()), jax.make_jaxpr(fun)(*[BLOCK] * 4)
    assert infer_program(graph.region, program, ["i", "j", "ij", ""]).outputs == (expected,)


def test_R2_an_axis_of_size_one_is_in_no_set():
    mesh = jax.sharding.AbstractMesh((1, 2), ("i", "j"))
    assert varying(lambda x: x + lax.axis_index("i"), P("i", "j"), mesh=mesh) == (ON_J,)


def test_R4_a_collective_that_also_names_an_axis_of_vmap():
    """JAX removes the axis of the enclosing vmap later; until then the equation is JAX's own."""
    graphs = []

    def mapped(x):
        graphs.append(
            shard_map(
                lambda x: (
                    lax.psum(x, ("i", "b")),
                    lax.all_to_all(x, ("i", "b"), 0, 0, tiled=True),
                    lax.axis_index(("i", "b")),
                    lax.pbroadcast(x, ("i", "b"), 0),
                ),
                mesh=MESH,
                in_specs=P("i", "j"),
                out_specs=P(),
                check_vma=False,
            ).trace(x)
        )
        return x

    jax.vmap(mapped, axis_name="b")(jnp.ones((2, 32, 4)))
    assert graphs[0].replication.outputs == (ON_J, ON_IJ, ON_I, ON_J)


def test_R7_a_collective_in_the_form_of_jax_over_groups():
    (eqn,) = jax.make_jaxpr(group_of_two, axis_env=[("i", 4)])(1.0).eqns
    axes = AxisSet.of(MESH.shape)
    assert axes.names(result_mask(eqn, axes.mask(["i", "j"]), axes)) == ("i", "j")


def test_R9_a_program_called_twice_is_solved_for_each_call():
    inner = jax.jit(lambda x: x * 2)
    graph = traced(lambda i, n: (inner(i), inner(n)), P("i"), P())
    assert graph.replication.outputs == (ON_I, NONE)
    (program,) = {
        id(open_jaxpr(e.params["jaxpr"])): open_jaxpr(e.params["jaxpr"]) for e in graph.jaxpr.eqns
    }.values()
    assert graph.replication.of(program.invars[0]) == ON_I, "the union over both calls"


def test_outputs_are_listed_once():
    """Checks ask for those of programs with thousands of results, one by one."""
    replication = traced(lambda x: (x, x), P("i")).replication
    assert replication.outputs is replication.outputs


def test_R11_R12_what_loops_and_branches_pass_on_where_transformations_made_them():
    """`jax.lax` takes such carries and operands out of the loops and branches that users write."""
    test = jax.make_jaxpr(lambda a, b: jnp.sum(a) < 9)(BLOCK, BLOCK)
    step = jax.make_jaxpr(lambda const, a, b: (a + const, b))(BLOCK, BLOCK, BLOCK)
    branches = (jax.make_jaxpr(lambda a, b: (a + 1, b))(BLOCK, BLOCK),) * 2

    def loop(i, n):
        counts = {"cond_nconsts": 0, "body_nconsts": 1}
        return primitives.while_p.bind(i, n, n, cond_jaxpr=test, body_jaxpr=step, **counts)

    def branch(i, n):
        return primitives.cond_p.bind((jnp.max(i) > 0).astype(int), n, n, branches=branches)

    assert varying(loop, P("i"), P()) == (ON_I, NONE)
    assert varying(branch, P("i"), P()) == (ON_I, NONE)


def test_R11_inside_a_loop_devices_in_the_same_step_have_the_same_counter():
    graph = traced(
        lambda i, n: lax.while_loop(
            lambda c: c[1] < jnp.sum(i), lambda c: (c[0] * 2, c[1] + 1.0), (n, 0.0)
        ),
        P("i"),
        P(),
    )
    (loop,) = (e for e in equations(graph.jaxpr) if e.primitive.name == "while")
    body = open_jaxpr(loop.params["body_jaxpr"])
    assert {graph.replication.of(v) for v in body.outvars} == {NONE}
    assert graph.replication.outputs == (ON_I, ON_I)


def test_R14_a_reference_that_an_unknown_equation_holds_takes_up_what_controls_it():
    """Only some devices run it, so that what it writes makes the reference vary."""
    unknown = Primitive("holds_a_program")
    unknown.multiple_results = True
    held = jax.make_jaxpr(lambda: 1.0)()
    effect = next(iter(jax.make_jaxpr(lambda r: r.__setitem__((), 1.0))(jax.new_ref(1.0)).effects))

    def abstract(ref, *, program):
        return [], {type(effect)(0)}

    unknown.def_effectful_abstract_eval(abstract)

    def body(i, j):
        ref = jax.new_ref(0.0)

        def run():
            unknown.bind(ref, program=held)
            return 0.0

        lax.cond(jnp.max(j) > 0, run, lambda: 0.0)
        return ref[...]

    # A Graph has no references: what holds one in an unknown way is refused before.
    graph, program = traced(lambda i: i, P("i")), jax.make_jaxpr(body)(BLOCK, BLOCK)
    assert infer_program(graph.region, program, [{"i"}, {"j"}]).outputs == (ON_J,)


def test_types_of_groups_vary_along_their_axis():
    """As in JAX: the result of a sum over groups varies, that of a sum over all does not."""
    for fun, expected in ((group_of_two, ON_I), (lambda x: lax.psum(x, "i"), NONE)):
        graph = traced(fun, P("i"))
        types = infer_types(graph.region, graph.jaxpr, [{"i"}])
        assert types.outputs == (expected,)


def test_types_name_axes_of_size_one():
    mesh = jax.sharding.AbstractMesh((1, 2), ("i", "j"))
    graph = traced(lambda x: x + lax.axis_index("i"), P("j"), mesh=mesh)
    assert infer_types(graph.region, graph.jaxpr, [{"j"}]).outputs == (ON_IJ,)


def test_R13_nested_shard_map():
    """Inside, values vary along the axes of both; outside, along those of the outer one only."""
    inner_graphs = []

    def inner(x):
        return lax.psum(x, "j"), lax.psum(x, "i"), x

    def outer(i, n):
        mapped = shard_map(
            inner,
            mesh=MESH,
            axis_names={"j"},
            in_specs=P(None, "j"),
            out_specs=(P(), P(None, "j"), P(None, "j")),
        )
        inner_graphs.append(mapped.trace(n))
        return *mapped(i), *mapped(n)

    sets = varying(outer, P("i"), P(), manual_axes=["i"])
    assert sets == (ON_I, NONE, ON_I, NONE, NONE, NONE)
    # Of what is inside, the outer Graph knows the axes of both.
    graph = traced(outer, P("i"), P(), manual_axes=["i"])
    nested = [e for e in equations(graph.jaxpr) if e.primitive.name == "shard_map"]
    inside = {graph.replication.of(open_jaxpr(e.params["graph"].jaxpr).invars[0]) for e in nested}
    assert ON_IJ in inside
    # On its own, the inner program does not know along which outer axes its arguments vary.
    assert inner_graphs[0].replication.outputs == (ON_I, ON_J, ON_IJ)


def test_sets_are_printed():
    text = str(traced(lambda x: lax.psum(x, "i"), P("i", "j")))
    assert "a:f32[4,8]{V:i,j}@P('i', 'j')" in text
    assert "b:f32[4,8]{V:j} = psum[" in text


# ------------------------------------------------------------- exactness of the rule R7


@st.composite
def exchanges(draw):
    """(kind, sizes, groups or pairs, which axes the operand varies along)."""
    sizes = draw(st.sampled_from([(2,), (4,), (3,), (2, 2), (4, 2), (2, 3), (2, 2, 2)]))
    count = math.prod(sizes)
    order = draw(st.permutations(range(count)))
    operand = tuple(draw(st.booleans()) for _ in sizes)
    kind = draw(st.sampled_from(["psum", "all_gather", "psum_scatter", "all_to_all", "ppermute"]))
    if kind == "ppermute":
        targets = draw(st.permutations(range(count)))
        pairs = tuple(zip(order, targets, strict=True))
        return kind, sizes, pairs[: draw(st.integers(0, count))], operand
    length = draw(st.sampled_from([n for n in range(1, count + 1) if count % n == 0]))
    groups = tuple(tuple(order[k : k + length]) for k in range(0, count, length))
    return kind, sizes, groups, operand


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(exchange=exchanges())
def test_R7_says_exactly_along_which_axes_results_differ(exchange):
    """On blocks that are as different as the operand's set allows, simulated on all devices."""
    kind, sizes, detail, operand = exchange
    mesh = {f"a{k}": n for k, n in enumerate(sizes)}
    blocks = []
    for place in np.ndindex(sizes):
        seed = [n if varies else 0 for n, varies in zip(place, operand, strict=True)]
        blocks.append(np.random.default_rng(seed).integers(1, 2**40, 24))
    axes = {"axis_name": tuple(mesh)}
    if kind == "ppermute":
        results = oracle.collective(kind, mesh, blocks, perm=detail, **axes)
        claimed = _varying("permute", sizes, detail, operand)
    else:
        dims = {
            "psum": {},
            "all_gather": {"axis": 0},
            "psum_scatter": {"scatter_dimension": 0, "tiled": True},
            "all_to_all": {"split_axis": 0, "concat_axis": 0, "tiled": True},
        }[kind]
        results = oracle.collective(kind, mesh, blocks, axis_index_groups=detail, **axes, **dims)
        part = kind in ("psum_scatter", "all_to_all")
        claimed = _varying("part" if part else "same", sizes, detail, operand)
    stacked = np.stack(results).reshape(*sizes, -1)
    actual = tuple(bool(np.any(stacked != stacked.take([0], axis=d))) for d in range(len(sizes)))
    if kind in ("psum", "psum_scatter"):
        # A sum does not depend on the order of its terms here; on a device it may.
        assert all(c or not a for a, c in zip(actual, claimed, strict=True))
    else:
        assert actual == claimed
