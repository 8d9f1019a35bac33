"""Which products libtpu 0.0.50.1 computes in one kernel, and which pieces take longer than others.

By chip, from its schedules.
"""

from __future__ import annotations

from .machine import Machine
from .overlap import FEWEST_ROWS
from .work import ProductShape, Work


def fewest_rows(work: Work, machine: Machine) -> int:
    """Of a piece of a ring, so that it takes about as long as expected.

    With 512 to 2048 rows in all on eight devices, 29 of 37 rings took 0.92 to 1.07 times what they
    should, and the others 0.83 to 1.29 times. Those of other operands of 56 MiB took 1.0 times as
    long on v5e, but one 1.7 times on v6e with 64 rows in a piece, and two 2.2 and 3.5 times on v5p
    with 128 and 64.
    """
    other = max(p.batch * p.k * p.n for p in work.products)
    is_large = work.element_bytes * other >= 40 << 20
    return FEWEST_ROWS if is_large and machine.chip.name != "TPU v5e" else 64


def fewest_rows_added(machine: Machine) -> int:
    """The same of a piece that is added to a sum on its way.

    With 1024 to 4096 rows in all on eight devices of v5e, eight products took 0.87 to 1.03 times
    what they should. On v6e and v5p sums of as few rows were faster in chunks of columns.
    """
    return 32 if machine.chip.name == "TPU v5e" else FEWEST_ROWS


def joins_products(work: Work, machine: Machine) -> bool:
    """Whether a product is computed in one kernel with the one before it, which is not stored.

    libtpu for v6e does so where the result has up to 512 columns. Beside the activation of an MLP
    block the second product then takes no time.
    """
    is_measured = machine.chip.name == "TPU v6e" and work.source == "product"
    return is_measured and any(_is_joined(product, machine) for product in work.products)


def separates_products(work: Work, machine: Machine) -> bool:
    """Whether pieces of a product need a place for rows that the plain program does not store.

    That is more than the product needs in the plain program if the rows are wider and do not stay
    in VMEM: on v6e, on 16 devices, e with 262144 rows of 256 columns took 1.95 ms for 2.38 with
    partial sums and 8192 columns between, and 385 MiB for 256; with 32768 columns 3.98 ms for 3.41,
    and 1153 MiB. With 4096 it took 1.66 for 2.35, and 257 MiB. On v5e it took 4.12 for 4.83 and 385
    MiB, 9.36 for 7.10 and 1153 MiB, and 3.44 for 4.76 and 257 MiB. Rows of 64 MiB stayed in VMEM,
    and so did those of 128 MiB in f32, which are stored as bf16: with 32768 rows of 512 columns,
    and 16384 between, e took 1.03 ms for 2.02 on v5e, and 2 MiB for 64.
    """
    is_narrowed = work.element == "f32" and not work.is_precise
    stored = 2 if is_narrowed else work.element_bytes
    return work.source == "product" and any(
        (_is_joined(product, machine) or _is_joined_if_wide(product, machine))
        and product.k > product.n
        and stored * product.batch * product.m * product.k > 64 << 20
        for product in work.products
    )


def _is_joined(product: ProductShape, machine: Machine) -> bool:
    """Whether the plain program does not store the rows of a product that another computes.

    With 131072 rows of 512 columns, those of 1024 were not stored on v5e and v5p, and those of 2048
    were on v5e. With 262144 rows of 256 columns, those of 2048 were not stored.
    """
    is_large = machine.chip.name in ("TPU v5e", "TPU v5p") and product.k > 1024
    return product.n <= (256 if is_large else 512)


def _is_joined_if_wide(product: ProductShape, machine: Machine) -> bool:
    """The same of products whose rows have thousands of columns.

    With 32768 rows on 16 devices: between 512 columns, rows of 6144 to 32768 were not stored, and
    rows of 4096 only on v5e and v5p. Between 1024, those of 4096 were stored, those of 6144 were
    not, and those of 8192 and more were on v5e and v5p. e with 512 columns and 16384 between, in
    f32, took 8.51 ms for 8.17 on v5e with partial sums, and 1025 MiB for 64.
    """
    most = 768 if machine.chip.name in ("TPU v5e", "TPU v5p") and product.k >= 8192 else 1024
    return product.k > 4096 and product.n <= most


def computes_where_read(machine: Machine, inner: int, between: int, columns: int) -> bool:
    """Whether a product is computed in one kernel with the only one that reads its rows.

    The plain program does not store the rows then. Right for 373 of 408 products of 65536 rows in
    bf16 and f32 on v5e, v6e and v5p: x@w, gelu, @v with 128 to 2048 inner numbers, more between the
    products, up to 16384, and 256 to 4096 columns of the second one. Wrong are mostly those with
    4096 between.
    """
    if inner <= 128 or between <= 512:
        return True
    if machine.chip.name in ("TPU v5e", "TPU v5p"):
        most = 2048 if inner <= 256 else 1024
        is_short = between >= 8192 or columns <= 256 or (between <= most and columns <= 1024)
        return inner <= 512 and is_short
    if inner > 1024 and columns > 1024:
        return False
    is_short = between <= 2048 and columns <= 1024 and inner <= 1024
    return inner <= 2048 and (between >= 8192 or columns <= 512 or between <= 1024 or is_short)


def is_slow_apart(machine: Machine, inner: int) -> bool:
    """Whether two products that could be one kernel take longer apart than overlap saves.

    On v5e, gelu(x@w)@v with a gathered x took 17.7, 30.9 and 79.3% longer with a ring, with 256
    inner numbers, 256 columns and 1024 or 2048 between. With 512 it took 6 to 25% less time. On v6e
    they all took 13 to 26% less; on v5p those are left that would need more memory.
    """
    return machine.chip.name == "TPU v5e" and inner <= 256


def stores_before_moves(machine: Machine) -> bool:
    """Whether products of gathered sequences are better stored before heads are taken apart.

    Of nine blocks with scores in bf16, on v6e five took 2 to 10% longer with heads that are apart,
    on v5e one 3%, and on v5p two 3 and 5%, and one 6% less. Three with scores in f32 took 45% less
    time so on v5e and v5p, and as much on v6e.
    """
    return machine.chip.name == "TPU v6e"


def adds_slowly(machine: Machine, rows: float, product: ProductShape) -> bool:
    """Whether a piece of a product that adds to a sum waits longer for memory than others do.

    On v6e a piece of 512 rows and 8192 columns takes 24, 26, 27, 43, 52, 55, 35 and 41 us for 1280,
    1536, 1792, 2048, 2304, 2560, 3072 and 3584 inner numbers. One of 12288 columns and 2048 inner
    numbers takes 71 us; those with 6144 columns, or with 256 or 1024 rows, as long as expected. So
    do those with 256 rows of 4096, but for 4096 columns: 26 us, for 11 expected. On v5p one of 256
    rows of 2048, and 4096 columns, takes 20 us for 14. Others of 64 sizes did not.
    """
    sizes = (rows, product.k, product.n)
    if machine.chip.name == "TPU v6e" and 256 < rows <= 512:
        return 2048 <= product.k < 3072 and product.n >= 8192
    slow = {"TPU v6e": (256, 4096, 4096), "TPU v5p": (256, 2048, 4096)}
    return slow.get(machine.chip.name) == sizes
