"""Finds loops that move values to the memory of the host, as checkpoint policies that offload do.

They are not unrolled: libtpu would compute the next steps before it has moved what the first ones
keep. The gradient of eight layers of 8192x4096 that offloads their inputs needs 762 MiB unrolled on
v6e, and 224 MiB as it is.
"""

from __future__ import annotations

from jaxlib.mlir import ir

from ..ir.collective_ops import call_target
from ..ir.find_ops import find_ops

REASON = "unrolled steps would keep on the device what they move to the host"


def moves_to_host(loop: ir.Operation) -> bool:
    """Whether the steps of a loop, which call no functions, move values to or from the host."""
    calls = find_ops(loop, ["stablehlo.custom_call"])
    return any(call_target(call) == "annotate_device_placement" for call in calls)
