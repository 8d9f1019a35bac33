"""Which products of a block can run beside its collectives."""

import pytest
import shmap_passes
import test_asynchronous as programs
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from shmap_passes.ir.body_form import read_body_form
from shmap_passes.ir.collective_ops import COLLECTIVES
from shmap_passes.ir.dataflow import Dataflow
from shmap_passes.overlap.find.independence import Independence


def beside(fun):
    """For each collective, which products run beside it: 0 is the first one of the program."""
    with shmap_passes.make_context():
        module = ir.Module.parse(str(programs.body(fun))).operation.opview
        flow = Dataflow(read_body_form(module).main.operation.regions[0].blocks[0])
        found = Independence(flow)
        sent = [node.number for node in flow.nodes if node.name in COLLECTIVES]
        return [[found.products.index(n) for n in found.beside(each)] for each in sent]


def gathered_twice(x, v, w):
    for each in (v, w):
        x = x @ lax.all_gather(each, "i", tiled=True)
    return x


programs.PROGRAMS[gathered_twice] = ((P("i"),) * 3, ((64, 32),) + ((32, 32),) * 2, P("i"))


@pytest.mark.parametrize(
    ("fun", "expected"),
    [
        (programs.layer, [[1]]),
        (programs.gathered, [[1]]),
        (programs.two_layers, [[1, 2], [0, 2]]),
        # What is between a sum and the product that needs it does not matter.
        (programs.chain, [[]]),
        # The second product waits for the second sum; the first waits for neither.
        (programs.last, [[], [0]]),
        # A product that waits for an earlier gather is early enough for a later one.
        (gathered_twice, [[], [0]]),
        # Both sums come before what needs the first; the last product needs the first one only.
        (programs.layer_of_scaled, [[], [2]]),
    ],
)
def test_products_beside_collectives(fun, expected):
    assert beside(fun) == expected
