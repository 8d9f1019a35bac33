"""What one device computes, holds and moves to and from its own memory: published figures.

Sources, as they stand in the comments below:

  [v5e]     https://cloud.google.com/tpu/docs/v5e
  [v5p]     https://cloud.google.com/tpu/docs/v5p
  [v6e]     https://cloud.google.com/tpu/docs/v6e
  [book]    https://jax-ml.github.io/scaling-book/tpus, "Key Takeaways"
  [tpu7x]   https://docs.cloud.google.com/tpu/docs/tpu7x; it gives figures of a chip, which is two
            devices of JAX's
  [h100]    https://www.nvidia.com/en-us/data-center/h100, column "H100 SXM"; it gives the speed of
            Tensor Cores with sparsity, which is twice the dense speed given here
  [h200]    https://www.nvidia.com/en-us/data-center/h200, column "H200 SXM", the same way
  [nccl]    https://forums.developer.nvidia.com/t/337991
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Chip:
    """One device as JAX counts devices.

    Attributes:
      name: as its maker calls it.
      device_kind: as `jax.Device.device_kind` calls it.
      flops: operations per second of its matrix units, by type of the factors ("bf16", "int8",
        ...); a multiply-add is two. Types that are absent are not published.
      hbm_bytes: its memory.
      hbm_bandwidth: bytes per second between its memory and its cores.
      clock: cycles per second, for the estimates of a compiler that counts cycles; None for others.
        It is `flops` divided by what the matrix units do in a cycle: 2 * 128 * 128 operations each,
        4 units on v5e, 8 on v5p [book]; for v6e we take 2**19, with which the cycles that libtpu
        estimates for large products of matrices come to 88% of `flops` (97% on the others), and the
        same number for one of the two devices of a TPU7x (80%).
      flops_share, hbm_share: how much of `flops` and `hbm_bandwidth` a kernel reaches, for chips
        whose compiler makes no estimate.
      kernel_seconds: the shortest time of a kernel on such chips.
      processors: how many work at a time on one kernel; 1 where the compiler estimates times.
      collective_share: how much of its processors a running collective takes from other kernels.
      host_bandwidth: bytes per second between its memory and that of the host, in one direction;
        None if it is not known.
    """

    name: str
    device_kind: str
    flops: Mapping[str, float] = field(hash=False)
    hbm_bytes: int
    hbm_bandwidth: float
    clock: float | None = None
    flops_share: float = 1.0
    hbm_share: float = 1.0
    kernel_seconds: float = 0.0
    processors: int = 1
    collective_share: float = 0.0
    host_bandwidth: float | None = None

    def speed(self, factors: str) -> float | None:
        """Operations per second in products of factors of a type; None if it is not published.

        TPUs multiply f32 as bf16, unless a program asks for more precision.

        Args:
          factors: "tf32", or a type as HLO or StableHLO calls it: "s8" or "i8", "f8e4m3fn" or
            "f8E4M3FN".
        """
        if factors == "f32" and self.clock is not None:
            return self.flops.get("bf16")
        if factors.startswith("f8"):
            return self.flops.get("f8")
        is_int8 = factors in ("s8", "u8", "i8", "ui8")
        return self.flops.get("int8" if is_int8 else factors)


GIB = 2**30

TPU_V5E = Chip(
    name="TPU v5e",
    device_kind="TPU v5 lite",
    flops={"bf16": 197e12, "int8": 393e12},  # [v5e]
    hbm_bytes=16 * GIB,  # [v5e]
    hbm_bandwidth=819e9,  # [v5e]
    clock=1.5e9,
)
TPU_V5P = Chip(
    name="TPU v5p",
    device_kind="TPU v5",
    flops={"bf16": 459e12, "int8": 918e12},  # [v5p], [book]
    hbm_bytes=95 * GIB,  # [v5p]: what is left to users of 96 GiB
    hbm_bandwidth=2765e9,  # [v5p]
    clock=1.75e9,
)
TPU_V6E = Chip(
    name="TPU v6e",
    device_kind="TPU v6 lite",
    flops={"bf16": 918e12, "int8": 1836e12},  # [v6e]
    hbm_bytes=32 * GIB,  # [v6e]
    hbm_bandwidth=1600e9,  # [v6e]
    clock=1.75e9,
)
TPU_7X = Chip(
    name="TPU7x",
    device_kind="TPU7x",
    flops={"bf16": 2307e12 / 2, "f8": 4614e12 / 2},  # [tpu7x]
    hbm_bytes=192 * GIB // 2,  # [tpu7x]
    hbm_bandwidth=7380e9 / 2,  # [tpu7x]
    clock=2.2e9,
)
H100_SXM = Chip(
    name="NVIDIA H100 SXM",
    device_kind="NVIDIA H100 80GB HBM3",
    flops={  # [h100]
        "bf16": 989.5e12,
        "f16": 989.5e12,
        "f8": 1979e12,
        "int8": 1979e12,
        "tf32": 494.5e12,
        "f32": 67e12,
        "f64": 67e12,
    },
    hbm_bytes=80 * 10**9,  # [h100]
    hbm_bandwidth=3.35e12,  # [h100]
    # Not published: what we take large products, and copies, to reach, and a kernel to take at
    # least. Products alone reach 60 to 80% in public benchmarks, depending on power and on shapes.
    flops_share=0.7,
    hbm_share=0.85,
    kernel_seconds=3e-6,
    processors=132,  # [h100]
    # ncclAllGather starts 24 blocks [nccl]
    collective_share=24 / 132,
    # Not published: 52 to 55 GB/s of 16 MiB and more, measured by `benchmarks/gpu.py host`.
    host_bandwidth=55e9,
)
H200_SXM = replace(
    H100_SXM,  # It has the same processors [h200].
    name="NVIDIA H200 SXM",
    device_kind="NVIDIA H200",
    hbm_bytes=141 * 10**9,  # [h200]
    hbm_bandwidth=4.8e12,  # [h200]
    hbm_share=0.69,  # Measured, of 256 MiB to 2 GiB that a kernel of XLA's reads and writes.
)

CHIPS = (TPU_V5E, TPU_V5P, TPU_V6E, TPU_7X, H100_SXM, H200_SXM)
