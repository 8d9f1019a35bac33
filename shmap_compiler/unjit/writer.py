"""What the files that write control flow use of the `Program` that calls them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jaxlib.mlir import ir
from shmap_passes.ir.types import Value

from shmap_compiler.unjit.layout import Code
from shmap_compiler.unjit.names import Names
from shmap_compiler.unjit.spelling.operation import Values


class Writer(Values, Protocol):
    """Writes blocks as statements: see `Program` and `KnownValues`."""

    names: Names
    indent: int

    def bind(self, value: Value, code: str) -> None: ...
    def same(self, value: Value, other: Value) -> None: ...
    def number_of(self, value: Value) -> None: ...
    def is_number(self, value: Value) -> bool: ...
    def leave_out(self, value: Value) -> None: ...
    def skip(self, op: ir.Operation) -> None: ...
    def name_of(self, value: Value) -> Code: ...
    def block(self, block: ir.Block) -> list[Value]: ...
    def define(
        self,
        block: ir.Block,
        wanted: str,
        wanted_arguments: Sequence[str],
        bound: Sequence[Value] | None = None,
    ) -> str: ...
    def open(self, head: str) -> None: ...
    def close(self, result: Code) -> None: ...
    def results(self, values: Sequence[Value]) -> Code: ...
    def assign_values(
        self,
        values: Sequence[Value],
        code: Code,
        wanted: str | Sequence[str],
        op: ir.Operation,
    ) -> None: ...
    def assign_groups(
        self,
        groups: Sequence[Sequence[Value]],
        code: Code,
        wanted: Sequence[Sequence[str]],
        op: ir.Operation,
    ) -> None: ...
    def wanted(self, op: ir.Operation) -> str: ...
    def line(self, text: str) -> None: ...
