"""Finds the first operation of which XLA computes something else than the simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax
import numpy as np
import shmap_passes
from jax.sharding import Mesh, PartitionSpec
from jaxlib.mlir import ir
from shmap_passes import Partitioner, make_context, pipeline

from shmap_compiler.base.untyped import AnyValue
from shmap_compiler.lowering.portable_module import compile_portable, portable
from shmap_compiler.records.signature import Signature
from shmap_compiler.simulate.agreement import default_tolerance
from shmap_compiler.simulate.first_difference import FirstDifference
from shmap_compiler.simulate.inner_values import returning, stacked_devices, values_behind
from shmap_compiler.simulate.simulate_module import simulate_module
from shmap_compiler.simulate.trace_values import distance

LAST_IN_BODY_FORM = "shmap-legalize-collectives"
"""The pass before which a module is last in body form."""


def first_difference(
    body: str,
    signature: Signature,
    inputs: Sequence[AnyValue],
    result: int,
    partitioner: Partitioner,
) -> FirstDifference:
    """Where XLA's values of a result begin to differ from those of the simulation.

    Both run the module with all values from which the result is computed as its results.

    Args:
      body: the module as it is last in body form, with source lines.
      inputs: one for each argument of its `@main`.
      result: the number of the result.
    """
    assert isinstance(signature.mesh, Mesh), "XLA has run the program"
    values = values_behind(body, result)
    text = returning(body, [(each.op, each.result) for each in values])
    simulated = simulate_module(text, inputs, who=signature.who).arrays
    computed = _run(text, signature, signature.mesh, inputs, simulated, partitioner)
    devices = stacked_devices(body)
    for each, expected, found in zip(values, simulated, computed, strict=True):
        for device, block, other in zip(devices, expected, found, strict=True):
            if distance(np.asarray(other), np.asarray(block)) > default_tolerance(block.dtype):
                return FirstDifference(each.place, device)
    note = "no value differs if XLA returns all of them, which changes how it optimizes"
    return FirstDifference(None, None, note)


def _run(
    text: str,
    signature: Signature,
    mesh: Mesh,
    inputs: Sequence[AnyValue],
    like: Sequence[np.ndarray],
    partitioner: Partitioner,
) -> list[np.ndarray]:
    """The results of a module in body form, by XLA.

    Args:
      like: arrays of the types of the results.
    """
    passes = pipeline(partitioner)
    names = [each.name for each in passes]
    changed = replace(
        signature.flat(),
        out_types=tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in like),
        out_specs=(PartitionSpec(),) * len(like),
        out_memory_kinds=(None,) * len(like),
    )
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        shmap_passes.run(module, passes[names.index(LAST_IN_BODY_FORM) :])
        program = portable(changed, module, partitioner, mesh.devices.flat[0].platform)
    compiled = compile_portable(program, mesh)
    return [np.asarray(x) for x in jax.block_until_ready(compiled(*inputs))]
