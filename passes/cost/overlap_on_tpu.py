"""When overlap pays on TPUs: formulas fitted to schedules of libtpu 0.0.50.1.

Made from bf16 programs of one size for each pattern on v5e, v6e and v5p with eight chips; for
errors see docs/overlap.md. All times are the compiler's own estimates and `collective_time`.
"""

from __future__ import annotations

from . import libtpu
from .machine import Machine
from .overlap import (
    FEWEST_ROWS,
    Plan,
    ProductShape,
    Work,
    divisors,
    is_halved,
    pipelined,
    speed,
    wire_seconds,
)
from .rings import MOST_UNROLLED, STEPS_OF_SUMS, hop_seconds, ring_order

# How much of the published speed large products reach by libtpu's own estimates.
_SHARE = {"TPU v5e": 0.97, "TPU v5p": 0.97, "TPU v6e": 0.88, "TPU7x": 0.8}
# How far its estimates are above the published bandwidth for pieces of products that wait for
# memory, those that add f32 on v5e, products of wide operands, copies, and copies into an array.
_PIECE_FACTOR = 4.0
_SUM_FACTOR = 3.0
_CHUNK_FACTOR = 1.3
_COPY_FACTOR = 1.6
_PUT_FACTOR = 2.7
_WIDE_FACTOR = 1.2
# For how many bytes of memory a whole product waits with each number that it stores, of any type.
_STORED_BYTES = 8
# Seconds between two pieces whose sums are on the way; before the sum of a chunk, and after it.
_BETWEEN = 1e-6
_AROUND_SUM = (2e-6, 1e-6)
_CHUNKS = 4
_CHAINS = 4
_MOST_UNROLLED = 16
WIDENED = ("bf16", "f16")
"""Types whose sums go round as f32 if they must not be rounded on their way."""


def plan_on_tpu(work: Work, machine: Machine) -> Plan:
    """The form of a pattern, and its time."""
    return _RULES[work.pattern](work, machine)


def _ring(work: Work, machine: Machine) -> Plan:
    """Blocks go round in halves, both ways; a device multiplies what has arrived."""
    pieces = 2 * work.count
    if work.cut < 2 or work.rows // pieces < FEWEST_ROWS:
        return _few("rows", work.rows // pieces)
    narrowest = min(product.n for product in work.products)
    if narrowest < FEWEST_ROWS:
        return _few("columns", narrowest)
    order = ring_order(work.groups, machine.places, machine.network)
    # What others read is sent as it is.
    block = work.received // (work.count - 1) if work.kept else _block(work, machine)
    hop = hop_seconds(block // 2, order, work.groups, machine.places, machine.network)
    piece = sum(_piece(work, machine, p, pieces) for p in work.products)
    cut = _copy(block, machine)
    wire = (work.count - 1) * hop
    expected = max(pieces * piece + cut + _copy(work.kept, machine), wire + cut + 2 * piece)
    # Without the options the scheduler starts permutes between the two products of a step, except
    # on v5e.
    is_stacked = machine.chip.name != libtpu.GATHERS_BY_ITSELF and not machine.compiler_options
    return Plan("ring", 0, order, is_stacked, _plain(work, machine), expected)


def _columns(work: Work, machine: Machine) -> Plan:
    """The gathered operand in chunks of its free dimension; none of the contraction is cut."""
    if not libtpu.starts_gathers(machine):
        return _needs_options("all-gathers")
    if libtpu.gathers_alone(work, machine):
        reason = f"a {machine.chip.name} computes nothing beside gathers along several dimensions"
        return Plan(None, reason=reason)
    parts = next((k for k in (8, 4) if work.cut % k == 0 and work.cut // k >= 512), 0)
    parts = parts or (4 if work.cut % 4 == 0 and work.cut // 4 >= FEWEST_ROWS else 0)
    if not parts:
        return _few("columns", work.cut // 4)
    wire = wire_seconds(work, machine, parts)
    chunk = max(_compute(work, machine) / parts, _chunk_in_memory(work, machine, parts))
    expected = pipelined(wire, chunk, parts) + _copy(work.kept, machine)
    return Plan("columns", parts, (), False, _plain(work, machine), expected)


def partial_sums(work: Work, machine: Machine) -> Plan:
    """Four sums are on the way at a time, two each way, and each grows by a product at each hop.

    Shorter numbers are sent as f32 if sums must not be rounded at each hop.
    """
    is_wide = work.element != "f32" and not work.may_round
    if is_wide and work.element not in WIDENED:
        return Plan(None, reason=f"sums of {work.element} would be rounded at each hop")
    if machine.chip.name != libtpu.GATHERS_BY_ITSELF and not machine.compiler_options:
        return _needs_options("permutes early")
    pieces = _CHAINS * work.count
    if work.cut % _CHAINS or work.rows // pieces < FEWEST_ROWS:
        return _few("rows", work.rows // pieces)
    if work.columns < FEWEST_ROWS:
        return _few("columns", work.columns)
    order = ring_order(work.groups, machine.places, machine.network)
    wire_bytes = 4 if is_wide else work.element_bytes
    block = _block(work, machine) // work.element_bytes * wire_bytes
    places, network = machine.places, machine.network
    hop = hop_seconds(block // 2, order, work.groups, places, network)
    last = hop_seconds(block // _CHAINS, order, work.groups, places, network)
    if is_wide:
        piece = sum(_wide_piece(work, machine, p, pieces) for p in work.products)
    else:
        piece = sum(_piece(work, machine, p, pieces, adds=True) for p in work.products)
    expected = max(pieces * (piece + _BETWEEN), (work.count - 1) * hop) + last
    if work.count > MOST_UNROLLED:
        # The last sums that a step of the loop sends are not sent beside its products.
        expected += (work.count - 1) // STEPS_OF_SUMS * hop
    plain = _plain_scatter(work, machine)
    return Plan("partial-sums", _CHAINS, order, False, plain, expected, is_wide=is_wide)


def _scatter(work: Work, machine: Machine) -> Plan:
    """Partial sums on a ring, or chunks of columns, which are not rounded at each hop."""
    ring, columns = partial_sums(work, machine), _summed(work, machine)
    if columns.expected is None or (ring.expected and ring.expected <= columns.expected):
        return ring
    return columns


def _summed(work: Work, machine: Machine) -> Plan:
    """Chunks of columns: each is summed while the product of the next is computed."""
    if not libtpu.adds_meanwhile(machine):
        on = machine.chip.name
        return Plan(None, reason=f"libtpu for a {on} computes nothing beside sums over devices")
    is_scatter = work.pattern == "product-scatter"
    rings = libtpu.RINGS_OF_SCATTERS if is_scatter else None
    columns = work.columns if is_scatter else work.cut
    choices = [k for k in (8, 4, 2) if columns % k == 0 and columns // k >= 2 * FEWEST_ROWS]
    if not choices:
        return _few("columns", columns // 2)
    # What is summed is put in place when the next chunk is computed.
    put = sum(p.batch * p.m * p.n for p in work.products) * work.element_bytes
    put //= work.count if is_scatter else 1

    def seconds(parts: int) -> float:
        wire = wire_seconds(work, machine, parts, rings=rings)
        chunk = max(_compute(work, machine) / parts, _chunk_in_memory(work, machine, parts))
        chunk += _AROUND_SUM[0]
        copy = _PUT_FACTOR * 2 * put / parts / machine.chip.hbm_bandwidth + _AROUND_SUM[1]
        return chunk + (parts - 1) * max(wire, chunk + copy) + wire + copy

    parts = min(choices, key=seconds)
    plain = _plain_scatter(work, machine) if is_scatter else _plain(work, machine)
    return Plan("columns", parts, (), False, plain, seconds(parts))


def _exchange(work: Work, machine: Machine) -> Plan:
    """The exchange, the products and the exchange back, in chunks."""
    if not machine.compiler_options:
        return _needs_options("all-to-alls")
    if work.cut % _CHUNKS or work.rows // _CHUNKS < FEWEST_ROWS:
        return _few("rows", work.rows // _CHUNKS)
    wire = wire_seconds(work, machine, _CHUNKS)
    array = work.received // 2 * work.count // (work.count - 1)
    compute = _compute(work, machine) + 2 * _copy(array, machine)
    expected = max(compute, _CHUNKS * wire) + wire / 2
    return Plan("chunks", _CHUNKS, (), False, _plain(work, machine), expected)


def _unrolled(work: Work, machine: Machine) -> Plan:
    """Of a loop whose steps gather what they need, so that a step gathers for the next one."""
    if not libtpu.starts_gathers(machine):
        return _needs_options("all-gathers")
    # Without SparseCores libtpu computes nothing beside a reduce-scatter.
    wire = wire_seconds(work, machine)
    reduced = wire * work.reduced / work.received
    exposed = 0.0 if libtpu.adds_meanwhile(machine) else reduced
    if libtpu.gathers_alone(work, machine):
        exposed += wire - reduced
    copies = _copy(work.copied, machine)
    return unrolled(work, wire - exposed, _compute(work, machine), exposed, copies)


def unrolled(
    work: Work, wire: float, compute: float, exposed: float = 0.0, copies: float = 0.0
) -> Plan:
    """A loop of which some steps, or all, become one; by the times of one step.

    Args:
      wire: of communication beside which another step computes.
      exposed: of other communication.
      copies: of what a step does not copy if it is one with the next.
    """
    choices = divisors(work.trips, _MOST_UNROLLED)
    if not choices:
        reason = f"{work.trips} steps are not a multiple of a number up to {_MOST_UNROLLED}"
        return Plan(None, reason=reason)

    def seconds(steps: int) -> float:
        return work.trips // steps * pipelined(wire, compute, steps) + work.trips * exposed

    # Of equal ones the largest: loops that share stacks are unrolled whole or not at all.
    best = min(choices, key=lambda steps: (round(1e9 * seconds(steps)), -steps))
    plain = work.trips * (wire + compute + exposed + copies)
    return Plan("unroll", 0 if best == work.trips else best, (), False, plain, seconds(best))


_RULES = {
    "gather-product": _ring,
    "gather-contraction": _columns,
    "product-scatter": _scatter,
    "product-sum": _summed,
    "all-to-all": _exchange,
    "gathering-loop": _unrolled,
}


# ----------------------------------------------------------------------------------------- terms


def _piece(
    work: Work, machine: Machine, product: ProductShape, pieces: int, adds: bool = False
) -> float:
    """One of so many pieces of a product; `adds` if it also reads a sum that it adds to."""
    rows = product.batch * product.m / pieces
    moved = rows * product.k + rows * product.n * (2 if adds else 1)
    is_kept = adds and libtpu.stays_in_vmem(machine, int(work.element_bytes * rows * product.n))
    is_wide = adds and work.element_bytes == 4 and machine.chip.name == libtpu.GATHERS_BY_ITSELF
    factor = 1.0 if is_kept else _SUM_FACTOR if is_wide else _PIECE_FACTOR
    in_memory = factor * work.element_bytes * moved / machine.chip.hbm_bandwidth
    return max(product.flops / pieces / _peak(work, machine), in_memory)


def _stored(work: Work, machine: Machine) -> float:
    """What whole products wait for memory: for what they store, and for as much that they read."""
    each = work.element_bytes
    stored = sum(p.batch * p.m * p.n for p in work.products)
    read = sum(p.batch * p.m * min(p.k, p.n) for p in work.products)
    slow = each if libtpu.keeps_product(machine, each * stored) else _STORED_BYTES
    return (slow * stored + each * read) / machine.chip.hbm_bandwidth


def _wide_piece(work: Work, machine: Machine, product: ProductShape, pieces: int) -> float:
    """A piece whose sum is f32: libtpu does not fuse the addition with the product.

    The product is written, and read with the sum that has come, and their sum is written.
    """
    moved = 4 * 4 * product.batch * product.m / pieces * product.n
    added = _WIDE_FACTOR * moved / machine.chip.hbm_bandwidth
    return product.flops / pieces / _peak(work, machine) + added


def _chunk_in_memory(work: Work, machine: Machine, parts: int) -> float:
    """What one of so many chunks of columns takes to move: it reads the other operand whole."""
    moved = sum(p.batch * (p.m * p.k + (p.m + p.k) * p.n / parts) for p in work.products)
    return _CHUNK_FACTOR * work.element_bytes * moved / machine.chip.hbm_bandwidth


def _compute(work: Work, machine: Machine) -> float:
    return work.flops / _peak(work, machine)


def _peak(work: Work, machine: Machine) -> float:
    return speed(work, machine) * _SHARE.get(machine.chip.name, 0.8)


def _copy(size: float, machine: Machine) -> float:
    return _COPY_FACTOR * 2 * size / machine.chip.hbm_bandwidth


def _block(work: Work, machine: Machine) -> int:
    """Bytes of what one device contributes to a gather, or has of a scatter."""
    sent = work.received // 2 if is_halved(work, machine) else work.received
    return sent // (work.count - 1)


def _plain(work: Work, machine: Machine) -> float:
    return _compute(work, machine) + wire_seconds(work, machine)


def _plain_scatter(work: Work, machine: Machine) -> float:
    """The product is stored, and waits for memory if it is wide, before its sums are scattered.

    It is one product, which waits less than its pieces do. In some groups a scatter becomes an
    all-reduce and a slice.
    """
    kind = "all-reduce" if libtpu.is_all_reduced(work, machine) else None
    compute = max(_compute(work, machine), _stored(work, machine))
    return compute + wire_seconds(work, machine, kind=kind)


def _needs_options(what: str) -> Plan:
    reason = f"the compiler does not start {what} beside products without its options: see"
    return Plan(None, reason=f"{reason} shmap_compiler.compiler_options")


def _few(what: str, count: int) -> Plan:
    reason = f"a piece of the product would have {count} {what}, and needs {FEWEST_ROWS}"
    return Plan(None, reason=reason)
