"""Finds ops by name with MLIR's own walk, so that Python visits only these.

Visiting every op of a module from Python takes longer than all passes together. This file is the
one that uses MLIR's rewrite drivers from Python.
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
        return True  # true is not a match: the driver leaves the op unchanged

    patterns = rewrite.RewritePatternSet(root.context)
    for name in names:
        patterns.add(name, not_a_match)
    rewrite.walk_and_apply_patterns(root, patterns.freeze())
    return found
