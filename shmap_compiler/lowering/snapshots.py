"""The module of a program as it is emitted and as each pass leaves it, printed when asked for.

Printing a module after each of eleven passes takes as long as lowering it, and most modules are
never printed. Passes are deterministic, so a copy of the emitted module is enough to run them
again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import shmap_passes
from jax.interpreters.mlir import ir
from shmap_passes import ChooseOverlap, Pass
from shmap_passes.overlap.choose.chosen_forms import ChosenForm
from shmap_passes.overlap.choose.decision import Choice

from shmap_compiler.base.untyped import OpView


@dataclass(frozen=True)
class ModuleState:
    """A module between two passes.

    Attributes:
      name: the pass before it, or "body".
      text: the module with source lines.
      keeps_bits: whether that pass promises bitwise equal results.
    """

    name: str
    text: str
    keeps_bits: bool


class Snapshots:
    """The modules of one program; of nested programs, those of the outermost, emitted last.

    Attributes:
      chosen: the forms that were taken when the program was lowered, of nested programs as well.
    """

    def __init__(self) -> None:
        self._emitted: Any = None
        self._passes: tuple[Pass | str, ...] = ()
        self._chosen_in: Any = None
        self.chosen: tuple[ChosenForm, ...] = ()

    def emitted(self, module: ir.Module, passes: Sequence[Pass | str]) -> None:
        """Takes a copy of a module in body form, before the passes run over it."""
        self._emitted, self._passes = module.operation.clone(ip=False), tuple(passes)

    @property
    def is_empty(self) -> bool:
        """Whether no module has been emitted."""
        return self._emitted is None

    @property
    def input_count(self) -> int:
        """The number of arrays that the emitted module takes."""
        functions = self._emitted.regions[0].blocks[0].operations
        main = next(f for f in functions if str(f.attributes["sym_name"]) == '"main"')
        return sum(
            isinstance(a.type, ir.RankedTensorType) for a in main.regions[0].blocks[0].arguments
        )

    @cached_property
    def body(self) -> str:
        """The text of the emitted module."""
        return str(self._emitted)

    @cached_property
    def texts(self) -> tuple[tuple[str, str], ...]:
        """The module at "body" and after each pass, as (name, text). MLIR verifies each."""
        return tuple((name, str(module)) for name, module, _ in self._stages())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the states: "body", then the passes."""
        return ("body", *map(_name, self._passes))

    def text_with_lines(self, name: str) -> str:
        """The module in the last state of a name, with the source line of every operation."""
        count = max(k for k, each in enumerate(self.names) if each == name)
        module = self._emitted.operation.clone(ip=False)
        for each in self._passes[:count]:
            shmap_passes.run(module, (each,))
        return module.operation.get_asm(enable_debug_info=True)

    def choices(self, chooser: ChooseOverlap | None = None) -> tuple[Choice, ...]:
        """What the pass that chooses where transfers run beside products has chosen.

        Args:
          chooser: what to ask instead.
        """
        mine = next((each for each in self._passes if isinstance(each, ChooseOverlap)), None)
        chooser = chooser or mine
        if chooser is None or _LAST_IN_BODY_FORM not in self.names:  # nothing was lowered
            return ()
        last = self.names.index(_LAST_IN_BODY_FORM) - 1
        before = last if mine is None else self._passes.index(mine)
        module = self._emitted.operation.clone(ip=False)
        for each in self._passes[:before]:
            shmap_passes.run(module, (each,))
        # The choices name operations of it, which do not all keep their module alive.
        self._chosen_in = module
        return chooser.choices(module.opview)

    @cached_property
    def stages(self) -> tuple[ModuleState, ...]:
        """Like `texts`, with the source line of every operation."""
        return tuple(
            ModuleState(name, module.operation.get_asm(enable_debug_info=True), keeps_bits)
            for name, module, keeps_bits in self._stages()
        )

    def _stages(self) -> Iterator[tuple[str, OpView, bool]]:
        """One module, in each of its states."""
        module = self._emitted.operation.clone(ip=False)
        yield "body", module, True
        for each in self._passes:
            shmap_passes.run(module, (each,))
            keeps_bits = isinstance(each, Pass) and each.keeps_bits
            yield _name(each), module, keeps_bits


_LAST_IN_BODY_FORM = "shmap-legalize-collectives"
"""The pass before which the choice is made."""


def _name(element: Pass | str) -> str:
    return str(element).partition("{")[0]
