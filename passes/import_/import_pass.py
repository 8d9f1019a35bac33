"""What the passes that import modules of other producers share."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import passmanager

from ..base import Pass, Violation
from ..export.inline_meshes import InlineMeshes


@dataclass(frozen=True)
class ImportPass(Pass):
    """A pass that brings a module into body form.

    Meshes are inlined first, so that it does not matter how many the module declares.
    """

    def add_to(
        self,
        manager: passmanager.PassManager,
        refused: list[Violation],
        before: Pass | None = None,
    ) -> None:
        InlineMeshes().add_to(manager, refused)
        super().add_to(manager, refused, before)
