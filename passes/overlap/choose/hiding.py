"""Which products hide which collectives of a block, and which forms are given up for that.

A product hides no more than it takes to compute, so the collectives of a block share its products.
One that has a form needs none; if the form is given up, its own products may hide others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...ir.collective_ops import ALL_GATHER
from ...ir.dataflow import Dataflow
from ..find.independence import bits
from .decision import Choice
from .meanwhile import Meanwhile
from .site import Site

_TOGETHER = 32
"""So many collectives are decided about at a time, in program order: all ways to give up one form
are tried, so the time grows with the square of their number."""
_SHARE = 0.97
"""Forms are given up if a block takes at most this share of its time without them."""


@dataclass(frozen=True, eq=False)
class Candidate:
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


Hidden = dict[Candidate, dict[int, float]]
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

    given_up: frozenset[Candidate]
    ordered: int
    free: Mapping[int, float]
    late: Mapping[int, int]


@dataclass(frozen=True)
class Hiding:
    """Shares the products of a block among its collectives.

    Attributes:
      candidates: in program order.
      products: the seconds of each product of the block, by number.
      flow: of the block.
      meanwhile: tells whether what products read beside a collective fits in memory.
      is_tpu: else a GPU, where nothing changes if a form is given up.
      is_in_loop: whether the block is that of a loop.
    """

    candidates: Sequence[Candidate]
    products: Mapping[int, float]
    flow: Dataflow
    meanwhile: Meanwhile
    is_tpu: bool
    is_in_loop: bool

    def hidden(self) -> Hidden:
        """What hides the collectives that are left, with the forms given up that save least."""
        found: Hidden = {}
        reached = self._start
        for first in range(0, len(self.candidates), _TOGETHER):
            group = self.candidates[first : first + _TOGETHER]
            _, hidden, reached = self._run(group, self._given_up(group, reached), reached)
            found |= hidden
        return found

    def _given_up(self, group: Sequence[Candidate], reached: _Reached) -> frozenset[Candidate]:
        """The collectives of a group whose forms are given up."""
        formed = [each for each in group if each.beside and self._may_give_up(each)]
        while True:
            given_up = self._fastest_without(formed, group, reached)
            hidden = self._run(group, given_up, reached)[1]
            late = {each: self._late(each, hidden.get(each, {})) for each in given_up}
            large = {each for each in given_up if not self.meanwhile.fits(each.site, late[each])}
            if not large or not self.is_tpu:
                return given_up
            formed = [each for each in formed if each not in large]

    def _late(self, candidate: Candidate, hidden: Iterable[int]) -> Iterable[int]:
        """The products that may run beside a collective which some of them hide.

        While it sums, a compiler may compute all that can be computed: with 16384 rows of 4096, and
        16384 between, on groups of eight along one dimension of v5p, the gradient of e needed 593
        MiB, and 401 with the form. Gathers are beside the products that hide them: the gradient of
        two transformer layers on v5e needs 1874 MiB with two gathers left, and 1903 with rings.
        """
        gathers = self.flow.node(candidate.site.op).name == ALL_GATHER
        return hidden if gathers else candidate.beside

    def _may_give_up(self, candidate: Candidate) -> bool:
        """Whether a collective has a form, but not chunks of columns in a loop.

        Those of the sum of a weight's gradient in loops of g' took up to 12% less time on v5p, and
        2% on v6e, than the sum beside another product, during which products take longer.
        """
        form = candidate.choice.form
        return form is not None and not (self.is_in_loop and _is_in_columns(candidate))

    def _fastest_without(
        self, formed: Sequence[Candidate], group: Sequence[Candidate], reached: _Reached
    ) -> frozenset[Candidate]:
        """Those of some forms without which a group takes the least time.

        A gather's form that puts the whole together is given up for any gain: what reads the whole
        waits for its last chunk, and needs memory beside the chunks.
        """
        none = frozenset[Candidate]()
        if not self.is_tpu:
            return self._faster(none, formed, group, reached, 1.0)  # Nothing changes there.
        kept = [each for each in formed if each.site.kept]
        given_up = self._faster(none, kept, group, reached, 1.0)
        others = [each for each in formed if not each.site.kept]
        return self._faster(given_up, others, group, reached, _SHARE)

    def _faster(
        self,
        given_up: frozenset[Candidate],
        formed: Sequence[Candidate],
        group: Sequence[Candidate],
        reached: _Reached,
        share: float,
    ) -> frozenset[Candidate]:
        """What to give up of some forms beside others, if a group takes at most a share then."""
        if not formed:
            return given_up
        rest = self._others * len(group) / len(self.candidates)

        def seconds_without(tried: frozenset[Candidate]) -> float:
            return rest + self._run(group, tried, reached)[0]

        best, found = seconds_without(given_up) * share, given_up
        for tried in (given_up, given_up.union(formed)):
            seconds = seconds_without(tried)
            for each in formed:
                other = tried ^ {each}
                if (without := seconds_without(other)) < seconds:
                    seconds, tried = without, other
            if seconds < best:
                best, found = seconds, tried
        return found

    def _run(
        self, group: Sequence[Candidate], given_up: frozenset[Candidate], reached: _Reached
    ) -> tuple[float, Hidden, _Reached]:
        """The seconds of a group if some of its forms are given up, and what is left after it."""
        all_given_up = reached.given_up | given_up
        ordered = reached.ordered & ~bits(each.number for each in given_up)
        free, late = dict(reached.free), dict(reached.late)
        waiting = bits(late)
        for each in given_up:
            for number in self._own[each]:
                if all_given_up.issuperset(self._owners[number]):
                    free[number] += self.products[number] - self._free[number]
        seconds, hidden = 0.0, Hidden()
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
        forms = {each.number: each.choice.form for each in self.candidates}
        ordered = bits(number for number, form in forms.items() if form and form.ordered)
        return _Reached(frozenset(), ordered, self._free, {})

    @cached_property
    def _free(self) -> dict[int, float]:
        """The seconds of each product in which it hides nothing of its own, by number.

        Those of chunks of a gather, while the next one arrives, are its own. In a ring it has none,
        nor in any form on GPUs, where it was not measured.
        """
        free: dict[int, float] = {}
        for number, seconds in self.products.items():
            owners = self._owners[number]
            in_chunks = all(
                self.is_tpu and each.site.kept and _is_in_columns(each) for each in owners
            )
            sent = sum(each.sent for each in owners)
            free[number] = max(0.0, seconds - sent) if in_chunks else 0.0
        return free

    @cached_property
    def _own(self) -> dict[Candidate, list[int]]:
        """The products of each candidate, by number."""
        return {
            each: [self.flow.node(op).number for op in each.site.products]
            for each in self.candidates
        }

    @cached_property
    def _owners(self) -> dict[int, list[Candidate]]:
        """The candidates with a form that each product belongs to."""
        found: dict[int, list[Candidate]] = {number: [] for number in self.products}
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

    @cached_property
    def _others(self) -> float:
        """The seconds of the products that are of no candidate."""
        own = {number for numbers in self._own.values() for number in numbers}
        return sum(seconds for number, seconds in self.products.items() if number not in own)


def _is_in_columns(candidate: Candidate) -> bool:
    form = candidate.choice.form
    return form is not None and form.name == "columns"
