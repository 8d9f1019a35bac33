"""Statements: what assigns values to variables, with the user's lines as comments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxlib.mlir import ir
from shmap_passes.ir.mesh import Mesh
from shmap_passes.ir.types import Value

from shmap_compiler.unjit.known_values import KnownValues
from shmap_compiler.unjit.layout import WIDTH, Code, display, lay_out
from shmap_compiler.unjit.names import Names, wanted_name
from shmap_compiler.unjit.types import shown_type
from shmap_compiler.unjit.user_lines import NOWHERE, UserLine, user_line


@dataclass
class Statement:
    """A statement that assigns a value.

    Attributes:
      number: of its first line in the body, from 0.
      value: what it assigns.
      name: the variable.
    """

    number: int
    value: Value
    name: str


@dataclass
class Body:
    """The lines of a function, and what they assign at the outermost level."""

    lines: list[str] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    definitions: dict[str, list[str]] = field(default_factory=dict)
    """What the file defines above the function, by name."""
    embedded: list[str] = field(default_factory=list)
    """The operations that are embedded as StableHLO."""


class Statements(KnownValues):
    """Writes the statements of a function."""

    def __init__(self, mesh: Mesh, names: Names, function: str):
        """`function` is the jitted function that the program is made of."""
        super().__init__(mesh)
        self.names, self.jitted = names, function
        self.body = Body()
        self.indent = 4
        self._shown: tuple[str, int, bool] | None = None
        self._last: dict[Any, ir.Operation] = {}

    def assign_values(
        self,
        values: Sequence[Value],
        code: Code,
        wanted: str | Sequence[str],
        op: ir.Operation,
    ) -> None:
        """Assigns the results of a call that returns several."""
        self._comment(self._line(op))
        each = [wanted] * len(values) if isinstance(wanted, str) else list(wanted)
        names = self._name_all(values, each)
        for value, name in zip(values, names, strict=True):
            if name != "_":
                self._note(value, name)
        types = ", ".join(map(shown_type, values))
        if len(values) == 1:
            self.write(f"{names[0]} = ", code, types)
            return
        targets = ", ".join(names)
        if self.indent + len(targets) + len(code.head or code.text) + 3 <= WIDTH:
            self.write(f"{targets} = ", code, types)
            return
        whole = self.names.fresh("results")
        self.write(f"{whole} = ", code)
        for number, (name, value) in enumerate(zip(names, values, strict=True)):
            if name != "_":
                self.write(f"{name} = ", Code(f"{whole}[{number}]"), shown_type(value))

    def assign_groups(
        self,
        groups: Sequence[Sequence[Value]],
        code: Code,
        wanted: Sequence[Sequence[str]],
        op: ir.Operation,
    ) -> None:
        """Assigns the results of a call that returns several tuples, or arrays where one is one."""
        self._comment(self._line(op))
        targets = []
        unpacked = []
        for values, bases in zip(groups, wanted, strict=True):
            names = self._name_all(values, bases)
            if all(name == "_" for name in names):
                targets.append("_")
            elif len(names) < 2:
                targets.append(names[0])
            else:
                targets.append(self.names.fresh("results"))
                unpacked.append(f"{', '.join(names)} = {targets[-1]}")
        types = ", ".join(shown_type(value) for values in groups for value in values)
        self.write(f"{', '.join(targets)} = ", code, types)
        for text in unpacked:
            self.line(text)

    def _find_last(self, block: ir.Block) -> None:
        """Finds the operation that makes the result of each statement of the user's.

        It is the last one that other statements use, and not only their derivatives.
        """
        found: set[Any] = set()
        for each in list(block.operations)[:-1]:
            op = each.operation
            if op.name == "stablehlo.constant":
                continue
            line = self._line(op)
            key = (block, line.statement, line.is_backward)
            users = [self._line(use.owner.operation) for r in op.results for use in r.uses]
            is_result = any(u.statement != line.statement and not u.is_backward for u in users)
            if is_result or key not in found:
                self._last[key] = op
            if is_result:
                found.add(key)

    def wanted(self, op: ir.Operation) -> str:
        """The name that the result of an operation should have."""
        line = self._line(op)
        last = self._last.get((op.block, line.statement, line.is_backward))
        operand = self._known.get(op.operands[0]) if len(op.operands) else None
        text = "" if operand is None else operand.code.text
        return wanted_name(op, line, last is not None and last == op, text)

    def _name_all(self, values: Sequence[Value], wanted: Sequence[str]) -> list[str]:
        """Gives values variables; those that nothing uses are `_`."""
        names = [
            self.names.fresh(base) if list(value.uses) else "_"
            for base, value in zip(wanted, values, strict=True)
        ]
        for value, name in zip(values, names, strict=True):
            if name != "_":
                self.bind(value, name)
        return names

    def _line(self, op: ir.Operation) -> UserLine:
        return user_line(op, self.jitted)

    def line(self, text: str) -> None:
        self.body.lines.append(" " * self.indent + text if text else "")

    def write(self, before: str, code: Code, comment: str = "") -> None:
        """Writes a statement, with a comment after it or, if it is long, above."""
        after = f"  # {comment}" if comment else ""
        lines = lay_out(self.indent, before, code)
        if len(lines) == 1 and len(lines[0] + after) <= WIDTH:
            lines = [lines[0] + after]
        elif comment:
            shown = f"# {before.removesuffix(' = ')}: {comment}"
            lines = [" " * self.indent + shown[: WIDTH - self.indent].rstrip(), *lines]
        self.body.lines += lines

    def open(self, head: str) -> None:
        """Begins a function."""
        if self.body.lines and self.body.lines[-1] and not self.body.lines[-1].endswith(":"):
            self.line("")
        self.line(head)
        self.indent += 4
        self._shown = None

    def close(self, result: Code) -> None:
        """Ends a function."""
        self.write("return ", result)
        self.indent -= 4
        self._shown = None
        self.body.lines.append("")

    def results(self, values: Sequence[Value]) -> Code:
        """What a function returns: one array, or a tuple."""
        codes = [self.exact(value) for value in values]
        if len(codes) == 1:
            return codes[0]
        text = ", ".join(each.text for each in codes)
        if self.indent + len(f"return {text}") <= WIDTH:
            return Code(text)
        return display("(", codes, ")")

    def _note(self, value: Value, name: str) -> None:
        if self.indent == 4:
            self.body.statements.append(Statement(len(self.body.lines), value, name))

    def _comment(self, line: UserLine) -> None:
        """The user's line, above the first of its statements."""
        if line is NOWHERE or (*line.statement, line.is_backward) == self._shown:
            return
        self._shown = (*line.statement, line.is_backward)
        backward = "backward of " if line.is_backward else ""
        text = re.sub(r"\s+", " ", f"# {backward}{line.place}  {line.text}")
        room = WIDTH - self.indent
        self.line(text if len(text) <= room else text[: room - 3] + "...")
