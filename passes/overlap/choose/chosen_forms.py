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


Observe = Callable[[Choice], object]

_observers: ContextVar[tuple[Observe, ...]] = ContextVar("observers", default=())


@contextlib.contextmanager
def observing(observe: Observe) -> Generator[None]:
    """Calls a function with each choice that is made inside this context, in this thread."""
    token = _observers.set((*_observers.get(), observe))
    try:
        yield
    finally:
        _observers.reset(token)


@contextlib.contextmanager
def recording() -> Generator[list[ChosenForm]]:
    """The forms that are chosen inside this context, in this thread."""
    chosen: list[ChosenForm] = []

    def record(choice: Choice) -> None:
        site, form = choice.site, choice.form
        if form is not None:
            chosen.append(ChosenForm(form, site.pattern, site.received, site.count))

    with observing(record):
        yield chosen


def tell(choice: Choice) -> None:
    """Tells all who observe of a choice."""
    for observe in _observers.get():
        observe(choice)
