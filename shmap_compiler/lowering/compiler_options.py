"""Options of the compiler: those that a user gives, and those of a target.

Compilers drop options between versions. An option of a target that the compiler does not know is
left out with a warning; the user's own have to be known.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import jax

from shmap_compiler.base.jax_compat import compile_lowered
from shmap_compiler.base.untyped import Setting, Unchecked

_UNKNOWN = re.compile(r"No such compile option: '([^']*)'")


@dataclass(frozen=True)
class CompilerOptions:
    """What a program is compiled with.

    Attributes:
      given: the user's options, by name; they win.
      of_target: those of the target: `Target.compiler_options`, `options_without_devices`.
    """

    given: Mapping[str, Unchecked] = field(default_factory=dict)
    of_target: Mapping[str, Setting] = field(default_factory=dict)


NO_OPTIONS = CompilerOptions()


def compile_with(
    lowered: jax.stages.Lowered,
    options: CompilerOptions,
    note: Callable[[str], None] = lambda text: warnings.warn(text, stacklevel=3),
) -> jax.stages.Compiled:
    """Compiles a lowered program.

    Args:
      note: called with a sentence for each option of the target that is left out.
    """
    wanted = {**options.of_target, **options.given}
    while True:
        try:
            return compile_lowered(lowered, wanted)
        except jax.errors.JaxRuntimeError as error:
            name = unknown_option(str(error))
            if name is None or name in options.given or name not in wanted:
                raise
            del wanted[name]
            note(f"this compiler does not know the option {name!r} of the target: left out")


def unknown_option(message: str) -> str | None:
    """The option that the compiler does not know, according to its error message."""
    match = _UNKNOWN.search(message)
    return match[1] if match else None
