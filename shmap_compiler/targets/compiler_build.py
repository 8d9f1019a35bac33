"""Which build of a compiler makes programs for a device, attached or not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import metadata

from shmap_compiler.base.untyped import Device

_GPU_PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm7-plugin")


def compiler_build(device: Device) -> str:
    """A text that is equal for a device that is attached and one that is only compiled for.

    `platform_version` of the client is not: for GPUs it names the version of CUDA, or else the
    model, and for TPUs a line "PJRT C API" may stand before what tells the build.
    """
    version: str = device.client.platform_version
    if device.platform == "gpu":
        return ", ".join(_gpu_plugins()) or version
    built = [line for line in version.splitlines() if line.startswith("Built on")]
    return built[0] if built else version


def _gpu_plugins() -> Iterator[str]:
    for name in _GPU_PLUGINS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            yield f"{name} {metadata.version(name)}"
