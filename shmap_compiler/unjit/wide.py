"""Operations on 64-bit numbers, which JAX has no arrays of unless `jax_enable_x64` is set.

XLA has them all the same: a random number generator counts its blocks in 64 bits. Such operations
are embedded as StableHLO, those that exchange wide numbers together. Where one of them needs what
is computed of another, each that leaves wide numbers behind is embedded with all that it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir
from shmap_passes.ir.types import Value

from shmap_compiler.base.jax_compat import setting

_CONSTANT = "stablehlo.constant"
_WIDE = ("i64", "ui64", "f64", "complex<f64>")


class WideNumbers(Exception):
    """64-bit numbers that cannot be embedded."""


@dataclass(frozen=True)
class Cluster:
    """Operations that exchange wide numbers.

    Attributes:
      ops: in order.
      outputs: their results that others use, which are not wide; none of constants.
      place: the first of them at which all that they need is known.
    """

    ops: list[ir.Operation]
    outputs: Sequence[Value]
    place: ir.Operation


def wide_clusters(block: ir.Block) -> dict[ir.Operation, Cluster]:
    """The cluster of each operation of a block that has one.

    Raises:
      WideNumbers: wide numbers leave the block.
    """
    if setting("jax_enable_x64"):
        return {}
    ops = [each.operation for each in block.operations]
    order = {op: number for number, op in enumerate(ops)}
    groups: dict[ir.Operation, list[ir.Operation]] = {}
    for op in ops:
        if not any(map(_is_wide, (*op.operands, *op.results))):
            continue
        group = [op]
        for value in filter(_is_wide, op.operands):
            source = None if isinstance(value, ir.BlockArgument) else ir.OpResult(value).owner
            if source is not None and source.operation.name == _CONSTANT:
                continue
            if source is None or source.operation not in groups:
                raise WideNumbers(f"{op.name} takes {value.type} from around its block")
            other = groups[source.operation]
            if other is not group:
                group += [each for each in other if each not in group]
        for each in group:
            groups[each] = group
    clusters: dict[ir.Operation, Cluster] = {}
    for op, group in groups.items():
        if op.name == _CONSTANT:
            clusters[op] = Cluster([], [], op)
        elif op not in clusters:
            members = sorted(group, key=order.__getitem__)
            cluster = _cluster(members, order)
            clusters.update(
                _apart(members, order) if cluster is None else dict.fromkeys(members, cluster)
            )
    return clusters


def _constants(ops: list[ir.Operation]) -> list[ir.Operation]:
    """The constants that operations take: each cluster has its own, so that none connects two."""
    makers = (source for op in ops for source in _sources(op, wide=True))
    return list(dict.fromkeys(op for op in makers if op.name == _CONSTANT))


def _cluster(ops: list[ir.Operation], order: dict[ir.Operation, int]) -> Cluster | None:
    """All operations as one cluster; None if it needs what is computed of it."""
    constants = _constants(ops)
    made_by = [
        order[source]
        for op in ops
        for source in _sources(op)
        if source in order and source not in (*ops, *constants)
    ]
    ready = max(made_by, default=-1)
    place = next((op for op in ops if order[op] > ready), ops[-1])
    outputs: list[Value] = []
    for op in ops:
        for result in op.results:
            users = [user for user in _users(result, order) if user not in ops]
            if not users:
                continue
            if _is_wide(result):
                raise WideNumbers(f"{op.name} makes {result.type}, which others need")
            if any(order[user] < order[place] for user in users):
                return None
            outputs.append(result)
    return Cluster([*constants, *ops], outputs, place)


def _apart(ops: list[ir.Operation], order: dict[ir.Operation, int]) -> dict[ir.Operation, Cluster]:
    """A cluster for each operation with narrow results, which computes the rest again."""
    clusters: dict[ir.Operation, Cluster] = {}
    for op in ops:
        outputs = [r for r in op.results if not _is_wide(r) and any(_users(r, order))]
        needed = {op}
        for each in reversed(ops[: ops.index(op) + 1]):
            if each in needed:
                needed.update(source for source in _sources(each, wide=True) if source in ops)
        members = [each for each in ops if each in needed]
        whole = [*_constants(members), *members] if outputs else []
        clusters[op] = Cluster(whole, outputs, op)
    return clusters


def _sources(op: ir.Operation, wide: bool = False) -> list[ir.Operation]:
    """The operations that make the operands of one, or the wide ones of them."""
    values = [value for value in op.operands if _is_wide(value) or not wide]
    return [ir.OpResult(v).owner.operation for v in values if not isinstance(v, ir.BlockArgument)]


def _users(value: Value, order: dict[ir.Operation, int]) -> Iterator[ir.Operation]:
    """The operations of the block in which, or in a region of which, a value is used."""
    for use in value.uses:
        user = use.owner.operation
        while user not in order:
            parent: Any = user.parent
            user = parent.operation
        yield user


def _is_wide(value: Value) -> bool:
    type_ = value.type
    return isinstance(type_, ir.RankedTensorType) and str(type_.element_type) in _WIDE
