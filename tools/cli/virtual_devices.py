"""Asks XLA for virtual CPU devices, which has to happen before JAX starts."""

from __future__ import annotations

import os
import sys

DEFAULT_COUNT = 8


def request(count: int, *, quiet: bool) -> None:
    """JAX, once imported, has `count` CPU devices and no others.

    Args:
      quiet: Whether XLA's C++ code logs fatal errors only, unless the environment sets its level.
    """
    assert "jax" not in sys.modules, "JAX has read its environment already"
    flag = f"--xla_force_host_platform_device_count={count}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    os.environ["JAX_PLATFORMS"] = "cpu"
    if quiet:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
