"""What is taken for granted of libtpu for a chip that was not measured."""

from shmap_passes.cost import libtpu
from shmap_passes.cost.chips import H100_SXM, TPU_7X
from shmap_passes.cost.machine import Machine
from shmap_passes.cost.networks import Nodes, Torus

NOT_MEASURED = Machine(TPU_7X, Torus((2, 2, 2), (False,) * 3, 90e9), tuple(range(8)), True)
GPU = Machine(H100_SXM, Nodes(1, 8, 450e9, 400e9, measured=True), tuple(range(8)))


def test_a_chip_that_was_not_measured_is_taken_to_need_more_memory():
    assert libtpu.adds_last(NOT_MEASURED)
    assert libtpu.keeps_exchanged(NOT_MEASURED)
    assert libtpu.exchanges_in_vmem(NOT_MEASURED, 16 << 20)
    assert libtpu.keeps_beside_sums(NOT_MEASURED)


def test_gpus_have_no_order_that_libtpu_needs():
    assert not libtpu.adds_last(GPU)
    assert not libtpu.keeps_beside_sums(GPU)
