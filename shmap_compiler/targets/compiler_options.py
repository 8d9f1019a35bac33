"""compiler_options: what a user gives to `jax.jit` so that transfers run beside computation."""

from __future__ import annotations

from shmap_compiler.base.jax_compat import options_of_jit
from shmap_compiler.base.untyped import Setting
from shmap_compiler.targets.target import Target


def compiler_options(target: str | Target = "local") -> dict[str, Setting]:
    """Returns options of a target's compiler, without which few transfers overlap computation.

    They are for `jax.jit(..., compiler_options=...)`. With JAX 0.10 and GPUs it returns none,
    because `jit` does not take the option there; call
    `jax.config.update("jax_optimization_level", "O1")` instead.

    Args:
      target: A `Target` or its text. Defaults to the devices of this process.

    Returns:
      Values by name of the option; empty for CPUs.

    Raises:
      TargetError: There is no such target.

    Examples:
      >>> compiler_options("tpu:v5e:2x4")["xla_tpu_enable_async_all_to_all"]
      'true'
      >>> compiler_options("cpu:8")
      {}
    """
    if not isinstance(target, Target):
        target = Target.parse(target)
    return options_of_jit(target.compiler_options)
