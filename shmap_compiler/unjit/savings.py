"""What the passes save of the communication that XLA's partitioner chose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from jaxlib.mlir import ir
from shmap_passes import make_context, pipeline
from shmap_passes.cost.collective_time import sent_bytes
from shmap_passes.export.legalize_collectives import LegalizeCollectives
from shmap_passes.ir.collective_ops import (
    GROUPS,
    PERMUTE,
    body_collectives,
    device_ids,
    group_axes,
    split_group_axes,
)
from shmap_passes.ir.mesh import Mesh
from shmap_passes.ir.types import array_bytes
from shmap_passes.pipeline import run

from shmap_compiler.base.text_tables import show_bytes, table


@dataclass(frozen=True)
class Saving:
    """What one pass changes about the collectives of a module. Its text is a line.

    Those in a loop count once.

    Attributes:
      name: The pass.
      before: How many collectives of each kind there are: `{"all-gather": 3}`.
      after: The same after it.
      sent_before: The bytes that one device sends in them.
      sent_after: The same after it.
    """

    name: str
    before: dict[str, int]
    after: dict[str, int]
    sent_before: float
    sent_after: float

    def __str__(self) -> str:
        sent = f"{show_bytes(self.sent_before)} -> {show_bytes(self.sent_after)} sent"
        return f"{self.name}: {', '.join(filter(None, (self.counts, sent)))}"

    @property
    def counts(self) -> str:
        """The kinds of which there are more or fewer: "all-gather 3 -> 2"."""
        kinds = sorted(self.before.keys() | self.after.keys())
        pairs = [(kind, self.before.get(kind, 0), self.after.get(kind, 0)) for kind in kinds]
        return ", ".join(f"{kind} {old} -> {new}" for kind, old, new in pairs if old != new)


def savings_of(body: str, mesh: Mesh) -> tuple[Saving, ...]:
    """What each pass changes, of those that change something.

    Args:
      body: the text of a module in body form.
      mesh: its mesh.
    """
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(body)
        return tuple(_savings(module, mesh))


def show_savings(savings: tuple[Saving, ...]) -> str:
    """A table."""
    heads = "what the passes save", "collectives", "sent before", "after"
    if not savings:
        return "what the passes save: nothing"
    rows = [
        (s.name, s.counts or "as many", show_bytes(s.sent_before), show_bytes(s.sent_after))
        for s in savings
    ]
    return table(heads, rows)


def _savings(module: ir.Module, mesh: Mesh) -> Iterator[Saving]:
    before, sent = _collectives(module.operation, mesh)
    for pass_ in pipeline():
        if isinstance(pass_, LegalizeCollectives):
            return
        run(module, [pass_])
        after, sent_after = _collectives(module.operation, mesh)
        if (before, sent) != (after, sent_after):
            yield Saving(pass_.name, before, after, sent, sent_after)
        before, sent = after, sent_after


def _collectives(root: ir.Operation, mesh: Mesh) -> tuple[dict[str, int], float]:
    """How many there are of each kind, and the bytes that one device sends in them."""
    counts: Counter[str] = Counter()
    sent = 0.0
    for op in body_collectives(root):
        kind = op.name.partition(".")[2].replace("_", "-")
        counts[kind] += 1
        payload = max(sum(map(array_bytes, values)) for values in (op.operands, op.results))
        size = 1 if op.name == PERMUTE else _group_size(op, mesh)
        sent += sent_bytes(kind, payload, size)
    return dict(counts), sent


def _group_size(op: ir.Operation, mesh: Mesh) -> int:
    axes = group_axes(op)
    if axes is not None and not split_group_axes(op):
        return mesh.product(axes)
    return len(device_ids(op, GROUPS)[0])
