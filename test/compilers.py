"""Marks for tests that compile with what the extras `tpu` and `gpu` install."""

import importlib.util

import pytest


def needs(module, extra):
    """Skips a test of a compiler that is not installed."""
    return pytest.mark.skipif(
        importlib.util.find_spec(module) is None,
        reason=f"no module {module}: pip install 'shmap_compiler[{extra}]'",
    )


needs_tpu_compiler = needs("libtpu", "tpu")
needs_gpu_compiler = needs("jax_cuda13_plugin", "gpu")
