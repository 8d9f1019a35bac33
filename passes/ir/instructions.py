"""What a program tells XLA about single operations, as by `jax.experimental.xla_metadata`.

Such frontend attributes name groups of operations that are scheduled together, or have an operation
computed on the host. They hold for operations as they are written: what an operation is rewritten
to would not have them, or have them more than once.

What JAX moves to the memory of the host, for `jax.device_put` or a checkpoint policy, has such an
attribute, too. In an unrolled loop libtpu would compute the next steps before it has moved what the
first ones keep: the gradient of eight layers of 8192x4096 that offloads their inputs needs 762 MiB
unrolled on v6e, and 224 MiB as it is.
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
