"""How long libtpu 0.0.50.1 takes products, pieces of them, and copies to run, by its own estimates.

All times are in seconds, on one device.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import libtpu_kernels, libtpu_memory
from .machine import Machine
from .overlap import is_halved, speed
from .work import ProductShape, Work

EXPONENTIALS = {"TPU v5e": 9.3e-12, "TPU v6e": 4.8e-12, "TPU v5p": 3.1e-12}
"""Of one of softmax, with what is before and after it, in f32: from schedules for scores of four
heads of four sequences of 4096 tokens."""

# How much of the published speed large products reach.
_SHARE = {"TPU v5e": 0.97, "TPU v5p": 0.97, "TPU v6e": 0.88, "TPU7x": 0.8}
_SHARE_OF_INT8 = {**_SHARE, "TPU v6e": 0.585}


@dataclass(frozen=True)
class _Pieces:
    """What a piece of a product takes on a chip.

    Attributes:
      products: times what large products take for as many operations.
      seconds: more than that.
      written: times what the memory needs for the result, more than that.
      read: the same for an operand that VMEM does not hold.
      moved: at least so many times what it needs for the rows that are read and written, if the
        result does not stay in VMEM.
      all_moved: and so many times what it needs for them and such an operand.
    """

    products: float
    seconds: float
    written: float
    read: float
    moved: float = 0.0
    all_moved: float = 1.15


# Of schedules for 256, 512 and 1024 rows, 512 to 8192 columns, and as many inner numbers.
_PIECES = {
    "TPU v5e": _Pieces(0.98, 1.9e-6, 0.29, 0.42),
    "TPU v6e": _Pieces(1.03, 0.5e-6, 0.0, 0.7, moved=4.0),
    "TPU v5p": _Pieces(0.97, 2.8e-6, 0.65, 0.8),
}
# Of pieces that add to a sum, and if it is of f32, which libtpu adds in kernels of their own.
_ADDING = {
    "TPU v5e": _Pieces(1.025, 2.5e-6, 0.0, 0.0, moved=2.5, all_moved=1.45),
    "TPU v6e": _Pieces(1.1, 0.4e-6, 0.0, 0.0, moved=2.3, all_moved=1.2),
    "TPU v5p": _Pieces(1.005, 4.2e-6, 0.0, 1.0, moved=4.0),
}
_ADDING_F32 = {
    "TPU v5e": _Pieces(1.1, 1.5e-6, 4.0, 1.0, moved=2.5),
    # Ten programs took 0.42 to 1.25 times what is expected, eight of them 0.73 to 1.25.
    "TPU v6e": _Pieces(1.0, 0.4e-6, 3.3, 0.0, moved=1.6),
    "TPU v5p": _Pieces(1.02, 4.2e-6, 5.6, 1.8),
}
_NOT_MEASURED = _Pieces(1.0, 0.0, 0.0, 1.0, moved=4.0)
_SLOW_FACTOR = 1.8
"""Of kernels that are slow for no reason that is known."""
# How far the estimates are above the published bandwidth for products of wide operands, and copies.
_CHUNK_FACTOR = 1.3
_CHUNK_SECONDS = {"TPU v5e": 1.5e-6, "TPU v6e": 1e-6}
_COPY_FACTOR = 1.6
_NARROWED_FACTOR = {"TPU v5e": 2.5, "TPU v6e": 2.5}
_PLACED_FACTOR = {"TPU v5e": 2.4, "TPU v6e": 2.2}
# The same for what reads an operand from memory that VMEM does not hold: a chunk of rows, one of
# columns, and what a chunk of f32 waits beside its product. A v5p reads for both of its cores.
_ROWS_READS = {"TPU v5e": 1.4, "TPU v6e": 1.2, "TPU v5p": 2.8}
_CHUNK_READS = {"TPU v5e": 1.9, "TPU v6e": 1.6, "TPU v5p": 2.5}
_F32_READS = 1.4
# For how many bytes of memory a whole product waits with each number that it stores, of any type.
_STORED_BYTES = 8


def products(work: Work, machine: Machine) -> float:
    """All products of a step, if they do not wait for memory."""
    return work.flops / peak(work, machine)


def products_of_gathered(work: Work, machine: Machine) -> float:
    """The same of a gathered array, which each of them reads from memory, unless VMEM holds it.

    With 16384 rows of 4096 on each chip, products with 512, 128 and 128 columns took 0.87, 0.36 and
    0.34 ms on v5e, v6e and v5p, and would take 0.54, 0.13 and 0.23 if they did not wait. Reading
    takes 1.1 to 1.8 times what the memory needs, of which this takes 1.
    """
    seconds = 0.0
    for product in work.products:
        numbers = product.batch * product.m * product.k
        size = (2 if is_halved(work, machine) else work.element_bytes) * numbers
        is_held = libtpu_memory.keeps_product(machine, size)
        read = 0.0 if is_held else size / machine.chip.hbm_bandwidth
        seconds += max(product.flops / peak(work, machine), read)
    return seconds


def piece(
    work: Work,
    machine: Machine,
    product: ProductShape,
    pieces: int,
    *,
    adds: bool = False,
    is_wide: bool = False,
) -> float:
    """One of so many pieces of a product.

    Args:
      adds: whether it also reads a sum that it adds to.
      is_wide: whether the sum is of f32, though the operands are not.
    """
    rows = product.batch * product.m / pieces
    read = work.element_bytes * rows * product.k
    written = (4 if is_wide else work.element_bytes) * rows * product.n
    other = work.element_bytes * product.batch * product.k * product.n
    is_kept = libtpu_memory.stays_in_vmem(machine, int(written))
    is_f32 = is_wide or work.element_bytes == 4
    table = _PIECES if not adds else _ADDING_F32 if is_f32 else _ADDING
    of_chip = table.get(machine.chip.name, _NOT_MEASURED)
    compute = of_chip.products * product.flops / pieces / peak(work, machine)
    if adds and not is_f32 and libtpu_kernels.adds_slowly(machine, rows, product):
        compute *= _SLOW_FACTOR
    moved = 0.0 if is_kept else of_chip.moved * (read + written * (2 if adds else 1))
    waits = of_chip.written * written * (0.5 if is_kept else 1.0)
    if not is_wide and libtpu_memory.waits_for_operand(machine, other, product, adds=adds):
        waits += of_chip.read * other
        moved = max(moved, of_chip.all_moved * (read + written + other))
    bandwidth = machine.chip.hbm_bandwidth
    return max(compute + of_chip.seconds + waits / bandwidth, moved / bandwidth)


def chunk(work: Work, machine: Machine, parts: int) -> float:
    """One of so many chunks of columns, for which the rows are read whole.

    What is computed for a product alone is stored as bf16, and arguments of f32 are not.
    """
    compute = products(work, machine) / parts
    rows = work.element_bytes * sum(p.batch * p.m * p.k for p in work.products)
    columns = work.element_bytes * sum(p.batch * (p.m + p.k) * p.n / parts for p in work.products)
    factor = _CHUNK_FACTOR
    if not libtpu_memory.holds_in_vmem(machine, rows):
        if work.element != "f32":
            factor = _CHUNK_READS.get(machine.chip.name, 1.6)
        elif work.source == "argument":
            compute += _F32_READS * rows / machine.chip.hbm_bandwidth
    return max(compute, factor * (rows + columns) / machine.chip.hbm_bandwidth)


def gathered_chunk(work: Work, machine: Machine, parts: int) -> float:
    """The same for chunks that are gathered; each is put in its place by the product's kernel."""
    return chunk(work, machine, parts) + _CHUNK_SECONDS.get(machine.chip.name, 3e-6)


def chunk_of_rows(work: Work, machine: Machine, parts: int) -> float:
    """The products of one of so many chunks of rows, each of which reads the other operands whole.

    Two experts with 1024 rows of 4096 columns, 8192 between, in f32, on 2 groups of 2 devices, have
    weights of 128 MiB each: f took 2.01 ms for 1.11 in chunks on v5e, 0.83 for 0.41 on v6e, and
    0.81 for 0.62 on v5p.
    """
    seconds = 0.0
    for product in work.products:
        compute = product.flops / parts / peak(work, machine)
        other = product.batch * product.k * product.n
        if not libtpu_memory.holds_in_vmem(machine, work.element_bytes * other):
            moved = product.batch * product.m / parts * (product.k + product.n) + other
            read = work.element_bytes * moved / machine.chip.hbm_bandwidth
            compute = max(compute, _ROWS_READS.get(machine.chip.name, 1.4) * read)
        seconds += compute
    return seconds


def stored(work: Work, machine: Machine) -> float:
    """What whole products wait for memory: for what they store, and for as much that they read."""
    each = work.element_bytes
    written = sum(p.batch * p.m * p.n for p in work.products)
    read = sum(p.batch * p.m * min(p.k, p.n) for p in work.products)
    slow = each if libtpu_memory.keeps_product(machine, each * written) else _STORED_BYTES
    return (slow * written + each * read) / machine.chip.hbm_bandwidth


def copy(size: float, machine: Machine) -> float:
    """A copy of so many bytes."""
    return _COPY_FACTOR * 2 * size / machine.chip.hbm_bandwidth


def narrowed(size: float, machine: Machine) -> float:
    """The conversion of an array of f32 to one of bf16, of so many bytes."""
    factor = _NARROWED_FACTOR.get(machine.chip.name, 4.1)
    return factor * 3 * size / machine.chip.hbm_bandwidth


def placed(size: float, machine: Machine) -> float:
    """Blocks of a ring, of so many bytes in all, that are put in their places beside products.

    Of 8 MiB each takes 54, 24 and 18 us on v5e, v6e and v5p, and of 2 MiB 11, 5.2 and 4.8.
    """
    factor = _PLACED_FACTOR.get(machine.chip.name, 3.1)
    return factor * 2 * size / machine.chip.hbm_bandwidth


def block(work: Work, machine: Machine) -> int:
    """Bytes of what one device contributes to a gather, or has of a scatter."""
    sent = work.received // 2 if is_halved(work, machine) else work.received
    return sent // (work.count - 1)


def peak(work: Work, machine: Machine) -> float:
    """Operations per second that the compiler expects of large products."""
    shares = _SHARE_OF_INT8 if work.multiplied in ("i8", "ui8") else _SHARE
    return speed(work, machine) * shares.get(machine.chip.name, 0.8)
