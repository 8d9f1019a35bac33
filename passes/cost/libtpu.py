"""Beside which collectives libtpu 0.0.50.1 computes, by chip and slice: from its schedules."""

from __future__ import annotations

from collections.abc import Iterable

from .machine import Machine
from .networks import Torus
from .overlap import ProductShape, Work

GATHERS_BY_ITSELF = "TPU v5e"
"""Only libtpu for this chip sends an all-gather while it computes without being told to."""


def rings(work: Work, machine: Machine) -> int | None:
    """Over how many rings, each in one direction, something is sent; None for all links.

    A SparseCore scatters round one ring, both ways, though a v5p has more links. So do all gathers
    in slices of v5p that do not wrap around, as 2x2x2 and 2x4x4; that of 4x4x4 does not tell.
    """
    if work.pattern == "product-scatter":
        return 2
    if work.pattern in ("product-sum", "all-to-all") or machine.chip.name != "TPU v5p":
        return None
    network = machine.network
    return 2 if isinstance(network, Torus) and not any(network.wraps) else None


def starts_gathers(machine: Machine) -> bool:
    return machine.chip.name == GATHERS_BY_ITSELF or machine.compiler_options


def gathers_alone(work: Work, machine: Machine) -> bool:
    """Whether nothing is computed while a group gathers.

    libtpu for v5p leaves a gather to the SparseCore where the group extends along one dimension of
    the slice, and on 2x2x2. Its schedules for 2x2x1, 2x2x4 and 2x4x4 compute beside no other one.
    """
    is_v5p = machine.chip.name == "TPU v5p"
    is_cube = _extents(range(len(machine.places)), machine) == [2, 2, 2]
    return is_v5p and _dimensions(work, machine) > 1 and not is_cube


def adds_meanwhile(machine: Machine) -> bool:
    """Whether reduce-scatters and all-reduces run on the SparseCore, beside products.

    With its options libtpu leaves them to it on all slices that were tried: v5p 2x2x1, 2x2x2 and
    2x2x4, v6e 2x4 and 4x4.
    """
    return machine.chip.name in ("TPU v5p", "TPU v6e") and machine.compiler_options


def _dimensions(work: Work, machine: Machine) -> int:
    """Along how many dimensions of the slice a group extends."""
    return sum(size > 1 for size in _extents(work.groups[0], machine))


def is_all_reduced(work: Work, machine: Machine) -> bool:
    """Whether libtpu scatters sums by an all-reduce and a slice.

    It does on v5p if the group extends along all dimensions, and on v5e and v6e if it is a square
    of at least 4x4.
    """
    if machine.chip.name in ("TPU v5e", "TPU v6e"):
        rows, columns = _extents(work.groups[0], machine)
        return rows == columns >= 4 and rows * columns == work.count
    return machine.chip.name == "TPU v5p" and _dimensions(work, machine) == 3


def _extents(devices: Iterable[int], machine: Machine) -> list[int]:
    """The number of different coordinates along each dimension."""
    places = (machine.places[device] for device in devices)
    return [len(set(along)) for along in zip(*places, strict=True)]


def stays_in_vmem(machine: Machine, size: int) -> bool:
    """Whether pieces of a product do not wait for memory for so many bytes that they store.

    Partial sums of small c on v5e do not. On v6e pieces of 1024 inner numbers took 6.2, 24 and 43
    us for results of 4, 8 and 16 MiB.
    """
    most = {"TPU v6e": 4 << 20, "TPU v5e": 2 << 20}
    return size <= most.get(machine.chip.name, 0)


def keeps_product(machine: Machine, size: int) -> bool:
    """Whether what a whole product stores does not wait for memory, as it may stay in VMEM.

    Those of up to 64 MiB took at most 1.3 times what the memory needs on v5e and v6e, and 4 on v5p.
    """
    return machine.chip.name in ("TPU v5e", "TPU v6e") and size <= 64 << 20


def holds_in_vmem(machine: Machine, size: int, *, is_computed: bool = False) -> bool:
    """Whether an operand that all pieces of a product read is read from memory only once.

    Args:
      is_computed: whether the program may compute it. An argument of 64 MiB stayed in the VMEM of
        v5e and v6e, and what a gradient computes did not.
    """
    is_small = is_computed or machine.chip.name not in ("TPU v5e", "TPU v6e")
    return size < (64 << 20 if is_small else 128 << 20)


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


def waits_for_operand(machine: Machine, size: int, product: ProductShape, *, adds: bool) -> bool:
    """Whether a piece of a product waits until it has read the other operand, of this size.

    VMEM may not hold it, and on v5p pieces that add to a sum wait for less: c with
    32768 rows, 3584 inner numbers on each of eight devices and 8192 columns, so that the operand
    has 56 MiB, took 6.11 ms in partial sums and 4.62 in 16 chunks of columns; with 16384 rows 2.75
    and 2.39. Operands of up to 32 MiB made no such difference, and v5e and v6e read this one beside
    the product.
    """
    if adds and machine.chip.name not in ("TPU v5e", "TPU v6e"):
        return size >= 40 << 20
    return not holds_in_vmem(machine, size, is_computed=not product.is_given)


def adds_last(machine: Machine) -> bool:
    """Whether the products of all chunks stay in memory, to be added up beside the last of them.

    The gradient of f then took 301 MiB of temporaries on v6e instead of 192, and 179 if each sum is
    stored before the product of the next chunk. Assumed of other chips than v5e and v5p.
    """
    return machine.is_tpu and machine.chip.name not in ("TPU v5e", "TPU v5p")


def keeps_exchanged(machine: Machine) -> bool:
    """Whether chunks of exchanges in one loop need more memory if another loop exchanges, too.

    With `jax.checkpoint`, the gradient of a scan over four layers of f took 897 MiB of temporaries
    on v5p with chunks of the forward pass, and 768 without; 835 and 770 on v6e, 833 and 897 on v5e.
    """
    return machine.chip.name != "TPU v5e"


def exchanges_in_vmem(machine: Machine, size: int) -> bool:
    """Whether what is exchanged in a whole gradient of experts needs no place in memory.

    With arrays of 16 MiB, f needs no temporaries on v5e and v6e, and its gradient in chunks 17 MiB.
    """
    return machine.chip.name != "TPU v5p" and size <= 16 << 20


def carries_in_vmem(work: Work, machine: Machine) -> bool:
    """Whether a loop does not copy what its steps pass on, and takes longer for two steps at once.

    libtpu for v5e computes the products of two steps in one kernel then. With f32 of 512 columns,
    gathered by 8 of 16 devices, and 24 or 8 layers, g took 0.30, 0.44, 0.72 and 0.43 ms for 2048,
    4096, 8192 and 16384 rows, and unrolled 0.27, 0.44, 0.76 and 0.47. In bf16 it took 2.42 ms for
    8192 rows, and 0.77; with 1024 columns, 0.91 and 0.78. v6e and v5p gained at least 18%, but on
    v6e four MLP blocks in f32 with 8192 rows of 1024 columns, also between their products, took
    0.45 ms, and 0.50 unrolled. With 4096 between they took 1.63 and 1.35.
    """
    if not machine.is_tpu or machine.chip.name == "TPU v5p" or work.element != "f32":
        return False
    if machine.chip.name == "TPU v6e":
        is_narrow = all(product.n <= 1024 for product in work.products)
        return is_narrow and len(work.products) > 1 and work.copied <= 64 << 20
    results = sum(product.batch * product.m * product.n for product in work.products)
    is_narrow = all(product.n <= 512 for product in work.products)
    return is_narrow and work.copied <= 1.01 * work.element_bytes * results <= 64 << 20


def keeps_beside_sums(machine: Machine) -> bool:
    """Whether arrays stay in memory beside partial sums, because products read them afterwards.

    On v5p a gradient of e with 262144 rows of 512 columns, on 32 devices, took 663 MiB of
    temporaries, and 642 (640 without partial sums) with such products first, in the same time. On
    v6e it took 586 MiB both ways, and was 1% slower; two others on v5e were 0.3 and 2.5% slower.
    """
    return machine.is_tpu and machine.chip.name not in ("TPU v5e", "TPU v6e")


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


def stores_rows(work: Work, machine: Machine) -> bool:
    """Whether pieces of a product in a gradient would need more memory than they save.

    libtpu computes an activation where a product reads it, but for pieces of the product it stores
    the activation, if the gradient also needs what it is computed from. If its rows are wider than
    those that are gathered or scattered, that takes more than the form saves. On v6e the gradient
    of e with 32768 rows of 4096 columns, and 16384 between, took 4066 MiB instead of 1536, and was
    4% slower; on v5p with 8192 rows of 1024, and 2048 between, only its gathers in rings, 139 MiB
    instead of 64, and was 3% slower. On v5e such gradients took 0.96 and 1.07 times the memory, and
    9 and 11% less time. Rows as wide as those need more memory too if VMEM does not hold them: on
    v5p, with 32768 rows of 1024 on each of 16 devices, 258 MiB instead of 192, and 9% less time;
    with 4096 rows of 4096 on 8 devices, 133 MiB instead of 128. Rings for the gathers of the former
    took 327 MiB, and 17% less time. On v5e partial sums of rows more than four times as wide as the
    result are left: with 262144 rows of 512, and 65536 between, on 16 devices, e' took 6402 MiB
    instead of 4864, and 10% less time.
    """
    if machine.chip.name == GATHERS_BY_ITSELF:
        return work.source == "shared" and any(
            product.k > 4 * product.n for product in work.products
        )
    if work.pattern == "gather-product":
        return work.kept > 0 and any(
            product.n > product.k or (product.k == product.n and not _fits(work, product, machine))
            for product in work.products
        )
    return work.source == "shared" and any(
        product.k > product.n or (product.k == product.n and not _fits(work, product, machine))
        for product in work.products
    )


def _fits(work: Work, product: ProductShape, machine: Machine) -> bool:
    """Whether the rows of a product stay in VMEM; they are as wide as its result."""
    size = work.element_bytes * product.batch * product.m * product.k
    return holds_in_vmem(machine, size, is_computed=True)


def keeps_all_in_vmem(machine: Machine, size: int, largest: int) -> bool:
    """Whether nothing that a plain program computes needs a place in memory, or nearly nothing.

    On v6e and v5e none of eleven programs with up to 74 MiB at the peak, in arrays of up to 32 MiB,
    needed temporaries, and two with 48 and 100 MiB needed 32. Assumed of other chips than v5p.

    Args:
      size: of what the program computes, at the peak.
      largest: of one array.
    """
    return machine.chip.name != "TPU v5p" and size <= 112 << 20 and largest <= 32 << 20


def gathers_from_vmem(machine: Machine, size: int) -> bool:
    """Whether a TensorCore gathers a computed array from VMEM; a SparseCore reads memory.

    Cotangents of 16 and 64 MiB needed no place on v6e, and on v5p one of 16, but none of 64. A v5e
    has no SparseCores.
    """
    most = {"TPU v5e": 0, "TPU v5p": 16 << 20}
    return size <= most.get(machine.chip.name, 64 << 20)


def keeps_rows(work: Work, machine: Machine, size: int) -> bool:
    """Whether the activation of an MLP block is in VMEM for a whole product, and not for chunks.

    With 32768 rows of 4096 columns and 8192 between, on eight devices of v6e, it has 64 MiB. The
    plain program needs 256 MiB of temporaries, and 321 in chunks of columns; 257 both ways with an
    activation of 32 MiB. Assumed of other chips than v5e and v5p.
    """
    is_possible = work.source == "product" and machine.chip.name not in ("TPU v5e", "TPU v5p")
    return is_possible and 32 << 20 < size <= 64 << 20


def keeps_gathered(machine: Machine) -> bool:
    """Whether arrays need less memory if all products of one are computed one after the other.

    The gradient of two transformer layers took 1644 MiB of temporaries for 1853 on v5e, and 1954
    for 2210 on v6e, and as much time as before; that of four 3034 for 3243 on v5e. On v5p it took
    1902 for 1870, and that of four layers took as much as before, and 1% more time. Other chips
    were not tried.
    """
    return machine.chip.name in ("TPU v5e", "TPU v6e")
