"""Programs that `unjit` refuses, and why."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax

from shmap_compiler.base.descriptions import show_type_of
from shmap_compiler.base.errors import Problem, UnjitError
from shmap_compiler.base.untyped import PyTree, Unchecked
from shmap_compiler.stages.lowered import Lowered

_CALLBACK = re.compile(r'custom_call_target="([^"]*callback[^"]*)"')
_MISSING_CALL = re.compile(
    r"No (?:registered )?(?:implementation|FFI handler)[^\n]*?"
    r"for (?:untyped custom call to )?([\w.]+)"
)


def refuse_symbolic_shapes(who: str, args: Sequence[PyTree]) -> None:
    """Raises UnjitError if the shape of an argument is not of numbers."""
    problems = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tuple(args)):
        shape = tuple(getattr(leaf, "shape", ()))
        if not all(isinstance(size, int) for size in shape):
            found = f"the shape ({', '.join(map(str, shape))})"
            needed = "numbers: a program is partitioned for one shape of each argument"
            where = f"args{jax.tree_util.keystr(path)}"
            problems.append(Problem(where, found, needed, "give the sizes that you run it with"))
    if problems:
        raise UnjitError(who, problems)


def refuse_unless_jitted(who: str, jitted: object, lowered: object) -> None:
    """Raises UnjitError for what lowers in its own way: from `shard_map`, `xmap` or a library."""
    if isinstance(lowered, jax.stages.Lowered):
        return
    found, needed = show_type_of(jitted), "a function of jax.jit with shardings"
    fix = (
        "jit a function of arrays with jax.jit: one that takes the arrays of its models, as of "
        "flax.nnx.split or equinox.partition, and puts the models together inside"
    )
    if isinstance(lowered, Lowered):
        found = f"{found}: its collectives are those you wrote"
        fix = (
            "pass the jitted function; lower(*args).as_text('stablehlo') shows the collectives of "
            "this one"
        )
    raise UnjitError(who, [Problem("the function", found, needed, fix)])


def refuse_static_arguments(who: str, args: Sequence[PyTree], lowered: jax.stages.Lowered) -> None:
    """Raises UnjitError if jax.jit takes some of the arguments as static."""
    fix = "bind the static values first: jax.jit(functools.partial(f, n=3), in_shardings=...)"
    if problems := static_arguments(args, lowered, fix):
        raise UnjitError(who, problems)


def static_arguments(
    args: Sequence[PyTree], program: jax.stages.Lowered | jax.stages.Traced, fix: str
) -> list[Problem]:
    """The problem that jax.jit takes some of the arguments as static.

    JAX does not tell which ones, and the compiled program does not take them.
    """
    infos: Any = program.args_info
    count = len(args) - len(infos[0])
    if count <= 0:
        return []
    found = f"{count} that jax.jit takes as static, of {len(args)}"
    needed = "arrays and pytrees of arrays: the source is for one value of a static argument"
    return [Problem("the arguments", found, needed, fix)]


def refuse_callbacks(who: str, text: str) -> None:
    """Raises UnjitError if a program, as HLO text, calls back into Python."""
    problems = [
        Problem(
            "a callback",
            f"a call back into Python, {target}",
            "operations of XLA only: the source cannot name the function",
            "remove jax.debug.print, pure_callback and io_callback",
        )
        for target in sorted(set(_CALLBACK.findall(text)))
    ]
    if problems:
        raise UnjitError(who, problems)


def refuse_processes(who: str, mesh: Unchecked) -> None:
    """Raises UnjitError if a mesh has devices of other processes."""
    if mesh.is_multi_process:
        problem = Problem(
            "the mesh",
            f"devices of {len({device.process_index for device in mesh.devices.flat})} processes",
            "devices of this process, on which the source is compared with the program",
            "run unjit in one process, on virtual devices",
        )
        raise UnjitError(who, [problem])


def one_device(who: str) -> UnjitError:
    """The error for a program that was not partitioned."""
    problem = Problem(
        "the compiled program",
        "a program for one device",
        "one that XLA's partitioner divided among several",
        "give jax.jit in_shardings on a mesh, or pass arrays that are sharded",
    )
    return UnjitError(who, [problem])


def no_mesh(who: str) -> UnjitError:
    """The error for shardings that are on no mesh."""
    problem = Problem(
        "the shardings of the compiled program",
        "none on a mesh with named axes",
        "a jax.sharding.NamedSharding for at least one argument or result",
        "use NamedSharding(mesh, P(...)) in in_shardings",
    )
    return UnjitError(who, [problem])


def wide_numbers(who: str, found: str) -> UnjitError:
    """The error for 64-bit numbers that the source cannot have."""
    problem = Problem(
        "the partitioned program",
        found,
        "arrays that JAX has: 64-bit numbers are switched off",
        "set jax.config.update('jax_enable_x64', True), or use narrower numbers",
    )
    return UnjitError(who, [problem])


def missing_call(who: str, error: Exception, *, is_targets: bool) -> UnjitError | None:
    """The error for a library call that these devices do not have; None for other errors.

    Args:
      is_targets: whether the compiler of a target may have put it in.
    """
    found = _MISSING_CALL.search(str(error))
    if found is None:
        return None
    problem = Problem(
        "a custom call",
        f"a call of {found[1]}, which these devices do not have",
        "calls that run here, where the source is compared with the program",
        "leave that part of the program out, or unjit it without a target"
        if is_targets
        else "register it with jax.ffi.register_ffi_target, or leave that part of the program out",
    )
    return UnjitError(who, [problem])


def not_convertible(who: str, found: str, needed: str) -> UnjitError:
    """The error for a partitioned program that has no body form."""
    fix = "report it with the program; shmap explain shows its collectives meanwhile"
    return UnjitError(who, [Problem("the partitioned program", found, needed, fix)])
