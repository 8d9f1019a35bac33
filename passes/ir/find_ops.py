"""Finds ops by name, in MLIR's own walk: Python sees only the ops it asked for.

Most ops of a module are none of our business, and visiting each from Python costs more than all
passes together. This file is the one that uses MLIR's rewrite drivers from Python.
"""

from __future__ import annotations

from collections.abc import Iterable

from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs._mlir import rewrite


def find_ops(root: ir.Operation, names: Iterable[str]) -> list[ir.Operation]:
    """The ops inside `root` with one of `names`, inner before outer; the list may be rewritten."""
    found: list[ir.Operation] = []

    def not_a_match(op: ir.OpView, _: object) -> bool:
        found.append(op.operation)
        return True  # what is true is no match: the driver leaves the op as it is

    patterns = rewrite.RewritePatternSet(root.context)
    for name in names:
        patterns.add(name, not_a_match)
    rewrite.walk_and_apply_patterns(root, patterns.freeze())
    return found
