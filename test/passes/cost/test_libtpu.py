"""What is taken for granted of libtpu for a chip that was not measured, and what was measured."""

from dataclasses import replace

import pytest
from shmap_passes.cost import libtpu_kernels, libtpu_memory
from shmap_passes.cost.chips import H100_SXM, TPU_7X, TPU_V5E, TPU_V5P, TPU_V6E
from shmap_passes.cost.machine import Machine
from shmap_passes.cost.networks import Nodes, Torus
from shmap_passes.cost.work import ProductShape, Work

NOT_MEASURED = Machine(TPU_7X, Torus((2, 2, 2), (False,) * 3, 90e9), tuple(range(8)), True)
GPU = Machine(H100_SXM, Nodes(1, 8, 450e9, 400e9, measured=True), tuple(range(8)))


def between_products(rows, columns, inner, element="bf16", element_bytes=2):
    """A sum of 16 devices, of a product with rows that only another product computes."""
    return Work(
        "product-scatter",
        (ProductShape(1, rows, columns, inner),),
        groups=(tuple(range(16)),),
        element=element,
        element_bytes=element_bytes,
        received=15 * rows // 16 * columns * element_bytes,
        cut=rows // 16,
        source="product",
    )


def test_a_chip_that_was_not_measured_is_taken_to_need_more_memory():
    assert libtpu_memory.adds_last(NOT_MEASURED)
    assert libtpu_memory.keeps_exchanged(NOT_MEASURED)
    assert libtpu_memory.exchanges_in_vmem(NOT_MEASURED, 16 << 20)
    assert libtpu_memory.keeps_beside_sums(NOT_MEASURED)
    assert libtpu_memory.keeps_all_in_vmem(NOT_MEASURED, 112 << 20, 32 << 20)
    assert libtpu_memory.gathers_from_vmem(NOT_MEASURED, 64 << 20)


def test_pieces_on_a_chip_that_was_not_measured_are_taken_to_need_rows_in_memory():
    between = between_products(65536, 512, 1024)
    assert libtpu_kernels.separates_products(between, NOT_MEASURED)
    assert libtpu_memory.keeps_rows(between, NOT_MEASURED, 64 << 20)
    assert not libtpu_memory.keeps_rows(between, NOT_MEASURED, 32 << 20)
    assert not libtpu_memory.keeps_rows(replace(between, source="shared"), NOT_MEASURED, 64 << 20)


@pytest.mark.parametrize(
    ("chip", "columns", "between", "expected"),
    [
        (TPU_V5E, 512, 4096, False),
        (TPU_V5E, 512, 6144, True),
        (TPU_V5P, 512, 16384, True),
        (TPU_V5P, 768, 16384, True),
        (TPU_V5E, 1024, 4096, False),
        (TPU_V5E, 1024, 6144, True),
        (TPU_V5E, 1024, 8192, False),
        (TPU_V6E, 1024, 4096, False),
        (TPU_V6E, 1024, 8192, True),
        (TPU_V6E, 2048, 8192, False),
        (TPU_V6E, 512, 2048, True),
    ],
)
def test_wide_rows_that_are_not_stored(chip, columns, between, expected):
    work = between_products(32768, columns, between)
    machine = replace(NOT_MEASURED, chip=chip)
    assert libtpu_kernels.separates_products(work, machine) == expected
    assert not libtpu_kernels.separates_products(replace(work, source="argument"), machine)


def test_rows_in_f32_are_stored_as_bf16_unless_a_product_asks_for_more():
    work = between_products(32768, 512, 1024, "f32", 4)
    machine = replace(NOT_MEASURED, chip=TPU_V5E)
    assert not libtpu_kernels.separates_products(work, machine)
    assert libtpu_kernels.separates_products(replace(work, is_precise=True), machine)


@pytest.mark.parametrize(
    ("inner", "between", "columns", "on_v5", "on_v6e"),
    [
        (128, 2048, 4096, True, True),
        (256, 2048, 1024, True, True),
        (256, 4096, 1024, False, False),
        (512, 1024, 1024, True, True),
        (512, 2048, 1024, False, True),
        (512, 2048, 256, True, True),
        (512, 8192, 4096, True, True),
        (1024, 2048, 512, False, True),
        (1024, 8192, 2048, False, True),
        (2048, 8192, 1024, False, True),
        (2048, 8192, 2048, False, False),
        (4096, 8192, 256, False, False),
        (4096, 512, 256, True, True),
    ],
)
def test_which_products_are_in_one_kernel(inner, between, columns, on_v5, on_v6e):
    for chip, expected in ((TPU_V5E, on_v5), (TPU_V5P, on_v5), (TPU_V6E, on_v6e)):
        machine = replace(NOT_MEASURED, chip=chip)
        assert libtpu_kernels.computes_where_read(machine, inner, between, columns) == expected


def test_loops_on_a_chip_that_was_not_measured_are_taken_to_copy_nothing():
    loop = Work(
        "gathering-loop",
        (ProductShape(1, 8192, 512, 512),),
        groups=(tuple(range(8)),),
        element="f32",
        element_bytes=4,
        received=7 * 64 * 512 * 4,
        trips=8,
        copied=8192 * 512 * 4 + 4,
    )
    assert libtpu_memory.carries_in_vmem(loop, NOT_MEASURED)
    assert not libtpu_memory.carries_in_vmem(loop, GPU)
    assert not libtpu_memory.carries_in_vmem(replace(loop, element="bf16"), NOT_MEASURED)


def test_blocks_in_f32_stay_in_vmem_on_v6e():
    """Four with 8192 rows of 1024 took 0.45 ms, and 0.50 unrolled; with 4096 between 1.63, 1.35."""
    loop = Work(
        "gathering-loop",
        (ProductShape(1, 8192, 1024, 1024),) * 2,
        groups=(tuple(range(8)),),
        element="f32",
        element_bytes=4,
        received=2 * 7 * 128 * 1024 * 4,
        trips=4,
        copied=8192 * 1024 * 4,
    )
    machine = replace(NOT_MEASURED, chip=TPU_V6E)
    assert libtpu_memory.carries_in_vmem(loop, machine)
    assert not libtpu_memory.carries_in_vmem(loop, replace(machine, chip=TPU_V5P))
    assert not libtpu_memory.carries_in_vmem(replace(loop, products=loop.products[:1]), machine)
    assert not libtpu_memory.carries_in_vmem(replace(loop, copied=65 << 20), machine)
    wider = (ProductShape(1, 8192, 4096, 1024), ProductShape(1, 8192, 1024, 4096))
    assert not libtpu_memory.carries_in_vmem(replace(loop, products=wider), machine)


def test_gpus_have_no_order_that_libtpu_needs():
    assert not libtpu_memory.adds_last(GPU)
    assert not libtpu_memory.keeps_beside_sums(GPU)
