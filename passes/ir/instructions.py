"""What a program tells XLA about single operations, as by `jax.experimental.xla_metadata`.

Such frontend attributes name groups of operations that are scheduled together, or have an operation
computed on the host. They hold for operations as they are written: what an operation is rewritten
to would not have them, or have them more than once.
"""

from __future__ import annotations

from jaxlib.mlir import ir

_ATTRIBUTES, _SHARDYS_OWN = "mhlo.frontend_attributes", "xla.sdy."


def has_instructions(op: ir.Operation) -> bool:
    """Whether an operation has instructions for XLA. It stays as it is, then."""
    attributes = op.attributes.get(_ATTRIBUTES)
    if not isinstance(attributes, ir.DictAttr):
        return False
    return any(not named.name.startswith(_SHARDYS_OWN) for named in attributes)
