"""Runs a function of one device's blocks on a mesh, primitive by primitive."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.extend import core as jex_core
from jax.sharding import Mesh, PartitionSpec

from shmap_compiler.base import specs
from shmap_compiler.base.errors import ShmapError
from shmap_compiler.base.jax_compat import (
    explicit_axes,
    no_devices_in_scope,
    run_with_axes,
    setting,
    varying_types,
)
from shmap_compiler.base.meshes import ManualRegion
from shmap_compiler.base.untyped import AnyValue
from shmap_compiler.base.values import as_weak
from shmap_compiler.collectives import collective_errors, kept_types, vmapped_axes
from shmap_compiler.eager.callbacks import Once
from shmap_compiler.eager.layout import Layout
from shmap_compiler.eager.operations import Rules
from shmap_compiler.eager.per_device import PerDevice
from shmap_compiler.eager.trace import EagerTrace
from shmap_compiler.eager.value import Blocks
from shmap_compiler.eager.vmapped import Vmapped
from shmap_compiler.tracing import identity_transposes


def run_on_mesh(
    body: Callable[..., Sequence[AnyValue]],
    who: str,
    region: ManualRegion,
    rules: Rules,
    args: Sequence[AnyValue],
    in_specs: Sequence[PartitionSpec],
    out_specs: Sequence[PartitionSpec],
) -> list[jax.Array]:
    """The results of a function from flat blocks to flat blocks, run primitive by primitive."""
    layout = layout_for(region, args)
    trace = EagerTrace(layout, who, rules, Once())
    with no_devices_in_scope():
        blocks = [trace.enter(x, s) for x, s in zip(args, in_specs, strict=True)]
        values = run_body(lambda: body(*blocks), trace, region)
        return [array_of(v, layout, s) for v, s in zip(values, out_specs, strict=True)]


def run_body(
    body: Callable[[], Sequence[AnyValue]], trace: EagerTrace, region: ManualRegion
) -> list[Blocks]:
    """The results of `body`, run by `trace`."""
    axes = region.manual_axes
    jit_is_disabled = setting("jax_disable_jit")

    def traced():
        with (
            jex_core.set_current_trace(trace),
            jax.disable_jit(jit_is_disabled),
            varying_types(trace.rules.typed),
            vmapped_axes.body(trace.who),
            kept_types.kept(trace.rules.keeps_weak_types),
            identity_transposes.shown() if trace.rules.watch else contextlib.nullcontext(),
        ):
            try:
                return [trace.stage_value(x) for x in body()]
            except ShmapError:
                raise
            except Exception as error:
                refusal = collective_errors.refused(
                    error, trace.who, {a: region.mesh.shape[a] for a in axes}
                )
                if refusal is None:
                    raise
                raise refusal from error

    try:
        with jax.disable_jit(False):  # else the names of the axes could not come in scope
            return run_with_axes(traced, trace.body_mesh, axes)
    finally:
        trace.invalidate()


def array_of(value: Blocks, layout: Layout, spec: PartitionSpec) -> AnyValue:
    """The full array of a result, as weakly typed as its blocks.

    Tangents of integers are an array of NumPy without values, as they are of `jax.jvp`.
    """
    if value.aval.dtype == jax.dtypes.float0:
        shape = specs.global_shape(value.aval.shape, spec, layout.mesh)
        return np.zeros(shape, jax.dtypes.float0)
    return as_weak(layout.leave(value.rows, spec), value.aval.weak_type)


LARGE = 1 << 24
"""So many bytes of arguments take longer to move to one device than their operations to start."""


def layout_for(region: ManualRegion, arrays: Sequence[AnyValue]) -> Layout:
    """The layout of values in this region: vmapped if all devices are CPU devices of one host.

    Large arguments stay on their devices, and so do all if the user forbids moving them. Over
    Explicit axes that stay automatic, types say how values are placed on devices, which is not true
    of stacked values.
    """
    mesh = region.mesh
    assert isinstance(mesh, Mesh)
    one_host = jax.process_count() == 1 and all(d.platform == "cpu" for d in mesh.devices.flat)
    untyped = set(explicit_axes(mesh)) <= set(region.manual_axes)
    is_small = sum(x.nbytes for x in arrays if hasattr(x, "nbytes")) < LARGE
    may_move = setting("jax_transfer_guard_device_to_device") != "disallow_explicit"
    layout = Vmapped if one_host and untyped and is_small and may_move else PerDevice
    return layout(mesh, region.manual_axes)
