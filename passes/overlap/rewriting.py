"""The frame of the passes that rewrite sites: which have a form, and what becomes of the form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..base import Pass, option_fields
from ..ir.body_form import BodyForm, read_body_form
from ..ir.types import Option
from .form import Form, FormName, erase, erase_all, read

SiteT = TypeVar("SiteT")


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

    def sites(self, module: ModuleOp, body: BodyForm) -> Iterator[tuple[ir.Operation, SiteT]]:
        """What can be rewritten, each with the operation on which its form is written.

        Each is looked for when it is asked for, so those before may have been rewritten.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no sites(module, body)")

    def rewrite(self, site: SiteT, body: BodyForm, form: Form) -> None:
        """Rewrites a site, or leaves it as it is if the form is not possible."""
        raise NotImplementedError(f"{type(self).__name__} defines no rewrite(site, body, form)")

    def run(self, module: ModuleOp) -> None:
        body = read_body_form(module)
        for op, site in self.sites(module, body):
            form = self._form_of(op)
            if form is None or form.name not in self.forms:
                continue
            erase(op)
            if not body.is_partly_manual:
                self.rewrite(site, body, form)
        erase_all(module.operation, self.op_name, *self.forms)

    @property
    def is_chosen(self) -> bool:
        """Whether only sites are rewritten that have a form."""
        return _options(self)["form"] == "chosen"

    def _form_of(self, op: ir.Operation) -> Form | None:
        if self.is_chosen:
            return read(op)
        options = _options(self)
        return Form(options.pop("form"), **options)


def _options(pass_: Pass) -> dict[str, Option]:
    return {field.name: getattr(pass_, field.name) for field in option_fields(pass_)}
