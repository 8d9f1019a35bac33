"""`gpu:h100:8`, `gpu:h200:2x8`: nodes of GPUs; the first number, if there are two, counts nodes.

The compiler is JAX's CUDA plugin. Given the figures of a GPU, it compiles for that GPU without one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from jax.experimental import topologies
from shmap_passes.cost.chips import H100_SXM, H200_SXM, Chip
from shmap_passes.cost.networks import Coordinates, Nodes

from shmap_compiler.base.errors import OptionProblem
from shmap_compiler.base.untyped import Device
from shmap_compiler.targets.target import Target


@dataclass(frozen=True)
class GpuModel:
    """A model of GPU, in the machines it is usually built into.

    Attributes:
      node_size: GPUs in a node.
      device_bandwidth, node_bandwidth: see `Nodes`.
      measured: whether times of collectives in a node were measured; see `Nodes`.
      cache_bytes: of its second-level cache.
    """

    chip: Chip
    node_size: int
    device_bandwidth: float
    node_bandwidth: float
    measured: bool
    cache_bytes: int

    @property
    def description(self) -> str:
        """The fields of GpuTargetConfigProto that XLA's GPU compiler needs.

        Limits of compute capability 9.0: CUDA Programming Guide, "Technical Specifications per
        Compute Capability"; processors and clock: NVIDIA H100 Tensor Core GPU Architecture, "H100
        SXM5".
        """
        return _HOPPER_DESCRIPTION % {
            "name": self.chip.device_kind,
            "processors": self.chip.processors,
            "memory": self.chip.hbm_bytes,
            "bandwidth": int(self.chip.hbm_bandwidth),
            "cache": self.cache_bytes,
        }


_HOPPER_DESCRIPTION = """
platform_name: "CUDA"
device_description_str: "%(name)s"
dnn_version_info { major: 9 minor: 12 patch: 0 }
gpu_device_info {
  name: "%(name)s"
  cuda_compute_capability { major: 9 minor: 0 }
  core_count: %(processors)d
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  device_memory_size: %(memory)d
  memory_bandwidth: %(bandwidth)d
  l2_cache_size: %(cache)d
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  registers_per_block_limit: 65536
  registers_per_core_limit: 65536
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}
"""

OPTIONS_WITHOUT_DEVICES = {"xla_gpu_enable_triton_gemm": False}
"""XLA's own kernels for products have to be tuned on a GPU: without, they took 50 times as long as
those of cuBLAS on an H100, which choose their tiles themselves (jax 0.11.2, bf16 products)."""

COMPILER_OPTIONS = {"optimization_level": "O1"}
"""With them XLA pipelines loops that gather; collectives outside of loops need none."""

_H100 = GpuModel(
    H100_SXM,
    node_size=8,
    # NVLink: 900 GB/s per GPU, both directions together (https://www.nvidia.com/en-us/data-center/
    # h100). Network: one 400 Gb/s adapter per GPU (NVIDIA DGX H100 data sheet).
    device_bandwidth=450e9,
    node_bandwidth=8 * 50e9,
    measured=True,
    cache_bytes=50 * 2**20,
)

MODELS = {
    "h100": _H100,
    # NVLink and adapters are those of an H100 (https://www.nvidia.com/en-us/data-center/h200, and
    # NVIDIA DGX H200 data sheet). XLA has one table of measured collectives for both, too.
    "h200": replace(_H100, chip=H200_SXM, cache_bytes=60 * 2**20),
}


@dataclass(frozen=True)
class GpuTarget(Target):
    """`nodes` times `size` GPUs of a model."""

    model: str
    nodes: int
    size: int

    kind = "gpu"
    syntax = "gpu:MODEL:DEVICES or gpu:MODEL:NODESxDEVICES"
    module = "jax_cuda13_plugin"
    extra = "gpu"

    @classmethod
    def read(cls, text: str) -> GpuTarget | OptionProblem:
        match = re.fullmatch(r"gpu:(\w+):(?:([1-9][0-9]{0,8})x)?([1-9][0-9]{0,8})", text)
        if match is None or match[1] not in MODELS:
            return OptionProblem(
                f"target {text!r}",
                f"{text.partition(':')[2]!r} after 'gpu:'",
                f"a model, one of {', '.join(MODELS)}, and the number of GPUs",
                "write e.g. 'gpu:h100:8', or 'gpu:h100:2x8' for 2 nodes of 8",
            )
        target = cls(text, match[1], int(match[2] or 1), int(match[3]))
        limit = MODELS[target.model].node_size
        if target.size > limit:
            return OptionProblem(
                target.where,
                f"{target.size} GPUs in a node",
                f"at most {limit}",
                f"write 'gpu:{target.model}:{-(-target.size // limit)}x{limit}' for several nodes",
            )
        return target

    @property
    def platform(self) -> str:
        return "cuda"

    @property
    def _model(self) -> GpuModel:
        return MODELS[self.model]

    @property
    def chip(self) -> Chip:
        return self._model.chip

    @property
    def network(self) -> Nodes:
        kind = self._model
        # Each GPU comes with its own adapter to other nodes.
        bandwidth = kind.node_bandwidth * self.size / kind.node_size
        return Nodes(
            self.nodes, self.size, kind.device_bandwidth, bandwidth, measured=kind.measured
        )

    @property
    def compiler_options(self) -> Mapping[str, str]:
        return COMPILER_OPTIONS

    @property
    def options_without_devices(self) -> Mapping[str, bool]:
        return OPTIONS_WITHOUT_DEVICES

    @property
    def device_count(self) -> int:
        return self.nodes * self.size

    def place(self, device: Device) -> Coordinates:
        return divmod(device.id, self.size)

    @property
    def environment(self) -> Mapping[str, str]:
        # CUDA's libraries are not needed to compile.
        return {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}

    def _compile_only_devices(self) -> list[Device]:
        return topologies.get_topology_desc(
            platform="cuda",
            topology_name=self.model,
            # Groups of nodes on a fast network, nodes in each, GPUs in each.
            topology=f"{self.nodes}x1x{self.size}",
            target_config=self._model.description,
        ).devices
