"""A dataflow says of each value what MLIR says: who computes it, and who reads it how often."""

import re
from collections import Counter
from pathlib import Path

import pytest
import shmap_passes
from jaxlib.mlir import ir
from shmap_passes.ir.dataflow import Dataflow, Dataflows, dataflows
from shmap_passes.ir.ops import walk

LIT = Path(__file__).parents[1] / "overlap"


def blocks(path):
    """All blocks of the modules of a lit test."""
    for text in re.split(r"(?m)^// -----", path.read_text()):
        try:
            module = ir.Module.parse(text)
        except ir.MLIRError:
            continue
        for op in walk(module.operation):
            for region in op.regions:
                yield from region.blocks


def in_block(op, block):
    while op.block != block:
        op = op.parent.operation
    return op


def users(value, block):
    """The operations of a block that read a value, or hold one that does."""
    return Counter(in_block(use.owner.operation, block) for use in value.uses)


@pytest.mark.parametrize("path", sorted(LIT.glob("*.mlir")), ids=lambda path: path.stem)
def test_users_and_sources_are_those_of_mlir(path):
    with shmap_passes.make_context(), ir.Location.unknown():
        for block in blocks(path):
            flow = Dataflow(block)
            assert [node.op for node in flow.nodes] == [op.operation for op in block.operations]
            for number, node in enumerate(flow.nodes):
                assert (node.number, node.name) == (number, node.op.name)
                assert list(node.operands) == list(node.op.operands)
                for value in node.results:
                    assert flow.source(value) is flow.node(node.op) is node
                    assert Counter(n.op for n in flow.users(value)) == users(value, block)
            for value in block.arguments:
                assert flow.source(value) is None
                assert Counter(n.op for n in flow.users(value)) == users(value, block)


def test_each_block_is_read_once():
    with shmap_passes.make_context(), ir.Location.unknown():
        module = ir.Module.parse("func.func @f(%x: tensor<2xf32>) { return }")
        block = module.body.operations[0].regions[0].blocks[0]
        flows = dataflows(module.operation.opview)
        assert isinstance(flows, Dataflows)
        assert flows.of(block) is flows.of(block)
