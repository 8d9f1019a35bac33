"""The products that are computed in pieces are the first ones, as many as possible."""

import random
import sys

import jax
import jax.numpy as jnp
import pytest
import shmap_passes
from jax import lax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from overlap_programs import gather
from shmap_passes import find_ops
from shmap_passes.ir.body_form import read_body_form
from shmap_passes.ir.collective_ops import ALL_GATHER
from shmap_passes.ir.types import shape_of
from shmap_passes.overlap.find.cuts import Cut
from shmap_passes.overlap.find.gathers import gathers
from shmap_passes.overlap.find.products import DOT
from shmap_passes.overlap.rewrite import gather_plan
from shmap_passes.overlap.rewrite.gather_chunks import is_cut_by
from shmap_passes.overlap.rewrite.gather_plan import plan, plan_of_all

from shmap_compiler import shard_map

STEPS = (
    lambda side, left, right, w: jnp.tanh(left),
    lambda side, left, right, w: left + right,
    lambda side, left, right, w: left * right.sum(),
    lambda side, left, right, w: lax.cond(w.sum() > 0, jnp.cos, lambda v: v, left),
    lambda side, left, right, w: jnp.einsum("bmk,bkn->bmn", side, right),
    lambda side, left, right, w: jnp.einsum("bmk,bkn->bmn", right[::-1], side),
    lambda side, left, right, w: side @ jnp.sin(w[0]),
    lambda side, left, right, w: side @ w[0],
    lambda side, left, right, w: side @ right[0],
)


def sides_of(g, w):
    """What is gathered, and what is computed of it element by element."""
    return g, g, jnp.sin(g), jnp.moveaxis(g, 1, 2), g * jnp.tanh(g) + w[0, :1], g / g.max()


def drawn(seed):
    """A body whose products need what others, or what reads others, compute; or do not."""

    def body(x, w):
        choose = random.Random(seed)
        g = gather(x)
        values, sides = [jnp.zeros_like(g) + w[0], g], sides_of(g, w)
        for _ in range(choose.randint(3, 14)):
            left, right = choose.choices(values[-5:], k=2)
            values.append(choose.choice(STEPS)(choose.choice(sides), left, right, w))
        return values[2:]

    return body


def read_by_others(count):
    """Each product before one that it cannot be computed together with."""

    def body(x, w):
        g = gather(x)
        return [jnp.tanh(g @ (w[0] * (k + 1.0)))[:, ::-1] for k in range(count)]

    return body


def added_up(count):
    """More products than can be computed with what comes after them."""

    def body(x, w):
        g, total = gather(x), 0.0
        for k in range(count):
            total = total + jnp.tanh(g @ (w[0] * (k + 1.0)))
        return total

    return body


def chained(count):
    """Products that need what is computed of those before them."""

    def body(x, w):
        g = gather(x)
        for _ in range(count):
            w = jnp.tanh(g @ w[0])
        return w

    return body


def cases(body):
    """(the plan of some products, the arguments of `plan`) for each gather and each way."""
    mapped = shard_map(
        body,
        mesh=AbstractMesh((2,), ("i",)),
        in_specs=P("i"),
        out_specs=P("i"),
        check_vma=False,
    )
    text = mapped.lower(*[jax.ShapeDtypeStruct((4, 4, 4), jnp.float32)] * 2).as_text("body")
    with shmap_passes.make_context():
        module = ir.Module.parse(text).operation.opview
        ops = find_ops(module.operation, [ALL_GATHER])
        for found in gathers(ops, read_body_form(module)):
            size = shape_of(found.op.operands[0])[0]
            whole = Cut(0, size * found.count)
            for cut in (whole, Cut(0, size, found.count), Cut(1, 4)):
                products = [each for each in found.operands if is_cut_by(found, each, cut)]
                yield plan(found, products, cut), (found, products, cut)


def twice(x, w):
    """A product as large as those of what is gathered."""
    return jnp.concatenate([x, x]) @ w[1]


def gated(x, w):
    return jnp.tanh(gather(x) @ w[0]) * twice(x, w)


def gated_and_added(x, w):
    y = twice(x, w)
    return jnp.tanh(gather(x) @ w[0]) * y + y


def read_again(x, w):
    y = twice(x, w)
    return jnp.tanh(gather(x) @ w[0]) * y, y


def multiplied_again(x, w):
    y = twice(x, w)
    return jnp.einsum("bmk,bkn->bmn", jnp.tanh(gather(x) @ w[0]) * y, y)


def computed_element_by_element(x, w):
    return jnp.tanh(gather(x) @ w[0]) * jnp.broadcast_to(jnp.sin(x[0]), (4, 4, 4))


def of_another_type(x, w):
    return jnp.tanh(gather(x) @ w[0]) * twice(x, w).astype(jnp.bfloat16)


def of_several_results(x, w):
    g = gather(x)
    return jnp.sort(jnp.tanh(g @ w[0]) * twice(x, w)), jnp.sort(g @ w[1])


def from_around(x, w):
    y = twice(x, w)
    is_positive = lax.psum(w.sum(), "i") > 0
    return lax.cond(is_positive, lambda: jnp.tanh(gather(x) @ w[0]) * y, lambda: jnp.ones_like(y))


def of_all_counts(found, products, cut):
    """The plan that is found by trying all."""
    tries = (
        plan_of_all(found, products[:count], cut, with_consumers)
        for count in range(len(products), 0, -1)
        for with_consumers in (True, False)
    )
    return next((each for each in tries if each is not None), None)


@pytest.mark.parametrize(
    "body",
    [*map(drawn, range(40)), read_by_others(5), added_up(40), chained(5)],
    ids=lambda body: body.__qualname__.partition(".")[0],
)
def test_no_plan_has_more_products(body):
    for found, args in cases(body):
        assert found == of_all_counts(*args)


@pytest.mark.parametrize("body", [gated, gated_and_added])
def test_a_result_takes_the_place_of_an_array_that_only_it_reads(body):
    for found, _ in cases(body):
        assert ir.OpResult(found.replaced).owner.name == DOT
        assert found.replaced not in found.cuts


@pytest.mark.parametrize(
    "body",
    [
        read_again,
        multiplied_again,
        computed_element_by_element,
        of_another_type,
        of_several_results,
        from_around,
    ],
)
def test_no_array_is_replaced(body):
    assert [found.replaced for found, _ in cases(body) if found] == [None] * 3


@pytest.mark.parametrize("made", [read_by_others, added_up, chained])
def test_few_plans_are_tried(made, monkeypatch):
    tried = []

    def counted(*args):
        tried.append(args)
        return plan_of_all(*args)

    monkeypatch.setattr(gather_plan, "plan_of_all", counted)
    for _ in cases(made(90)):
        assert len(tried) <= 4
        tried.clear()


@pytest.mark.parametrize("made", [read_by_others, added_up, chained])
def test_work_grows_with_the_number_of_products(made):
    def calls(count):
        total = 0

        def profile(frame, event, arg):
            nonlocal total
            total += event == "call"

        for _, args in cases(made(count)):
            sys.setprofile(profile)
            try:
                plan(*args)
            finally:
                sys.setprofile(None)
        return total

    few, more, most = map(calls, (80, 160, 240))
    assert most - more < 1.25 * (more - few)
