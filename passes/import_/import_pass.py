"""What the passes that import modules of other producers share."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir, passmanager

from ..base import Pass, Violation
from ..export.inline_meshes import InlineMeshes
from ..ir.shardy_notes import erase_shardy_notes
from ..ir.types import PassHandle


@dataclass(frozen=True)
class ImportPass(Pass):
    """A pass that brings a module into body form.

    First, what Shardy notes for itself is erased. Then meshes are inlined, so that it does not
    matter how many the module declares.
    """

    def add_to(
        self,
        manager: passmanager.PassManager,
        refused: list[Violation],
        before: Pass | None = None,
    ) -> None:
        def erase_notes(op: ir.Operation, _: PassHandle) -> None:
            with op.location:
                erase_shardy_notes(op)

        manager.add(erase_notes, name=f"{self.name}-notes")
        InlineMeshes().add_to(manager, refused)
        super().add_to(manager, refused, before)
