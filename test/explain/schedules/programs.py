"""Programs whose compiled schedules are stored beside this file, with what their source says.

Each is the function of one device on a mesh of eight along "i" (or four by two along "i" and "j"),
with the types of the full arrays. `flops` and `sent` follow from the source alone: operations of
matrix products on one device, and bytes that one device sends. They are counted by hand for each
program, and no HLO is needed to know them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import ad_checkpoint, lax
from jax.sharding import PartitionSpec as P

from shmap_compiler import assume_replicated

N = 8


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
      flops: operations of matrix products on one device.
      sent: bytes that one device sends, for each HLO kind of collective.
    """

    body: Callable[..., Any]
    in_specs: Any
    out_specs: Any
    types: tuple[Any, ...]
    flops: float
    sent: Mapping[str, float]
    mesh: Mapping[str, int] = field(default_factory=lambda: {"i": N})


def gather(x: Any, axis: int = 0, name: str = "i") -> Any:
    return lax.all_gather(x, name, axis=axis, tiled=True)


def scatter(x: Any) -> Any:
    return lax.psum_scatter(x, "i", scatter_dimension=0, tiled=True)


def rows_gathered(x, w):
    return gather(x) @ w


def weights_gathered(x, w):
    return x @ gather(w)


def sums_scattered(x, w):
    return scatter(x @ w)


def sums(x, w):
    return lax.psum(x @ w, "i")


def two_layers(x, w1, w2):
    return scatter(jax.nn.gelu(gather(x) @ w1) @ w2)


def experts(x, w1, w2):
    tokens = lax.all_to_all(x, "i", split_axis=0, concat_axis=1, tiled=True)
    hidden = jax.nn.gelu(jnp.einsum("ecd,edh->ech", tokens, w1))
    out = jnp.einsum("ech,ehd->ecd", hidden, w2)
    return lax.all_to_all(out, "i", split_axis=1, concat_axis=0, tiled=True)


def layers(x, weights, unroll=1):
    def layer(x, w):
        return jnp.tanh(x @ gather(w)), None

    return lax.scan(layer, x, weights, unroll=unroll)[0]


def layers_unrolled(x, weights):
    return layers(x, weights, unroll=8)


def two_layers_gradient(x, w1, w2):
    def loss(x, w1, w2):
        return (two_layers(x, w1, w2).astype(jnp.float32) ** 2).sum()

    return jax.grad(loss, (0, 1, 2))(x, w1, w2)


def layers_gradient(x, weights):
    def loss(x, weights):
        return (layers(x, weights).astype(jnp.float32) ** 2).sum()

    return jax.grad(loss, (0, 1))(x, weights)


def ring(x, w):
    """Each device multiplies the block that it holds while the next one travels."""
    position, rows = lax.axis_index("i"), x.shape[0]
    out = jnp.zeros((N * rows, w.shape[1]), x.dtype)
    for step in range(N):
        following = lax.ppermute(x, "i", [(d, (d - 1) % N) for d in range(N)])
        out = lax.dynamic_update_slice(out, x @ w, ((position + step) % N * rows, 0))
        x = following
    return assume_replicated(out, "i")


def opposite_shifts(x, w):
    """Halves travel both ways at once."""
    upper, lower = jnp.split(x, 2)
    for _ in range(4):
        upper = lax.ppermute(upper, "i", [(d, (d + 1) % N) for d in range(N)])
        lower = lax.ppermute(lower, "i", [(d, (d - 1) % N) for d in range(N)])
        upper, lower = upper @ w, lower @ w
    return jnp.concatenate([upper, lower])


def grid(x, w):
    """A product on a grid of devices: rows gathered along "j", sums over "i"."""
    return lax.psum(gather(x, 1, "j") @ w, "i")


def offloaded_gradient(x, w):
    """Of layers whose inputs are on the host from the forward to the backward pass."""
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["input"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def layer(x, _):
        return jnp.tanh(ad_checkpoint.checkpoint_name(x, "input") @ w), None

    def loss(x):
        last, _ = lax.scan(jax.checkpoint(layer, policy=policy), x, None, length=8)
        return (last.astype(jnp.float32) ** 2).sum()

    return jax.grad(loss)(x)


_MLP = (bf16(16384, 4096), bf16(4096, 16384), bf16(16384, 4096))
_MLP_SPECS = (P("i", None), P(None, "i"), P("i", None))
_LAYERS = (bf16(N * 4096, 4096), bf16(8, 4096, 4096))
_LAYERS_SPECS = (P("i", None), P(None, "i", None))
_SHARE = (N - 1) / N
_256M = _SHARE * 16384 * 8192 * 2  # what a device sends to gather or scatter bf16[16384,8192]
_128M = _SHARE * 8192 * 8192 * 2

PROGRAMS: dict[str, Program] = {
    "rows_gathered": Program(
        rows_gathered,
        (P("i", None), P()),
        P(),
        (bf16(16384, 8192), bf16(8192, 2048)),
        flops=2 * 16384 * 8192 * 2048,
        sent={"all-gather": _256M},
    ),
    "weights_gathered": Program(
        weights_gathered,
        (P("i", None), P("i", None)),
        P("i", None),
        (bf16(N * 4096, 8192), bf16(8192, 8192)),
        flops=2 * 4096 * 8192 * 8192,
        sent={"all-gather": _128M},
    ),
    "sums_scattered": Program(
        sums_scattered,
        (P(None, "i"), P("i", None)),
        P("i", None),
        (bf16(16384, 16384), bf16(16384, 8192)),
        flops=2 * 16384 * 2048 * 8192,
        sent={"reduce-scatter": _256M},
    ),
    "sums": Program(
        sums,
        (P(None, "i"), P("i", None)),
        P(),
        (bf16(8192, 16384), bf16(16384, 8192)),
        flops=2 * 8192 * 2048 * 8192,
        sent={"all-reduce": 2 * _128M},
    ),
    "two_layers": Program(
        two_layers,
        _MLP_SPECS,
        P("i", None),
        _MLP,
        flops=2 * 2 * 16384 * 4096 * 2048,
        sent={"all-gather": _128M, "reduce-scatter": _128M},
    ),
    "two_layers_gradient": Program(
        two_layers_gradient,
        _MLP_SPECS,
        _MLP_SPECS,
        _MLP,
        flops=6 * 2 * 16384 * 4096 * 2048,
        sent={"all-gather": 2 * _128M, "reduce-scatter": 2 * _128M},
    ),
    "experts": Program(
        experts,
        (P(None, "i", None), P("i", None, None), P("i", None, None)),
        P(None, "i", None),
        (bf16(8, 8 * 1024, 4096), bf16(8, 4096, 2048), bf16(8, 2048, 4096)),
        flops=2 * 2 * 8192 * 4096 * 2048,
        sent={"all-to-all": 2 * _SHARE * 8 * 1024 * 4096 * 2},
    ),
    "layers": Program(
        layers,
        _LAYERS_SPECS,
        P("i", None),
        _LAYERS,
        flops=8 * 2 * 4096**3,
        sent={"all-gather": 8 * _SHARE * 4096 * 4096 * 2},
    ),
    "layers_unrolled": Program(
        layers_unrolled,
        _LAYERS_SPECS,
        P("i", None),
        _LAYERS,
        flops=8 * 2 * 4096**3,
        sent={"all-gather": 8 * _SHARE * 4096 * 4096 * 2},
    ),
    "layers_gradient": Program(
        layers_gradient,
        _LAYERS_SPECS,
        _LAYERS_SPECS,
        _LAYERS,
        flops=3 * 8 * 2 * 4096**3,
        sent={
            "all-gather": 8 * _SHARE * 4096 * 4096 * 2,
            "reduce-scatter": 8 * _SHARE * 4096 * 4096 * 2,
        },
    ),
    "offloaded_gradient": Program(
        offloaded_gradient,
        (P("i"), P()),
        P("i"),
        (bf16(32768, 4096), bf16(4096, 4096)),
        flops=3 * 8 * 2 * 4096**3,
        sent={},
    ),
    "ring": Program(
        ring,
        (P("i", None), P()),
        P(),
        (bf16(16384, 8192), bf16(8192, 2048)),
        flops=2 * 16384 * 8192 * 2048,
        sent={"collective-permute": _256M},
    ),
    "opposite_shifts": Program(
        opposite_shifts,
        (P("i", None), P()),
        P("i", None),
        (bf16(16384, 4096), bf16(4096, 4096)),
        flops=4 * 2 * 2048 * 4096 * 4096,
        sent={"collective-permute": 4 * 2048 * 4096 * 2},
    ),
    "grid": Program(
        grid,
        (P(None, ("i", "j")), P("i", None)),
        P(),
        (bf16(8192, 8192), bf16(8192, 4096)),
        flops=2 * 8192 * 2048 * 4096,
        sent={
            "all-gather": 1 / 2 * 8192 * 2048 * 2,
            "all-reduce": 2 * 3 / 4 * 8192 * 4096 * 2,
        },
        mesh={"i": 4, "j": 2},
    ),
}

OPTIONS: dict[str, dict[str, bool]] = {
    # Gathers on the SparseCore.
    "sc": {
        "xla_sc_disable_megacore_partitioning": True,
        "xla_tpu_enable_all_gather_offload_tracing": True,
        "xla_tpu_use_tc_device_shape_on_sc": True,
        "xla_tpu_enable_sparse_core_collective_offload_all_gather": True,
        "xla_tpu_enable_async_collective_fusion_fuse_all_gather": False,
        "xla_sc_enable_instruction_fusion": False,
    },
    # Exchanges beside other instructions.
    "async": {
        "xla_tpu_enable_async_all_to_all": True,
        "xla_tpu_force_async_all_to_all": True,
    },
    # Starts as early as possible.
    "early": {"xla_tpu_enable_all_experimental_scheduler_features": True},
    # Products by cuBLAS.
    "cublas": {"xla_gpu_enable_triton_gemm": False},
}
"""Options of the compilers, by a short name."""
