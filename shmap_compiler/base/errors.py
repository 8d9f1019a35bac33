"""Errors of the front end: who, where, found, needed, what to do; all mistakes at once."""

from __future__ import annotations

import functools
import inspect
import os
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shmap_passes import reference


@dataclass(frozen=True)
class Problem:
    """One mistake, in the four parts that follow the name of the user's function."""

    where: str
    found: str
    needed: str
    fix: str

    def __str__(self) -> str:
        return (
            f"{self.where}\n    found:  {self.found}\n    needed: {self.needed}\n"
            f"    fix:    {self.fix}"
        )


class TypeProblem(Problem):
    """A mistake in the type of an argument, rather than in its value."""


class ShmapError(Exception):
    """Base of all errors of this package; `problems` holds every mistake found in the call.

    `code` is stable between versions, and the last line of the message, with the place in the
    documentation that describes it.
    """

    code: ClassVar[str] = "SHM-E001"

    def __init__(self, who: str | None, problems: Sequence[Problem]):
        """`who` is the user's function, as `describe` names it; None if no function is at hand."""
        self.who = who
        self.problems = tuple(problems)
        if who is None:
            lines = [*map(str, self.problems), reference(self.code)]
        else:
            count = "" if len(self.problems) == 1 else f" ({len(self.problems)} problems)"
            lines = [f"shard_map of {who}{count}:", *(f"  {p}" for p in self.problems)]
            lines.append(f"  {reference(self.code)}")
        super().__init__("\n".join(lines))


class SpecError(ShmapError, ValueError):
    """Mesh, specs and arguments or results do not fit together."""

    code = "SHM-E101"


class SpecTypeError(SpecError, TypeError):
    """Something of another type stands where a mesh, a spec or the name of an axis should."""

    code = "SHM-E102"


class BodyError(ShmapError, ValueError):
    """The user's function uses a collective wrongly."""

    code = "SHM-E201"


class ArgumentTypeError(BodyError, TypeError):
    """The user's function calls a collective with an argument of the wrong type."""

    code = "SHM-E206"


class UnknownAxisError(BodyError, NameError):
    """The user's function names a mesh axis that is not there."""

    code = "SHM-E202"


class UnreducedError(BodyError, NotImplementedError):
    """The user's function does with summands what can only be done with their sum."""

    code = "SHM-E207"


class HangError(BodyError):
    """Some devices would wait in a collective for others that never come."""

    code = "SHM-E203"


class ReplicationError(ShmapError, ValueError):
    """A result differs between devices along an axis that its spec does not mention."""

    code = "SHM-E204"


class ResultTypeError(ShmapError, TypeError):
    """The user's function returned something that is no array."""

    code = "SHM-E205"


class VaryingValueError(ShmapError, TypeError):
    """Python asked for one value where the devices have different ones, in an eager call."""

    code = "SHM-E301"


class TargetError(ShmapError, ValueError):
    """The devices needed are not here, or an executable was called with unfitting arguments."""

    code = "SHM-E401"


class ArtifactError(ShmapError, ValueError):
    """A program cannot be saved, or a file holds none that can be loaded here."""

    code = "SHM-E501"


def spec_error(who: str, problems: Sequence[Problem]) -> SpecError:
    """The error for mesh and specs that do not fit: a TypeError if all mistakes are about types."""
    only_types = all(isinstance(problem, TypeProblem) for problem in problems)
    return (SpecTypeError if only_types else SpecError)(who, problems)


def body_error(who: str, problems: Sequence[Problem]) -> BodyError:
    """The error for mistakes in using collectives: a TypeError if they are all about types."""
    only_types = all(isinstance(problem, TypeProblem) for problem in problems)
    return (ArgumentTypeError if only_types else BodyError)(who, problems)


def describe(fun: Callable[..., Any]) -> str:
    """Name and place of a user's function: "`f` (train.py:12)"."""
    name = function_name(fun)
    inner: Any = inspect.unwrap(fun)
    while isinstance(inner, functools.partial):
        inner = inner.func
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    if code is None:
        return f"`{name}`"
    return f"`{name}` ({shown_path(code.co_filename)}:{code.co_firstlineno})"


def function_name(fun: Callable[..., Any]) -> str:
    """Name of a callable, looking through functools.partial."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    return getattr(fun, "__name__", type(fun).__name__)


def show_value(value: object) -> str:
    """A value that is no array, in a few words: `'adam', a str`."""
    return f"{reprlib.repr(value)}, a {type(value).__name__}"


def request_cpu_devices(count: int) -> str:
    """What to do about too few virtual CPU devices."""
    return (
        f"set XLA_FLAGS=--xla_force_host_platform_device_count={count} before JAX starts, or call "
        f"jax.config.update('jax_num_cpu_devices', {count}) right after importing it"
    )


def shown_path(path: str) -> str:
    """A source file as errors name it: relative to the working directory if it lies below it."""
    relative = os.path.relpath(path) if path else ""
    return path if relative.startswith(os.pardir) else relative
