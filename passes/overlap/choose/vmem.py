"""Keeps what libtpu has in VMEM out of memory, where forms would need a place for it.

A TensorCore sends from VMEM, and a SparseCore from memory. A program with forms is compiled with
options that leave all gathers and sums to the SparseCore, also those that stay as they are. So a
small program that needs no memory as it is may need some with a form, and a large one a place for
what it gathers. If it needs more than `allowed`, sums are computed in more chunks, or the program
is left as it is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from jaxlib.mlir import ir

from ...cost import libtpu, libtpu_memory
from ...cost.machine import Machine
from ...cost.overlap import FEWEST_ROWS
from ...ir.collective_ops import ALL_GATHER
from ...ir.dataflow import Dataflow, Dataflows, Node
from ...ir.types import Value, array_bytes
from ..find.products import DOT
from ..find.row_sources import computed_from
from ..find.stored import FEW_BYTES
from .decision import Choice, Decision, is_narrowed
from .lives import Life, Lives, Timeline, allowed, given_bytes
from .memory import CHUNKS_OF_SUMS, buffers, in_pieces
from .site import SUMS, Site

Choices = Mapping[Site, Choice]

_CHUNKS_OF_GATHERS = 4
"""What a product reads, what is gathered, and the blocks of both."""
_KNOWN = {"gather-product", "gather-contraction", "product-scatter", "product-sum", "all-to-all"}
REASON = "it would need a place in memory for what is in VMEM in the plain program"


def kept_in_vmem(
    chosen: Choices, decide: Decision, flows: Dataflows, lives: Lives
) -> dict[Site, Choice]:
    """Other choices for the sites of functions that would need too much memory.

    Args:
      chosen: for all sites of a module that have been decided about.
      flows: of the module.
      lives: of its blocks.
    """
    machine = decide.machine
    if machine is None or not machine.is_tpu:
        return {}
    changed: dict[Site, Choice] = {}
    formed = [site for site, choice in chosen.items() if choice.form is not None]
    for block in dict.fromkeys(site.op.block for site in formed):
        inside = {site: each for site, each in chosen.items() if site.op.block == block}
        patterns = {site.pattern for site, each in inside.items() if each.form}
        # On v5e all but exchanges are sent as they are without the options.
        is_sent_alike = not libtpu.adds_meanwhile(machine) and "all-to-all" not in patterns
        is_function = block.owner.operation.name == "func.func"
        if is_sent_alike or not is_function or not patterns <= _KNOWN:
            continue
        function = _Function(block, lives, flows.of(block), decide, machine)
        changed |= next(each for each in _tries(inside) if function.fits(each))
    return changed


def rows_fit(block: Site, machine: Machine | None, lives: Lives) -> bool:
    """Whether a block in chunks of rows needs little memory, if it needs none as it is."""
    if machine is None or not libtpu.adds_meanwhile(machine):
        return True
    gathered = [op.results[0] for op in block.collectives if op.name == ALL_GATHER]
    if sum(map(array_bytes, gathered)) < FEW_BYTES:
        return True
    return not libtpu_memory.keeps_all_in_vmem(machine, *lives.most(block.op.block))


def _tries(inside: Choices) -> Iterator[dict[Site, Choice]]:
    """Different choices for a function, those with the shortest time first."""
    for parts in (1, 4, 8, 16):
        yield {site: _cut(site, choice, parts) for site, choice in inside.items()}
    yield {site: _left(site, choice) for site, choice in inside.items() if choice.form is not None}


def _cut(site: Site, choice: Choice, parts: int) -> Choice:
    """A sum in at least so many chunks, if they have enough columns."""
    form = choice.form
    is_sum = site.pattern in SUMS
    if form is None or form.name != "columns" or not is_sum or parts <= form.parts:
        return choice
    columns = site.columns if site.pattern == "product-scatter" else site.cut
    if columns % parts or columns // parts < FEWEST_ROWS:
        return choice
    plan = replace(choice.plan, parts=parts)
    return Choice(site, replace(form, parts=parts), plan)


def _left(site: Site, choice: Choice) -> Choice:
    return Choice(site, None, replace(choice.plan, name=None, reason=REASON))


@dataclass(frozen=True)
class _Function:
    """A function with its sites."""

    block: ir.Block
    lives: Lives
    flow: Dataflow
    decide: Decision
    machine: Machine

    def fits(self, choices: Choices) -> bool:
        """Whether a function needs no more memory with these choices, or little more."""
        if not any(choice.form for choice in choices.values()):
            return True
        if libtpu_memory.keeps_all_in_vmem(self.machine, *self.lives.most(self.block)):
            sizes = dict.fromkeys((life.value for life in self._computed), 0)
            return self._timeline.peak(sizes | self._in_memory(choices)) < FEW_BYTES
        plain = self._timeline.peak(self._in_vmem(choices))
        more = self._timeline.peak(self._with_forms(choices)) - plain
        return more <= allowed(given_bytes(self.block), plain)

    @cached_property
    def _computed(self) -> list[Life]:
        return self.lives.computed(self.block)

    @cached_property
    def _timeline(self) -> Timeline:
        return Timeline.of(self._computed)

    def _in_memory(self, choices: Choices) -> dict[Value, int]:
        """What needs a place with forms, if nothing does without."""
        has_sparse_cores = libtpu.adds_meanwhile(self.machine)
        sizes = self._gathered(choices) if has_sparse_cores else {}
        for site, choice in choices.items():
            if choice.form is None:
                continue
            if site.pattern == "gather-product":
                sizes.pop(site.op.results[0], None)
            elif site.pattern == "all-to-all":
                sizes[site.op.results[0]] = array_bytes(site.op.results[0])
            elif choice.form.name == "columns" and has_sparse_cores:
                sizes |= _placed(site, _chunks(site, choice.form.parts))
        return sizes

    def _gathered(self, choices: Choices) -> dict[Value, int]:
        """The bytes of what is gathered in the plain program, where f32 may be sent as bf16."""
        halves = {site.op for site in choices if is_narrowed(site)}
        return {
            value: array_bytes(value) // (1 + (node.op in halves))
            for node in self._gathers
            for value in node.results
        }

    @cached_property
    def _gathers(self) -> list[Node]:
        return [node for node in self.flow.nodes if node.name == ALL_GATHER]

    @cached_property
    def _beside_products(self) -> set[Value]:
        """What stays in memory while products are computed that do not read it."""
        products = [node.number for node in self.flow.nodes if node.name == DOT]
        return {
            life.value
            for life in self._computed
            if bisect_right(products, life.first) < bisect_left(products, life.last)
        }

    def _in_vmem(self, choices: Choices) -> dict[Value, int]:
        """What the plain program has in VMEM, which one with forms has not: no bytes."""
        sizes = self._gathered(choices) | self._gathered_from_vmem
        for site, choice in choices.items():
            if choice.form is None or site.pattern != "product-scatter":
                continue
            work = self.decide.work(site)
            for rows in {value for product in site.products for value in product.operands}:
                if libtpu_memory.keeps_rows(work, self.machine, array_bytes(rows)):
                    sizes |= self._none(rows)
        return sizes

    @cached_property
    def _gathered_from_vmem(self) -> dict[Value, int]:
        """What is gathered from VMEM, and only needed for that: no bytes."""
        operands = [value for node in self._gathers for value in node.operands]
        return {
            value: 0
            for operand in operands
            if libtpu_memory.gathers_from_vmem(self.machine, array_bytes(operand))
            for value in self._none(operand)
            if value not in self._beside_products
        }

    def _none(self, value: Value) -> dict[Value, int]:
        """No bytes for a computed array, and for what it is computed from element by element."""
        most = array_bytes(value)
        nodes = [node for nodes in computed_from(value, self.flow) or () for node in nodes]
        made = [result for node in nodes for result in node.results]
        return {each: 0 for each in made if self._sizes.get(each, most + 1) <= most}

    @cached_property
    def _sizes(self) -> dict[Value, int]:
        """The bytes of what is computed and has a place."""
        return {life.value: life.bytes_ for life in self._computed}

    def _with_forms(self, choices: Choices) -> dict[Value, int]:
        sizes = self._gathered(choices)
        for site, choice in choices.items():
            form = choice.form
            if form is None or site.pattern == "all-to-all":
                continue
            if site.op.name == ALL_GATHER:
                sizes[site.op.results[0]] = site.kept or buffers(site, form)
            elif form.name == "columns":
                sizes |= _placed(site, _chunks(site, form.parts))
            else:
                sizes |= in_pieces(site, buffers(site, form))
        return sizes


def _placed(site: Site, bytes_: int) -> dict[Value, int]:
    """So many bytes for chunks, where they are."""
    if site.op.name == ALL_GATHER:
        return {site.op.results[0]: bytes_}
    return in_pieces(site, bytes_)


def _place(site: Site) -> Value:
    """What chunks take the place of: what is gathered, or what is summed."""
    return site.op.results[0] if site.op.name == ALL_GATHER else site.op.operands[0]


def _chunks(site: Site, parts: int) -> int:
    """The bytes of the chunks that are in memory at a time."""
    parts = max(2, parts)
    chunk = array_bytes(_place(site)) // parts
    if site.op.name == ALL_GATHER:
        return _CHUNKS_OF_GATHERS * chunk
    if site.pattern == "product-sum":
        return CHUNKS_OF_SUMS * chunk
    # At the end the chunks of the result are there too.
    result = array_bytes(site.op.results[0])
    return max(min(CHUNKS_OF_SUMS, parts) * chunk + result // parts, 2 * chunk + result)
