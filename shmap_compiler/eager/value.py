"""Eager values: what a user's function holds while it runs eagerly."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.extend import source_info_util
from jax.typing import DTypeLike

from shmap_compiler.base.descriptions import show_axes, show_names
from shmap_compiler.base.errors import Problem, VaryingValueError
from shmap_compiler.base.jax_compat import is_key_type, shaped_array
from shmap_compiler.base.source_lines import shown_source
from shmap_compiler.base.untyped import AnyValue, Aval, Trace
from shmap_compiler.eager.layout import Layout
from shmap_compiler.eager.show import show_blocks, show_value

# As JAX declares its tracers, none of them ever becomes a Python value.
_Tracer: Any = Tracer


class EagerValue(_Tracer):
    """A value, with the type of a block. It turns into a Python or NumPy value if devices agree."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def to_concrete_value(self) -> np.ndarray | None:
        """The block, if it is the same on all devices."""
        raise NotImplementedError

    def _concrete(self, wanted: str) -> np.ndarray:
        """Like `to_concrete_value`, but raises VaryingValueError, naming the conversion."""
        raise NotImplementedError

    def _scalar(self, convert: Callable[[AnyValue], AnyValue], wanted: str) -> AnyValue:
        if self.aval.shape != ():
            problem = Problem(
                f"{wanted} at {_users_line()}",
                f"a block of shape {self.aval.shape} on each device",
                "a scalar",
                "reduce it, for example by jnp.sum, or choose one element",
            )
            raise VaryingValueError(self._trace.who, [problem])
        return convert(self._concrete(wanted)[()])

    def __bool__(self) -> bool:
        if self.aval.size != 1:
            return self._scalar(bool, "bool()")
        return bool(self._concrete("bool()").reshape(()))

    def __int__(self) -> int:
        return self._scalar(int, "int()")

    def __float__(self) -> float:
        return self._scalar(float, "float()")

    def __complex__(self) -> complex:
        return self._scalar(complex, "complex()")

    def __index__(self) -> int:
        return self._scalar(operator.index, "an index")

    def __format__(self, format_spec: str) -> str:
        if not format_spec:
            return str(self)
        return self._scalar(lambda x: format(x.item(), format_spec), "formatting")

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._concrete("a NumPy array"), dtype=dtype)

    def item(self, *args: int) -> AnyValue:
        return self._concrete("item()").item(*args)

    def tolist(self) -> AnyValue:
        return self._concrete("tolist()").tolist()

    def tobytes(self, order: AnyValue = "C") -> bytes:
        return self._concrete("tobytes()").tobytes(order)


class Blocks(EagerValue):
    """One block on each device. It prints as all its blocks.

    Attributes:
      rows: the blocks, as the layout of the call keeps them.
      varying: the axes along which the blocks may differ.
      type_key: key of its type.
    """

    __slots__ = ("rows", "type_key", "varying")

    def __init__(
        self, trace: Trace, aval: Aval, rows: jax.Array, varying: frozenset[str], type_key: Hashable
    ):
        super().__init__(trace, aval)
        self.rows = rows
        self.varying = varying
        self.type_key = type_key

    @property
    def layout(self) -> Layout:
        return self._trace.layout

    def __str__(self) -> str:
        with self._trace.outside():
            return show_value(self.layout, self.aval, self.rows)

    def show_blocks(self) -> str:
        """The blocks alone, each on a new line, as part of an error message."""
        with self._trace.outside():
            entries = show_blocks(self.layout, self.rows)
        return "".join(f"\n{entry}" for entry in entries).replace("\n", "\n      ")

    def block_until_ready(self) -> Blocks:
        jax.block_until_ready(self.rows)
        return self

    def to_concrete_value(self) -> np.ndarray | None:
        if is_key_type(self.aval):
            return None
        if not self.rows.is_fully_addressable:  # of other processes only the inference tells
            shards = self.rows.addressable_shards
            return None if self.varying or not shards else np.asarray(shards[0].data)[0]
        blocks = np.asarray(self.rows)
        return blocks[0] if _equal(blocks, blocks[:1]) else None

    def _concrete(self, wanted: str) -> np.ndarray:
        if is_key_type(self.aval):
            return np.asarray(self.rows)  # JAX refuses it, and says what to do
        value = self.to_concrete_value()
        if value is None:
            raise self._varying(wanted)
        return value

    def _varying(self, wanted: str) -> VaryingValueError:
        if self.rows.is_fully_addressable:
            with self._trace.outside():
                axes, differs = _varying_axes(self.layout, self.rows), "differs"
        else:
            axes, differs = self.layout.in_order(self.varying), "may differ"
        problem = Problem(
            f"{wanted} at {_users_line()}",
            f"a value that {differs} along {show_axes(axes)}:{self.show_blocks()}",
            "the same value on all devices: Python runs once for all of them",
            f"make it equal first, for example by jax.lax.pmax(x, {show_names(axes)}); or let each "
            "device decide for itself, by jnp.where or jax.lax.cond; or only look at it, by "
            "print(x)",
        )
        return VaryingValueError(self._trace.who, [problem])


class Constant(EagerValue):
    """What a function computes from constants alone: computed once, not on each device.

    It prints as an ordinary array.

    Attributes:
      array: its value.
    """

    __slots__ = ("array",)

    def __init__(self, trace: Trace, array: jax.Array):
        found = jax.typeof(array)
        block = shaped_array(found.shape, found.dtype, found.weak_type)
        super().__init__(trace, trace.typed(block, frozenset()))
        self.array = array

    def __str__(self) -> str:
        return str(self.array)

    def block_until_ready(self) -> Constant:
        jax.block_until_ready(self.array)
        return self

    def to_concrete_value(self) -> np.ndarray | None:
        return None if is_key_type(self.aval) else np.asarray(self.array)

    def _concrete(self, wanted: str) -> np.ndarray:
        return np.asarray(self.array)


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Elementwise equality, where NaN equals NaN."""
    return bool(np.all((a == b) | ((a != a) & (b != b))))


def _varying_axes(layout: Layout, rows: jax.Array) -> tuple[str, ...]:
    if is_key_type(rows):
        rows = jax.random.key_data(rows)
    blocks = np.asarray(rows).reshape(*layout.sizes, *rows.shape[1:])
    return (
        tuple(
            axis
            for d, axis in enumerate(layout.axes)
            if not _equal(blocks, np.take(blocks, [0], axis=d))
        )
        or layout.axes
    )


def _users_line() -> str:
    return shown_source(source_info_util.current())
