"""Lowers a traced call: to a program of JAX's, with its module after each pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import get_args

import jax
from jax.sharding import AbstractMesh, Mesh
from shmap_passes import GroupNaming, Partitioner
from shmap_passes.cost.machine import Machine
from shmap_passes.overlap.choose.chosen_forms import recording

from shmap_compiler.base.descriptions import describe, show_value
from shmap_compiler.base.errors import OptionProblem, PlatformProblem, Problem, TargetError
from shmap_compiler.base.jax_compat import in_scope_if_abstract
from shmap_compiler.base.jax_compat import partitioner as partitioner_is
from shmap_compiler.base.untyped import PyTree, Wrapped
from shmap_compiler.base.values import having
from shmap_compiler.graph.primitive import bind
from shmap_compiler.lowering.lower_graph import LoweringOptions, is_refusal, lowering_with
from shmap_compiler.lowering.portable_module import portable
from shmap_compiler.lowering.snapshots import Snapshots
from shmap_compiler.records.portable_program import PortableProgram
from shmap_compiler.records.signature import Signature
from shmap_compiler.records.traced_call import TracedCall
from shmap_compiler.transforms.partial_eval import without_dead_code

PARTITIONERS: tuple[Partitioner, ...] = get_args(Partitioner)
"""The partitioners a program can be lowered for: see `ShardMapped.lower`."""

GROUPS: tuple[GroupNaming, ...] = get_args(GroupNaming)
PLATFORMS = ("cpu", "tpu", "cuda")
_OTHER_DEVICES = "Received incompatible devices"
"""How JAX's error for arguments on several sets of devices begins."""


def lower_for(
    call: TracedCall,
    partitioner: Partitioner,
    groups: GroupNaming,
    platform: str | None,
    keep_unused: bool = False,
    machine: Machine | None = None,
) -> tuple[Wrapped, Snapshots]:
    """(the program as a `jax.stages.Lowered`, its module after emission and each pass).

    Args:
      platform: what to lower for; None for what the devices of the mesh are.
      keep_unused: whether the module takes also those inputs that it does not use.
      machine: see `LoweringOptions`.

    Raises:
      TargetError: JAX cannot lower the program for this platform; with a `PlatformProblem`.
    """
    graph, signature = call.graph, call.signature
    if keep_unused:
        graph = without_dead_code(graph)
    snapshots = Snapshots()

    def program(*inputs):
        return bind(graph, *inputs)

    program.__name__ = graph.name
    shardings = tuple(signature.in_shardings)
    options = LoweringOptions(groups, snapshots.emitted, machine, compiler_options=True)
    jitted = jax.jit(program, in_shardings=shardings, keep_unused=keep_unused)
    platforms = None if platform is None else (platform,)
    with (
        partitioner_is(partitioner),
        lowering_with(options),
        recording() as chosen,
        having(signature.in_types),
        in_scope_if_abstract(graph.mesh),
    ):
        traced = jitted.trace(*signature.in_types)
        with refusals_named(signature.who, platform or platform_here(graph.mesh)):
            jax_lowered = traced.lower(lowering_platforms=platforms)
    module = jax_lowered.compiler_ir("stablehlo")
    if snapshots.is_empty and module is not None:  # JAX drops what has no results or effects
        snapshots.emitted(module, ())
    snapshots.chosen = tuple(chosen)
    return jax_lowered, snapshots


def lower_portable(
    call: TracedCall,
    partitioner: Partitioner,
    groups: GroupNaming,
    platform: str,
    machine: Machine | None,
    *,
    is_kept: bool,
) -> tuple[PortableProgram, Snapshots]:
    """(the program without its Python source, its module after emission and each pass).

    Args:
      is_kept: see `portable`.

    Raises:
      TargetError: The program calls back into Python, or cannot be lowered for the platform.
    """
    refuse_callbacks(call.signature)
    jax_lowered, snapshots = lower_for(call, partitioner, groups, platform, True, machine)
    module = jax_lowered.compiler_ir("stablehlo")
    return portable(call.signature, module, partitioner, platform, is_kept=is_kept), snapshots


def platform_here(mesh: Mesh | AbstractMesh) -> str:
    """The platform that a program is lowered for if no other one is given."""
    if isinstance(mesh, AbstractMesh):
        return "cpu"
    platform: str = mesh.devices.flat[0].platform
    return {"gpu": "cuda"}.get(platform, platform)


@contextlib.contextmanager
def refusals_named(who: str, platform: str) -> Iterator[None]:
    """Raises a TargetError with a `PlatformProblem` for what JAX cannot lower inside."""
    try:
        yield
    except Exception as error:
        if not is_refusal(error):
            raise
        raise _refusal(error, who, platform) from error


def lower_jitted(jitted: Wrapped, args: Sequence[PyTree], who: str) -> jax.stages.Lowered:
    """`jitted.lower(*args)`, for the devices of the arguments.

    Raises:
      TargetError: JAX can trace the function, but not lower it.
    """
    try:
        return jitted.lower(*args)
    except Exception as error:
        if not is_refusal(error):
            raise
        jitted.eval_shape(*args)  # raises what the user's function raises
        raise _refusal(error, who, jax.default_backend()) from error


def _refusal(error: Exception, who: str, platform: str) -> TargetError:
    if str(error).startswith(_OTHER_DEVICES):
        problem = Problem(
            "the devices of its arguments",
            str(error).removesuffix(" at "),
            "arguments on the same devices, which are those of the meshes that the program names",
            "move them with jax.device_put(x, NamedSharding(mesh, spec)), or use their mesh",
        )
        return TargetError(who, [problem])
    problem = PlatformProblem(
        f"lowering for {platform!r}",
        f"{type(error).__name__}: {error}",
        "a program that JAX can lower for this platform",
        "compile for a target that has its operations, such as 'tpu:v5e:2x4', which need not be "
        "attached, or use others; Pallas kernels run anywhere with interpret=True",
    )
    return TargetError(who, [problem])


def refuse_callbacks(signature: Signature) -> None:
    """Raises a TargetError if a program calls back into Python, which it cannot for a target."""
    if signature.callbacks:
        raise TargetError(signature.who, [calls_back(line) for line in signature.callbacks])


def calls_back(line: str) -> Problem:
    """What is wrong with a line that calls back into Python, in a program for a target."""
    return Problem(
        line,
        "a call back into Python",
        "a program that does not call back into this process",
        "remove the callback or print, or compile for the devices of the mesh: compile()",
    )


def check_choice(call: TracedCall, name: str, value: object, choices: Sequence[str]) -> None:
    """Raises a TargetError if the value of an option is not one of the choices."""
    if value not in choices:
        raise no_such_choice(call, name, value, choices)


def no_such_choice(
    call: TracedCall, name: str, value: object, choices: Sequence[str]
) -> TargetError:
    problem = OptionProblem(
        f"{name}={value!r}",
        show_value(value),
        f"one of {', '.join(map(repr, choices))}",
        f"write {name}={choices[0]!r}",
    )
    return TargetError(describe(call.fun), [problem])
