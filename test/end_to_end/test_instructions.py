"""Instructions to XLA, such as groups to schedule together, stay with the operations they are on.

They are frontend attributes of operations. Operations that have them are not rewritten.
"""

import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
X = np.arange(16 * 8, dtype=np.float32).reshape(16, 8)


def group(number):
    return set_xla_metadata(_scheduling_group_id=str(number))


def neighbors(x):
    with group(1):
        a = lax.psum(x, "i")
    with group(2):
        b = lax.psum(2 * x, "i")
    return a + b


def inner_sum(x):
    x = x * lax.axis_index("j")
    with group(1):
        a = lax.psum(x, "i")
    return lax.psum(a, "j")


def outer_sum(x):
    a = lax.psum(x * lax.axis_index("j"), "i")
    with group(1):
        return lax.psum(a, "j")


def own_part_of_a_sum(x):
    with group(1):
        a = lax.psum(x, "i")
    return lax.dynamic_slice_in_dim(a, lax.axis_index("i"), 1, 0)


def own_part_of_gathered(x):
    with group(1):
        a = lax.all_gather(x, "i", tiled=True)
    return lax.dynamic_slice_in_dim(a, 4 * lax.axis_index("i"), 4, 0)


def equal_gathers(x):
    with group(1):
        a = lax.all_gather(x, "i", tiled=True)
    with group(2):
        b = lax.all_gather(x, "i", tiled=True)
    return (a * b)[:4]


def exchange(x):
    with group(1):
        return lax.all_to_all(x, "i", 0, 1, tiled=True)


BODIES = [
    neighbors,
    inner_sum,
    outer_sum,
    own_part_of_a_sum,
    own_part_of_gathered,
    equal_gathers,
    exchange,
]

_COLLECTIVE = re.compile(
    r"stablehlo\.(all_reduce|all_gather|reduce_scatter|all_to_all)\b(?:.|\n)*?\) -> tensor"
)
_GROUP = re.compile(r'\{_scheduling_group_id = "(\d)"\}\} :')


def collectives(body, shard_map):
    """Each kind of collective with the group that it is in."""
    mapped = shard_map(body, mesh=MESH, in_specs=P("i"), out_specs=P("i"))
    text = jax.jit(mapped).lower(X).as_text()
    found = _COLLECTIVE.finditer(text)
    return Counter((op[1], *_GROUP.findall(op[0].splitlines()[-1])) for op in found)


def gradients(function, body):
    f = function(body, mesh=MESH, in_specs=(P(), P("i")), out_specs=P("i"))
    lowered = jax.jit(jax.grad(lambda w, x: f(w, x).sum())).lower(np.float32(2), X)
    return lowered.as_text()


def weighted(w, x):
    with group(1):
        y = w * x
    return jnp.sin(y)


def test_sum_of_a_gradient_has_the_instructions_of_what_it_is_derived_from():
    """In the backward pass, the devices' shares of the gradient of `w` are summed."""
    pattern = re.compile(r'"stablehlo.all_reduce".*?\}\) (\{.*?\})? ?:', re.DOTALL)
    ours, theirs = (pattern.findall(gradients(f, weighted)) for f in (shard_map, jax.shard_map))
    assert ours == theirs
    assert "_scheduling_group_id" in ours[0]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_collectives_with_instructions_are_those_of_jax(body):
    ours = collectives(body, shard_map)
    assert ours == collectives(body, jax.shard_map)
    assert any(len(kind) > 1 for kind in ours)


def gather_in_a_group(x, w):
    with group(1):
        gathered = lax.all_gather(x, "i", tiled=True)
    return gathered @ w


def product_in_a_group(x, w):
    gathered = lax.all_gather(x, "i", tiled=True)
    with group(1):
        return gathered @ w


def loop_with_a_group(x, w):
    def step(x, _):
        with group(1):
            gathered = lax.all_gather(w, "i", tiled=True)
        return jnp.tanh(x @ gathered), None

    return lax.scan(step, x, None, length=8)[0]


def lowered(body, *sizes, **options):
    loops = body is loop_with_a_group
    specs = (P("i"), P("i")) if loops else (P("i"), P())
    mapped = shard_map(
        body,
        mesh=AbstractMesh((8,), ("i",)),
        in_specs=specs,
        out_specs=P("i") if loops else P(),
        check_vma=False,
    )
    return mapped.lower(*(jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in sizes), **options)


@pytest.mark.parametrize(
    "body", [gather_in_a_group, product_in_a_group, loop_with_a_group], ids=lambda b: b.__name__
)
def test_what_has_instructions_is_not_overlapped(body):
    sizes = ((64, 32), (32, 32))
    plain = lowered(body, *sizes)
    forced = lowered(body, *sizes, overlap="force")
    assert [c.form for c in forced.overlap_report().choices] == [None] * len(
        forced.overlap_report().choices
    )
    reasons = {choice.reason for choice in forced.overlap_report().choices}
    assert "it has instructions to XLA: frontend attributes, or moves to the host" in reasons
    assert forced.as_text().count("collective_permute") == 0
    assert forced.as_text().count("all_gather") == plain.as_text().count("all_gather")


def squashed(h):
    with group(1):
        return jnp.tanh(h)


def product_before_a_group(x, w):
    return squashed(lax.all_gather(x, "i", tiled=True) @ w)


def product_of_a_group(x, w):
    return lax.all_gather(x, "i", tiled=True) @ squashed(w)


def product_of_a_gathered_group(x, w):
    return squashed(lax.all_gather(x, "i", tiled=True)) @ w


def whole_sum_of_a_group(x, w):
    return lax.psum(squashed(x @ w), "i")


def sum_of_a_group(x, w):
    return lax.psum_scatter(squashed(x @ w), "i", tiled=True)


def sum_of_a_product_of_a_group(x, w):
    return lax.psum_scatter(squashed(x) @ w, "i", tiled=True)


def group_in_a_block(x, w):
    h = squashed(lax.all_gather(x, "i", tiled=True) @ w)
    return lax.psum_scatter(h @ w, "i", tiled=True)


def group_in_a_loop(x, w):
    def step(x, _):
        return squashed(x @ lax.all_gather(w, "i", tiled=True)), None

    return lax.scan(step, x, None, length=8)[0]


@pytest.mark.parametrize(
    "body",
    [
        product_before_a_group,
        product_of_a_group,
        product_of_a_gathered_group,
        whole_sum_of_a_group,
        sum_of_a_group,
        sum_of_a_product_of_a_group,
        group_in_a_block,
        group_in_a_loop,
    ],
    ids=lambda body: body.__name__,
)
def test_what_has_instructions_is_there_once(body):
    """Beside it, products are computed in pieces."""
    mapped = shard_map(
        body,
        mesh=AbstractMesh((8,), ("i",)),
        in_specs=(P("i"), P("i") if body is group_in_a_loop else P()),
        out_specs=P("i"),
        check_vma=False,
    )
    types = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((64 * 8, 32), (32, 32))]
    for mode in ("off", "force"):
        text = mapped.lower(*types, overlap=mode, overlap_rounding=True).as_text()
        assert text.count("_scheduling_group_id") == text.count("stablehlo.tanh") == 1, mode
