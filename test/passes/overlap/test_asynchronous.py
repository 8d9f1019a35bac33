"""Collectives that are left as they are, as other products run meanwhile."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import pytest
import shmap_passes
from jax import lax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from shmap_passes.cost.chips import TPU_V5P
from shmap_passes.cost.machine import Machine
from shmap_passes.cost.networks import Torus
from shmap_passes.overlap.choose.chosen_forms import recording
from shmap_passes.overlap.choose_overlap import ChooseOverlap
from test_choices import H100, MLP, V5E, V5P, V6E, mlp_gradient

from shmap_compiler import shard_map

FLAT = Machine(
    TPU_V5P,
    Torus((2, 4, 1), (False,) * 3, 100e9),
    tuple((*place, 0) for place in itertools.product(range(2), range(4))),
    True,
)
COLUMNS = P(None, "i")


def scattered(y, w):
    return lax.psum_scatter(y @ w, "i", scatter_dimension=0, tiled=True)


def layer(y, w, x):
    """The gradients of a layer: the second product runs while the sum of the first is sent."""
    return scattered(y, w), x.T @ y


def layer_of_computed(y, w, x):
    return layer(y, w, x @ jnp.tanh(w[:64].T @ w[:64]))


def two_layers(y, w, x):
    return scattered(y, w), scattered(jnp.tanh(y), w), x.T @ y


def successive(y, w, x):
    """The last product can hide one of the sums."""
    z = jnp.tile(scattered(y, w), (8, 1))[:, :2048]
    return scattered(z, w), x.T @ y


def chain(y, w, x):
    """Nothing is independent."""
    z = scattered(y, w)
    return z, x @ z.T


def last(y, w, x):
    """The second product waits for another sum, which may come after the first one."""
    return scattered(y, w), x.T @ lax.psum(y, "i")


def gathered(x, w, y, v):
    return lax.all_gather(x, "i", axis=0, tiled=True) @ w, y @ v


def gathered_beside_more(x, w, y, v):
    """The last product hides the gather; the others read what they alone need."""
    computed = [f(v) for f in (jnp.tanh, jnp.sin, jnp.cos)]
    product = lax.all_gather(x, "i", axis=0, tiled=True) @ w
    return product, *(y @ each for each in computed), y @ v


def layer_of_scaled(y, w, x):
    """Both products need the first sum."""
    scales = lax.psum(y[:64] @ w, "i")[0]
    return layer(y, w * scales, x * scales)


def summed(y, w, x):
    return lax.psum(y @ w, "i"), x.T @ y


LAYER = ((COLUMNS, P("i"), P()), ((16384, 16384), (16384, 4096), (16384, 4096)))
PROGRAMS = {
    layer: (*LAYER, (P("i"), COLUMNS)),
    layer_of_computed: (*LAYER, (P("i"), COLUMNS)),
    two_layers: (*LAYER, (P("i"), P("i"), COLUMNS)),
    successive: ((COLUMNS, P("i"), P()), (*LAYER[1][:2], (16384, 8192)), (P("i"), COLUMNS)),
    last: (*LAYER, (P("i"), COLUMNS)),
    layer_of_scaled: (*LAYER, (P("i"), COLUMNS)),
    summed: (*LAYER, (P(), COLUMNS)),
    mlp_gradient: (MLP, ((16384, 4096), (4096, 16384), (16384, 4096)), MLP),
    chain: ((COLUMNS, P("i"), P()), ((16384, 16384), (16384, 4096), (2048, 4096)), (P("i"), P())),
    gathered: (
        (P("i"), P(), P(), P()),
        ((16384, 8192), (8192, 2048), (4096, 8192), (8192, 8192)),
        (P(), P()),
    ),
}
PROGRAMS[gathered_beside_more] = (*PROGRAMS[gathered][:2], (P(),) * 5)


def data_parallel(x, v, w):
    """The gradient of an MLP block whose weights are on all devices."""

    def loss(x, v, w):
        return ((jnp.tanh(x @ v) @ w).astype(jnp.float32) ** 2).sum()

    x, v, w = jax.grad(loss, (0, 1, 2))(x, v, w)
    return x, lax.psum(v, "i"), lax.psum(w, "i")


WEIGHTS = (P("i"), P(), P())
PROGRAMS[data_parallel] = (WEIGHTS, ((131072, 2048), (2048, 8192), (8192, 2048)), WEIGHTS)


def gated_gradient(x, gate, up, down):
    """The gradient of a gated MLP whose weights are gathered: it reads whole ones again."""

    def loss(x, gate, up, down):
        gate, up, down = (lax.all_gather(w, "i", tiled=True) for w in (gate, up, down))
        return ((jax.nn.silu(x @ gate) * (x @ up) @ down).astype(jnp.float32) ** 2).sum()

    return jax.grad(loss, (0, 1, 2, 3))(x, gate, up, down)


ROWS = (P("i"),) * 4
PROGRAMS[gated_gradient] = (ROWS, ((65536, 4096), *((4096, 14336),) * 2, (14336, 4096)), ROWS)


def body(fun, sizes=None):
    specs, shapes, out = PROGRAMS[fun]
    mesh = AbstractMesh((8,), ("i",))
    mapped = shard_map(fun, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)
    types = [jax.ShapeDtypeStruct(shape, "bfloat16") for shape in sizes or shapes]
    return ir.Module.parse(mapped.lower(*types).as_text("body"))


def choices(fun, machine, sizes=None):
    """The form, or why there is none, and the expected seconds, of each site."""
    pass_ = ChooseOverlap(machine=machine.text, may_round=True)
    with shmap_passes.make_context():
        found = pass_.choices(body(fun, sizes).operation.opview)
        return [(c.form.name if c.form else c.plan.reason, c.plan.expected) for c in found]


def test_a_choice_names_the_products_that_hide_what_is_left():
    with shmap_passes.make_context():
        pass_ = ChooseOverlap(machine=V6E.text, may_round=True)
        (choice,) = pass_.choices(body(layer).operation.opview)
        (hiding,) = choice.beside
        assert hiding not in choice.site.products
        assert hiding.name == "stablehlo.dot_general"


def forms(fun, machine, sizes=None):
    return [form for form, _ in choices(fun, machine, sizes)]


@pytest.mark.parametrize(("machine", "seconds"), [(V6E, 587e-6), (V5P, 617e-6)])
def test_sums_beside_products_that_are_independent_are_left(machine, seconds):
    """libtpu takes 0.93 and 1.27 ms for it, and 0.97 and 1.45 in partial sums."""
    ((form, expected),) = choices(layer, machine)
    assert (form, expected) == ("asynchronous", pytest.approx(seconds, rel=0.01))


@pytest.mark.parametrize(
    ("fun", "machine", "expected"),
    [
        # Nothing is computed beside a sum on v5e.
        (layer, V5E, ["partial-sums"]),
        (two_layers, V6E, ["asynchronous", "asynchronous"]),
        (two_layers, V5P, ["asynchronous", "asynchronous"]),
        (chain, V6E, ["partial-sums"]),
        (last, V6E, ["partial-sums"]),
        (summed, V6E, ["asynchronous"]),
        (gathered, V6E, ["asynchronous"]),
        # A ring takes less memory, and is within 3%.
        (gathered, V5E, ["ring"]),
        (gathered, V5P, ["asynchronous"]),
        # XLA for GPUs needs no options to do so.
        (layer, H100, ["it runs beside products that do not depend on it"]),
        # TPUs without the options send nothing beside products of others.
        (gathered, dataclasses.replace(V6E, compiler_options=False), ["ring"]),
    ],
)
def test_forms(fun, machine, expected):
    assert forms(fun, machine) == expected


def test_beside_the_first_collective_nothing_can_run():
    reason, form = forms(layer_of_scaled, V5P)
    assert "less than 20" in reason
    assert form == "asynchronous"


def test_gathers_that_stop_everything_are_rings():
    """libtpu for v5p computes nothing beside gathers along two dimensions of a slice."""
    assert forms(gathered, FLAT) == ["ring"]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [(4096, ["asynchronous", "asynchronous"]), (2048, ["partial-sums", "partial-sums"])],
)
def test_no_two_sums_run_beside_the_products_of_each_other(columns, expected):
    """One of the two products comes first, so one of the sums has only the third one left."""
    sizes = (*PROGRAMS[two_layers][1][:2], (16384, columns))
    assert forms(two_layers, V6E, sizes=sizes) == expected


def test_what_hides_the_collectives_of_a_group_does_not_hide_those_of_the_next(monkeypatch):
    """In blocks with many collectives, some are decided about at a time."""
    monkeypatch.setattr("shmap_passes.overlap.choose.hiding._TOGETHER", 1)
    assert forms(successive, V6E) == ["asynchronous", "partial-sums"]
    twice = (*PROGRAMS[successive][1][:2], (16384, 12288))
    assert forms(successive, V6E, sizes=twice) == ["asynchronous", "asynchronous"]


def test_arrays_do_not_stay_in_memory_for_it():
    """What the other product reads is as large as what is summed, and could be read before."""
    (left,) = forms(layer, V6E)
    (kept,) = forms(layer_of_computed, V6E)
    assert (left, kept) == ("asynchronous", "partial-sums")


def test_all_products_that_can_run_beside_a_sum_count():
    """The gradients of both weights; one of them would hide the sum of the gradient of the rows.

    Two such groups on v5p need 593 MiB if the last sum is left, 401 in chunks, and 336 as it is.
    """
    gather, _, scattered, _, last = forms(mlp_gradient, FLAT)
    assert "of memory more" in gather
    assert (scattered, last) == ("columns", "columns")


def test_only_products_that_hide_a_gather_count():
    """In 5.44 ms for 6.03, instead of 5.69 with a ring, and with no more memory than as it is."""
    sizes = ((8192, 8192), (8192, 2048), (4096, 8192), (8192, 8192))
    assert forms(gathered_beside_more, V6E, sizes=sizes) == ["asynchronous"]


@pytest.mark.parametrize("machine", [V6E, V5P])
def test_earlier_products_hide_gathers_though_they_are_computed_in_chunks(machine):
    """In 16.21 ms for 16.61 on v6e, and 24.45 for 25.10 on v5p, with 51 and 261 MiB less."""
    gathers = forms(gated_gradient, machine)[:3]
    assert gathers == ["columns", "asynchronous", "asynchronous"]


@pytest.mark.parametrize(("columns", "is_sent"), [(8192, True), (4096, False), (1024, False)])
def test_programs_in_which_nothing_is_rewritten(columns, is_sent):
    """With the options compilers choose other kernels: much must be hidden."""
    sizes = ((16384, 8192), (8192, 256), (4096, 8192), (8192, columns))
    (found,) = forms(gathered, V6E, sizes=sizes)
    assert (found == "asynchronous") == is_sent
    with shmap_passes.make_context(), recording() as chosen:
        lowered = body(gathered, sizes)
        before = str(lowered)
        shmap_passes.run(lowered, [ChooseOverlap(machine=V6E.text)])
        assert str(lowered) == before
    assert [each.form.name for each in chosen] == is_sent * ["asynchronous"]


@pytest.mark.parametrize("machine", [V6E, V5P])
@pytest.mark.parametrize("rows", [32768, 131072])
def test_sums_of_gradients_are_left_if_products_would_be_late(machine, rows):
    """libtpu for v6e needs 672 MiB for the larger one, 833 with a sum in chunks, and 352 as it is.

    For the smaller one libtpu for v5p needs 217 MiB with both in chunks, and 144.
    """
    for form in forms(data_parallel, machine, ((rows, 2048), (2048, 8192), (8192, 2048))):
        assert "what they read stay in memory" in form or "of the plain time" in form


@pytest.mark.parametrize("machine", [V6E, V5P])
def test_sums_of_gradients_run_beside_products(machine):
    """In 0.26 ms for 0.31 on v6e, and 0.32 for 0.36 on v5p."""
    sizes = ((32768, 512), (512, 4096), (4096, 512))
    assert "asynchronous" in forms(data_parallel, machine, sizes)
