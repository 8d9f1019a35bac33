"""Whether, and how, transfers are made to run beside products: the setting and its context."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import jax
import numpy as np
from shmap_passes import ChooseOverlap
from shmap_passes.cost.machine import Machine

from shmap_compiler.base.descriptions import show_value
from shmap_compiler.base.errors import Problem, ShmapError
from shmap_compiler.base.untyped import Setting

OverlapMode = Literal["off", "auto", "measure", "force"]

MODES: tuple[OverlapMode, ...] = get_args(OverlapMode)
VARIABLE = "SHMAP_OVERLAP"
"""The environment variable that sets the mode of programs that no context or argument sets."""


@dataclass(frozen=True)
class OverlapSetting:
    """A mode, and whether sums may be rounded on their way between devices.

    Attributes:
      only_sums: whether only products whose results are summed, and softmax, are rewritten.
    """

    mode: OverlapMode = "off"
    rounding: bool = False
    only_sums: bool = False

    def chooser(self, machine: Machine | None, is_judged: bool) -> ChooseOverlap | None:
        """The pass that chooses for a machine; None if nothing can be chosen.

        Args:
          is_judged: whether what it makes is compared with the plain program.
        """
        if self.mode == "off" or (machine is None and self.mode != "force"):
            return None
        tries = is_judged and self.mode == "measure"
        effort = "force" if self.mode == "force" else "try" if tries else "auto"
        text = machine.text if machine else ""
        return ChooseOverlap(text, effort, self.rounding, self.only_sums)


def read_setting(
    mode: Setting, rounding: Setting, who: str | None = None, name: str = "overlap_rounding"
) -> OverlapSetting:
    """The setting of two arguments; those that are None are as in scope.

    Args:
      name: of the argument `rounding`.

    Raises:
      ShmapError: the mode is not one of MODES, or `rounding` is not True, False or None.
    """
    problems = list(_problems(mode, rounding, name))
    if problems:
        raise ShmapError(who, problems)
    in_scope = overlap_setting()
    rounds = in_scope.rounding if rounding is None else bool(rounding)
    return OverlapSetting(in_scope.mode if mode is None else mode, rounds)


def _problems(mode: Setting, rounding: Setting, name: str) -> Iterator[Problem]:
    if mode is not None and (not isinstance(mode, str) or mode not in MODES):
        yield _no_such_mode("overlap", mode)
    if rounding is not None and not isinstance(rounding, bool | np.bool_):
        hint = "write True if sums may be rounded between devices"
        yield Problem(name, show_value(rounding), "True, False or None", hint)


def _no_such_mode(where: str, mode: object) -> Problem:
    needed = f"one of {', '.join(map(repr, MODES))}"
    return Problem(where, show_value(mode), needed, "write 'auto', or 'off' for the plain program")


def _of_environment() -> OverlapSetting:
    mode = os.environ.get(VARIABLE) or "off"
    if mode not in MODES:
        raise ShmapError(None, [_no_such_mode(VARIABLE, mode)])
    return OverlapSetting(mode)


# JAX's caches tell its values apart, as those of added passes.
_setting: Any = jax.make_user_context(_of_environment())


def overlap_setting() -> OverlapSetting:
    """The setting in this thread; a part of the keys of caches."""
    setting = _setting.value
    assert isinstance(setting, OverlapSetting), "nothing else is put there"
    return setting


def using_setting(setting: OverlapSetting) -> contextlib.AbstractContextManager[None]:
    """A context with this setting."""
    return _setting(setting)


@contextlib.contextmanager
def overlap(mode: OverlapMode = "auto", *, rounding: bool | None = None) -> Iterator[None]:
    """Sets whether communication is overlapped with matrix products.

    It applies to shard_mapped functions that are jitted or lowered inside this context, in this
    thread, for TPUs and GPUs; programs for CPUs change with "force" only. Caches distinguish
    programs with different settings. The environment variable `SHMAP_OVERLAP` sets the mode of all
    others. `shmap_compiler.compiler_options` returns the options of the compiler that a user's own
    `jax.jit` should have.

    Args:
      mode: "off"; "auto", where a model expects a gain of at least 15%, on TPUs mostly 10%;
        "measure", where the compiled program is then faster than the plain one by the model of
        `explain` (for programs compiled for a target; otherwise as "auto"); or "force", wherever it
        is possible.
      rounding: Whether sums may be rounded on their way between devices, which changes results of
        types narrower than f32, and whether gradients of blocks may be added up in another order.
        Sums of f32 between devices may be added in another order in any case. Defaults to the
        setting of the enclosing context, initially False.

    Raises:
      ShmapError: `mode` is not one of these, or `rounding` is not True, False or None.

    Examples:
      >>> f = shard_map(lambda x, w: lax.all_gather(x, "i", tiled=True) @ w, mesh=mesh,
      ...               in_specs=(P("i"), P()), out_specs=P(), check_vma=False)
      >>> with overlap("force"):
      ...     lowered = f.lower(jnp.ones((16, 4)), jnp.ones((4, 4)))
      >>> print(lowered.overlap_report().choices[0].form)
      ring
    """
    with using_setting(read_setting(mode, rounding, name="rounding")):
        yield
