"""Leaves collectives as they are beside which products run that need nothing of them.

With the options of the target a SparseCore sends while the TensorCores compute what does not need
the result; a v5e gathers so without being told to. In the gradient of a layer that is the product
that becomes the gradient of a weight:

    %d = stablehlo.dot_general %y, %w, contracting_dims = [1] x [1]
    %s = "stablehlo.reduce_scatter"(%d)
    %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0]     // at the same time

A form of the sum would compute in pieces, and gain nothing. A product hides no more than it takes
to compute, so the collectives of a block share its products.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from ..find.independence import Independence, bits
from ..find.products import Product
from ..form import Form
from .decision import Choice, Decision
from .lives import Lives
from .meanwhile import Meanwhile
from .site import Site

_PATTERNS = ("gather-product", "gather-contraction", "product-scatter", "product-sum")
_TOGETHER = 32
"""So many collectives are decided about at a time, in program order: all ways to give up one form
are tried, so the time grows with the square of their number."""
_SHARE = 0.97
"""Forms are given up if a block takes at most this share of its time without them."""
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


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A collective that may be left.

    Attributes:
      number: of its operation in the block.
      sent: the seconds in which it is sent.
      computed: those of its own products.
      beside: the products that need nothing of it, and of which it needs nothing, by number; those
        first that hide the fewest other collectives, and of these the last ones.
    """

    site: Site
    choice: Choice
    number: int
    sent: float
    computed: float
    beside: tuple[int, ...]


_Hidden = dict[_Candidate, dict[int, float]]
"""Of each collective that is left, the seconds of products that hide it, by number."""


@dataclass(frozen=True)
class _Reached:
    """What is left when the first candidates of a block are decided about.

    Attributes:
      given_up: those of them whose forms are given up.
      ordered: the candidates, as bits by number, before whose forms products are computed that need
        nothing of them, in order that what these read need not stay in memory.
      free: the seconds of products that hide nothing yet, by number.
      late: what comes before products that run beside a collective, as bits by number.
    """

    given_up: frozenset[_Candidate]
    ordered: int
    free: Mapping[int, float]
    late: Mapping[int, int]


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
        for each, beside in self._hidden().items():
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
        for each, beside in self._hidden().items():
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

    def _hidden(self) -> _Hidden:
        """What hides the collectives that are left, with the forms given up that save least."""
        found: _Hidden = {}
        reached = self._start
        for first in range(0, len(self._candidates), _TOGETHER):
            group = self._candidates[first : first + _TOGETHER]
            _, hidden, reached = self._run(group, self._given_up(group, reached), reached)
            found |= hidden
        return found

    def _given_up(self, group: Sequence[_Candidate], reached: _Reached) -> frozenset[_Candidate]:
        """The collectives of a group whose forms are given up."""
        formed = [each for each in group if each.beside and self._may_give_up(each)]
        while True:
            given_up = self._fastest_without(formed, group, reached)
            hidden = self._run(group, given_up, reached)[1]
            late = {each: self._late(each, hidden.get(each, {})) for each in given_up}
            large = {each for each in given_up if not self._meanwhile.fits(each.site, late[each])}
            if not large or not self.machine.is_tpu:
                return given_up
            formed = [each for each in formed if each not in large]

    def _late(self, candidate: _Candidate, hidden: Iterable[int]) -> Iterable[int]:
        """The products that may run beside a collective which some of them hide.

        While it sums, a compiler may compute all that can be computed: with 16384 rows of 4096, and
        16384 between, on groups of eight along one dimension of v5p, the gradient of e needed 593
        MiB, and 401 with the form. Gathers are beside the products that hide them: the gradient of
        two transformer layers on v5e needs 1874 MiB with two gathers left, and 1903 with rings.
        """
        gathers = self.flow.node(candidate.site.op).name == ALL_GATHER
        return hidden if gathers else candidate.beside

    def _may_give_up(self, candidate: _Candidate) -> bool:
        """Whether a collective has a form, but not chunks of columns in a loop.

        Those of the sum of a weight's gradient in loops of g' took up to 12% less time on v5p, and
        2% on v6e, than the sum beside another product, during which products take longer.
        """
        form = candidate.choice.form
        is_in_loop = self.block.owner.operation.name != "func.func"
        return form is not None and not (is_in_loop and form.name == "columns")

    def _fastest_without(
        self, formed: Sequence[_Candidate], group: Sequence[_Candidate], reached: _Reached
    ) -> frozenset[_Candidate]:
        """Those of some forms without which a group takes the least time."""
        others = self._others * len(group) / len(self._candidates)

        def seconds_without(given_up: frozenset[_Candidate]) -> float:
            return others + self._run(group, given_up, reached)[0]

        none = frozenset[_Candidate]()
        share = _SHARE if self.machine.is_tpu else 1.0  # Nothing changes where a form is given up.
        best, given_up = seconds_without(none) * share, none
        for tried in (none, frozenset(formed)) if formed else ():
            seconds = seconds_without(tried)
            for each in formed:
                other = tried ^ {each}
                if (found := seconds_without(other)) < seconds:
                    seconds, tried = found, other
            if seconds < best:
                best, given_up = seconds, tried
        return given_up

    def _run(
        self, group: Sequence[_Candidate], given_up: frozenset[_Candidate], reached: _Reached
    ) -> tuple[float, _Hidden, _Reached]:
        """The seconds of a group if some of its forms are given up, and what is left after it."""
        all_given_up = reached.given_up | given_up
        ordered = reached.ordered & ~bits(each.number for each in given_up)
        free, late = dict(reached.free), dict(reached.late)
        waiting = bits(late)
        for each in given_up:
            for number in self._own[each]:
                if all_given_up.issuperset(self._owners[number]):
                    free[number] = self._products[number]
        seconds, hidden = 0.0, _Hidden()
        for each in group:
            if each.choice.form and each not in given_up:
                seconds += each.choice.plan.expected or 0.0
                continue
            rest, hidden[each] = each.sent, {}
            before = self._before(each.number, late, waiting)
            for number in each.beside:
                if free.get(number, 0.0) <= 0 or before >> number & 1:
                    continue
                if not before & ordered & ~self.flow.needed[number]:
                    hidden[each][number] = min(rest, free[number])
                    rest -= hidden[each][number]
                    free[number] -= hidden[each][number]
                    late[number] = late.get(number, 0) | before
                    waiting |= 1 << number
                    if rest <= 0:
                        break
            seconds += each.computed + rest
        beside = {each: beside for each, beside in hidden.items() if beside}
        return seconds, beside, _Reached(all_given_up, ordered, free, late)

    @cached_property
    def _start(self) -> _Reached:
        """What there is before the first candidate."""
        forms = {each.number: each.choice.form for each in self._candidates}
        ordered = bits(number for number, form in forms.items() if form and form.ordered)
        free = {n: s for n, s in self._products.items() if not self._owners[n]}
        return _Reached(frozenset(), ordered, free, {})

    @cached_property
    def _own(self) -> dict[_Candidate, list[int]]:
        """The products of each candidate, by number."""
        return {
            each: [self.flow.node(op).number for op in each.site.products]
            for each in self._candidates
        }

    @cached_property
    def _owners(self) -> dict[int, list[_Candidate]]:
        """The candidates with a form that each product belongs to."""
        found: dict[int, list[_Candidate]] = {number: [] for number in self._products}
        for each, numbers in self._own.items():
            for number in numbers if each.choice.form else ():
                found[number].append(each)
        return found

    def _before(self, number: int, late: Mapping[int, int], waiting: int) -> int:
        """What comes before an operation, as bits by number, if some products are late.

        Args:
          waiting: the numbers of these products, as bits.
        """
        before, known = self.flow.needed[number], 0
        while before != known and before & waiting:
            known = before
            for product, others in late.items():
                if known >> product & 1:
                    before |= others
        return before

    def _saved(self, found: Mapping[Site, Choice]) -> float:
        """The share of the time of the block that is saved."""
        plans = [choice.plan for choice in found.values()]
        saved = sum(p.plain - p.expected for p in plans if p.plain and p.expected)
        sent = sum(each.sent for each in self._candidates)
        return saved / (sum(self._products.values()) + sent)

    @cached_property
    def _candidates(self) -> list[_Candidate]:
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
        uses = Counter(number for each in found for number in each.beside)
        return [
            replace(each, beside=tuple(sorted(each.beside, key=lambda n: (uses[n], -n))))
            for each in found
        ]

    def _found_candidates(self) -> Iterator[_Candidate]:
        for site, choice in self.choices.items():
            if choice.plan.plain is None:
                continue  # It is in a site that is rewritten as a whole, or too small.
            sent, computed = self._sent_meanwhile(site)
            if sent >= SHORTEST:
                number = self.flow.node(site.op).number
                yield _Candidate(site, choice, number, sent, computed, self._beside[site])

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

    @cached_property
    def _others(self) -> float:
        """The seconds of the products that are of no candidate."""
        own = {number for numbers in self._own.values() for number in numbers}
        return sum(seconds for number, seconds in self._products.items() if number not in own)
