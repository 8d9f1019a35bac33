"""Builds the custom calls that GSPMD, XLA's older partitioner, reads."""

from __future__ import annotations

from jaxlib.mlir import ir

from ..ir.types import Value


def sharding_call(
    target: str, value: Value, type_: ir.Type, sharding: str, config: str = ""
) -> Value:
    """Calls `@Sharding`, `@SPMDFullToShardShape` or `@SPMDShardToFullShape` on `value`."""
    call = ir.Operation.create(
        "stablehlo.custom_call",
        results=[type_],
        operands=[value],
        attributes={
            "backend_config": ir.StringAttr.get(config),
            "call_target_name": ir.StringAttr.get(target),
            "mhlo.sharding": ir.StringAttr.get(sharding),
        },
    )
    return call.results[0]
