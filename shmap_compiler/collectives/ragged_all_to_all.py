"""ragged_all_to_all: every device sends slices of different lengths to the devices of its group.

On device d, rows `input_offsets[j]` and following of the operand, `send_sizes[j]` of them, go to
the j-th device of the group, into its output from row `output_offsets[j]` on. `recv_sizes[j]` says
how many rows d receives from device j. Rows of the output that nobody sends to keep their values.
With k slices for each device, the first k entries are those for the first device.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.typing import ArrayLike
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo as hlo

from shmap_compiler.base.jax_compat import lowering_mesh
from shmap_compiler.collectives import split_axes
from shmap_compiler.collectives.all_to_all import all_to_all
from shmap_compiler.collectives.axis_index import axis_index
from shmap_compiler.collectives.base import DeviceGroups, define, dense_ids, device_ids
from shmap_compiler.collectives.gather_scatter import all_gather
from shmap_compiler.collectives.jax_params import group_params
from shmap_compiler.collectives.record import (
    Collective,
    JaxForm,
    Payload,
    Refusal,
    Result,
    Waits,
)

ragged_all_to_all_p = Primitive("ragged_all_to_all")


def ragged_all_to_all(
    operand: ArrayLike,
    output: ArrayLike,
    input_offsets: ArrayLike,
    send_sizes: ArrayLike,
    output_offsets: ArrayLike,
    recv_sizes: ArrayLike,
    *,
    axes: tuple[str, ...],
    groups: DeviceGroups,
    size: int,
) -> jax.Array:
    """`[n, ...], [m, ...]` and four integer arrays `[k * size]` -> `[m, ...]`."""
    return ragged_all_to_all_p.bind(
        operand,
        output,
        input_offsets,
        send_sizes,
        output_offsets,
        recv_sizes,
        axes=axes,
        groups=groups,
        size=size,
    )


def _type(operand, output, *offsets_and_sizes, axes, groups, size):
    return output


# ------------------------------------------------------------------------------------ lowering


def _by_gathering(
    operand, output, input_offsets, send_sizes, output_offsets, recv_sizes, *, axes, groups, size
):
    """The same by all_gather, for targets whose compiler lacks the operation."""
    group = {"axes": axes, "groups": groups, "size": size}
    rank = _rank_in_group(axes, groups)

    def gathered(x):
        return all_gather(x[None], dimension=0, **group)

    blocks, per_device = gathered(operand), send_sizes.shape[0] // size

    def of_slices(x):
        """What each device says of its slices for this one: `[size, k]`."""
        return jnp.reshape(gathered(x), (size, size, per_device))[:, rank]

    sizes, sources, targets = map(of_slices, (send_sizes, input_offsets, output_offsets))
    rows = jnp.arange(output.shape[0])

    def receive(output, sent):
        block, *slices = sent
        for source, target, length in zip(*slices, strict=True):
            hit = (rows >= target) & (rows < target + length)
            values = jnp.take(block, rows - target + source, axis=0, mode="clip")
            output = jnp.where(jnp.expand_dims(hit, range(1, output.ndim)), values, output)
        return output, None

    return [jax.lax.scan(receive, output, (blocks, sources, targets, sizes))[0]]


def _rank_in_group(axes: tuple[str, ...], groups: DeviceGroups) -> jax.Array:
    position = axis_index(axes=axes)
    if groups is None:
        return position
    ranks = np.zeros(sum(map(len, groups)), np.int32)
    for group in groups:
        ranks[list(group)] = np.arange(len(group))
    return jnp.asarray(ranks)[position]


def _as_custom_call(ctx, *operands, axes, groups, size):
    rows = device_ids(lowering_mesh(ctx), axes)
    if groups is not None:
        rows = np.concatenate([rows[:, list(group)] for group in groups])
    config = {
        "replica_groups": dense_ids(rows),
        "channel_id": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 1),
    }
    op = hlo.CustomCallOp(
        [operands[1].type],
        operands,
        call_target_name=ir.StringAttr.get("ragged_all_to_all"),
        backend_config=ir.DictAttr.get(config),
        api_version=ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 4),
    )
    return op.results


# -------------------------------------------------------------------------------- derivatives


def _jvp(primals, tangents, **params):
    operand, output, *rest = primals
    result = ragged_all_to_all_p.bind(operand, output, *rest, **params)
    moved = [ad.instantiate_zeros(t) for t in tangents[:2]]
    if all(type(t) is ad.Zero for t in tangents[:2]):
        return result, ad.Zero(jax.typeof(result).to_tangent_aval())
    return result, ragged_all_to_all_p.bind(*moved, *rest, **params)


def _transpose(
    ct,
    operand,
    output,
    input_offsets,
    send_sizes,
    output_offsets,
    recv_sizes,
    *,
    axes,
    groups,
    size,
):
    """What was received is sent back. Slices of one operand must not overlap."""
    results: list[Any] = [None] * 6
    if type(ct) is ad.Zero:
        return results
    group = {"axes": axes, "groups": groups, "size": size}
    back_to = all_to_all(input_offsets, split=0, concat=0, **group)
    written_at = all_to_all(output_offsets, split=0, concat=0, **group)
    if ad.is_undefined_primal(operand):
        zeros = jnp.zeros(operand.aval.shape, operand.aval.dtype)
        results[0] = ragged_all_to_all(
            ct, zeros, written_at, recv_sizes, back_to, send_sizes, **group
        )
    if ad.is_undefined_primal(output):
        rows = jnp.arange(ct.shape[0])[:, None]
        written = ((rows >= written_at) & (rows < written_at + recv_sizes)).any(1)
        written = jnp.expand_dims(written, range(1, ct.ndim))
        results[1] = jnp.where(written, jnp.zeros_like(ct), ct)
    return results


# ------------------------------------------------------------------------------- registration


def _batcher(args, dims, **params):
    """One exchange after the other: offsets count in the rows of one example."""
    size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
    moved = [
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(args, dims, strict=True)
    ]
    return jax.lax.map(lambda one: ragged_all_to_all_p.bind(*one, **params), tuple(moved)), 0


define(ragged_all_to_all_p, _type, mlir.lower_fun(_by_gathering, multiple_results=True))
for _platform in ("cuda", "rocm", "tpu"):
    mlir.register_lowering(ragged_all_to_all_p, _as_custom_call, platform=_platform)
ad.primitive_jvps[ragged_all_to_all_p] = _jvp
ad.primitive_transposes[ragged_all_to_all_p] = _transpose
batching.primitive_batchers[ragged_all_to_all_p] = _batcher


def _expansion(params, sizes):
    return functools.partial(ragged_all_to_all, **group_params(params, sizes))


def _split(axis, *operands, axis_name, axis_index_groups):
    groups = axis_index_groups and [list(g) for g in axis_index_groups]
    return split_axes.ragged_all_to_all(operands, axis, axis_index_groups=groups), 0


RAGGED_ALL_TO_ALL = Collective(
    primitive=ragged_all_to_all_p,
    result=Result.PART,
    waits=Waits.GROUP,
    hlo="ragged-all-to-all",
    forms=(
        JaxForm(
            "ragged_all_to_all",
            _expansion,
            _split,
            jax_batches=False,
            one_slot=Refusal(
                "",
                "an axis with one position on each device: slices go from device to device",
                "place one position on each device, or use all_to_all on padded slices",
            ),
        ),
    ),
    on_rows=None,
    functions=("ragged_all_to_all",),
    payload=Payload.FIRST_OPERAND,
)
