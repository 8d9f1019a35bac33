"""Printing modules: the forms that `mlir-opt` knows, and dumps between passes.

Dumps before and after all passes, after passes that change the module and after one that fails are
MLIR's own. MLIR's Python bindings cannot select passes by name, so those dumps are written by
passes that print and change nothing.
"""

from __future__ import annotations

import io
import re
import sys
from dataclasses import dataclass

from jaxlib.mlir import ir, passmanager


@dataclass(frozen=True)
class TextFormat:
    """How a module is printed.

    Attributes:
      generic: in MLIR's generic form, which every operation has.
      debug_info: with the source location of each operation.
    """

    generic: bool = False
    debug_info: bool = False

    def text(self, operation: ir.Operation) -> str:
        """The text of an operation."""
        file = io.StringIO()
        operation.print(
            file=file,
            print_generic_op_form=self.generic,
            enable_debug_info=self.debug_info,
        )
        return file.getvalue()


@dataclass(frozen=True)
class PassPrinting:
    """Between which passes the module is printed to standard error.

    Attributes:
      before, after: names of passes, as in `shmap-verify` or `canonicalize`.
      before_all, after_all: before or after every pass.
      after_change: after every pass that changed the module.
      after_failure: after a pass that failed.
      format: how the module is printed.
    """

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    before_all: bool = False
    after_all: bool = False
    after_change: bool = False
    after_failure: bool = False
    format: TextFormat = TextFormat()

    def enable_on(self, manager: passmanager.PassManager, context: ir.Context) -> None:
        """Enables the dumps that MLIR makes itself. Turns multithreading off in the context."""
        if not (self.before_all or self.after_all or self.after_change or self.after_failure):
            return
        context.enable_multithreading(False)
        manager.enable_ir_printing(
            print_before_all=self.before_all,
            # MLIR prints after the passes that the two others do not leave out, and after failures.
            print_after_all=self.after_all or self.after_change or self.after_failure,
            print_module_scope=True,
            print_after_change=self.after_change and not self.after_all,
            print_after_failure=not (self.after_all or self.after_change),
            enable_debug_info=self.format.debug_info,
            print_generic_op_form=self.format.generic,
        )

    def add_dump(self, manager: passmanager.PassManager, when: str, element: object) -> None:
        """Appends a dump before or after (`when`) an element of the pipeline, if it is selected."""
        names, by_mlir = {
            "Before": (self.before, self.before_all),
            "After": (self.after, self.after_all),
        }[when]
        if by_mlir or not names:
            return
        text = str(element)
        if set(names).isdisjoint(names_in(text)):
            return
        name = text.partition("{")[0]

        def dump(op: ir.Operation, _: object) -> None:
            text = self.format.text(op)
            print(f"// -----// IR Dump {when} {name} //----- //\n{text}", file=sys.stderr)

        manager.add(dump, name="print-module", argument="print-module", description="prints")


def bytecode(operation: ir.Operation) -> bytes:
    """An operation as MLIR bytecode."""
    file = io.BytesIO()
    operation.write_bytecode(file)
    return file.getvalue()


def names_in(element: str) -> list[str]:
    """The passes that an element names: `cse` and `func.func` in `func.func(cse{option=value})`."""
    return re.findall(r"[\w.-]+", re.sub(r"\{[^{}]*\}", "", element))
