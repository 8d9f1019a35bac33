"""The machine that the devices of a mesh are in: their chip, their network and their places."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from jax.sharding import AbstractMesh, Mesh
from shmap_passes.cost.machine import Machine
from shmap_passes.cost.networks import Nodes, Torus

from shmap_compiler.base.untyped import Device
from shmap_compiler.targets import gpu, tpu


@functools.lru_cache(maxsize=16)
def machine_of_mesh(
    mesh: Mesh | AbstractMesh, platform: str, compiler_options: bool
) -> Machine | None:
    """The machine of a mesh of devices; None if its figures are not known.

    Args:
      platform: what the program is lowered for.
      compiler_options: whether it is compiled with the options of such a target.
    """
    if isinstance(mesh, AbstractMesh) or platform not in ("tpu", "cuda"):
        return None
    devices = list(mesh.devices.flat)
    if devices[0].platform != {"cuda": "gpu"}.get(platform, platform):
        return None
    return machine_of_devices(devices, slice_of(devices), compiler_options)


def slice_of(devices: Sequence[Device]) -> Sequence[Device]:
    """All devices of the slice that some are in, which may be described and not attached."""
    return devices[0].client.devices()


def machine_of_devices(
    devices: Sequence[Device], slice_: Sequence[Device], compiler_options: bool
) -> Machine | None:
    """Like `machine_of_mesh`, for devices that are part of a slice or of some nodes."""
    kind = devices[0].device_kind
    for generation in tpu.GENERATIONS.values():
        if generation.chip.device_kind == kind:
            return _tpus(generation, devices, slice_, compiler_options)
    for model in gpu.MODELS.values():
        if model.chip.device_kind == kind:
            return _gpus(model, devices, compiler_options)
    return None


def _tpus(
    generation: tpu.Generation, devices: Sequence[Device], slice_: Sequence[Device], options: bool
) -> Machine:
    rank = len(generation.pod)
    shape = tuple(1 + max(d.coords[k] for d in slice_) for k in range(rank))
    network = Torus(
        shape,
        generation.wraps(shape),
        generation.link_bandwidth,
        other_link_bandwidth=generation.other_link_bandwidth,
        cores=generation.cores,
        core_bandwidth=generation.core_bandwidth,
    )
    core = [(d.core_on_chip,) if generation.cores > 1 else () for d in devices]
    chips = [tuple(d.coords[:rank]) for d in devices]
    places = tuple((*chip, *on_it) for chip, on_it in zip(chips, core, strict=True))
    return Machine(generation.chip, network, places, options)


def _gpus(model: gpu.GpuModel, devices: Sequence[Device], options: bool) -> Machine:
    """A node has one process or several; XLA gives devices that NVLink connects one slice index."""
    node_of = [getattr(d, "slice_index", d.process_index) for d in devices]
    nodes = sorted(set(node_of))
    seen = dict.fromkeys(nodes, 0)
    places: list[tuple[int, ...]] = []
    for node in node_of:
        places.append((nodes.index(node), seen[node]))
        seen[node] += 1
    size = max(seen.values())
    bandwidth = model.node_bandwidth * size / model.node_size
    network = Nodes(len(nodes), size, model.device_bandwidth, bandwidth, measured=model.measured)
    return Machine(model.chip, network, tuple(places), options)
