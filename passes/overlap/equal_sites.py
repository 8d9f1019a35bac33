"""Builds what equal sites become once, as a function that each of them calls.

    with sharing():                               // in each pass
        values = shared("shmap_ring", ops, outs, form, build)

Layers that are written one after the other have equal sites. XLA inlines calls before it does
anything else; the module is smaller, and takes less time to build, verify, save and read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Hashable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from ..ir.ops import defining_op
from ..ir.types import Value
from .called import Function, call, define
from .form import Form

_ALIKE = ("stablehlo.constant", "stablehlo.broadcast_in_dim")
"""Pieces of what these compute are computed again."""

_Known = dict[Hashable, tuple[Function, tuple[int, ...]]]
_known: ContextVar[_Known | None] = ContextVar("known", default=None)


@contextlib.contextmanager
def sharing() -> Generator[None]:
    """Functions that are built inside this, which must be in one module, are shared."""
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


def shared(
    name: str,
    ops: Sequence[ir.Operation],
    outs: Sequence[Value],
    form: Form,
    build: Callable[[], Sequence[Value]],
) -> list[Value]:
    """What a site becomes, by a call of a function that equal sites inside `sharing` call, too.

    Args:
      ops: all operations of the site, in order; their results have no other use than `outs`.
      outs: what takes the place of these is returned.
      form: of the site. If it is not shared, `build` builds it where it is.
      build: builds it of values that `ops` use; what they are constants or broadcasts of may be
        used as well.
    """
    if not form.shared:
        return list(build())
    known = _known.get()
    site = _Site()
    key = (name, form, *map(site.operation, ops), *(site.values[out] for out in outs))
    found = known.get(key) if known is not None else None
    if found is not None:
        given = list(site.values)
        return call(found[0], [given[place] for place in found[1]])
    function = define(name, build, ())
    if known is not None and all(value in site.values for value in function.captured):
        known[key] = function, tuple(site.values[value] for value in function.captured)
    return call(function, function.captured)


@dataclass
class _Site:
    """Describes operations, alike for equal ones.

    Attributes:
      values: those that they use and compute, by number in the order of their appearance.
    """

    values: dict[Value, int] = field(default_factory=dict)

    def operation(self, op: ir.Operation) -> Hashable:
        attributes = op.attributes
        return (
            op.name,
            *map(self._operand, op.operands),
            *((name, attributes[name]) for name in attributes),
            *(self._new(result) for result in op.results),
            op.location.attr,
        )

    def _operand(self, value: Value) -> Hashable:
        number = self.values.get(value)
        if number is not None:
            return number
        op = defining_op(value)
        if op is not None and op.name in _ALIKE:
            return self.operation(op)
        return self._new(value)

    def _new(self, value: Value) -> Hashable:
        number = self.values[value] = len(self.values)
        return number, value.type
