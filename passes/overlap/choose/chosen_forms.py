"""Tells who runs a pipeline what was chosen in it.

    with recording() as chosen:
        run(module, passes)
    chosen[0].form.name          "ring"

The operations of the choices are gone when the pipeline ends, so what is kept does not name them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar
from dataclasses import dataclass

from ..form import Form
from .site import Pattern, Site


@dataclass(frozen=True)
class ChosenForm:
    """A form that is taken at a site.

    Attributes:
      form: into which the site is rewritten.
      pattern, received, count: those of the site.
    """

    form: Form
    pattern: Pattern
    received: int
    count: int

    @property
    def needs_options(self) -> bool:
        """Whether transfers run beside products only with the compiler options of the target."""
        return self.pattern != "softmax"


_recorded: ContextVar[list[ChosenForm] | None] = ContextVar("recorded", default=None)


@contextlib.contextmanager
def recording() -> Generator[list[ChosenForm]]:
    """The forms that are chosen inside this context, in this thread."""
    chosen: list[ChosenForm] = []
    token = _recorded.set(chosen)
    try:
        yield chosen
    finally:
        _recorded.reset(token)


def record(site: Site, form: Form) -> None:
    """Adds a form to what is recorded, if anything is."""
    chosen = _recorded.get()
    if chosen is not None:
        chosen.append(ChosenForm(form, site.pattern, site.received, site.count))
