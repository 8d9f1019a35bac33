"""Chooses the forms in which transfers run beside products, where they are expected to gain.

Before:  %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, ... axes = ["i"]}>
         %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0]
After:   %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, ... axes = ["i"]}>
              {shmap.overlap = {name = "ring", order = array<i64: 0, 1, 3, 2>, ...}}
         %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0]
Needs:   the machine: its chip, its network and the coordinates of the mesh's devices, as text of
         `Machine`.
Leaves:  every operation as it is; later passes rewrite those for which a form was chosen. If there
         is one, two kinds of functions are inlined: those called in loops that gather, because a
         loop is rewritten as a whole, and small ones that can be computed on pieces, such as
         jax.nn.silu; and reshapes between products and what is gathered or summed are moved
         (passes/overlap/rewrite/move_reshapes.py). Gathers that are left get the form "together" if
         their products should be computed one after the other. A module in which nothing is chosen
         stays as it is, as does one in which some axes are automatic.

The rule is in passes/cost/overlap.py. A form is chosen if it is expected to take at most 85% of the
time of the plain program (most gathers and sums on TPUs 90%, exchanges 92%, a ring beside a sum
that has a form 100%); with `effort=try`, at most 100%; with `effort=force`, whatever it takes. What
is best left, as products run beside it that need nothing of it, counts as chosen in the form
"asynchronous", and is not rewritten. Without a machine only forced forms are chosen. Partial sums
are rounded between devices only with `may_round`. With `only_sums`, products of gathered operands,
exchanges and loops stay as they are. For softmax, which waits for no transfer, the rule is in
passes/cost/overlap_of_softmax.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import cast

from jaxlib.mlir.dialects.builtin import ModuleOp

from ..base import Pass, PipelineError
from ..cost.machine import Machine
from ..ir.body_form import read_body_form
from ..ir.find_ops import find_ops
from ..ir.inline_calls import erase_uncalled
from .choose.choices import choices
from .choose.chosen_forms import tell
from .choose.decision import Choice, Effort
from .form import Form, write
from .rewrite.inline_local import inline_local
from .rewrite.inline_steps import inline_steps
from .rewrite.move_reshapes import has_reshapes_between, move_reshapes


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
    only_sums: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.machine:
            try:
                Machine.parse(self.machine)
            except ValueError as error:
                needed = "the JSON that shmap_passes.cost.machine.Machine writes as its text"
                fix = "`shmap compile --target tpu:v5e:2x4 --overlap=auto` chooses for a target"
                raise PipelineError(
                    f"{self.name}: option machine: {error}; needed: {needed}; {fix}"
                ) from None

    @cached_property
    def _machine(self) -> Machine | None:
        return Machine.parse(self.machine) if self.machine else None

    def choices(self, module: ModuleOp) -> tuple[Choice, ...]:
        """What the pass chooses in a module; inlines functions and moves reshapes there."""
        self._prepare(module)
        return self._choices(module)

    def _prepare(self, module: ModuleOp) -> None:
        if _has_calls(module):
            inline_steps(module)
            inline_local(module)
        move_reshapes(module, self.may_round)

    def _choices(self, module: ModuleOp) -> tuple[Choice, ...]:
        return choices(module, self._machine, self.effort, self.may_round, self.only_sums)

    def run(self, module: ModuleOp) -> bool:
        if not self.machine and self.effort != "force":
            return False  # Nothing can be expected of a machine that is not known.
        if read_body_form(module).is_partly_manual:
            return False
        is_prepared = _has_calls(module) or has_reshapes_between(module)
        trial = _copy(module) if is_prepared else module
        if is_prepared:
            self._prepare(trial)
        is_chosen = False
        for choice in self._choices(trial):
            tell(choice)
            if choice.form is not None and choice.is_rewritten:
                write(choice.site.op, choice.form)
                is_chosen = True
            elif choice.is_together:
                write(choice.site.op, Form("together"))
        if not is_chosen or not is_prepared:
            return False  # No analysis reads the forms that are written on operations.
        erase_uncalled(trial)
        _move(trial, module)
        return True


def _has_calls(module: ModuleOp) -> bool:
    return bool(find_ops(module.operation, ["func.call"]))


def _copy(module: ModuleOp) -> ModuleOp:
    return cast("ModuleOp", module.operation.clone(ip=False).opview)


def _move(source: ModuleOp, module: ModuleOp) -> None:
    """Replaces the contents of a module by those of another."""
    for op in list(module.body.operations):
        op.erase()
    for op in list(source.body.operations):
        module.body.append(op)
