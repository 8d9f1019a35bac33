"""The static check (R17): wrong programs are refused, with their line, a history and a repair."""

import inspect
import re
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import ReplicationError, assume_replicated, shard_map
from shmap_compiler.checks.provenance import _Finder

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
X = np.arange(16 * 8, dtype=np.float32).reshape(16, 8) / 64
N = X[:4]
IN_SPECS, REPLICATED = (P("i"), P("i", "j"), P()), P()
RING = [(k, (k + 1) % 4) for k in range(4)]


@dataclass(frozen=True)
class Wrong:
    """A program on x, split over i, y, split over i and j, and n, equal on all devices.

    `fix` is part of the repair; the line to be named is marked `# here`.
    """

    fun: Any
    out: Any
    fix: str


WRONG: dict[str, Wrong] = {}


def wrong(fix, out=REPLICATED):
    def register(fun):
        WRONG[fun.__name__] = Wrong(fun, out, fix)
        return fun

    return register


PSUM_I = "add up the devices' parts: jax.lax.psum(result, 'i')"
KEEP_I = "keep each device's own: out_specs=P('i')"
KEEP_SCALAR_I = "return result[None] with out_specs=P('i')"


@wrong(KEEP_I)
def a_block_returned_as_if_it_were_all(x, y, n):
    return x * 2  # here


@wrong(PSUM_I)
def a_sum_of_a_block(x, y, n):
    return jnp.sum(x)  # here


@wrong(PSUM_I)
def a_loss_of_a_batch(x, y, n):
    return jnp.mean((x @ n.T) ** 2)  # here


@wrong("combine the devices' results: jax.lax.pmax(result, 'i')")
def a_maximum_of_a_block(x, y, n):
    return jnp.max(x)  # here


@wrong("combine the devices' results: jax.lax.pmin(result, 'i')")
def a_minimum_of_a_block(x, y, n):
    return jnp.min(x, axis=0)  # here


@wrong(PSUM_I)
def a_product_over_a_split_dimension(x, y, n):
    return x.T @ x  # here


@wrong("jax.lax.psum(result, 'j')", P("i"))
def a_product_summed_over_the_wrong_axis(x, y, n):
    return lax.psum(y @ y.T, "i")  # here


@wrong("jax.lax.psum(result, ('i', 'j'))")
def a_sum_missing_along_two_axes(x, y, n):
    return jnp.sum(y)  # here


@wrong("keep each device's own: out_specs=P('i', 'j')", P("i"))
def a_split_dimension_forgotten_in_the_spec(x, y, n):
    return jnp.tanh(y)  # here


@wrong("keep each device's own: out_specs=P('i', 'j')", P(None, "j"))
def the_other_split_dimension_forgotten(x, y, n):
    return -y  # here


@wrong("keep each device's own: out_specs=P(None, 'i')")
def a_transposed_block(x, y, n):
    return jnp.sin(x).T  # here


@wrong(KEEP_SCALAR_I)
def a_position(x, y, n):
    return lax.axis_index("i")  # here


@wrong(KEEP_SCALAR_I)
def a_position_in_disguise(x, y, n):
    rank = lax.axis_index("i")  # here
    return (rank * 2 + 1).astype(jnp.float32)


@wrong(KEEP_I)
def own_random_numbers(x, y, n):
    key = jax.random.fold_in(jax.random.key(0), lax.axis_index("i"))  # here
    return jax.random.normal(key, (4,))


@wrong(KEEP_I)
def dropout_with_own_masks_on_replicated_activations(x, y, n):
    key = jax.random.fold_in(jax.random.key(0), lax.axis_index("i"))  # here
    return jnp.where(jax.random.bernoulli(key, 0.5, n.shape), n, 0)


@wrong(KEEP_I)
def a_scattered_sum(x, y, n):
    return lax.psum_scatter(n, "i", tiled=True)  # here


@wrong(KEEP_I)
def a_block_of_all_to_all(x, y, n):
    return lax.all_to_all(n, "i", 0, 1, tiled=True)  # here


@wrong(KEEP_I)
def a_ring_shift_of_blocks(x, y, n):
    return lax.ppermute(x, "i", RING)  # here


@wrong(KEEP_I)
def a_shift_with_an_open_end(x, y, n):
    return lax.ppermute(n, "i", RING[:-1])  # here


@wrong(KEEP_I)
def a_broadcast_by_ppermute_to_some(x, y, n):
    return n + lax.ppermute(n, "i", [(0, 1)])  # here


@wrong(KEEP_I)
def a_sum_in_groups(x, y, n):
    return lax.psum(x, "i", axis_index_groups=[[0, 1], [2, 3]])  # here


@wrong("jax.lax.psum(result, 'j')")
def a_mean_over_one_of_two_axes(x, y, n):
    return lax.pmean(jnp.sum(y), "i")  # here


@wrong(KEEP_I)
def own_slice_of_what_was_gathered(x, y, n):
    everything = lax.all_gather(x, "i", tiled=True)
    start = lax.axis_index("i")  # here
    return lax.dynamic_slice_in_dim(everything, start, 4)


@wrong(KEEP_I)
def a_residual_added_after_the_sum(x, y, n):
    return lax.psum(x, "i") + x  # here


@wrong(PSUM_I)
def a_loop_that_sums_its_own_rows(x, y, n):
    return lax.fori_loop(0, 4, lambda k, c: c + jnp.sum(x[k]), 0.0)  # here


@wrong("out_specs=P('i')")
def a_scan_whose_rows_are_a_block(x, y, n):
    def step(carry, row):
        return carry, row * 2  # here

    return lax.scan(step, 0, x)[1]


@wrong("out_specs=P('i')")
def a_carry_that_becomes_varying_in_the_second_step(x, y, n):
    def step(_, carry):
        _, new = carry
        return new, new * x  # here

    return lax.fori_loop(0, 3, step, (n, n))[0]


@wrong(KEEP_SCALAR_I)
def a_loop_with_own_number_of_steps(x, y, n):
    def own_steps(state):
        return state < lax.axis_index("i")  # here

    return lax.while_loop(own_steps, lambda state: state + 1, 0)


@wrong(KEEP_SCALAR_I)
def iterations_until_the_own_block_has_converged(x, y, n):
    def unfinished(state):
        return jnp.sum(x) / 2**state > 1  # here

    return lax.while_loop(unfinished, lambda state: state + 1.0, 0.0)


@wrong(KEEP_I)
def a_branch_on_the_position(x, y, n):
    first = lax.axis_index("i") == 0  # here
    return lax.cond(first, lambda: n, lambda: n * 2)


@wrong(KEEP_I)
def a_branch_on_own_data(x, y, n):
    large = jnp.sum(x) > 3  # here
    return lax.cond(large, lambda: n, lambda: n * 2)


@wrong(KEEP_I)
def one_branch_of_two_that_forgets_the_sum(x, y, n):
    def forgets():
        return x * 2  # here

    return lax.cond(jnp.sum(n) > 0, lambda: lax.psum(x, "i"), forgets)


@wrong(KEEP_I)
def a_select_on_the_position(x, y, n):
    return jnp.where(lax.axis_index("i") == 0, n, 0)  # here


@wrong(PSUM_I)
def a_sum_inside_jit(x, y, n):
    @jax.jit
    def inner(block):
        return jnp.sum(block * 2)  # here

    return inner(x)


@wrong(PSUM_I)
def a_sum_inside_checkpoint(x, y, n):
    @jax.checkpoint
    def layer(block):
        return jnp.sin(block).sum()  # here

    return layer(x)


@wrong("keep each device's own: out_specs=P(('i', 'j'))")
def what_a_host_returns(x, y, n):
    return io_callback(np.asarray, type_of(n), n)  # here


@wrong("add up the devices' parts: jax.lax.psum(result['loss'], 'i')")
def one_of_several_results(x, y, n):
    return {"n": n + 1, "loss": jnp.sum(x)}  # here


@wrong("keep each device's own: out_specs['x']=P('i')", {"n": P(), "x": P(None)})
def one_of_several_results_with_own_specs(x, y, n):
    return {"n": n + 1, "x": x + 1}  # here


@wrong("jax.lax.psum(result, 'i')")
def a_declaration_about_another_axis(x, y, n):
    return assume_replicated(jnp.sum(x), "j")  # here


def type_of(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def line_of(fun):
    lines, start = inspect.getsourcelines(fun)
    (offset,) = (k for k, line in enumerate(lines) if line.rstrip().endswith("# here"))
    return start + offset


def refusal(fun, *args, in_specs=IN_SPECS, out_specs=REPLICATED):
    with pytest.raises(ReplicationError, match="shard_map of") as caught:
        shard_map(fun, mesh=MESH, in_specs=in_specs, out_specs=out_specs).trace(*args)
    return caught.value


@pytest.mark.parametrize("name", WRONG)
def test_R17_a_wrong_program_is_refused_at_its_line(name):
    program = WRONG[name]
    error = refusal(program.fun, X, X, N, out_specs=program.out)
    (problem,) = error.problems
    assert f"`{name}`" in error.who
    assert f"{__file__.rpartition('/')[2]}:{line_of(program.fun)} " in problem.found
    assert program.fix in problem.fix


@pytest.mark.parametrize("name", WRONG)
def test_check_vma_false_accepts_it(name):
    program = WRONG[name]
    shard_map(
        program.fun,
        mesh=MESH,
        in_specs=IN_SPECS,
        out_specs=program.out,
        check_vma=False,
    ).trace(X, X, N)


def test_there_are_thirty_wrong_ones_too():
    assert len(WRONG) >= 30


# ------------------------------------------------------------------------- the message


def layers(x):
    first = x * 2
    second = jnp.tanh(first)
    third = second - 1
    fourth = jnp.abs(third)
    fifth = fourth / 3
    sixth = jnp.exp(fifth)
    return {"w": sixth, "b": jnp.sum(x, axis=0)}


def test_R17_the_whole_message():
    start = inspect.getsourcelines(layers)[1]
    place = f"test/checks/test_replication_check.py:{start}"

    def at(offset):
        return f"test/checks/test_replication_check.py:{start + offset} (layers)"

    message = str(
        refusal(layers, X, in_specs=(P("i"),), out_specs={"w": P(None, "j"), "b": P("j")})
    )
    assert (
        message
        == f"""\
shard_map of `layers` ({place}) (2 problems):
  result['b'] with out_specs['b']=P('j')
    found:  a result f32[8] that varies along axis 'i'; it last became varying along 'i' at
              args[0], which its spec P('i') splits
              reduce_sum at {at(7)}
    needed: a value that is replicated over axis 'i', which out_specs['b'] does not mention; if it \
is, for a reason that cannot be inferred, use assume_replicated
    fix:    add up the devices' parts: jax.lax.psum(result['b'], 'i'), or pmean for their mean; or \
keep each device's own: out_specs['b']=P(('j', 'i'))
  result['w'] with out_specs['w']=P(None, 'j')
    found:  a result f32[4,8] that varies along axis 'i'; it last became varying along 'i' at
              args[0], which its spec P('i') splits
              mul at {at(1)}
              tanh at {at(2)}
              ... 2 more operations ...
              div at {at(5)}
              exp at {at(6)}
    needed: a value that is replicated over axis 'i', which out_specs['w'] does not mention; if it \
is, for a reason that cannot be inferred, use assume_replicated
    fix:    keep each device's own: out_specs['w']=P('i', 'j'); or make the blocks equal with \
jax.lax.psum, pmean or all_gather over 'i'
  [SHM-E204: docs/errors.md#shm-e204]"""
    )


def test_R17_the_history_starts_where_a_value_last_became_varying():
    """Not at the input, which the sum has made equal again."""

    def fun(x):
        total = lax.psum(x, "i")
        return total * lax.axis_index("i")  # here

    (problem,) = refusal(fun, X, in_specs=(P("i"),)).problems
    assert "args[0]" not in problem.found
    history = problem.found.partition("at\n")[2]
    assert history.split()[0] == "axis_index"


def test_R17_the_value_that_decides_a_branch_is_told():
    def fun(x, n):
        return lax.cond(jnp.sum(x) > 0, lambda: n, lambda: n + 1)  # here

    (problem,) = refusal(fun, X, N, in_specs=(P("i"), P())).problems
    assert "the predicate of cond at" in problem.found


def test_R17_the_history_is_the_shortest_one_also_where_a_longer_one_is_known():
    def fun(x, n):
        long = jnp.sin(jnp.cos(x))
        return long, long * jnp.exp(x), long * n

    problems = refusal(fun, N, N, in_specs=(P("i", None), P()), out_specs=REPLICATED).problems
    histories = [re.findall(r"^ +(\S+) at ", problem.found, re.M) for problem in problems]
    assert histories == [["cos", "sin"], ["exp", "mul"], ["cos", "sin", "mul"]]


def test_histories_of_many_values_are_searched_once(monkeypatch):
    searched = []
    before = _Finder.before
    monkeypatch.setattr(
        _Finder, "before", lambda self, ref: searched.append(ref) or before(self, ref)
    )

    def fun(x):
        results = [x]
        for _ in range(40):
            results.append(jnp.sin(results[-1]))
        return results[1:]

    assert len(refusal(fun, X, in_specs=(P("i"),)).problems) == 40
    assert len(searched) == 40


def test_R17_follows_a_value_into_a_nested_shard_map():
    def inner(x):
        return lax.ppermute(x, "i", RING[:-1])  # here

    def outer(n):
        nested = shard_map(inner, mesh=MESH, axis_names={"j"}, in_specs=P("j"), out_specs=P("j"))
        return nested(n)

    with pytest.raises(ReplicationError, match=f":{line_of(inner)} ") as caught:
        shard_map(outer, mesh=MESH, axis_names={"i"}, in_specs=P(), out_specs=P()).trace(N)
    assert "`outer`" in caught.value.who


def test_R17_the_repair_follows_a_dimension_through_a_transposition():
    """In three dimensions, where it differs from its inverse."""

    def turned(x):
        return jnp.transpose(x, (1, 2, 0))

    (problem,) = refusal(turned, X.reshape(16, 4, 2), in_specs=(P("i"),)).problems
    assert "out_specs=P(None, None, 'i')" in problem.fix


def test_R17_blocks_without_elements_are_equal():
    shard_map(lambda x: x[:0], mesh=MESH, in_specs=P("i"), out_specs=P()).trace(X)


def test_check_is_of_the_users_call_only():
    """Graphs made by transformations have outputs of their own, which need no check."""
    mapped = shard_map(
        lambda x: lax.psum(jnp.sum(x**2), "i"), mesh=MESH, in_specs=P("i"), out_specs=P()
    )
    x = jnp.asarray(X)
    np.testing.assert_allclose(jax.jit(jax.grad(mapped))(x), 2 * X)
    np.testing.assert_allclose(jax.jit(jax.vmap(mapped))(x[None]), [np.sum(X**2)], rtol=1e-6)


def test_R12_a_predicate_that_jax_leaves_out_decides_what_the_result_is():
    """JAX returns what the first device along the axis has; `assume_replicated` says as much."""

    def body(y, equal=lambda x: x):
        return equal(lax.cond(y.sum() > 2, lambda: jnp.ones(2), lambda: jnp.zeros(2)))

    mesh = jax.make_mesh((2,), ("k",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    y = np.arange(4.0, dtype=np.float32)
    options = {"mesh": mesh, "in_specs": P("k"), "out_specs": P()}
    theirs = jax.jit(jax.shard_map(body, **options))(y)
    blocks = [np.asarray(s.data) for s in theirs.addressable_shards]
    assert (blocks[0] != blocks[1]).all()  # an array that is two
    with pytest.raises(ReplicationError, match="the predicate of cond at"):
        jax.jit(shard_map(body, **options))(y)
    declared = partial(body, equal=partial(assume_replicated, axes="k"))
    np.testing.assert_array_equal(jax.jit(shard_map(declared, **options))(y), blocks[0])
