"""Builds what equal sites become once, as a function that each of them calls.

    with sharing():                               // in each pass
        values = shared("shmap_ring", ops, outs, form, build)

Of a site that becomes more than one function, such as one for each chunk, these are shared:

        functions = SiteFunctions(ops, form)
        piece = Called("shmap_product", build, by=functions.labelled("first"))

Layers that are written one after the other have equal sites. XLA inlines calls before it does
anything else; the module is smaller, and takes less time to build, verify, save and read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from jaxlib.mlir import ir

from ...ir.ops import defining_op
from ...ir.types import Value
from ..form import Form
from .called import Build, Define, Function, call, define

_ALIKE = ("stablehlo.constant", "stablehlo.broadcast_in_dim")
"""Pieces of what these compute are computed again."""


@dataclass
class _Known:
    """
    Attributes:
      functions: with the names of what they capture, by what they are built of.
      sites: a number for each kind of site, by its description.
    """

    functions: dict[Hashable, tuple[Function, tuple[Hashable, ...]]] = field(default_factory=dict)
    sites: dict[Hashable, int] = field(default_factory=dict)


_known: ContextVar[_Known | None] = ContextVar("known", default=None)


@contextlib.contextmanager
def sharing() -> Generator[None]:
    """Functions that are built inside this, which must be in one module, are shared."""
    token = _known.set(_Known())
    try:
        yield
    finally:
        _known.reset(token)


def shared(
    name: str,
    ops: Sequence[ir.Operation],
    places: Sequence[Value],
    form: Form,
    build: Callable[[], Sequence[Value]],
) -> list[Value]:
    """What a site becomes, by a call of a function that equal sites inside `sharing` call, too.

    Args:
      ops: all operations of the site, in order; only results that are in `places` have other uses.
      places: the values in whose places what is built comes.
      form: of the site. If it is not shared, `build` builds it where it is.
      build: builds it of values that `ops` use; what they are constants or broadcasts of may be
        used as well.
    """
    if not form.shared:
        return list(build())
    known = _known.get()
    site = _Site()
    key = (name, form, *map(site.operation, ops), *(site.values[each] for each in places))
    function = _shared(known, key, site.values, lambda: define(name, build, ()))
    return call(function, function.captured)


def _shared(
    known: _Known | None,
    key: Hashable,
    names: Mapping[Value, Hashable],
    make: Callable[[], Function],
) -> Function:
    """A function that is known by its key, with what it captures here; else it is made."""
    found = known.functions.get(key) if known is not None else None
    if found is not None:
        values = {name: value for value, name in names.items()}
        return replace(found[0], captured=tuple(values[name] for name in found[1]))
    function = make()
    if known is not None and all(value in names for value in function.captured):
        known.functions[key] = function, tuple(names[value] for value in function.captured)
    return function


class SiteFunctions:
    """The functions of which a site is built, which equal sites inside `sharing` call, too.

    Args:
      ops: all operations of the site, in order.
      form: of the site. If it is not shared, neither are its functions.
    """

    def __init__(self, ops: Sequence[ir.Operation], form: Form) -> None:
        self._known = _known.get() if form.shared else None
        self._kind, self._names = 0, dict[Value, Hashable]()
        if self._known is not None:
            site = _Site()
            described = (form, *map(site.operation, ops))
            self._kind = self._known.sites.setdefault(described, len(self._known.sites))
            self._names.update(site.values)

    def names(self, values: Iterable[Value]) -> tuple[Hashable, ...]:
        """Equal for values and those that take their places in equal sites."""
        return tuple(map(self._names.get, values))

    def add(self, value: Value, *name: Hashable) -> None:
        """Names a value that is made for the site before functions capture it."""
        self._names[value] = name

    def labelled(self, *label: Hashable) -> Define:
        """What defines a function that is built alike in equal sites with the same label."""

        def shared(name: str, build: Build, types: Sequence[ir.Type]) -> Function:
            key = (name, label, tuple(types), self._kind)
            return _shared(self._known, key, self._names, lambda: define(name, build, types))

        return shared


@dataclass
class _Site:
    """Describes operations, alike for equal ones.

    Attributes:
      values: those that they use and compute, by number in the order of their appearance.
    """

    values: dict[Value, int] = field(default_factory=dict)

    def operation(self, op: ir.Operation) -> Hashable:
        return (
            op.name,
            *map(self._operand, op.operands),
            *op.attributes.items(),
            *(self._new(result) for result in op.results),
            *(self._block(block) for region in op.regions for block in region),
            op.location.attr,
        )

    def _block(self, block: ir.Block) -> Hashable:
        """Of a region, such as what a reduction computes of two elements."""
        arguments = [self._new(value) for value in block.arguments]
        return (*arguments, *(self.operation(op.operation) for op in block.operations))

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
