"""Chooses the forms in which transfers run beside products, where they are expected to gain.

Before:  %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, ... axes = ["i"]}>
         %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0]
After:   %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, ... axes = ["i"]}>
              {shmap.overlap = {name = "ring", order = array<i64: 0, 1, 3, 2>, ...}}
         %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0]
Needs:   the machine: its chip, its network and the places of the mesh, as `Machine.text` has them.
Leaves:  every operation as it is; the passes after it rewrite those that have a form. Only
         functions that are called in loops which gather are inlined, as a loop is rewritten whole,
         and small ones that only compute what can be computed in pieces, as jax.nn.silu does.

The rule is in passes/cost/overlap.py. A form must be expected to take at most 85% of the time of
the plain program, with `effort=try` at most 100%, and with `effort=force` any. Without a machine
only forced forms are chosen. Sums are rounded on their way only with `may_round`.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir.dialects.builtin import ModuleOp

from ..base import Pass, PipelineError
from ..cost.machine import Machine
from .choices import Choice, Effort, choices
from .form import write
from .inline_local import inline_local
from .inline_steps import inline_steps


@dataclass(frozen=True)
class ChooseOverlap(Pass):
    """Chooses the forms in which transfers run beside products, where they are expected to gain."""

    name = "shmap-choose-overlap"
    code = "SHM-P21"
    needs_body_form = True
    keeps_bits = True
    machine: str = ""
    effort: Effort = "auto"
    may_round: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.machine:
            try:
                Machine.parse(self.machine)
            except ValueError as error:
                raise PipelineError(f"{self.name}: option machine: {error}") from None

    def choices(self, module: ModuleOp) -> tuple[Choice, ...]:
        """What the pass chooses in a module; inlines the steps of loops, and small functions."""
        inline_steps(module)
        inline_local(module)
        machine = Machine.parse(self.machine) if self.machine else None
        return choices(module, machine, self.effort, self.may_round)

    def run(self, module: ModuleOp) -> None:
        for choice in self.choices(module):
            if choice.form is not None:
                write(choice.site.op, choice.form)
