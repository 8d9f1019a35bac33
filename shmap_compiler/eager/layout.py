"""What the two forms of an eager value have in common.

The blocks of a value are the rows of one array `[devices, *block]`, in the row-major order of the
mesh's manual axes. In the per-device layout (`per_device`) each row is on its own device;
in the vmapped layout (`vmapped`) all rows are on one. A value that is equal on all devices by its
origin, because the user's function closed over it, is kept whole, as an array `[*block]`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import jax
from jax.core import ShapedArray
from jax.extend import source_info_util
from jax.sharding import Mesh, PartitionSpec, Sharding
from jax.typing import ArrayLike

from shmap_compiler.base.errors import BodyError, Problem
from shmap_compiler.base.jax_compat import is_on_host, shaped_array
from shmap_compiler.base.source_lines import shown_source
from shmap_compiler.base.untyped import AnyValue, Aval, Device
from shmap_compiler.eager.placing import place
from shmap_compiler.graph.structural_keys import type_key
from shmap_compiler.tracing.trace import Traced, trace


@dataclass(frozen=True)
class Operand:
    """What is known of an operand before it has a value.

    Attributes:
      type: its type on one device.
      whole: whether it is kept whole.
      varying: the axes along which it may differ between devices.
    """

    type: ShapedArray
    whole: bool
    varying: frozenset[str]


@dataclass(frozen=True)
class Operation:
    """One operation of a user's function.

    Attributes:
      name: its primitive.
      who: the user's function, for error messages.
      fun: what it does on one device, a function from blocks to blocks.
    """

    name: str
    who: str
    fun: Callable[..., Sequence[AnyValue]]


class EagerProgram:
    """A compiled operation: call it on the arrays of its operands.

    Attributes:
      run: from arrays to arrays of rows.
      types: types of the results on one device.
      type_keys: the keys of these types.
    """

    __slots__ = ("run", "type_keys", "types")

    def __init__(self, run: Callable[..., Sequence[jax.Array]], types: Sequence[Aval]):
        self.run = run
        # Only shape and dtype count inside the body: all axes in sight are manual.
        self.types = tuple(shaped_array(t.shape, t.dtype, t.weak_type) for t in types)
        self.type_keys = tuple(map(type_key, self.types))


def stacked_type(block: ShapedArray, count: int) -> jax.ShapeDtypeStruct:
    """The type of `count` blocks, one after the other along a new first dimension."""
    return jax.ShapeDtypeStruct((count, *block.shape), block.dtype, weak_type=block.weak_type)


@dataclass(frozen=True)
class Layout(ABC):
    """How values are placed on the devices of a mesh, and how operations on them are compiled.

    Attributes:
      mesh: the devices.
      axes: the manual axes, in mesh order.
    """

    mesh: Mesh
    axes: tuple[str, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.mesh.shape[a] for a in self.axes)

    @property
    def count(self) -> int:
        """How many blocks a value has."""
        return math.prod(self.sizes)

    @property
    def is_local(self) -> bool:
        """Whether this process has all the devices."""
        return all(d.process_index == jax.process_index() for d in self.mesh.devices.flat)

    @abstractmethod
    def rows_sharding(self) -> Sharding:
        """Where the rows of a value are placed."""

    @abstractmethod
    def whole_sharding(self) -> Sharding:
        """Where a whole value is placed."""

    @abstractmethod
    def enter(self, array: ArrayLike, spec: PartitionSpec) -> jax.Array:
        """The rows of a full array."""

    @abstractmethod
    def leave(self, rows: jax.Array, spec: PartitionSpec) -> jax.Array:
        """The full array that `rows` make up; the inverse of `enter`.

        Each device keeps its own row, as in a compiled call. Those that the spec says are equal may
        differ: with `check_vma=False`, or where the copies of an argument do.
        """

    @abstractmethod
    def compile(self, operation: Operation, operands: Sequence[Operand]) -> EagerProgram:
        """Compiles one operation, in its own one-op Graph."""

    def trace(
        self,
        operation: Operation,
        in_types: Sequence[Aval],
        in_specs: Sequence[PartitionSpec],
        out_spec: PartitionSpec,
    ) -> Traced:
        """The one-op Graph of an operation on full arrays of these types.

        Raises:
          BodyError: a result is in the memory of the host.
        """
        traced = trace(
            operation.fun,
            name=operation.name,
            who=operation.who,
            mesh=self.mesh,
            manual_axes=self.axes,
            in_specs=in_specs,
            out_specs=lambda types: [out_spec] * len(types),
            in_types=in_types,
        )
        if any(map(is_on_host, traced.graph.body_out_types)):
            raise BodyError(operation.who, [_on_host(operation)])
        return traced

    def whole(self, value: ArrayLike) -> jax.Array:
        return place(value, self.whole_sharding())

    def local_blocks(self, rows: jax.Array) -> Iterator[tuple[int, jax.Array]]:
        """(position, block) for each block of this process, in order of position."""
        if getattr(rows, "is_fully_addressable", True):  # tangents of integers are not on devices
            rows = jax.device_put(rows, jax.local_devices()[0])
            yield from enumerate(rows)
            return
        found = {s.index[0].start or 0: s.data[0] for s in rows.addressable_shards}
        yield from sorted(found.items())

    def coordinates(self, position: int) -> dict[str, int]:
        """Where the block at `position` stands along each manual axis."""
        place = {}
        for axis, size in reversed(list(zip(self.axes, self.sizes, strict=True))):
            position, place[axis] = divmod(position, size)
        return dict(reversed(place.items()))

    def in_order(self, axes: Collection[str]) -> tuple[str, ...]:
        """A set of manual axes, in mesh order."""
        return tuple(a for a in self.axes if a in axes)

    def devices(self, position: int) -> list[Device]:
        """The devices that work on the block at `position`: several if axes are automatic."""
        place = self.coordinates(position)
        index = tuple(place.get(a, slice(None)) for a in self.mesh.axis_names)
        found = self.mesh.devices[index]
        return list(found.flat) if hasattr(found, "flat") else [found]


def _on_host(operation: Operation) -> Problem:
    return Problem(
        f"{operation.name} at {shown_source(source_info_util.current())}",
        "a value in the memory of the host, in a call outside of jax.jit",
        "values in the memory of the devices, where such a call runs the function",
        "call jax.jit of the shard_mapped function",
    )
