"""What libtpu 0.0.50.1 keeps in VMEM, and what in memory, by chip: from its schedules."""

from __future__ import annotations

from .libtpu import GATHERS_BY_ITSELF
from .machine import Machine
from .work import ProductShape, Work


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


def slows_sums(machine: Machine) -> bool:
    """Whether sums that are left take longer with the options, as what they add is stored.

    On v6e, attention with 8192 rows of 4096 on two groups of eight took 1.30 ms with a ring, and
    1.16 without: its sum of 64 MiB was left, and its product took 201 instead of 68 us.
    """
    return machine.chip.name == "TPU v6e"


def holds_in_vmem(machine: Machine, size: int, *, is_computed: bool = False) -> bool:
    """Whether an operand that all pieces of a product read is read from memory only once.

    Args:
      is_computed: whether the program may compute it. An argument of 64 MiB stayed in the VMEM of
        v5e and v6e, and what a gradient computes did not.
    """
    is_small = is_computed or machine.chip.name not in ("TPU v5e", "TPU v6e")
    return size < (64 << 20 if is_small else 128 << 20)


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


def keeps_gathered(machine: Machine) -> bool:
    """Whether arrays need less memory if all products of one are computed one after the other.

    The gradient of two transformer layers took 1644 MiB of temporaries for 1853 on v5e, and 1954
    for 2210 on v6e, and as much time as before; that of four 3034 for 3243 on v5e. On v5p it took
    1902 for 1870, and that of four layers took as much as before, and 1% more time. Other chips
    were not tried.
    """
    return machine.chip.name in ("TPU v5e", "TPU v6e")


def keeps_beside_sums(machine: Machine) -> bool:
    """Whether arrays stay in memory beside partial sums, because products read them afterwards.

    On v5p a gradient of e with 262144 rows of 512 columns, on 32 devices, took 663 MiB of
    temporaries, and 642 (640 without partial sums) with such products first, in the same time. On
    v6e it took 586 MiB both ways, and was 1% slower; two others on v5e were 0.3 and 2.5% slower.
    """
    return machine.is_tpu and machine.chip.name not in ("TPU v5e", "TPU v6e")


def keeps_exchanged(machine: Machine) -> bool:
    """Whether chunks of exchanges in one loop need more memory if another loop exchanges, too.

    With `jax.checkpoint`, the gradient of a scan over four layers of f took 897 MiB of temporaries
    on v5p with chunks of the forward pass, and 768 without; 835 and 770 on v6e, 833 and 897 on v5e.
    """
    return machine.chip.name != "TPU v5e"


def adds_last(machine: Machine) -> bool:
    """Whether the products of all chunks stay in memory, to be added up beside the last of them.

    The gradient of f then took 301 MiB of temporaries on v6e instead of 192, and 179 if each sum is
    stored before the product of the next chunk. Assumed of other chips than v5e and v5p.
    """
    return machine.is_tpu and machine.chip.name not in ("TPU v5e", "TPU v5p")
