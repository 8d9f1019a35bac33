"""The custom calls by which a program talks to XLA's older partitioner."""

from __future__ import annotations

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo


def sharding_call(
    target: str, value: ir.Value, type_: ir.Type, sharding: str, config: str = ""
) -> ir.Value:
    """`value` through `@Sharding`, `@SPMDFullToShardShape` or `@SPMDShardToFullShape`."""
    call = stablehlo.CustomCallOp(
        [type_], [value], target, backend_config=ir.StringAttr.get(config)
    )
    call.attributes["mhlo.sharding"] = ir.StringAttr.get(sharding)
    return call.results[0]
