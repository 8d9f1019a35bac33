"""A call that is written in place of operations which compute the same.

Both are run on random numbers before; what has other bits stays as it is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxlib.mlir import ir
from shmap_passes.ir.ops import defining_op, free_values
from shmap_passes.ir.types import Value

from shmap_compiler.unjit.constants import Constants
from shmap_compiler.unjit.embedded import outline
from shmap_compiler.unjit.layout import Code, call
from shmap_compiler.unjit.same_results import same_call
from shmap_compiler.unjit.types import dtype_of, is_tensor, shape_of
from shmap_compiler.unjit.user_calls import SOURCE

_MOST_INPUTS = 3
_OF_CONSTANTS = {
    f"stablehlo.{name}"
    for name in ("broadcast_in_dim", "compare", "convert", "divide", "multiply", "subtract")
}
_EMBEDDED = "stablehlo.reduce_window"
"""Of most functions it is no call of JAX, but StableHLO inside of the source."""
_HOLE = "_argument_"


@dataclass(frozen=True)
class ReplacingCall:
    """Operations, and a call that computes the same.

    Attributes:
      ops: in order; the last one makes the result. Others may use what the rest computes.
      inputs: the arguments of `text`.
      text: the call, with `{}` for each argument.
      definition: the function that is called, if the source has to define it; "" if not.
      is_exact: as in `SameCall`.
    """

    ops: tuple[ir.Operation, ...]
    inputs: tuple[Value, ...]
    text: str
    definition: str = ""
    is_exact: bool = True

    @property
    def function(self) -> str:
        """The name of the function that is called."""
        return self.text.partition("(")[0]

    def renamed(self, name: str) -> ReplacingCall:
        """The same call of a function that is defined with another name."""
        head = f"def {self.function}("
        assert self.definition.startswith(head), "a call of a function that is defined"
        definition = f"def {name}({self.definition.removeprefix(head)}"
        return replace(self, text=f"{name}({self.text.partition('(')[2]}", definition=definition)

    def replaced(self) -> list[ir.Operation]:
        """The operations that nothing but the call needs."""
        kept: set[ir.Operation] = set()
        for op in reversed(self.ops[:-1]):
            users = [use.owner.operation for result in op.results for use in result.uses]
            if any(user in kept or not is_inside(user, self.ops) for user in users):
                kept.add(op)
        return [op for op in self.ops[:-1] if op not in kept]

    def spelled(self, arguments: Sequence[Code]) -> Code:
        """The call of these arguments."""
        rest = self.text.partition("(")[2]
        given = iter(arguments)
        parts = [
            part.replace(SOURCE, next(given).text) if SOURCE in part else part
            for part in _split(rest.removesuffix(")"))
        ]
        return call(self.function, *parts)


def _split(text: str) -> list[str]:
    """The arguments of a call, which no commas inside of brackets or strings divide."""
    node = ast.parse(f"f({text.replace(SOURCE, _HOLE)})", mode="eval").body
    assert isinstance(node, ast.Call), "as written"
    parts = [ast.unparse(each) for each in node.args]
    parts += [f"{each.arg}={ast.unparse(each.value)}" for each in node.keywords]
    return [_double_quoted(part).replace(_HOLE, SOURCE) for part in parts]


def _double_quoted(text: str) -> str:
    return re.sub(r"'([^'\"]*)'", r'"\1"', text)


def as_call(ops: Sequence[ir.Operation], text: str, definition: str = "") -> ReplacingCall | None:
    """The first of the operations that compute what a call computes, as that call.

    One operation is as plain as a call, but for `jnp.einsum` and windows. In the source,
    `jnp.abs(x) * 1.001` and `jnp.abs(x).clip(2, 3)` begin where a call begins, too: the last
    operation is only the call's if the others do not agree with the call without it, or only where
    it is finite: `lax.erf_inv(x)` ends with what it is at 1.
    """
    is_plainer = text.startswith("jnp.einsum(") or ops[-1].name == _EMBEDDED
    found = _equal_call(ops, text, definition) if len(ops) > 1 or is_plainer else None
    while found is not None:
        parts = [behind(operand, found.ops) for operand in found.ops[-1].operands]
        shorter = (_equal_call(part, text, definition) for part in parts if part)
        first = next(filter(None, shorter), None)
        if first is None or found.is_exact > first.is_exact:
            return found if len(found.ops) > 1 or is_plainer else None
        found = first
    return None


def _equal_call(ops: Sequence[ir.Operation], text: str, definition: str) -> ReplacingCall | None:
    last = ops[-1]
    if len(last.results) != 1:
        return None
    known = constants()
    makers = dict.fromkeys(op for value in free_values(ops) for op in known.makers(value))
    inputs, module = outline([*makers, *ops], [last.results[0]])
    if not 0 < len(inputs) <= _MOST_INPUTS or len(inputs) != text.count(SOURCE):
        return None
    if not all(is_tensor(value) and shape_of(value) for value in inputs):
        return None
    types = tuple((shape_of(value), dtype_of(value).name) for value in inputs)
    made = last.results[0]
    result = shape_of(made), dtype_of(made).name
    same = same_call(text, module, types, result, definition)
    if same is None:
        return None
    arguments = tuple(inputs[k] for k in same.order)
    return ReplacingCall(tuple(ops), arguments, text, definition, same.is_exact)


def behind(value: Value, ops: Sequence[ir.Operation]) -> list[ir.Operation]:
    """Those of some operations that a value needs, in order."""
    found = defining_op(value)
    needed = {found}
    for op in reversed(ops):
        if op in needed:
            needed.update(defining_op(each) for each in free_values([op]))
    return [op for op in ops if op in needed]


def is_inside(op: ir.Operation, ops: Sequence[ir.Operation]) -> bool:
    while op not in ops:
        parent: Any = op.parent
        if parent is None:
            return False
        op = parent.operation
    return True


def constants() -> Constants:
    """The operations that are part of a call if what they make is."""
    return Constants(lambda op: op.name in _OF_CONSTANTS)
