"""What to write for calls in the form of the former `jax.experimental.shard_map`."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence

from shmap_compiler.base.descriptions import describe
from shmap_compiler.base.errors import Problem, ProgramName, SpecTypeError
from shmap_compiler.base.untyped import Function, Setting, Unchecked

_FORMER = "jax.experimental.shard_map"
_CALL = "shard_map(f, mesh=..., in_specs=..., out_specs=...)"


def explains_former_arguments(shard_map: Function) -> Function:
    """`shard_map`, whose TypeError for a call in the former form says how to write it now."""

    @functools.wraps(shard_map)
    def called(*args: Unchecked, **kwargs: Setting) -> Unchecked:
        if len(args) > 1 or "check_rep" in kwargs or "auto" in kwargs:
            function = next(iter(args), None)
            who = describe(function) if callable(function) else ProgramName("shard_map")
            raise SpecTypeError(who, list(_problems(args, kwargs)))
        return shard_map(*args, **kwargs)

    return called


def _problems(args: Sequence[Unchecked], kwargs: Mapping[str, Setting]) -> Iterator[Problem]:
    if len(args) > 1:
        yield Problem(
            "the arguments of shard_map",
            f"{len(args)} by position, as {_FORMER} takes them",
            "the function by position, and all others by name",
            f"write {_CALL}",
        )
    if "check_rep" in kwargs:
        yield _renamed("check_rep", kwargs, f"write check_vma={kwargs['check_rep']!r}")
    if "auto" in kwargs:
        mesh = kwargs.get("mesh", args[1] if len(args) > 1 else None)
        yield _renamed("auto", kwargs, _instead_of_automatic(kwargs["auto"], mesh))


def _instead_of_automatic(axes: Unchecked, mesh: Unchecked) -> str:
    if not axes:
        return "omit it"
    automatic = axes if isinstance(axes, Collection) else ()
    manual = [repr(name) for name in getattr(mesh, "axis_names", ()) if name not in automatic]
    return f"name the other axes of the mesh: axis_names={{{', '.join(manual) or '...'}}}"


def _renamed(name: str, kwargs: Mapping[str, Setting], fix: str) -> Problem:
    return Problem(
        f"{name}={kwargs[name]!r}",
        f"an argument of {_FORMER}",
        "arguments of jax.shard_map",
        fix,
    )
