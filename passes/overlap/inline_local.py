"""Inlines functions that only compute what can be computed in pieces.

JAX lowers a jitted function that is called, such as `jax.nn.silu` or `jnp.where`, as a function.
"""

from __future__ import annotations

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..ir.collective_ops import ALL_GATHER, REDUCE_SCATTER
from ..ir.elementwise import ELEMENTWISE
from ..ir.find_ops import find_ops
from ..ir.inline_calls import callee, erase_uncalled, functions_of, inline
from .exchanges import ALL_TO_ALL
from .products import DOT

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


def inline_local(module: ModuleOp) -> None:
    """Inlines calls of functions without control flow and communication.

    Only in functions that gather, scatter or exchange.
    """
    functions = functions_of(module)
    communicating = [
        function.operation
        for function in functions.values()
        if find_ops(function.operation, [ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL])
    ]
    pending = [call for each in communicating for call in find_ops(each, [_CALL])]
    if not pending:
        return
    local = _local(module)
    for _ in range(_MOST_CALLS):
        call = next((each for each in pending if callee(each) in local), None)
        if call is None:
            break
        pending.remove(call)
        inside = inline(call, functions[callee(call)])
        pending += [op for op in inside if op.name == _CALL]
    erase_uncalled(module, local)


def _local(module: ModuleOp) -> set[str]:
    """The functions that can be inlined, by name."""
    local: set[str] = set()
    functions = functions_of(module)
    while True:
        more = {
            name
            for name, function in functions.items()
            if name not in local and _is_local(function.operation, local)
        }
        if not more:
            return local
        local |= more


def _is_local(function: ir.Operation, local: set[str]) -> bool:
    ops = [each.operation for each in function.regions[0].blocks[0].operations]
    return len(ops) <= _MOST_OPS and all(
        op.name in _IN_PIECES or (op.name == _CALL and callee(op) in local) for op in ops
    )
