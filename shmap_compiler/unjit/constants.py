"""Operations whose results are known without arguments."""

from __future__ import annotations

from collections.abc import Callable

from jaxlib.mlir import ir
from shmap_passes.ir.ops import defining_op
from shmap_passes.ir.types import Value


class Constants:
    """The operations that compute something of constants alone.

    Each operation is examined once, so the program must not change meanwhile.
    """

    def __init__(self, computes: Callable[[ir.Operation], bool]):
        """`computes` says whether a result is known if the operands are."""
        self._computes = computes
        self._known: dict[ir.Operation, bool] = {}

    def __contains__(self, op: ir.Operation) -> bool:
        todo = [] if op in self._known else [op]
        while todo:
            each = todo[-1]
            sources = _sources(each)
            known = [self._known.get(source) for source in sources]
            if each.name == "stablehlo.constant":
                self._known[todo.pop()] = True
            elif not sources or len(sources) < len(each.operands) or not self._computes(each):
                self._known[todo.pop()] = False
            elif False in known or None not in known:
                self._known[todo.pop()] = False not in known
            else:
                todo += [source for source in sources if source not in self._known]
        return self._known[op]

    def makers(self, value: Value) -> list[ir.Operation]:
        """The operations that make a value, in order; [] of a value that is not constant."""
        op = defining_op(value)
        if op is None or op not in self:
            return []
        found: dict[ir.Operation, None] = {}
        todo = [op]
        while todo:
            missing = [source for source in _sources(todo[-1]) if source not in found]
            if missing:
                todo.append(missing[0])
            else:
                found[todo.pop()] = None
        return list(found)


def _sources(op: ir.Operation) -> list[ir.Operation]:
    """The operations that make the operands, as far as operations make these."""
    sources = (defining_op(operand) for operand in op.operands)
    return [source for source in sources if source is not None]
