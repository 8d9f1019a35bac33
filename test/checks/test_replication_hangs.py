"""Collectives that some devices would not reach are refused (R18); doubtful ones are told."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import HangError, shard_map
from shmap_compiler.checks.hangs import warnings

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
X = np.arange(16 * 8, dtype=np.float32).reshape(16, 8) / 64
RING = [(k, (k + 1) % 4) for k in range(4)]
PAIR = [(0, 1), (1, 0)]


def mapped(fun, **options):
    specs = {"in_specs": P("i", "j"), "out_specs": P("i", "j")}
    return shard_map(fun, mesh=MESH, **specs, **options)


def marked(fun, mark):
    """`file:line` of the line that ends with the mark."""
    lines, start = inspect.getsourcelines(fun)
    (offset,) = (k for k, line in enumerate(lines) if line.rstrip().endswith(mark))
    return f"test_replication_hangs.py:{start + offset} "


HANGING = {}


def hangs(over):
    """The collective stands at `# here`; what makes its control vary along `over` at `# why`."""

    def register(fun):
        HANGING[fun.__name__] = fun, over
        return fun

    return register


@hangs("'i'")
def in_a_branch_on_the_position(x):
    first = lax.axis_index("i") == 0  # why

    def branch():
        return lax.psum(x, "i")  # here

    return lax.cond(first, branch, lambda: x)


@hangs("'i'")
def in_a_switch(x):
    rank = lax.axis_index("i")  # why

    def third():
        return lax.ppermute(x, "i", RING)  # here

    return lax.switch(rank, [lambda: x, lambda: x * 2, third, lambda: -x])


@hangs("'i', 'j'")
def in_a_branch_on_own_data(x):
    large = jnp.max(x) > 3  # why

    def branch():
        return x + lax.all_gather(x, ("i", "j")).sum(0)  # here

    return lax.cond(large, branch, lambda: x)


@hangs("'j'")
def in_a_branch_equal_along_the_other_axis_only(x):
    large = lax.pmax(jnp.max(x), "i") > 3  # why

    def branch():
        return lax.psum(lax.psum(x, "i"), "j")  # here

    return lax.cond(large, branch, lambda: x)


@hangs("'i'")
def permute_over_another_axis(x):
    """XLA lets all devices of the program meet in a collective-permute, whatever its pairs."""
    first = lax.axis_index("i") == 0  # why

    def branch():
        return lax.ppermute(x, "j", PAIR)  # here

    return lax.cond(first, branch, lambda: x)


@hangs("'i'")
def in_a_loop_with_own_number_of_steps(x):
    rank = lax.axis_index("i")  # why

    def step(state):
        k, y = state
        return k + 1, lax.pmean(y, "i")  # here

    return lax.while_loop(lambda state: state[0] < rank, step, (0, x))[1]


@hangs("'i', 'j'")
def in_the_condition_of_a_loop(x):
    def unfinished(state):
        k, y = state
        small = jnp.sum(y) < 9  # why
        return small & (lax.psum(k, ("i", "j")) < 99)  # here

    return lax.while_loop(unfinished, lambda state: (state[0] + 1, state[1] * 2), (0, x))[1]


@hangs("'i', 'j'")
def in_iterations_until_the_own_block_has_converged(x):
    def unfinished(y):
        return jnp.max(jnp.abs(y)) > 1  # why

    def step(y):
        return y / 2 + 0 * lax.pmean(y, ("i", "j"))  # here

    return lax.while_loop(unfinished, step, x)


@hangs("'i'")
def inside_jit_inside_a_branch(x):
    first = lax.axis_index("i") == 0  # why

    @jax.jit
    def inner(y):
        return lax.psum(y, "i")  # here

    return lax.cond(first, lambda: inner(x), lambda: x)


@hangs("'i'")
def in_a_loop_of_equal_steps_inside_a_branch(x):
    first = lax.axis_index("i") == 0  # why

    def step(_, y):
        return lax.psum_scatter(jnp.concatenate([y] * 4), "i", tiled=True)  # here

    return lax.cond(first, lambda: lax.fori_loop(0, 3, step, x), lambda: x)


@hangs("'i'")
def the_branches_in_turn_hold_the_same_collective(x):
    """On paper the devices meet; in the program these are two collectives."""
    first = lax.axis_index("i") == 0  # why

    def branch():
        return lax.psum(x, "i") + 1  # here

    return lax.cond(first, branch, branch)


@hangs("'i'")
def in_checkpoint_in_a_branch(x):
    first = lax.axis_index("i") == 0  # why

    @jax.checkpoint
    def layer(y):
        return jnp.sin(lax.psum(y, "i"))  # here

    return lax.cond(first, lambda: layer(x), lambda: x)


@pytest.mark.parametrize("name", HANGING)
def test_R18_a_collective_not_all_devices_reach_is_refused(name):
    fun, over = HANGING[name]
    with pytest.raises(HangError, match="shard_map of") as caught:
        mapped(fun).trace(X)
    problem = caught.value.problems[0]
    here, why = (marked(fun, mark) for mark in ("# here", "# why"))
    assert here in problem.where
    assert f"varies along {over};" in problem.found
    assert why in problem.found
    assert "check_hangs=False" in problem.fix


@pytest.mark.parametrize("name", HANGING)
def test_R18_check_hangs_false_accepts_it(name):
    mapped(HANGING[name][0], check_hangs=False).trace(X)


# ------------------------------------------------------------------- what does not hang

SAFE = {
    "equal predicate": lambda x: lax.cond(
        lax.psum(jnp.sum(x), ("i", "j")) > 0, lambda: lax.psum(x, "i"), lambda: x
    ),
    "equal along the axis": lambda x: lax.cond(
        lax.axis_index("i") == 0, lambda: lax.psum(x, "j"), lambda: x
    ),
    "scatter along the other axis": lambda x: lax.cond(
        lax.axis_index("i") == 0,
        lambda: lax.psum_scatter(jnp.concatenate([x] * 2), "j", tiled=True),
        lambda: x,
    ),
    "fixed number of steps": lambda x: lax.fori_loop(0, 3, lambda _, y: lax.pmean(y, "i"), x),
    "number of steps agreed upon": lambda x: lax.while_loop(
        lambda y: lax.pmax(jnp.max(y), ("i", "j")) > 1, lambda y: y / 2 + 0 * lax.pmean(y, "i"), x
    ),
    "position inside a branch": lambda x: lax.cond(
        lax.axis_index("i") == 0, lambda: x + lax.axis_index("i"), lambda: x
    ),
    "each device sends to itself": lambda x: lax.cond(
        lax.axis_index("i") == 0, lambda: lax.ppermute(x, "j", [(0, 0), (1, 1)]), lambda: x
    ),
    "collective before the branches": lambda x: jnp.where(
        lax.axis_index("i") == 0, lax.psum(x, "i"), x
    ),
}


@pytest.mark.parametrize("name", SAFE)
def test_R18_a_collective_all_devices_reach_is_accepted_and_runs(name):
    jax.block_until_ready(mapped(SAFE[name])(X))


@pytest.mark.parametrize("over", ["i", "j"])
@pytest.mark.parametrize("outer", ["i", "j"])
def test_R18_nested_predicates_that_vary_along_different_axes(over, outer):
    """Whichever of the two varies along the axis of the collective, it is found and named."""
    inner = {"i": "j", "j": "i"}[outer]

    def nested_branches(x):
        def first():
            return lax.cond(lax.axis_index(inner) > 0, lambda: lax.psum(x, over), lambda: x)

        return lax.cond(lax.axis_index(outer) > 0, first, lambda: x)

    with pytest.raises(HangError, match=f"psum over '{over}'") as caught:
        mapped(nested_branches).trace(X)
    (problem,) = caught.value.problems
    assert f"whose predicate varies along '{over}'" in problem.found


def test_R18_an_axis_of_size_one_hangs_nothing():
    mesh = jax.make_mesh((1, 2), ("i", "j"), devices=jax.devices()[:2])
    program = mapped(in_a_branch_on_the_position).replace(mesh=mesh)
    np.testing.assert_array_equal(jax.block_until_ready(program(X)), X)


def test_R18_the_repairs_work():
    """Deciding alike on all devices, as the two errors propose."""

    def branch(x):
        large = lax.pmax(jnp.max(x) > 1.5, ("i", "j"))
        return lax.cond(large, lambda: lax.psum(x, ("i", "j")), lambda: x)

    total = sum(X[4 * i : 4 * i + 4, 4 * j : 4 * j + 4] for i in range(4) for j in range(2))
    np.testing.assert_allclose(jax.block_until_ready(mapped(branch)(X)), np.tile(total, (4, 2)))

    def loop(x):
        def unfinished(state):
            return lax.pmax(state[0] < lax.axis_index("i"), "i")

        def step(state):
            return state[0] + 1, lax.pmax(state[1], "i")

        return lax.while_loop(unfinished, step, (0, x))[1]

    largest = np.tile(X.reshape(4, 4, 8).max(0), (4, 1))
    np.testing.assert_array_equal(jax.block_until_ready(mapped(loop)(X)), largest)


def test_R18_all_hangs_are_told_at_once():
    def fun(x):
        first = lax.axis_index("i") == 0
        x = lax.cond(first, lambda: lax.psum(x, "i"), lambda: x)
        return lax.cond(first, lambda: lax.pmax(x, "i"), lambda: lax.pmin(x, "i"))

    with pytest.raises(HangError, match=r"3 problems") as caught:
        mapped(fun).trace(X)
    names = [p.where.split()[0] for p in caught.value.problems]
    assert sorted(names) == ["pmax", "pmin", "psum"]


def branching(x):
    large = jnp.max(x) > 3
    return lax.cond(large, lambda: lax.psum(x, "i"), lambda: x)


def test_R18_the_whole_message():
    start = inspect.getsourcelines(branching)[1]
    file = "test/checks/test_replication_hangs.py"
    with pytest.raises(HangError, match="shard_map of") as caught:
        mapped(branching).trace(X)
    assert (
        str(caught.value)
        == f"""\
shard_map of `branching` ({file}:{start}):
  psum over 'i' at {file}:{start + 2} (branching.<locals>.<lambda>)
    found:  it is inside the cond at {file}:{start + 2} (branching), whose predicate varies \
along 'i'; this last became varying along 'i' at
              args[0], which its spec P('i', 'j') splits
              reduce_max at {file}:{start + 1} (branching)
              gt at {file}:{start + 1} (branching)
              convert_element_type at {file}:{start + 2} (branching)
    needed: all devices along 'i' to execute it the same number of times; otherwise the program \
deadlocks
    fix:    run psum before the branches and select its result with jnp.where, or decide the same \
way on all devices: jax.lax.pmax(predicate, 'i'); check_hangs=False allows it
  [SHM-E203: docs/errors.md#shm-e203]"""
    )


def nested(check_inner):
    """A collective over the outer axis, in a branch of an inner shard_map."""

    def inner(x, flag):
        return lax.cond(flag[0], lambda: lax.psum(x, "i"), lambda: x)

    def outer(x, flag):
        mapped = shard_map(
            inner,
            mesh=MESH,
            axis_names={"j"},
            in_specs=(P(None, "j"), P()),
            out_specs=P(None, "j"),
            check_hangs=check_inner,
        )
        return mapped(x, flag)

    return outer


def with_a_rule_that_sums(w, x):
    @jax.custom_vjp
    def twice(w):
        return 2 * w

    twice.defvjp(lambda w: (2 * w, None), lambda _, ct: (lax.psum(2 * ct, "i"),))
    first = lax.axis_index("i") < 2
    return lax.psum(jnp.sum(x * lax.cond(first, lambda: twice(w), lambda: w)), ("i", "j"))


def test_R18_holds_for_what_a_backward_rule_does():
    specs = {"in_specs": (P(), P("i")), "out_specs": P()}
    mapped = shard_map(with_a_rule_that_sums, mesh=MESH, **specs)
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_allclose(jax.jit(mapped)(2.0, x), 2 * (4 * 6 + 2 * 22))
    with pytest.raises(HangError, match="the gradient of `with_a_rule_that_sums`") as caught:
        jax.jit(jax.grad(mapped)).lower(2.0, x)
    assert "psum over 'i' at test/checks/test_replication_hangs.py" in str(caught.value)
    allowed = shard_map(with_a_rule_that_sums, mesh=MESH, check_hangs=False, **specs)
    assert "all_reduce" in jax.jit(jax.grad(allowed)).lower(2.0, x).as_text()


@pytest.mark.parametrize("check_inner", [True, False])
def test_R18_a_nested_shard_map_is_judged_by_what_the_outer_one_hands_in(check_inner):
    def trace(flag_spec):
        shard_map(
            nested(check_inner),
            mesh=MESH,
            axis_names={"i"},
            in_specs=(P("i"), flag_spec),
            out_specs=P("i"),
        ).trace(X, np.ones(4, bool))

    trace(P())
    with pytest.raises(HangError, match="`outer`"):
        trace(P("i"))


# -------------------------------------------------------------------------- warnings


def found(fun):
    return warnings(mapped(fun, check_hangs=False).trace(X))


def test_warning_ppermute_that_leaves_devices_without_data():
    def shift(x):
        return lax.ppermute(x, "i", [(0, 1), (1, 2)])  # here

    (problem,) = found(shift)
    assert marked(shift, "# here") in problem.where
    assert problem.found == "no pair sends to 0, 3: there the result is zeros"
    assert "(2, 0), (3, 3)" in problem.fix
    assert found(lambda x: lax.ppermute(x, "i", RING)) == []


def test_warning_is_given_once_for_a_line_and_found_in_nested_programs():
    @jax.jit
    def shift(x):
        return lax.ppermute(x, "i", [(0, 1)])

    assert len(found(lambda x: shift(shift(x)))) == 1


def test_warning_in_a_nested_shard_map():
    def shift(x):
        return lax.ppermute(x, "j", [(0, 1)])  # here

    def nested(x):
        inner = shard_map(shift, in_specs=P("j"), out_specs=P("j"), axis_names={"j"})
        return inner(x)

    outer = shard_map(nested, mesh=MESH, in_specs=P("i"), out_specs=P("i"), axis_names={"i"})
    (problem,) = warnings(outer.trace(X))
    assert marked(shift, "# here") in problem.where
    assert problem.found == "no pair sends to 0: there the result is zeros"


def test_warning_collectives_in_another_order():
    def fun(x):
        def one():
            return lax.psum(lax.psum(x, "i"), "j")

        def other():
            return lax.pmax(lax.psum(lax.psum(x, "j"), "i"), "i")

        return lax.cond(lax.pmax(x.sum(), ("i", "j")) > 0, other, one)  # here

    (problem,) = found(fun)
    assert marked(fun, "# here") in problem.where
    assert problem.found == (
        "branch 0 runs psum over 'i', psum over 'j'; branch 1 runs psum over 'j', psum over 'i'"
    )


def test_no_warning_for_branches_that_repeat_a_function():
    """Only one of the branches calls `shared`; both run psum twice, pmax, and psum."""
    shared = jax.jit(lambda x: lax.psum(x, "i"))

    def called(x):
        return lax.psum(lax.pmax(shared(shared(x)), "j"), "i")

    def written(x):
        return lax.psum(lax.pmax(lax.psum(lax.psum(x, "i"), "i"), "j"), "i")

    assert found(lambda x: lax.cond(lax.pmax(x.sum(), ("i", "j")) > 0, called, written, x)) == []


@pytest.mark.parametrize("collective", ["psum", "axis_index", None])
def test_warnings_of_functions_that_share_functions(collective):
    """The number of calls grows exponentially."""

    def fun(x):
        x = lax.psum(x, "i") if collective == "psum" else x
        return x + lax.axis_index("i") if collective == "axis_index" else x

    for _ in range(32):
        fun = jax.jit(lambda x, below=fun: below(below(x)))

    def chosen(x):
        return lax.cond(lax.pmax(x.sum(), ("i", "j")) > 0, fun, lambda x: fun(2 * x), x)

    assert found(chosen) == []


def test_no_warning_for_branches_with_other_collectives():
    def fun(x):
        equal = lax.pmax(x.sum(), ("i", "j")) > 0
        return lax.cond(equal, lambda: lax.psum(lax.pmax(x, "j"), "i"), lambda: lax.psum(x, "i"))

    assert found(fun) == []


# ------------------------------------------------------------------------- loops of libraries


def solve_for_own_part(a, b):
    def operator(v):
        return lax.all_gather(a @ v, "i", tiled=True)  # here

    own_tolerance = 1e-3 * (1 + lax.axis_index("i"))
    return jax.scipy.sparse.linalg.cg(operator, b, tol=own_tolerance)[0]  # loop


def test_a_loop_of_a_library_is_named_once_by_the_line_that_calls_it():
    """The loop is traced where no frame of the user's is left; `cg` traces its program twice."""
    specs = {"in_specs": (P("i"), P()), "out_specs": P()}
    solve = shard_map(solve_for_own_part, mesh=MESH, check_vma=False, **specs)
    with pytest.raises(HangError, match="whose number of steps varies") as info:
        solve.trace(np.eye(16, dtype=np.float32), X[:, 0])
    (problem,) = info.value.problems
    assert marked(solve_for_own_part, "# here") in problem.where
    assert f"the while at {marked(solve_for_own_part, '# loop')}" in problem.found.replace(
        "test/checks/", ""
    )
