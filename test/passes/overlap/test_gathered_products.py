"""Gathers that are left, whose products are computed one right after the other."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
import shmap_passes
from jax import lax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from shmap_passes import find_ops
from shmap_passes.cost.chips import TPU_7X
from shmap_passes.overlap.choose.gathered_products import kept_too_long
from shmap_passes.overlap.choose_overlap import ChooseOverlap
from shmap_passes.overlap.form import read
from test_choices import V5E, V5P, V6E

from shmap_compiler import shard_map
from shmap_compiler.stages.overlap_report import report_of

GIVEN = P("i"), P(None, "i"), P(None, "i"), P("i"), P()
SHAPES = (16384, 4096), (4096, 2048), (16384, 2048), (2048, 8192), (256, 256)


def gather(x):
    return lax.all_gather(x, "i", axis=0, tiled=True)


def scattered(x, w):
    return lax.psum_scatter(x @ w, "i", scatter_dimension=0, tiled=True)


def weight(x, g):
    return jnp.einsum("mk,mn->kn", x, g)


def gradient(dy, w, x, u, v):
    """Of a layer: the first product leads on to a sum, the second one is the gradient of `w`."""
    g = gather(dy)
    return scattered((g @ w) @ v, u), weight(x, g)


def transposed(dy, w, x, u, v):
    g = gather(dy)
    return scattered((g @ w) @ v, u), weight(g, x).T.astype("float32")


def activated(dy, w, x, u, v):
    """The activation is computed with the first product."""
    g = gather(dy)
    return scattered(jnp.tanh((g @ w).T).T, u), weight(x, g)


def read_by_others(dy, w, x, u, v):
    g = gather(dy)
    return scattered((g @ w) @ v, u), weight(x, g), g.sum()


def in_a_chain(dy, w, x, u, v):
    """The second product needs the first one."""
    g = gather(dy)
    y = g @ w
    return scattered(y @ v, u), weight(y, g)


def computed_later(dy, w, x, u, v):
    """What the second product reads is computed after the first one."""
    g = gather(dy)
    return scattered((g @ w) @ v, u), weight(jnp.sin(x), g)


def leading_on(dy, w, x, u, v):
    """Nothing is only returned."""
    g = gather(dy)
    return scattered((g @ w) @ v, u), v @ weight(x, g)


def returned(dy, w, x, u, v):
    """Nothing leads on."""
    g = gather(dy)
    return scattered(x, u), g @ w, weight(x, g)


def wide(dy, w, x, u, v):
    """The gradient of the weight is as large as what is gathered."""
    many = jnp.tile(x, (1, 64))
    g = gather(dy)
    return scattered((g @ w) @ v, u), weight(many, g)


def only_gathered(dy, w, x, u, v):
    """No form is chosen."""
    g = gather(dy)
    return (g @ w) @ v, weight(x, g)


def mapped_of(fun):
    mesh = AbstractMesh((8,), ("i",))
    return shard_map(fun, mesh=mesh, in_specs=GIVEN, out_specs=P(), check_vma=False)


def types_of(shapes):
    return [jax.ShapeDtypeStruct(shape, "bfloat16") for shape in shapes]


def module_of(fun, shapes=SHAPES):
    return ir.Module.parse(mapped_of(fun).lower(*types_of(shapes)).as_text("body"))


def ordered(fun, machine, shapes=SHAPES):
    """The forms that are written, in program order by the kind of collective."""
    with shmap_passes.make_context():
        module = module_of(fun, shapes)
        shmap_passes.run(module, [ChooseOverlap(machine=machine.text, may_round=True)])
        names = ["stablehlo.all_gather", "stablehlo.reduce_scatter"]
        forms = [read(op) for op in find_ops(module.operation, names)]
        return [form.name for form in forms if form]


def test_products_that_hide_a_collective_may_be_late():
    with shmap_passes.make_context():
        module = module_of(gradient)
        pass_ = ChooseOverlap(machine=V5E.text, may_round=True)
        gathered, summed = pass_.choices(module.operation.opview)
        assert [gathered.is_together, summed.is_together] == [True, False]
        assert kept_too_long([gathered, summed], V5E) == [gathered.site.op]
        hidden = dataclasses.replace(summed, beside=gathered.site.products[:1])
        assert kept_too_long([gathered, hidden], V5E) == []
        hidden = dataclasses.replace(summed, beside=summed.site.products)
        assert kept_too_long([gathered, hidden], V5E) == [gathered.site.op]


def test_on_a_chip_that_was_not_tried_the_order_is_the_compilers():
    with shmap_passes.make_context():
        module = module_of(gradient)
        found = ChooseOverlap(machine=V5E.text, may_round=True).choices(module.operation.opview)
        assert kept_too_long(found, dataclasses.replace(V5E, chip=TPU_7X)) == []


@pytest.mark.parametrize("machine", [V5E, V6E])
@pytest.mark.parametrize("fun", [gradient, transposed])
def test_what_is_gathered_for_a_gradient_is_released(fun, machine):
    assert "together" in ordered(fun, machine)


def test_the_report_says_which_products_are_ordered():
    lowered = mapped_of(gradient).lower(*types_of(SHAPES), overlap="auto", overlap_rounding=True)
    report = report_of(lowered.snapshots, lowered.overlap, V5E, is_judged=False)
    assert [choice.is_together for choice in report.choices] == [True, False]
    _, gathered, scattered = str(report).splitlines()
    assert "; its products one after the other " in gathered
    assert "; its products" not in scattered


def test_on_v5p_it_would_not_need_less_memory():
    assert "together" not in ordered(gradient, V5P)


@pytest.mark.parametrize(
    "fun", [activated, read_by_others, in_a_chain, computed_later, leading_on, returned, wide]
)
def test_gathers_that_would_not_be_released(fun):
    found = ordered(fun, V5E)
    assert found
    assert "together" not in found


def test_small_arrays_stay():
    assert "together" not in ordered(
        gradient, V5E, ((1024, 4096), SHAPES[1], (1024, 2048), *SHAPES[3:])
    )


def test_where_nothing_is_rewritten_the_order_is_the_compilers():
    assert ordered(only_gathered, V5E) == []
