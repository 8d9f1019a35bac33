"""Types of arrays: shape, split over Explicit axes, unreduced, reduced and varying axes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.sharding import (
    AbstractMesh,
    ManualAxisType,
    NamedSharding,
    PartitionSpec,
)

from shmap_compiler.base.jax_compat.meshes import AnyMesh, abstract_mesh, explicit_axes
from shmap_compiler.base.jax_compat.refs import is_ref
from shmap_compiler.base.jax_compat.settings import setting
from shmap_compiler.base.untyped import Aval, DType, Setting

_Made = TypeVar("_Made")
_P = ParamSpec("_P")


def once_per_type(make: Callable[_P, _Made]) -> Callable[_P, _Made]:
    """Keeps the types that a function makes of types: of hundreds of arrays few differ.

    JAX leaves axes of size one out of types, or does not, by a setting.
    """

    @functools.lru_cache(maxsize=4096)
    def made(_: Setting, *args: _P.args, **kwargs: _P.kwargs) -> _Made:
        return make(*args, **kwargs)

    @functools.wraps(make)
    def found(*args: _P.args, **kwargs: _P.kwargs) -> _Made:
        return made(setting("jax_remove_size_one_mesh_axis_from_type"), *args, **kwargs)

    return found


def shaped_array(
    shape: Sequence[int],
    dtype: DType,
    weak_type: bool,
    sharding: NamedSharding | None = None,
    memory_space: Setting = jax.memory.Space.Device,
) -> ShapedArray:
    kept: dict[str, Any] = {"weak_type": weak_type, "memory_space": memory_space}
    if sharding is not None:
        kept["sharding"] = sharding
    return ShapedArray(tuple(shape), dtype, **kept)


def varying_type(
    aval: Aval, mesh: AbstractMesh, axes: Iterable[str], reduces: Reductions | None = None
) -> Aval:
    """The type of blocks on `mesh`, which has manual axes, that vary along `axes`.

    Args:
      reduces: the manual axes along which they are unreduced or reduced.
    """
    sharding = aval.sharding
    if sharding.mesh.empty:
        sharding = NamedSharding(mesh, PartitionSpec(*[None] * len(aval.shape)))
    parts: dict[str, Any] = {"varying": frozenset(axes)}
    if reduces:
        parts |= {"unreduced": reduces.unreduced, "reduced": reduces.reduced}
        if reduces.kind is not None:
            parts["unreduced_kind"] = reduces.kind
    return aval.update(sharding=sharding, manual_axis_type=ManualAxisType(**parts))


def varies_along(aval: Aval) -> frozenset[str]:
    """The axes along which values vary, by their type."""
    return aval.manual_axis_type.varying


def is_future(aval: Aval) -> bool:
    """Whether a value is what `psum_scatter_start` and the like return, until it is done."""
    return hasattr(aval, "done_fun")


def settled(aval: Aval) -> Aval:
    """The type of a value once it is there."""
    return aval.inner_aval if is_future(aval) else aval


def wants_future(error: Exception) -> bool:
    """Whether a value was used as a future, but is none.

    Without types of varying values, JAX sums a value that is equal on all devices at once.
    """
    return isinstance(error, AttributeError) and "no attribute done" in str(error)


def without_varying_type(aval: Aval) -> Aval:
    """The type without the axes along which its values vary; the same object if it has none."""
    if is_ref(aval):
        inner = without_varying_type(aval.inner_aval)
        return aval if inner is aval.inner_aval else aval.update(inner_aval=inner)
    if getattr(aval, "manual_axis_type", None) in (None, ManualAxisType()):
        return aval
    return aval.update(manual_axis_type=ManualAxisType())


def type_split(aval: Aval) -> tuple[tuple[str, ...], ...]:
    """For each dimension, the axes over which its type is split; `()` if the type has no spec."""
    sharding = getattr(aval, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return ()
    explicit = explicit_axes(sharding.mesh)
    entries = ((e,) if isinstance(e, str) else tuple(e or ()) for e in sharding.spec.partitions)
    return tuple(tuple(a for a in axes if a in explicit) for axes in entries)


@dataclass(frozen=True)
class Reductions:
    """The axes over which an array is yet to be reduced, and those over which its gradient is.

    Attributes:
      unreduced: each device along these axes holds a summand of the array.
      reduced: each device holds the whole array, whose cotangent is unreduced.
      kind: what combines the summands, from JAX 0.12 on; None for an empty `unreduced`.
    """

    unreduced: frozenset[str] = frozenset()
    reduced: frozenset[str] = frozenset()
    kind: Setting = None

    def __bool__(self) -> bool:
        return bool(self.unreduced or self.reduced)

    def over(self, axes: Iterable[str]) -> Reductions:
        """The reductions, restricted to `axes`."""
        if not self:
            return self
        unreduced = self.unreduced.intersection(axes)
        kind = self.kind if unreduced else None
        return Reductions(unreduced, self.reduced.intersection(axes), kind)

    def __or__(self, other: Reductions) -> Reductions:
        if not other:
            return self
        return Reductions(
            self.unreduced | other.unreduced, self.reduced | other.reduced, self.kind or other.kind
        )


_NO_REDUCTIONS = Reductions()

PARTLY_MANUAL_REDUCTIONS = jax.__version_info__ >= (0, 12)
"""Whether XLA takes arrays that are unreduced over one axis where another is manual."""


NESTS_IN_MESH_ORDER = jax.__version_info__ >= (0, 11)
"""Whether XLA aborts, with Shardy, if manual axes are nested in others that come later in the mesh.

It does beside an automatic axis: "Manual axes must be sorted by mesh axis index".
"""


def reductions(spec: PartitionSpec) -> Reductions:
    """The unreduced and reduced axes of a spec."""
    if not (spec.unreduced or spec.reduced):
        return _NO_REDUCTIONS
    return Reductions(spec.unreduced, spec.reduced, getattr(spec, "unreduced_kind", None))


def reduction_kind(name: str | None) -> Setting:
    """What combines summands, by its name: "sum", "max" or "min"; None in JAX 0.10, for a sum."""
    kinds = getattr(jax.sharding, "UnreducedKind", None)
    if kinds is None and name not in (None, "sum"):
        raise ValueError(f"this version of JAX has no arrays that are unreduced as a {name}")
    return None if name is None or kinds is None else kinds[name]


def with_reductions(spec: PartitionSpec, found: Reductions) -> PartitionSpec:
    """`spec` with these unreduced and reduced axes."""
    if not found:
        return PartitionSpec(*spec.partitions)
    kind: dict[str, Any] = {} if found.kind is None else {"unreduced_kind": found.kind}
    return PartitionSpec(*spec.partitions, unreduced=found.unreduced, reduced=found.reduced, **kind)


def type_reductions(aval: Aval) -> Reductions:
    """The unreduced and reduced axes of the type of an array."""
    sharding = getattr(aval, "sharding", None)
    return reductions(sharding.spec) if isinstance(sharding, NamedSharding) else _NO_REDUCTIONS


def manual_type_reductions(aval: Aval) -> Reductions:
    """The unreduced and reduced axes of the type of a block, under `varying_types`."""
    found = getattr(aval, "manual_axis_type", None) or ManualAxisType()
    return Reductions(found.unreduced, found.reduced, getattr(found, "unreduced_kind", None))


def type_on_mesh(
    mesh: AnyMesh,
    splits: Sequence[Sequence[str]],
    shape: Sequence[int],
    dtype: DType,
    weak_type: bool,
    reduces: Reductions = Reductions(),
    memory_space: Setting = jax.memory.Space.Device,
) -> ShapedArray:
    """Type of an array whose dimensions are split over axes of `mesh`.

    Only Explicit axes become part of the spec. The mesh is part of the type whatever its axes, as
    in JAX, which takes the mesh of a result of jit from it.
    """
    explicit = explicit_axes(mesh)
    kept = [tuple(a for a in axes if a in explicit) for axes in splits]
    entries = [axes[0] if len(axes) == 1 else axes or None for axes in kept]
    entries += [None] * (len(shape) - len(entries))
    spec = PartitionSpec(*entries)
    if reduces:
        spec = with_reductions(spec, reduces.over(explicit))
    sharding = NamedSharding(abstract_mesh(mesh), spec)
    return shaped_array(shape, dtype, weak_type, sharding, memory_space)


def bits_of(dtype: DType) -> int:
    """How many bits an element has.

    A boolean counts as a byte; so does the tangent of an integer, which JAX lowers to a boolean.
    """
    if jnp.issubdtype(dtype, jnp.bool_) or dtype == jax.dtypes.float0:
        return 8
    return (jnp.iinfo if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo)(dtype).bits


def is_high_type(aval: Aval) -> bool:
    """Whether a type is a `jax.experimental.hijax.HiType`, which stands for several arrays."""
    return bool(getattr(aval, "is_high", False))


def is_key_type(aval: Aval) -> bool:
    """Whether an array type is that of random keys, or another one NumPy does not know."""
    return jnp.issubdtype(aval.dtype, jax.dtypes.extended)
