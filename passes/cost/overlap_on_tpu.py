"""When overlap pays on TPUs: formulas fitted to schedules of libtpu 0.0.50.1.

Made from bf16 programs of one size for each pattern on v5e, v6e and v5p with eight chips; for
errors see docs/overlap-model.md. All times are the compiler's own estimates and `collective_time`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from . import libtpu, libtpu_kernels, libtpu_memory, libtpu_times
from .libtpu_times import block, copy, narrowed, placed, products
from .machine import Machine
from .overlap import (
    FEWEST_ROWS,
    Plan,
    divisors,
    is_halved,
    one_row,
    pipelined,
    uneven,
    wire_seconds,
)
from .rings import MOST_UNROLLED, STEPS_OF_SUMS, hop_seconds, ring_order
from .work import Work, is_integer, is_rounded

# Seconds between two pieces whose sums are on the way; before the sum of a chunk, and after it.
_BETWEEN = 0.3e-6
_AROUND_SUM = (2e-6, 1e-6)
# How much longer the products of two steps take in one kernel.
_TWO_STEPS_FACTOR = 1.27
# Chunks of large sums, and the seconds of the shortest.
_MANY = 16
_SHORTEST = 10e-6
_CHUNKS = 4
_CHAINS = 4
_MOST_UNROLLED = 16
_STORED_ROWS = "what a gradient reads of its rows would need more memory than the form saves"
_JOINED_ROWS = "its rows, which the plain program does not store, would need more memory than it"
# How far copies of sums to their place are above what the memory needs.
PUT_FACTOR = 2.7
WIDENED = ("bf16", "f16")
"""Types whose sums go round as f32 if they must not be rounded on their way."""


def plan_on_tpu(work: Work, machine: Machine) -> Plan:
    """The form of a pattern, and its time."""
    return _RULES[work.pattern](work, machine)


def _ring(work: Work, machine: Machine) -> Plan:
    """Blocks go round in halves, both ways; a device multiplies what has arrived."""
    if libtpu_memory.stores_rows(work, machine):
        return Plan(None, reason=_STORED_ROWS)
    if work.kept and work.count > MOST_UNROLLED:
        return Plan(None, reason="its blocks would be put together in a loop, which takes longer")
    pieces = 2 * work.count
    fewest = libtpu_kernels.fewest_rows(work, machine)
    if work.rows // pieces < fewest:
        return _few("rows", work.rows // pieces, fewest)
    if work.cut < 2:
        return Plan(None, reason=one_row(work.pattern))
    order = ring_order(work.groups, machine.places, machine.network)
    # What others read is sent as it is.
    size = work.received // (work.count - 1) if work.kept else block(work, machine)
    hop = hop_seconds(size // 2, order, work.groups, machine.places, machine.network)
    piece = sum(libtpu_times.piece(work, machine, p, pieces) for p in work.products)
    cut = copy(size, machine)
    if is_halved(work, machine) and not work.kept:
        cut += narrowed(size, machine)
    wire = (work.count - 1) * hop
    compute = pieces * piece + cut + placed(work.kept, machine)
    expected = max(compute, wire + cut + 2 * piece)
    # Without the options the scheduler starts permutes between the two products of a step, except
    # on v5e.
    is_stacked = machine.chip.name != libtpu.GATHERS_BY_ITSELF and not machine.compiler_options
    plain = _plain(work, machine, libtpu_times.products_of_gathered)
    return Plan("ring", 0, order, is_stacked, plain, expected)


def _columns(work: Work, machine: Machine) -> Plan:
    """The gathered operand in chunks of its free dimension; none of the contraction is cut."""
    if not libtpu.starts_gathers(machine):
        return _needs_options("all-gathers")
    if libtpu.gathers_alone(work, machine):
        reason = f"a {machine.chip.name} computes nothing beside gathers along several dimensions"
        return Plan(None, reason=reason)
    parts = next((k for k in (8, 4) if work.cut % k == 0 and work.cut // k >= 512), 0)
    parts = parts or (4 if work.cut % 4 == 0 and work.cut // 4 >= FEWEST_ROWS else 0)
    if not parts and work.cut // 4 < FEWEST_ROWS:
        return _few("columns", work.cut // 4)
    if not parts:
        return Plan(None, reason=uneven("columns", work.cut, 4))
    wire = sent(work, machine, parts)
    chunk = libtpu_times.gathered_chunk(work, machine, parts)
    expected = pipelined(wire, chunk, parts) + copy(work.kept, machine)
    return Plan("columns", parts, (), False, _plain(work, machine), expected)


def partial_sums(work: Work, machine: Machine) -> Plan:
    """Four sums are on the way at a time, two each way, and each grows by a product at each hop.

    Shorter numbers are sent as f32 if sums must not be rounded at each hop.
    """
    is_wide = is_rounded(work.element) and not work.may_round
    if is_wide and work.element not in WIDENED:
        return Plan(None, reason=f"sums of {work.element} would be rounded at each hop")
    if machine.chip.name != libtpu.GATHERS_BY_ITSELF and not machine.compiler_options:
        return _needs_options("permutes early")
    pieces = _CHAINS * work.count
    fewest = libtpu_kernels.fewest_rows_added(machine)
    if work.rows // pieces < fewest:
        return _few("rows", work.rows // pieces, fewest)
    if work.cut == 1:
        return Plan(None, reason=one_row(work.pattern))
    if work.cut % _CHAINS:
        return Plan(None, reason=uneven("rows on each device", work.cut, _CHAINS))
    if work.columns < FEWEST_ROWS:
        return _few("columns", work.columns)
    order = ring_order(work.groups, machine.places, machine.network)
    wire_bytes = 4 if is_wide else work.element_bytes
    size = block(work, machine) // work.element_bytes * wire_bytes
    places, network = machine.places, machine.network
    hop = hop_seconds(size // 2, order, work.groups, places, network)
    last = hop_seconds(size // _CHAINS, order, work.groups, places, network)
    piece = sum(
        libtpu_times.piece(work, machine, p, pieces, adds=True, is_wide=is_wide)
        for p in work.products
    )
    expected = max(pieces * (piece + _BETWEEN), (work.count - 1) * hop + last)
    if work.count > MOST_UNROLLED:
        # The last sums that a step of the loop sends are not sent beside its products.
        expected += (work.count - 1) // STEPS_OF_SUMS * hop
    plain = plain_scatter(work, machine)
    return Plan("partial-sums", _CHAINS, order, False, plain, expected, is_wide=is_wide)


def _scatter(work: Work, machine: Machine) -> Plan:
    """Partial sums on a ring, or chunks of columns, which are not rounded at each hop."""
    if libtpu_memory.stores_rows(work, machine):
        return Plan(None, reason=_STORED_ROWS)
    ring, columns = partial_sums(work, machine), _summed(work, machine)
    best = columns
    if columns.expected is None or (ring.expected and ring.expected <= columns.expected):
        best = ring
    if best.name is not None and libtpu_kernels.separates_products(work, machine):
        return replace(best, name=None, reason=_JOINED_ROWS)
    return best


def _summed(work: Work, machine: Machine) -> Plan:
    """Chunks of columns: each is summed while the product of the next is computed."""
    if not libtpu.adds_meanwhile(machine):
        on = machine.chip.name
        return Plan(None, reason=f"libtpu for a {on} computes nothing beside sums over devices")
    is_scatter = work.pattern == "product-scatter"
    columns = work.columns if is_scatter else work.cut
    fewest = 2 * FEWEST_ROWS
    choices = [k for k in (_MANY, 8, 4, 2) if columns % k == 0 and columns // k >= fewest]
    if not choices and columns // 2 < fewest:
        return _few("columns", columns // 2, fewest)
    if not choices:
        return Plan(None, reason=uneven("columns", columns, 2))
    # What is summed is put in place when the next chunk is computed.
    put = max(p.batch * p.m * p.n for p in work.products) * work.element_bytes
    put //= work.count if is_scatter else 1

    def seconds(parts: int) -> float:
        wire = sent(work, machine, parts)
        chunk = libtpu_times.chunk(work, machine, parts) + _AROUND_SUM[0]
        place = PUT_FACTOR * 2 * put / parts / machine.chip.hbm_bandwidth + _AROUND_SUM[1]
        return chunk + (parts - 1) * max(wire, chunk + place) + wire + place

    parts = min((k for k in choices if k != _MANY), key=seconds)
    # More chunks need less memory, but short ones take longer than this.
    if _MANY in choices and _MANY * _SHORTEST < seconds(_MANY) < 0.995 * seconds(parts):
        parts = _MANY
    plain = (plain_scatter if is_scatter else _plain)(work, machine)
    return Plan("columns", parts, (), False, plain, seconds(parts))


def _exchange(work: Work, machine: Machine) -> Plan:
    """The exchange, the products and the exchange back, in chunks."""
    if not machine.compiler_options:
        return _needs_options("all-to-alls")
    if work.rows // _CHUNKS < FEWEST_ROWS:
        return _few("rows", work.rows // _CHUNKS)
    if work.cut % _CHUNKS:
        return Plan(None, reason=uneven("rows", work.cut, _CHUNKS))
    wire = sent(work, machine, _CHUNKS)
    array = work.received // 2 * work.count // (work.count - 1)
    chunk = libtpu_times.chunk_of_rows(work, machine, _CHUNKS)
    expected = max(_CHUNKS * chunk + 2 * copy(array, machine), _CHUNKS * wire) + wire / 2
    return Plan("chunks", _CHUNKS, (), False, _plain(work, machine), expected)


def _unrolled(work: Work, machine: Machine) -> Plan:
    """Of a loop whose steps gather what they need, so that a step gathers for the next one."""
    if not libtpu.starts_gathers(machine):
        return _needs_options("all-gathers")
    # Without SparseCores libtpu computes nothing beside a reduce-scatter.
    wire = sent(work, machine)
    reduced = wire * work.reduced / work.received
    exposed = 0.0 if libtpu.adds_meanwhile(machine) else reduced
    if libtpu.gathers_alone(work, machine):
        exposed += wire - reduced
    compute, copies, factor = products(work, machine), copy(work.copied, machine), 1.0
    # Where gathers take longer than products, all loops that were tried gained much.
    if compute > wire and libtpu_memory.carries_in_vmem(work, machine):
        copies, factor = 0.0, _TWO_STEPS_FACTOR
    return unrolled(work, wire - exposed, compute, exposed, copies, factor)


def unrolled(
    work: Work,
    wire: float,
    compute: float,
    exposed: float = 0.0,
    copies: float = 0.0,
    factor: float = 1.0,
) -> Plan:
    """A loop of which some steps, or all, become one; by the times of one step.

    Args:
      wire: of communication beside which another step computes.
      exposed: of other communication.
      copies: of what a step does not copy if it is one with the next.
      factor: how much longer it computes then.
    """
    choices = divisors(work.trips, _MOST_UNROLLED)
    if not choices:
        reason = f"{work.trips} steps are not a multiple of a number up to {_MOST_UNROLLED}"
        return Plan(None, reason=reason)

    def seconds(steps: int) -> float:
        return work.trips // steps * pipelined(wire, factor * compute, steps) + work.trips * exposed

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


def _plain(
    work: Work, machine: Machine, computed: Callable[[Work, Machine], float] = products
) -> float:
    compute = 0.0 if libtpu_kernels.joins_products(work, machine) else computed(work, machine)
    return compute + sent(work, machine)


def sent(work: Work, machine: Machine, parts: int = 1) -> float:
    """The seconds in which one of so many parts is sent, with the target's compiler options."""
    if work.pattern == "product-scatter" and is_integer(work.element):
        return wire_seconds(work, machine, parts, kind="all-reduce")
    return wire_seconds(work, machine, parts, rings=libtpu.rings(work, machine))


def plain_scatter(work: Work, machine: Machine) -> float:
    """The product is stored, and waits for memory if it is wide, before its sums are scattered.

    It is one product, which waits less than its pieces do. In some groups a scatter becomes an
    all-reduce and a slice.
    """
    kind = "all-reduce" if libtpu.is_all_reduced(work, machine) else None
    compute = max(products(work, machine), libtpu_times.stored(work, machine))
    if libtpu_kernels.joins_products(work, machine):
        compute = 0.0
    return compute + wire_seconds(work, machine, kind=kind)


def sent_meanwhile(work: Work, machine: Machine) -> tuple[float, float]:
    """Seconds in which what is left as it is is sent beside other products, and those of its own.

    The first is 0 if nothing is computed beside it.
    """
    if work.pattern in ("gather-product", "gather-contraction"):
        is_sent = libtpu.starts_gathers(machine) and not libtpu.gathers_alone(work, machine)
    else:
        is_sent = libtpu.adds_meanwhile(machine)
    computed = products(work, machine)
    if not is_sent:
        return 0.0, computed
    if work.pattern == "product-scatter":
        computed = max(computed, libtpu_times.stored(work, machine))
    return sent(work, machine), computed


def _needs_options(what: str) -> Plan:
    reason = f"the compiler does not start {what} beside products without its options: see"
    return Plan(None, reason=f"{reason} shmap_compiler.compiler_options")


def _few(what: str, count: int, fewest: int = FEWEST_ROWS) -> Plan:
    reason = f"a piece of the product would have {count} {what}, and needs {fewest}"
    return Plan(None, reason=reason)
