"""How long libtpu 0.0.50.1 takes products, pieces of them, and copies to run, by its own estimates.

All times are in seconds, on one device.
"""

from __future__ import annotations

from . import libtpu
from .machine import Machine
from .overlap import ProductShape, Work, is_halved, speed

# How much of the published speed large products reach.
_SHARE = {"TPU v5e": 0.97, "TPU v5p": 0.97, "TPU v6e": 0.88, "TPU7x": 0.8}
# How far the estimates are above the published bandwidth for pieces of products that wait for
# memory, those that add f32 on v5e, products of wide operands, and copies.
_PIECE_FACTOR = 4.0
_SUM_FACTOR = 3.0
_CHUNK_FACTOR = 1.3
_COPY_FACTOR = 1.6
_WIDE_FACTOR = 1.2
# The same for what reads an operand from memory that VMEM does not hold: a piece of a product, a
# chunk of one, and what a chunk of f32 waits beside its product. A v5p reads for both of its cores.
_PIECE_READS = {"TPU v5e": 1.4, "TPU v6e": 1.2, "TPU v5p": 2.8}
_CHUNK_READS = {"TPU v5e": 1.9, "TPU v6e": 1.6, "TPU v5p": 2.5}
_F32_READS = 1.4
# For how many bytes of memory a whole product waits with each number that it stores, of any type.
_STORED_BYTES = 8


def products(work: Work, machine: Machine) -> float:
    """All products of a step, if they do not wait for memory."""
    return work.flops / _peak(work, machine)


def piece(
    work: Work, machine: Machine, product: ProductShape, pieces: int, adds: bool = False
) -> float:
    """One of so many pieces of a product; `adds` if it also reads a sum that it adds to."""
    rows = product.batch * product.m / pieces
    moved = rows * product.k + rows * product.n * (2 if adds else 1)
    is_kept = adds and libtpu.stays_in_vmem(machine, int(work.element_bytes * rows * product.n))
    is_wide = adds and work.element_bytes == 4 and machine.chip.name == libtpu.GATHERS_BY_ITSELF
    factor = 1.0 if is_kept else _SUM_FACTOR if is_wide else _PIECE_FACTOR
    in_memory = factor * moved
    other = product.batch * product.k * product.n
    if not libtpu.holds_in_vmem(machine, work.element_bytes * other, is_computed=True):
        in_memory = max(in_memory, _PIECE_READS.get(machine.chip.name, 1.4) * (moved + other))
    in_memory *= work.element_bytes / machine.chip.hbm_bandwidth
    return max(product.flops / pieces / _peak(work, machine), in_memory)


def wide_piece(work: Work, machine: Machine, product: ProductShape, pieces: int) -> float:
    """A piece whose sum is f32: libtpu does not fuse the addition with the product.

    The product is written, and read with the sum that has come, and their sum is written.
    """
    moved = 4 * 4 * product.batch * product.m / pieces * product.n
    added = _WIDE_FACTOR * moved / machine.chip.hbm_bandwidth
    return product.flops / pieces / _peak(work, machine) + added


def chunk(work: Work, machine: Machine, parts: int) -> float:
    """One of so many chunks of columns, for which the rows are read whole.

    What is computed for a product alone is stored as bf16, and arguments of f32 are not.
    """
    compute = products(work, machine) / parts
    rows = work.element_bytes * sum(p.batch * p.m * p.k for p in work.products)
    columns = work.element_bytes * sum(p.batch * (p.m + p.k) * p.n / parts for p in work.products)
    factor = _CHUNK_FACTOR
    if not libtpu.holds_in_vmem(machine, rows):
        if work.element != "f32":
            factor = _CHUNK_READS.get(machine.chip.name, 1.6)
        elif work.source == "argument":
            compute += _F32_READS * rows / machine.chip.hbm_bandwidth
    return max(compute, factor * (rows + columns) / machine.chip.hbm_bandwidth)


def chunk_of_rows(work: Work, machine: Machine, parts: int) -> float:
    """The products of one of so many chunks of rows, each of which reads the other operands whole.

    Two experts with 1024 rows of 4096 columns, 8192 between, in f32, on 2 groups of 2 devices, have
    weights of 128 MiB each: f took 2.01 ms for 1.11 in chunks on v5e, 0.83 for 0.41 on v6e, and
    0.81 for 0.62 on v5p.
    """
    seconds = 0.0
    for product in work.products:
        compute = product.flops / parts / _peak(work, machine)
        other = product.batch * product.k * product.n
        if not libtpu.holds_in_vmem(machine, work.element_bytes * other):
            moved = product.batch * product.m / parts * (product.k + product.n) + other
            read = work.element_bytes * moved / machine.chip.hbm_bandwidth
            compute = max(compute, _PIECE_READS.get(machine.chip.name, 1.4) * read)
        seconds += compute
    return seconds


def stored(work: Work, machine: Machine) -> float:
    """What whole products wait for memory: for what they store, and for as much that they read."""
    each = work.element_bytes
    written = sum(p.batch * p.m * p.n for p in work.products)
    read = sum(p.batch * p.m * min(p.k, p.n) for p in work.products)
    slow = each if libtpu.keeps_product(machine, each * written) else _STORED_BYTES
    return (slow * written + each * read) / machine.chip.hbm_bandwidth


def copy(size: float, machine: Machine) -> float:
    """A copy of so many bytes."""
    return _COPY_FACTOR * 2 * size / machine.chip.hbm_bandwidth


def block(work: Work, machine: Machine) -> int:
    """Bytes of what one device contributes to a gather, or has of a scatter."""
    sent = work.received // 2 if is_halved(work, machine) else work.received
    return sent // (work.count - 1)


def _peak(work: Work, machine: Machine) -> float:
    return speed(work, machine) * _SHARE.get(machine.chip.name, 0.8)
