"""What the passes that import modules of other producers share."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import passmanager
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..base import Pass, Violation
from ..export.inline_meshes import InlineMeshes
from ..ir.shardy_notes import erase_shardy_notes
from .name_hints import erase_hints_in_reductions
from .round_trip import restore_regions


@dataclass(frozen=True)
class _ReadNotes(Pass):
    name = "shmap-import-notes"
    code = "SHM-P13"

    def run(self, module: ModuleOp) -> None:
        restore_regions(module)
        erase_shardy_notes(module.operation)
        erase_hints_in_reductions(module.operation)


@dataclass(frozen=True)
class ImportPass(Pass):
    """A pass that brings a module into body form.

    First, regions that Shardy wrote as custom calls are written in its dialect, and what it notes
    for itself is erased, and so are hints in the reductions of collectives. Then meshes are
    inlined, so that it does not matter how many the module declares.
    """

    def add_to(
        self,
        manager: passmanager.PassManager,
        refused: list[Violation],
        before: Pass | None = None,
    ) -> None:
        _ReadNotes().add_to(manager, refused)
        InlineMeshes().add_to(manager, refused)
        super().add_to(manager, refused, before)
