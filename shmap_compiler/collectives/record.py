"""What other rooms know of a collective: one record for each, from which they make their tables.

The file of a collective ends with its record, and `collectives.RECORDS` lists them all. A fact that
no field holds is one that no other room may depend on. Fields without a default are those that
nobody may forget: the checks for hangs and for replicated results are wrong without them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jax.extend.core import Primitive

from shmap_compiler.base.untyped import AnyValue, Function, Parameter


class Result(enum.Enum):
    """What the result of a device depends on (rules R4 to R8 of `docs/replication.md`)."""

    SAME = enum.auto()
    """On all blocks of the group, in its order: all devices of the group have the same (R4)."""
    FROM_ONE = enum.auto()
    """On one block, which every device of the group receives (R5)."""
    PART = enum.auto()
    """On all blocks of the group and the rank of the device in it (R6)."""
    PERMUTED = enum.auto()
    """On the block of the device that sends to it, by the parameter `perm` (R7)."""
    RANK = enum.auto()
    """On nothing but the place of the device along the axes (R8)."""


class Waits(enum.Enum):
    """Which devices have to reach the collective before any of them can leave it."""

    NOBODY = enum.auto()
    GROUP = enum.auto()
    """Those along its axes."""
    PROGRAM = enum.auto()
    """All devices of the program: the HLO instruction has no groups."""


class Combines(enum.Enum):
    """What a device may do with the blocks of several devices."""

    NOTHING = enum.auto()
    BLOCKS = enum.auto()
    """It receives several blocks, which it may add up afterwards."""
    SUM = enum.auto()
    """It receives their sum, or a part of it."""


class Payload(enum.Enum):
    """The bytes that the cost of the HLO instruction counts, on one device."""

    OPERANDS = enum.auto()
    FIRST_OPERAND = enum.auto()
    """The others are a place for the result, or offsets."""
    GATHERED = enum.auto()
    """The operands of all devices of the group."""


@dataclass(frozen=True)
class Refusal:
    """Parts of an error message; the place is that of the collective.

    Attributes:
      found: what is wrong; "" where the caller describes it.
    """

    found: str
    needed: str
    fix: str


RANDOM_KEYS = "key"
"""The kind of the types of random keys, which NumPy does not know."""

NO_KEYS = Refusal(
    "an operand of random keys",
    "numbers",
    "all_gather the keys, and choose or fold in on each device",
)
"""For collectives that compute with the numbers of devices."""


@dataclass(frozen=True)
class JaxForm:
    """A primitive of JAX's that stands for a collective.

    Attributes:
      name: of the primitive.
      expansion: from its parameters, and the sizes of the mesh axes, the function of its operands
        that is written with the family of this folder.
      split: its rule along the named axis of a vmap that is, in part, split over devices: from a
        `SplitAxis`, stacked operands and its parameters to the result and its vmapped dimension.
        None for primitives that JAX makes only where no vmap is left.
      positional: whether it also reduces over dimensions of the block.
      jax_batches: whether JAX's own rule batches all of its uses along one vmapped axis.
      jax_batches_equal: whether it is right for operands that are the same along that axis, too.
      one_slot: why `split` takes no axis with several positions on a device, if it does not.
      unmapped: operands, by their positions, that must not differ along the vmapped axis.
      register_derivative: gives the primitive another derivative or transpose in bodies, if JAX has
        none or a narrower one. It takes the primitive and a function that tells whether a body is
        being traced.
    """

    name: str
    expansion: Callable[[dict[str, Parameter], dict[str, int]], Function]
    split: Callable[..., tuple[AnyValue, int | None]] | None = None
    positional: bool = False
    jax_batches: bool = True
    jax_batches_equal: bool = True
    one_slot: Refusal | None = None
    unmapped: Mapping[int, Refusal] = field(default_factory=dict)
    register_derivative: Callable[[Primitive, Callable[[], bool]], None] | None = None


def _rejects_nothing(result: AnyValue) -> bool:
    return False


@dataclass(frozen=True)
class Collective:
    """All that other rooms know of a collective.

    Attributes:
      primitive: of the family; its parameters are described in `collectives`.
      result: what the result of a device depends on.
      waits: which devices wait for each other in it.
      hlo: the HLO instruction that it becomes; None if it does not communicate.
      forms: the primitives of JAX's that stand for it.
      on_rows: the same on the blocks of all devices, stacked on one device, for eager mode: from a
        `DeviceAxis`, stacked operands and the parameters to the stacked result. None if eager mode
        has to run it on the devices.
      functions: the functions of `jax.lax` that users call for it.
      combines: what of several devices comes together in it.
      transpose: for a sum, the collective that its transpose is.
      payload: which bytes its cost counts.
      invariant_in_jax: whether JAX types its result as equal on all devices of the group.
      unequal_groups: whether its groups may differ in size.
      refused_types: operand types that XLA rejects or gets wrong, by the kind of NumPy type, or
        `RANDOM_KEYS`.
      xla_rejects: whether XLA rejects it for a result of this type, though rows would not.
    """

    primitive: Primitive
    result: Result
    waits: Waits
    hlo: str | None
    forms: tuple[JaxForm, ...]
    on_rows: Function | None
    functions: tuple[str, ...]
    combines: Combines = Combines.NOTHING
    transpose: Primitive | None = None
    payload: Payload = Payload.OPERANDS
    invariant_in_jax: bool = False
    unequal_groups: bool = False
    refused_types: Mapping[str, Refusal] = field(default_factory=dict)
    xla_rejects: Callable[[AnyValue], bool] = _rejects_nothing

    def __post_init__(self) -> None:
        if (self.hlo is None) != (self.waits is Waits.NOBODY):
            raise ValueError(
                f"{self.primitive}: devices wait where an HLO instruction communicates"
            )
        if (self.transpose is None) == (self.combines is Combines.SUM):
            raise ValueError(f"{self.primitive}: a sum, and nothing else, names its transpose")

    @property
    def name(self) -> str:
        return self.primitive.name
