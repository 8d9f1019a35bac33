"""The frame of the passes that rewrite sites: which have a form, and what becomes of the form.

To add a pattern, write what finds it among operations (as scatters.py does) and a pass that
rewrites it, a subclass of `RewritingPass` (as in overlap_product_sum.py), in its place in
pipeline.py. Then add a name in site.py, a finder in sites.py, a rule for its forms in passes/cost/,
and the form that is forced in decision.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Generic, Protocol, TypeVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ...base import Pass, option_fields
from ...ir.body_form import BodyForm, read_body_form
from ...ir.dataflow import dataflows
from ...ir.find_ops import find_ops
from ...ir.types import Option
from ..form import Form, FormName, erase, erase_all, read
from .equal_sites import sharing
from .released import Ordered, order


class Rewritable(Protocol):
    """What can be rewritten."""

    @property
    def op(self) -> ir.Operation:
        """The operation on which its form is written."""
        ...


SiteT = TypeVar("SiteT", bound=Rewritable)


class Disjoint(Rewritable, Protocol):
    """What can be rewritten beside others that were found together with it.

    Attributes:
      all_ops: the operations that are erased when it is rewritten.
      touched: those, and others that are moved.
    """

    @property
    def all_ops(self) -> tuple[ir.Operation, ...]: ...
    @property
    def touched(self) -> tuple[ir.Operation, ...]: ...


DisjointT = TypeVar("DisjointT", bound=Disjoint)


def apart(found: Iterable[DisjointT], ops: Sequence[ir.Operation]) -> Iterator[DisjointT]:
    """Those that begin with some operations, but none that touches what one before it erases.

    Each is as it was found when those before it are rewritten.
    """
    wanted, erased = {*ops}, set[ir.Operation]()
    kept: list[DisjointT] = []
    for each in found:
        if each.op in wanted and erased.isdisjoint(each.touched):
            erased.update(each.all_ops)
            kept.append(each)
    return iter(kept)


@dataclass(frozen=True)
class RewritingPass(Pass, Generic[SiteT]):
    """A pass that rewrites sites into forms.

    Subclasses have an option `form`, which is "chosen" or the name of a form for all sites. Their
    other options are fields of `Form`. If some axes are automatic, nothing is rewritten.
    """

    forms: ClassVar[tuple[FormName, ...]]
    """The names of those that it knows."""
    op_name: ClassVar[str]
    """Of the operations on which they are written."""

    def sites(self, ops: Sequence[ir.Operation], body: BodyForm) -> Iterator[SiteT]:
        """What can be rewritten among operations that have a form, in program order.

        Each is looked for when it is asked for, as those before may have been rewritten, or all of
        them before the first, if that does not change the others (`apart`).
        """
        raise NotImplementedError(f"{type(self).__name__} defines no sites(ops, body)")

    def rewrite(self, site: SiteT, body: BodyForm, form: Form) -> None:
        """Rewrites a site, or leaves it as it is if the form is not possible."""
        raise NotImplementedError(f"{type(self).__name__} defines no rewrite(site, body, form)")

    def prepared(self, sites: Iterator[SiteT], body: BodyForm) -> Iterable[SiteT]:
        """The sites, after what is done around them before the first is rewritten."""
        del body
        return sites

    def run(self, module: ModuleOp) -> bool:
        ops = [op for op in find_ops(module.operation, [self.op_name]) if self.form_of(op)]
        if not ops:
            return False
        body, rewritten = read_body_form(module), 0
        if not body.is_partly_manual:
            with sharing():
                for site in self.prepared(self.sites(ops, body), body):
                    form = self.form_of(site.op)
                    assert form is not None, "the site is one of the operations"
                    erase(site.op)
                    self.rewrite(site, body, form)
                    rewritten += 1
        if rewritten < len(ops):
            erase_all(module.operation, self.op_name, *self.forms)
        return True

    @cached_property
    def is_chosen(self) -> bool:
        """Whether only sites are rewritten that have a form."""
        return _options(self)["form"] == "chosen"

    def form_of(self, op: ir.Operation) -> Form | None:
        """The form of an operation, if it is one that this pass knows."""
        if self.is_chosen:
            return read(op, self.forms)
        options = _options(self)
        return Form(options.pop("form"), **options)


@dataclass(frozen=True)
class OrderingPass(RewritingPass[SiteT]):
    """One that orders other products around those of its sites, before the first is rewritten."""

    def order_around(self, site: SiteT, body: BodyForm, form: Form) -> Ordered | None:
        """The product of a site around which others are ordered; None if the form asks for none."""
        raise NotImplementedError(
            f"{type(self).__name__} defines no order_around(site, body, form)"
        )

    def prepared(self, sites: Iterator[SiteT], body: BodyForm) -> list[SiteT]:
        found = list(sites)
        formed = [(site, form) for site in found if (form := self.form_of(site.op)) is not None]
        ordered = [self.order_around(site, body, form) for site, form in formed]
        order([each for each in ordered if each is not None], dataflows(body.module))
        return found


def _options(pass_: Pass) -> dict[str, Option]:
    return {field.name: getattr(pass_, field.name) for field in option_fields(pass_)}
