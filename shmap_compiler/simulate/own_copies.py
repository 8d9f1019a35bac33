"""Arguments whose copies differ: each device has its own, as it has in a compiled call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from shmap_compiler.base.untyped import Unchecked

Index = tuple[slice, ...]


@dataclass(frozen=True)
class OwnCopies:
    """A full array, of which each device has its own copy of the part that it holds.

    Attributes:
      shared: the array, with the first copy of each part.
      parts: for each device, where its part is, and its copy.
    """

    shared: np.ndarray
    parts: Sequence[tuple[Index, np.ndarray]]

    def of(self, device: int) -> np.ndarray:
        """The array as a device sees it."""
        index, part = self.parts[device]
        seen = self.shared.copy()
        seen[index] = part
        return seen


def own_copies(value: Unchecked, shared: np.ndarray, count: int) -> np.ndarray | OwnCopies:
    """`shared`, or the copies of the devices that hold `value`, if these differ.

    JAX refuses an array in a call whose mesh has its devices in another order, so that the devices
    of a program are those of the array, in the order of the array's mesh.

    Args:
      shared: `value` as it is in NumPy, in the type that the program takes.
      count: of the devices of the program.
    """
    if not isinstance(value, jax.Array) or not isinstance(value.sharding, NamedSharding):
        return shared
    mesh = value.sharding.mesh
    if not isinstance(mesh, Mesh) or mesh.size != count or not value.is_fully_addressable:
        return shared
    of_device = {
        shard.device: (shard.index, np.asarray(shard.data, shared.dtype))
        for shard in value.addressable_shards
    }
    if all(part.tobytes() == shared[index].tobytes() for index, part in of_device.values()):
        return shared
    return OwnCopies(shared, [of_device[device] for device in mesh.devices.flat])
