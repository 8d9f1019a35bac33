"""Programs compiled without a device are read where it is: both name the same compiler."""

from types import SimpleNamespace

import jax

from shmap_compiler.base.meshes import attached_devices
from shmap_compiler.targets import compiler_build as room
from shmap_compiler.targets.compiler_build import compiler_build


def device(platform, version):
    return SimpleNamespace(platform=platform, client=SimpleNamespace(platform_version=version))


def build(platform, version):
    return compiler_build(device(platform, version))


# What libtpu 0.0.50.1 reports without a TPU. Others have a line before it.
BUILT = "Built on Oct 22 2026 00:45:19 (1792655119) cl/1004524046"
COMPILE_ONLY = f"TFRT TPU v5 lite\n{BUILT}"


def test_tpus():
    assert build("tpu", COMPILE_ONLY) == build("tpu", f"PJRT C API\n{COMPILE_ONLY}") == BUILT
    assert build("tpu", COMPILE_ONLY.replace("Oct 22", "Oct 29")) != BUILT


def test_gpus(monkeypatch):
    """What an H100 and the compiler without one report, of the same plugin."""
    monkeypatch.setattr(room, "_GPU_PLUGINS", ("numpy", "not-installed", "jaxlib"))
    attached = build("gpu", "cuda 13000")
    assert attached == build("gpu", "PJRT C API\nNVIDIA H100 80GB HBM3")
    assert "jaxlib" in attached
    assert "not-installed" not in attached
    monkeypatch.setattr(room, "_GPU_PLUGINS", ("not-installed",))
    assert build("gpu", "of another plugin") == "of another plugin"
    monkeypatch.setattr(room, "_GPU_PLUGINS", ("jaxlib",))
    monkeypatch.setattr(room.metadata, "version", lambda name: "0.0.1")
    assert build("gpu", "cuda 13000") != attached


def test_devices_of_all_platforms_are_found(monkeypatch):
    """A program for a GPU is loaded where JAX's default platform is the CPU."""
    there = {"cpu": [device("cpu", "")], "gpu": [device("gpu", "cuda 13000")]}

    def devices(platform="cpu"):
        if platform not in there:
            raise RuntimeError(f"Unknown backend {platform}")
        return there[platform]

    monkeypatch.setattr(jax, "devices", devices)
    assert [each.platform for each in attached_devices()] == ["cpu", "gpu"]


def test_a_cpu():
    assert compiler_build(jax.devices()[0]) == jax.devices()[0].client.platform_version
