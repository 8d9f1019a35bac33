"""Inlines functions that only compute what can be computed in pieces.

JAX lowers a jitted function that is called, such as `jax.nn.silu` or `jnp.where`, as a function.
"""

from __future__ import annotations

from collections.abc import Mapping

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func
from jaxlib.mlir.dialects.builtin import ModuleOp

from ...ir.collective_ops import ALL_GATHER, REDUCE_SCATTER
from ...ir.elementwise import ELEMENTWISE
from ...ir.find_ops import find_ops
from ...ir.inline_calls import callee, functions_of, inline
from ...ir.ops import function_around
from ..find.exchanges import ALL_TO_ALL
from ..find.products import DOT

_CALL = "func.call"
_IN_PIECES = ELEMENTWISE | {
    DOT,
    "func.return",
    "stablehlo.broadcast_in_dim",
    "stablehlo.constant",
    "stablehlo.reshape",
    "stablehlo.transpose",
}
_MOST_OPS = 64
"""Larger functions remain functions."""
_MOST_CALLS = 500
"""So many calls at most are inlined in a module."""
_DEEPEST = 64
"""So many calls deep may a function be."""


def inline_local(module: ModuleOp) -> None:
    """Inlines calls of functions without control flow and communication.

    Only in functions that gather, scatter or exchange. The functions stay, called or not.
    """
    collectives = find_ops(module.operation, [ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL])
    communicating = dict.fromkeys(function_around(op) for op in collectives)
    pending = [call for each in communicating for call in find_ops(each, [_CALL])]
    if not pending:
        return
    local = _LocalFunctions(functions_of(module))
    for _ in range(_MOST_CALLS):
        call = next((each for each in pending if callee(each) in local), None)
        if call is None:
            break
        pending.remove(call)
        inside = inline(call, local.functions[callee(call)])
        pending += [op for op in inside if op.name == _CALL]


class _LocalFunctions:
    """The functions that can be inlined."""

    def __init__(self, functions: Mapping[str, func.FuncOp]) -> None:
        self.functions = functions
        self._known: dict[str, bool] = {}
        self._depth = 0

    def __contains__(self, name: str) -> bool:
        if name not in self._known:
            self._known[name] = False  # one that calls itself is not
            self._depth += 1
            function = self.functions.get(name) if self._depth <= _DEEPEST else None
            self._known[name] = function is not None and self._is_local(function.operation)
            self._depth -= 1
        return self._known[name]

    def _is_local(self, function: ir.Operation) -> bool:
        ops = [each.operation for each in function.regions[0].blocks[0].operations]
        return len(ops) <= _MOST_OPS and all(
            op.name in _IN_PIECES or (op.name == _CALL and callee(op) in self) for op in ops
        )
