"""Tells who runs a pipeline what was chosen in it.

    with recording() as chosen:
        run(module, passes)
    chosen[0].form.name          "ring"

    with observing(print):       # each choice, also to leave a site as it is
        run(module, passes)

The operations of the choices are gone when the pipeline ends, so what is kept must not name them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from contextvars import ContextVar
from dataclasses import dataclass

from ..form import Form
from .decision import Choice
from .site import Pattern


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


_observe: ContextVar[Callable[[Choice], object] | None] = ContextVar("observe", default=None)


@contextlib.contextmanager
def observing(observe: Callable[[Choice], object]) -> Generator[None]:
    """Calls a function with each choice that is made inside this context, in this thread."""
    token = _observe.set(observe)
    try:
        yield
    finally:
        _observe.reset(token)


def record(choice: Choice) -> None:
    """Tells who records or observes of a choice."""
    chosen, observe, site = _recorded.get(), _observe.get(), choice.site
    if chosen is not None and choice.form is not None:
        chosen.append(ChosenForm(choice.form, site.pattern, site.received, site.count))
    if observe is not None:
        observe(choice)
