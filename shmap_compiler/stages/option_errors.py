"""Errors about compiler options: which of them, what is wrong with it, and what to do."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

import jax

from shmap_compiler.base.descriptions import show_value
from shmap_compiler.base.errors import OptionProblem, Problem, TargetError
from shmap_compiler.base.untyped import Setting, Unchecked
from shmap_compiler.lowering.compiler_options import unknown_option

# XLA's message and libtpu's; JAX, which reads the level itself, does not name it.
_BAD_VALUE = re.compile(r"While setting option (\w+)|Failed to parse '.*?' into flag (\w+)")
_BAD_LEVEL = "new enum value must be in"


def read_options(who: str, given: object) -> dict[str, Setting]:
    """The options that a user gives, by name.

    Raises:
      TargetError: they are no mapping of names to texts, numbers and booleans.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        problem = OptionProblem(
            "compiler_options",
            show_value(given),
            "a dict of options by name",
            "write e.g. compiler_options={'xla_embed_ir_in_executable': True}",
        )
        raise TargetError(who, [problem])
    problems = [
        OptionProblem(
            f"compiler_options[{name!r}]",
            f"{show_value(value)} for {show_value(name)}",
            "a name, and a string, number or boolean as its value",
            "write the value as XLA's flags have it",
        )
        for name, value in given.items()
        if not isinstance(name, str) or not isinstance(value, (str, bool, int, float))
    ]
    if problems:
        raise TargetError(who, problems)
    return dict(given)


@contextlib.contextmanager
def refused_options(who: str, given: Mapping[str, Unchecked]) -> Iterator[None]:
    """Raises TargetError if what is compiled inside fails because of one of the user's options."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        problem = refused_option(str(error), given)
        if problem is None:
            raise
        raise TargetError(who, [problem]) from None


def refused_option(message: str, given: Mapping[str, Unchecked]) -> Problem | None:
    """What is wrong with one of the user's options, if the message of a compiler is about one."""
    name = unknown_option(message)
    if name in given:
        return OptionProblem(
            f"compiler_options[{name!r}]",
            "an option that this compiler does not know",
            "an option of XLA, or of the compiler of the target",
            "remove it, or correct its name",
        )
    match = _BAD_VALUE.search(message)
    name = next(filter(None, match.groups()), None) if match else None
    if _BAD_LEVEL in message:
        name = "optimization_level"
    if name is None or name not in given:
        return None
    return OptionProblem(
        f"compiler_options[{name!r}]",
        f"{show_value(given[name])}: {message}",
        "a value that the compiler takes for this option",
        "write the value as XLA's flags have it, e.g. True, 2 or 'O1'",
    )
