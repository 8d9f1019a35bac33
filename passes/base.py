"""What a pass is: a frozen dataclass with a name, options as fields, and `run(module)`.

    @dataclass(frozen=True)
    class ElideTrivialAllReduce(Pass):
        '''Removes all-reduces over axes of size one.'''
        name = "shmap-elide-trivial-all-reduce"

        def run(self, module: ModuleOp) -> None: ...

A pass refuses first and rewrites after: it raises `PassRefused` with everything it found wrong,
before it has changed anything. `Pass.add_to` is the one place that turns a refusal into located
MLIR diagnostics.
"""

from __future__ import annotations

import dataclasses
import shlex
import typing
from collections.abc import Iterable
from functools import cache
from typing import Annotated, ClassVar, Literal

from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects.builtin import ModuleOp

from .ir.analyses import forget_analyses
from .ir.types import OptionField, OptionType, PassHandle


@dataclasses.dataclass(frozen=True)
class Violation:
    """What a pass rejects in a module: a location, and what was found, needed, and what to do."""

    location: ir.Location
    message: str
    notes: tuple[Violation, ...] = ()
    """Other locations that explain it, each with its own message."""


class PassRefused(Exception):
    """A pass rejects a module; `violations` lists every reason with its location."""

    def __init__(self, violations: Iterable[Violation]):
        self.violations = tuple(violations)
        super().__init__("\n".join(violation.message for violation in self.violations))


def reference(code: str) -> str:
    """The end of a message: its stable code, and where the documentation describes it."""
    return f"[{code}: docs/errors.md#{code.lower()}]"


Count = Annotated[int, "of at least 0"]
"""The type of an option that is a number of at least 0."""


class PipelineError(ValueError):
    """A pipeline names a pass or an option that does not exist, or a value it does not take."""


@dataclasses.dataclass(frozen=True)
class Pass:
    """A rewrite or check of one module. Subclasses set `name` and define `run`."""

    name: ClassVar[str]
    code: ClassVar[str] = ""
    """Ends each of its diagnostics, and is listed in docs/errors.md; stable between versions."""
    needs_body_form: ClassVar[bool] = False
    """Whether it needs what shmap-verify accepts, which `run` in pipeline.py then checks."""
    ends_body_form: ClassVar[bool] = False
    """Whether the pass takes the module out of body form."""
    keeps_bits: ClassVar[bool] = False
    """Whether it promises bitwise equal results; otherwise sums may be added in another order."""

    def __post_init__(self) -> None:
        given = {f.name: getattr(self, f.name) for f in option_fields(self)}
        # Reading the types of options takes most of the time in which a pipeline is made.
        if all(given[f.name] == f.default for f in option_fields(self)):
            return
        for option, values in _choices(type(self)).items():
            found = given[option]
            if found not in values:
                raise PipelineError(
                    f"{self.name}: option {option}={found} is not one of {', '.join(values)}"
                )
        for option in _counts(type(self)):
            if given[option] < 0:
                raise PipelineError(
                    f"{self.name}: option {option}={given[option]} is not a whole number of at "
                    "least 0"
                )

    def run(self, module: ModuleOp) -> bool | None:
        """Rewrites `module` in place, or raises `PassRefused` and leaves it as it was.

        Returns:
          False if analyses of the module still hold, as they do if it has changed nothing. They are
          kept for the next pass.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no run(module)")

    @classmethod
    @cache
    def summary(cls) -> str:
        """The first line of the class's docstring."""
        return (cls.__doc__ or "").strip().partition("\n")[0]

    def __str__(self) -> str:
        """The pass as it is written in a textual pipeline."""
        options = " ".join(
            f"{f.name}={option_text(getattr(self, f.name))}" for f in option_fields(self)
        )
        return f"{self.name}{{{options}}}" if options else self.name

    def add_to(
        self,
        manager: passmanager.PassManager,
        refused: list[Violation],
        before: Pass | None = None,
    ) -> None:
        """Appends this pass to an MLIR pass manager that runs on modules.

        The violations of a refusal are also appended to `refused`, because MLIR's Python bindings
        cannot attach notes to a diagnostic. The check `before`, if any, runs as a part of this
        pass.
        """

        def run(op: ir.Operation, pass_: PassHandle) -> None:
            try:
                with op.location:
                    module = _module_of(op)
                    if before is not None:
                        before.run(module)
                    if self.run(module) is not False:
                        forget_analyses()
            except PassRefused as refusal:
                violations = [_with_code(violation, self.code) for violation in refusal.violations]
                refused.extend(violations)
                for violation in violations:
                    violation.location.emit_error(violation.message)
                pass_.signal_pass_failure()

        manager.add(run, name=self.name, argument=self.name, description=self.summary())


def _with_code(violation: Violation, code: str) -> Violation:
    if not code:
        return violation
    return dataclasses.replace(violation, message=f"{violation.message} {reference(code)}")


def option_fields(pass_: Pass | type[Pass]) -> tuple[OptionField, ...]:
    """The options of a pass, in the order of their definition."""
    return dataclasses.fields(pass_)


@cache
def option_types(cls: type[Pass]) -> dict[str, OptionType]:
    """The type of each option: bool, int, str or a Literal of strings."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in option_fields(cls)}


@cache
def _choices(cls: type[Pass]) -> dict[str, tuple[str, ...]]:
    return {
        option: typing.get_args(hint)
        for option, hint in option_types(cls).items()
        if typing.get_origin(hint) is Literal
    }


@cache
def _counts(cls: type[Pass]) -> tuple[str, ...]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple(field.name for field in option_fields(cls) if hints[field.name] == Count)


def option_text(value: object) -> str:
    """The value of an option as it is written in a textual pipeline."""
    return str(value).lower() if isinstance(value, bool) else shlex.quote(str(value))


def _module_of(op: ir.Operation) -> ModuleOp:
    module = op.opview
    if not isinstance(module, ModuleOp):
        text = f"this pass runs on builtin.module, not on {op.name}; take it out of the nesting"
        raise PassRefused([Violation(op.location, text)])
    return module
