"""`tpu:v5e:2x4`: a slice of TPUs, by generation and arrangement of its chips.

The compiler is libtpu, which needs no TPU. The rule for which links wrap around is from
https://jax-ml.github.io/scaling-book/tpus, "TPU Networking"; shapes of slices are from the pages in
chips.py. Two figures are published for the links. The pages in chips.py give the bandwidth of all
links of a chip, both ways: 400 GB/s for the 4 of v5e, 800 for the 4 of v6e, 1200 for the 6 of v5p
and TPU7x, which is 50 or 100 GB/s for one link in one direction. "Key Takeaways" of the scaling
book gives 45 and 90 for the same. We take the first, and report what the second would change.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from jax.experimental import topologies
from shmap_passes.cost.chips import TPU_7X, TPU_V5E, TPU_V5P, TPU_V6E, Chip
from shmap_passes.cost.networks import Coordinates, Torus

from shmap_compiler.base.errors import OptionProblem
from shmap_compiler.base.untyped import Device
from shmap_compiler.targets.target import Target

Shape = tuple[int, ...]

_SIZE = "(?:0|[1-9][0-9]{0,8})"
"""A size in the text of a target, which is written in one way only."""


@dataclass(frozen=True)
class Generation:
    """A generation of TPUs.

    Attributes:
      pod: the largest slice.
      slices: the usual ones, offered when another is refused.
      one_host: slices that one machine drives; machines of larger ones drive 2x2 chips each.
      link_bandwidth, other_link_bandwidth: bytes per second over one link in one direction, as the
        maker and the scaling book publish it.
      cores: devices on a chip.
      core_bandwidth: bytes per second between two devices of a chip in one direction.
      compiler_options: see `Target.compiler_options`.
      cube: slices made of these wrap around in every dimension; None where just the dimensions
        wrap around that are as long as the pod's.
    """

    chip: Chip
    pod: Shape
    slices: tuple[Shape, ...]
    one_host: tuple[Shape, ...]
    link_bandwidth: float
    other_link_bandwidth: float
    cube: Shape | None
    cores: int = 1
    core_bandwidth: float = math.inf
    compiler_options: Mapping[str, str] = field(default_factory=dict)

    def wraps(self, shape: Shape) -> tuple[bool, ...]:
        if self.cube is None:
            return tuple(n == full for n, full in zip(shape, self.pod, strict=True))
        whole = all(n % edge == 0 for n, edge in zip(shape, self.cube, strict=True))
        return (whole,) * len(shape)


_FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_DEEP = (
    *((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8), (4, 8, 8), (8, 8, 8)),
    *((8, 8, 16), (8, 16, 16), (16, 16, 16), (16, 16, 24)),
)
# Without options, only v5e sends an all-gather while it computes, and no generation an all-to-all;
# and equal pieces of products do not share code, which is then up to four times as large.
_FOR_ALL = {
    "xla_tpu_enable_async_all_to_all": "true",
    "xla_tpu_enable_deduplicated_calls": "true",
    "xla_tpu_force_async_all_to_all": "true",
}
# All-gathers, reduce-scatters and all-reduces on the SparseCore, as recommended for MaxText, and a
# scheduler that begins permutes before the products that they can overlap. All-reduces of more
# bytes than the threshold are not combined, so that that of one gradient runs beside the next.
_WITH_SPARSE_CORES = {
    **_FOR_ALL,
    "xla_jf_crs_combiner_threshold_in_bytes": str(2**20),
    "xla_sc_disable_megacore_partitioning": "true",
    "xla_sc_enable_instruction_fusion": "false",
    "xla_tpu_enable_all_experimental_scheduler_features": "true",
    "xla_tpu_enable_all_gather_offload_tracing": "true",
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "false",
    "xla_tpu_enable_sparse_core_collective_offload_all_gather": "true",
    "xla_tpu_enable_sparse_core_collective_offload_all_reduce": "true",
    "xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter": "true",
    "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter": "true",
    "xla_tpu_use_tc_device_shape_on_sc": "true",
}
GENERATIONS = {
    "v5e": Generation(
        *(TPU_V5E, (16, 16), _FLAT, ((1, 1), (2, 4)), 50e9, 45e9, None),
        compiler_options=_FOR_ALL,
    ),
    "v5p": Generation(
        *(TPU_V5P, (16, 20, 28), _DEEP, (), 100e9, 90e9, (4, 4, 4)),
        compiler_options=_WITH_SPARSE_CORES,
    ),
    "v6e": Generation(
        *(TPU_V6E, (16, 16), _FLAT, ((1, 1), (2, 4)), 100e9, 90e9, None),
        compiler_options=_WITH_SPARSE_CORES,
    ),
    # No figure is published for the connection of the two devices of a chip: we take six links.
    "tpu7x": Generation(
        *(TPU_7X, (16, 24, 24), _DEEP, (), 100e9, 90e9, (4, 4, 4)),
        cores=2,
        core_bandwidth=600e9,
        compiler_options=_FOR_ALL,
    ),
}


@dataclass(frozen=True)
class TpuTarget(Target):
    """A slice of `shape` chips; JAX has one device for each, and two for each of TPU7x."""

    generation: str
    shape: Shape

    kind = "tpu"
    syntax = "tpu:GENERATION:AxB or tpu:GENERATION:AxBxC"
    module = "libtpu"
    extra = "tpu"

    @classmethod
    def read(cls, text: str) -> TpuTarget | OptionProblem:
        match = re.fullmatch(rf"tpu:(\w+):({_SIZE}(?:x{_SIZE})*)", text)
        if match is None or match[1] not in GENERATIONS:
            return _unreadable(text)
        target = cls(text, match[1], tuple(map(int, match[2].split("x"))))
        return target._shape_problem() or target

    def _shape_problem(self) -> OptionProblem | None:
        pod = self._generation.pod
        if len(self.shape) != len(pod):
            needed = f"{len(pod)} dimensions: its network is a {len(pod)}D torus"
        elif not all(self.shape):
            needed = "at least one chip along each dimension"
        elif math.prod(self.shape) > math.prod(pod):
            needed = f"at most {math.prod(pod)}, the {_show(pod)} of a pod"
        else:
            return None
        return self.refused(f"{math.prod(self.shape)} chips as {_show(self.shape)}", needed)

    def refused(self, found: str, needed: str) -> OptionProblem:
        """The problem of an arrangement that does not exist, with those of similar size."""
        return OptionProblem(self.where, found, needed, f"use one of {', '.join(self._nearby())}")

    @property
    def is_usual(self) -> bool:
        """Whether slices of this shape are known to exist."""
        return self.shape in self._generation.slices

    def _nearby(self) -> list[str]:
        def distance(shape: Shape) -> float:
            ratio = max(math.prod(self.shape), 1) / math.prod(shape)
            return abs(math.log(ratio))

        nearest = sorted(self._generation.slices, key=distance)[:3]
        return [f"tpu:{self.generation}:{_show(s)}" for s in sorted(nearest, key=math.prod)]

    @property
    def platform(self) -> str:
        return "tpu"

    @property
    def _generation(self) -> Generation:
        return GENERATIONS[self.generation]

    @property
    def chip(self) -> Chip:
        return self._generation.chip

    @property
    def network(self) -> Torus:
        kind = self._generation
        return Torus(
            self.shape,
            kind.wraps(self.shape),
            kind.link_bandwidth,
            other_link_bandwidth=kind.other_link_bandwidth,
            cores=kind.cores,
            core_bandwidth=kind.core_bandwidth,
        )

    @property
    def compiler_options(self) -> Mapping[str, str]:
        return self._generation.compiler_options

    @property
    def device_count(self) -> int:
        return math.prod(self.shape) * self._generation.cores

    def options_for_memory(self, share: float) -> Mapping[str, str]:
        percent = min(max(math.floor(100 * share), 1), 100)
        return {"xla_tpu_scheduler_percent_shared_memory_limit": str(percent)}

    def place(self, device: Device) -> Coordinates:
        chip = tuple(device.coords[: len(self.shape)])
        return (*chip, device.core_on_chip) if self._generation.cores > 1 else chip

    @property
    def environment(self) -> Mapping[str, str]:
        # Without these libtpu asks the machine's metadata server what kind of TPU it is on.
        return {
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_ACCELERATOR_TYPE": f"{self.generation}-{self.device_count}",
            "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_WORKER_ID": "0",
            # A process that only compiles holds no TPU, so several may run side by side.
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        }

    def _compile_only_devices(self) -> list[Device]:
        kind = self._generation
        hosts = self.shape if self.shape in kind.one_host else (2, 2)
        wraps = kind.wraps(self.shape)
        return topologies.get_topology_desc(
            platform="tpu",
            topology_name=f"{self.generation}:{_show(self.shape)}",
            chips_per_host_bounds=(*hosts, 1),
            wrap=(*wraps, False)[:3],
        ).devices


def _show(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _unreadable(text: str) -> OptionProblem:
    return OptionProblem(
        f"target {text!r}",
        f"{text.partition(':')[2]!r} after 'tpu:'",
        f"a generation, one of {', '.join(GENERATIONS)}, and the arrangement of its chips",
        "write e.g. 'tpu:v5e:2x4' or 'tpu:v5p:4x4x4'",
    )
