"""Leaves collectives as they are beside which products run that need nothing of them.

With the options of the target a SparseCore sends while the TensorCores compute what does not need
the result; a v5e gathers so without being told to. In the gradient of a layer that is the product
that becomes the gradient of a weight:

    %d = stablehlo.dot_general %y, %w, contracting_dims = [1] x [1]
    %s = "stablehlo.reduce_scatter"(%d)
    %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0]     // at the same time

A form of the sum would compute in pieces, and gain nothing. See hiding.py for what each product
hides.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from jaxlib.mlir import ir

from ...cost.machine import Machine
from ...cost.overlap import MARGIN, SHORTEST, speed
from ...cost.overlap_on_gpu import sent_meanwhile as sent_meanwhile_on_gpu
from ...cost.overlap_on_tpu import sent_meanwhile
from ...ir.collective_ops import ALL_GATHER
from ...ir.dataflow import Dataflow, Dataflows
from ...ir.types import array_bytes
from ..find.independence import Independence
from ..find.products import Product
from ..form import Form
from .decision import Choice, Decision
from .hiding import Candidate, Hiding
from .lives import Lives
from .meanwhile import Meanwhile
from .site import Site

_PATTERNS = ("gather-product", "gather-contraction", "product-scatter", "product-sum")
_LEAST_SAVED = 0.06
_LEAST_HIDDEN = 0.5
"""If nothing is rewritten, so much of the time of a block must be saved, and so much be hidden.

With the options compilers choose other kernels, which may take longer. On v6e, the gradient of e
with 512 rows of 8192, and 65536 between, on eight devices, should have taken 6% less time, and took
2% more; loops of g' of which a fifth of each sum should be hidden took 3 and 4% more.
"""

_HIDDEN = "it runs beside products that do not depend on it"
_LATE = "products beside another sum would be computed late, and what they read stay in memory"


def asynchronous(
    chosen: Mapping[Site, Choice], decide: Decision, flows: Dataflows, lives: Lives
) -> dict[Site, Choice]:
    """The choices for collectives that are best left as they are.

    Args:
      chosen: for all sites of a module that have been decided about.
      flows: of the module.
      lives: of its blocks.
    """
    if decide.machine is None:
        return {}
    machine = decide.machine
    sites = [
        site
        for site in chosen
        if site.pattern in _PATTERNS and speed(decide.work(site), machine)  # else of unknown type
    ]
    blocks: list[_Block] = []
    for op_block in dict.fromkeys(site.op.block for site in sites):
        inside = {site: chosen[site] for site in sites if site.op.block == op_block}
        blocks.append(_Block(op_block, inside, decide, machine, flows.of(op_block), lives))
    if not machine.is_tpu:
        return {site: choice for each in blocks for site, choice in each.as_it_is().items()}
    is_alone = not any(choice.form for choice in chosen.values())
    left = {site: choice for each in blocks for site, choice in each.left(is_alone).items()}
    rewritten = {site.pattern for site, each in {**chosen, **left}.items() if each.is_rewritten}
    if rewritten <= {"product-sum"}:
        for block in blocks:
            left |= block.without_late_products(left)
    return left


@dataclass(frozen=True)
class _Block:
    """A block of operations, and the choices for its collectives."""

    block: ir.Block
    choices: Mapping[Site, Choice]
    decide: Decision
    machine: Machine
    flow: Dataflow
    lives: Lives

    def left(self, is_alone: bool) -> dict[Site, Choice]:
        """The choices for collectives that are left.

        Args:
          is_alone: whether nothing in the module is rewritten.
        """
        # In most programs nothing can run beside a collective.
        if not any(self._beside.values()):
            return {}
        found: dict[Site, Choice] = {}
        for each, beside in self._hiding.hidden().items():
            plan, saved = each.choice.plan, sum(beside.values())
            seconds = each.computed + each.sent - saved
            is_formed = each.choice.form is not None
            is_faster = plan.plain is not None and seconds <= MARGIN * plan.plain
            is_enough = saved >= _LEAST_HIDDEN * each.sent or not is_alone
            if is_formed or (is_faster and is_enough and self._meanwhile.fits(each.site, beside)):
                plan = replace(plan, name="asynchronous", expected=seconds, reason="")
                products = tuple(self.flow.nodes[number].op for number in beside)
                found[each.site] = Choice(each.site, Form("asynchronous"), plan, products)
        return {} if is_alone and self._saved(found) < _LEAST_SAVED else found

    def as_it_is(self) -> dict[Site, Choice]:
        """The choices for collectives that a compiler hides without being told to.

        They have the time of the plain program, in which products hide them.
        """
        found: dict[Site, Choice] = {}
        for each, beside in self._hiding.hidden().items():
            plan, seconds = each.choice.plan, each.computed + each.sent - sum(beside.values())
            reason = _HIDDEN if each.choice.form is not None else plan.reason
            found[each.site] = Choice(
                each.site, None, replace(plan, name=None, plain=seconds, reason=reason)
            )
        return found

    def without_late_products(self, left: Mapping[Site, Choice]) -> dict[Site, Choice]:
        """Nothing for the sums of a block, if products that run beside one would need memory.

        All sums are sent beside products with the options, so libtpu may compute late what reads a
        large array, to hide another sum, or chunks of one. With 16384 rows of 2048 on each of eight
        devices of v6e, and 8192 between, the gradient of an MLP block needed 672 MiB with both sums
        of weights' gradients beside products, 833 with one in chunks, and 352. With 4096 rows, and
        both in chunks, it needed 217 on v5p for 144.

        Args:
          left: the choices for collectives that are left, of any block.
        """
        choices = {site: left.get(site, choice) for site, choice in self.choices.items()}
        sums = [each for each in self._candidates if each.site.op.name != ALL_GATHER]
        late = sums if len(sums) > 1 else [s for s in sums if not choices[s.site].is_rewritten]
        if all(self._meanwhile.fits(each.site, each.beside) for each in late):
            return {}
        return {
            site: Choice(site, None, replace(choice.plan, name=None, reason=_LATE))
            for site, choice in choices.items()
            if choice.form is not None
        }

    def _saved(self, found: Mapping[Site, Choice]) -> float:
        """The share of the time of the block that is saved."""
        plans = [choice.plan for choice in found.values()]
        saved = sum(p.plain - p.expected for p in plans if p.plain and p.expected)
        sent = sum(each.sent for each in self._candidates)
        return saved / (sum(self._products.values()) + sent)

    @cached_property
    def _candidates(self) -> list[Candidate]:
        """In program order.

        XLA for GPUs computes gradients of weights at the end of the function, where they hide no
        collective but the last: of the four gathers and four sums in the gradient of two MLP blocks
        it hides one sum.
        """
        found = sorted(self._found_candidates(), key=lambda each: each.number)
        if not self.machine.is_tpu:
            leading = 0
            for each in found:
                leading |= self.flow.needed[each.number]
            found[:-1] = [
                replace(each, beside=tuple(n for n in each.beside if leading >> n & 1))
                for each in found[:-1]
            ]
        uses = Counter(itertools.chain.from_iterable(each.beside for each in found))
        rows = [sorted(sorted(each.beside, reverse=True), key=uses.__getitem__) for each in found]
        return [replace(each, beside=tuple(row)) for each, row in zip(found, rows, strict=True)]

    def _found_candidates(self) -> Iterator[Candidate]:
        for site, choice in self.choices.items():
            if choice.plan.plain is None:
                continue  # It is in a site that is rewritten as a whole, or too small.
            sent, computed = self._sent_meanwhile(site)
            if sent >= SHORTEST:
                number = self.flow.node(site.op).number
                yield Candidate(site, choice, number, sent, computed, self._beside[site])

    def _sent_meanwhile(self, site: Site) -> tuple[float, float]:
        """Seconds in which a collective may be sent beside products, and those of its own."""
        rule = sent_meanwhile if self.machine.is_tpu else sent_meanwhile_on_gpu
        return rule(self.decide.work(site), self.machine)

    @cached_property
    def _beside(self) -> dict[Site, tuple[int, ...]]:
        """The products that can run beside each collective, by number."""
        beside = self._independence.beside
        return {site: tuple(beside(self.flow.node(site.op).number)) for site in self.choices}

    @cached_property
    def _hiding(self) -> Hiding:
        is_in_loop = self.block.owner.operation.name != "func.func"
        return Hiding(
            self._candidates,
            self._products,
            self.flow,
            self._meanwhile,
            is_tpu=self.machine.is_tpu,
            is_in_loop=is_in_loop,
        )

    @cached_property
    def _meanwhile(self) -> Meanwhile:
        return Meanwhile(self.block, self.flow, self.lives)

    @cached_property
    def _independence(self) -> Independence:
        return Independence(self.flow)

    @cached_property
    def _products(self) -> dict[int, float]:
        """The seconds of each product of the block, by number."""
        site = next(iter(self.choices))
        computed = self._sent_meanwhile(site)[1] / site.flops
        bandwidth = self.machine.chip.hbm_bandwidth
        found: dict[int, float] = {}
        for number in self._independence.products:
            node = self.flow.nodes[number]
            moved = sum(map(array_bytes, (*node.operands, *node.results)))
            seconds = computed * Product.of(node.op).flops
            found[number] = max(seconds, moved / bandwidth)
        return found
