"""JAX's settings, and those that traced and lowered programs depend on."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import jax
from jax import lax
from jax.extend import core as jex_core
from jaxlib.mlir.dialects import sdy

from shmap_compiler.base.untyped import Setting

_OPTIMIZATION_LEVEL = "optimization_level"


def _set(name: str, value: Setting) -> contextlib.AbstractContextManager[None]:
    """A context in which a setting of JAX has another value, in this thread.

    Most settings can be set publicly for the whole process only; the objects behind them also set
    them for one thread. Other threads may trace and compile meanwhile.
    """
    holder: Any = jax.config._value_holders[name]
    return holder(value)


def varying_types(on: bool = True) -> contextlib.AbstractContextManager[None]:
    """A context in which JAX tracks, in this thread, along which axes values vary, or does not.

    JAX uses it to give reverse-mode derivatives their meaning.
    """
    return _set("check_vma", on)


def tracks_varying_types() -> bool:
    """Whether `varying_types` is on in this thread."""
    return setting("check_vma")


def unchecked_backward_rules() -> contextlib.AbstractContextManager[None]:
    """A context in which JAX does not check what backward rules return, in this thread."""
    return _set("jax_disable_bwd_checks", True)


def shardy_is_on() -> bool:
    return bool(setting("jax_use_shardy_partitioner"))


def setting(name: str) -> Setting:
    """The value of a setting of JAX in this thread."""
    return getattr(jax.config, name)


def partitioner(name: str) -> contextlib.AbstractContextManager[None]:
    """A context in which JAX lowers and compiles for partitioner `name`, in this thread.

    Args:
      name: "gspmd" or "shardy".
    """
    return _set("jax_use_shardy_partitioner", name == "shardy")


@contextlib.contextmanager
def compiling_for(name: str) -> Iterator[None]:
    """As `partitioner`, without XLA's warning that GSPMD is deprecated.

    It is for compilation only: lowering does not warn, and to set the level of the log takes long
    where a process has hundreds of loggers.
    """
    quiet = _without_gspmd_deprecation() if name == "gspmd" else contextlib.nullcontext()
    with partitioner(name), quiet:
        yield


def compile_lowered(
    lowered: jax.stages.Lowered, options: Mapping[str, Setting]
) -> jax.stages.Compiled:
    """Compiles with compiler options; the optimization level ("O1") is one of them.

    JAX 0.10 takes no name of a level as an option, so it is set as JAX's own setting.
    """
    others = {name: value for name, value in options.items() if name != _OPTIMIZATION_LEVEL}
    level = options.get(_OPTIMIZATION_LEVEL)
    if level is None:
        return lowered.compile(compiler_options=others or None)
    with _set("jax_optimization_level", level):
        return lowered.compile(compiler_options=others or None)


def options_of_jit(options: Mapping[str, Setting]) -> dict[str, Setting]:
    """Those compiler options that `jax.jit(compiler_options=...)` takes in this version."""
    takes_levels = hasattr(sdy, "ReductionOp")  # from JAX 0.12 on
    return {n: v for n, v in options.items() if takes_levels or n != _OPTIMIZATION_LEVEL}


@contextlib.contextmanager
def _without_gspmd_deprecation() -> Iterator[None]:
    """Raises the level of XLA's log, where XLA warns that GSPMD's propagation is deprecated.

    Up to jaxlib 0.10 it does so in each compilation for GSPMD, which `lower` asks for by default,
    and later once in a process. JAX can set the level of all messages only, so warnings of another
    kind are lost, too, while such a program compiles. A level that the user has set is kept.
    """
    config: Any = jax.config  # JAX 0.10 does not declare its settings
    by_user = config.jax_logging_level != "NOTSET"
    if by_user or os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") != "1":
        yield
        return
    _compiles_for_gspmd.enter()
    try:
        yield
    finally:
        _compiles_for_gspmd.leave()


class _Quiet:
    """Sets the level of XLA's log while any thread compiles for GSPMD."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0

    def enter(self) -> None:
        with self._lock:
            if self._threads == 0:
                _set_xla_log_level("ERROR")
            self._threads += 1

    def leave(self) -> None:
        with self._lock:
            self._threads -= 1
            if self._threads == 0:
                _set_xla_log_level("WARNING")


_compiles_for_gspmd = _Quiet()


def _set_xla_log_level(level: str) -> None:
    """Sets the least severe level that XLA logs, and leaves JAX's Python loggers as they are."""
    loggers = {logger: logger.level for logger in map(logging.getLogger, ("jax", "jaxlib"))}
    jax.config.update("jax_logging_level", level)
    jax.config.update("jax_logging_level", "NOTSET")  # of the Python loggers only
    for logger, before in loggers.items():
        logger.setLevel(before)


_OF_LOWERINGS = tuple(
    name
    for name in (
        "jax_accurate_erf_inv",  # from JAX 0.12 on
        "jax_default_matmul_precision",
        "jax_default_prng_impl",
        "jax_enable_x64",
        "jax_numpy_dtype_promotion",
        "jax_ragged_dot_use_gpu_pallas_triton_lowering",  # up to JAX 0.10
        "jax_ragged_dot_use_ragged_dot_instruction",
        "jax_threefry_gpu_kernel_lowering",
        "jax_threefry_partitionable",
        "jax_use_hlo_logistic_lowering",  # from JAX 0.12 on
        "jax_use_magma",
        "jax_use_shardy_partitioner",
    )
    if hasattr(jax.config, name)
)


def lowering_config() -> tuple[Setting, ...]:
    """The settings of JAX, of this thread, on which the lowering of a primitive depends."""
    return (*map(setting, _OF_LOWERINGS), forbidden_axes())


_no_collectives: Any = getattr(jax.sharding, "no_collectives", None)  # from JAX 0.12 on


def forbidden_axes() -> frozenset[str]:
    """The axes over which `jax.sharding.no_collectives` forbids collectives in this thread."""
    return getattr(_no_collectives, "value", frozenset())


# JAX offers no other way to find the axes that vmap names.
_axis_names = jex_core.unsafe_get_axis_names_DO_NOT_USE  # pyright: ignore[reportPrivateImportUsage]


def tracing_context() -> Hashable:
    """What a traced program may depend on besides its function and the types of its arguments.

    These are the settings of JAX in this thread, the values of context managers that equations
    record, and the named axes in scope.
    """
    settings = tuple(jax.config.values.values())
    equation = jex_core.new_jaxpr_eqn([], [], jex_core.primitives.neg_p, {}, set())
    axes = tuple((axis, lax.axis_size(axis)) for axis in _axis_names())
    return settings, equation.ctx, axes
