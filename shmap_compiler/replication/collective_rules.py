"""Along which axes the result of a collective varies (rules R4 to R8 of `docs/replication.md`).

All rules follow from one observation: a device's result is a function of the blocks that it
receives and, for some collectives, of its rank. Devices that receive equal blocks in equal order
have equal results. A block is identified by the coordinates of its device along the axes along
which the operand varies.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from jax.extend.core import Primitive
from shmap_passes.ir.axis_set import AxisSet

from shmap_compiler import collectives as coll
from shmap_compiler.base.untyped import Eqn, Parameter
from shmap_compiler.collectives import Result, Waits
from shmap_compiler.collectives.to_reduced import to_reduced_p
from shmap_compiler.replication.assume import assume_replicated_p
from shmap_compiler.replication.typed import typed_p

_INVARIANT_IN_JAX = {r.primitive for r in coll.RECORDS if r.invariant_in_jax}

RULED = {*coll.COLLECTIVES, assume_replicated_p, to_reduced_p}
"""The primitives for which `result_mask` has rules of its own."""


def is_collective(primitive: Primitive) -> bool:
    """Whether the results of a primitive may vary along other axes than its operands do."""
    return primitive in RULED or primitive is typed_p or _is_in_jax_form(primitive)


def result_mask(eqn: Eqn, operand: int, axes: AxisSet) -> int | None:
    """The axes of the result, given those of the operand; None if `eqn` is not a collective."""
    primitive = eqn.primitive
    if primitive not in RULED:
        return _jax_collective(eqn, operand, axes, {Result.SAME, Result.FROM_ONE})
    names = eqn.params["axes"]
    own = axes.mask(names)
    if primitive is to_reduced_p:
        return operand
    elsewhere = operand & ~own
    if primitive is assume_replicated_p:
        return elsewhere
    record = coll.record_of(primitive)
    assert record is not None, primitive
    match record.result:
        case Result.FROM_ONE:  # R5
            return elsewhere
        case Result.RANK:  # R8
            return own
        case Result.PERMUTED:  # R7
            pairs = eqn.params["perm"]
            return elsewhere | _exact("permute", names, pairs, operand & own, axes)
        case Result.SAME:  # R4; with groups R7
            groups = eqn.params["groups"]
            if groups is None:
                return elsewhere
            return elsewhere | _exact("same", names, groups, operand & own, axes)
        case Result.PART:  # R6; with groups R7
            groups = eqn.params["groups"]
            if groups is None:
                return elsewhere | own
            return elsewhere | _exact("part", names, groups, operand & own, axes)


def mask_of_type(eqn: Eqn, operand: int, axes: AxisSet) -> int | None:
    """Like `result_mask`, by JAX's types, for which only sums and extrema are invariant."""
    primitive = eqn.primitive
    if primitive is typed_p:
        tracked, along = map(axes.mask, (eqn.params["tracked"], eqn.params["along"]))
        return operand & ~tracked | along
    if primitive not in RULED:
        return _jax_collective(eqn, operand, axes, {Result.SAME})
    own = axes.mask(eqn.params["axes"])
    if primitive is coll.axis_index_p:
        return own
    if primitive is assume_replicated_p or (
        primitive in _INVARIANT_IN_JAX and eqn.params["groups"] is None
    ):
        return operand & ~own
    return operand | own


def communicates_over(eqn: Eqn) -> tuple[str, ...]:
    """The axes over which devices synchronize at this equation."""
    record = coll.record_of(eqn.primitive)
    if record is None:
        return jax_axes(eqn) if eqn.primitive.name in coll.POINT_TO_POINT else ()
    return () if record.waits is Waits.NOBODY else jax_axes(eqn)


def all_devices_wait(eqn: Eqn) -> bool:
    """Whether all devices of the program synchronize at this equation."""
    record = coll.record_of(eqn.primitive)
    return record is not None and record.waits is Waits.PROGRAM


def _is_in_jax_form(primitive: Primitive) -> bool:
    name = primitive.name
    return coll.record_in_jax_form(name) is not None or name in coll.POINT_TO_POINT


def _jax_collective(eqn: Eqn, operand: int, axes: AxisSet, same: set[Result]) -> int | None:
    """The rule for a collective in JAX's own form; None if `eqn` is not a collective.

    These are collectives that also name an axis of an enclosing vmap, and those that
    `collectives/` lacks.

    Args:
      same: the kinds of results that are equal on all devices.
    """
    if not _is_in_jax_form(eqn.primitive):
        return None
    record = coll.record_in_jax_form(eqn.primitive.name)
    own = axes.mask(jax_axes(eqn))
    one_group = eqn.params.get("axis_index_groups") is None
    if record is not None and record.result in same and one_group:
        return operand & ~own
    return operand | own


def jax_axes(eqn: Eqn) -> tuple[str, ...]:
    """The axis names of a collective, in JAX's own form or in ours."""
    named = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    named = named if isinstance(named, (tuple, list)) else (named,)
    return tuple(a for a in named if isinstance(a, str))


def _exact(
    kind: str, names: tuple[str, ...], detail: Parameter, operand: int, axes: AxisSet
) -> int:
    varying = axes.names(operand)
    sizes = tuple(axes.sizes[n] for n in names)
    found = _varying(kind, sizes, detail, tuple(n in varying for n in names))
    return axes.mask(name for name, varies in zip(names, found, strict=True) if varies)


@functools.lru_cache(maxsize=4096)
def _varying(
    kind: str, sizes: tuple[int, ...], detail: Parameter, operand: tuple[bool, ...]
) -> tuple[bool, ...]:
    """For each axis of the collective, whether results differ along it.

    Args:
      kind: "permute", with the pairs as `detail`; "same" or "part", with the groups.
      operand: for each axis, whether the operand varies along it.
    """
    places = np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes), axis=-1)
    blocks = [tuple(row) for row in places[:, list(operand)].tolist()]
    received: list[Any] = [None] * len(blocks)
    if kind == "permute":
        for source, target in detail:
            received[target] = blocks[source]
    else:
        for group in detail:
            reaching = tuple(blocks[p] for p in group)
            for rank, place in enumerate(group):
                received[place] = (reaching, rank if kind == "part" else None)
    numbers: dict[Any, int] = {}
    results = np.array([numbers.setdefault(r, len(numbers)) for r in received]).reshape(sizes)
    return tuple(bool(np.any(results != results.take([0], axis=d))) for d in range(len(sizes)))
