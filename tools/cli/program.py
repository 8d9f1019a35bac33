"""The program that a command works on: a target, with mesh and arguments of the command line."""

from __future__ import annotations

import argparse
import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ..usage import Mistake, UsageError, listed, read_all

if TYPE_CHECKING:
    from shmap_passes import GroupNaming, Partitioner

    from shmap_compiler import Graph, Lowered, Pmapped, ShardMapped, Target, XMapped
    from shmap_compiler.base.untyped import PyTree, Setting, Wrapped
    from shmap_compiler.lowering.overlap import OverlapMode
    from shmap_compiler.stages.overlapped_function import OverlappedFunction

    from .program_files import UserFunction

_T = TypeVar("_T")


def overlap_options(options: argparse.Namespace) -> dict[str, Setting]:
    """The arguments of `ShardMapped.lower` for the options of `shared_options.add_overlap`."""
    return {"overlap": options.overlap, "overlap_rounding": options.overlap_rounding}


@dataclass(frozen=True)
class Program:
    """A function that is shard_mapped, xmapped or pmapped, with arguments, which may be types."""

    function: UserFunction
    mapped: ShardMapped[..., PyTree] | XMapped[..., PyTree] | Pmapped[..., PyTree]
    args: tuple[PyTree, ...]

    @property
    def inputs(self) -> tuple[PyTree, ...]:
        """The arguments of the lowered program: those that pmap does not take as static."""
        return tuple(x for k, x in enumerate(self.args) if k not in self._static)

    def with_inputs(self, inputs: Iterable[PyTree]) -> tuple[PyTree, ...]:
        """The arguments of the function with other `inputs`."""
        rest = iter(inputs)
        return tuple(x if k in self._static else next(rest) for k, x in enumerate(self.args))

    @property
    def _static(self) -> set[int]:
        positions = getattr(self.mapped, "static_broadcasted_argnums", ())
        return {k % len(self.args) for k in positions}

    def lower(
        self,
        partitioner: Partitioner | None = None,
        groups: GroupNaming = "axes",
        *,
        overlap: OverlapMode | None = None,
        overlap_rounding: bool | None = None,
    ) -> Lowered:
        """Traces and lowers. Raises UserCodeError if the function raises while it is traced.

        Args:
          overlap, overlap_rounding: as `overlap_options` returns them.
        """
        from shmap_compiler import Pmapped
        from shmap_compiler.lowering.overlap import read_setting, using_setting

        mapped = self.mapped
        lower = mapped.lower_rows if isinstance(mapped, Pmapped) else mapped.lower
        with using_setting(read_setting(overlap, overlap_rounding)):
            return self._tracing(lambda: lower(*self.args, partitioner=partitioner, groups=groups))

    def trace(self) -> Graph:
        """Traces. Raises UserCodeError if the function raises."""
        from shmap_compiler import XMapped

        if isinstance(self.mapped, XMapped):  # whose own trace is one of named axes
            return self.lower().graph
        return self._tracing(lambda: self.mapped.trace(*self.args))

    def named(self) -> str:
        """The text of the program with its named axes. Raises UserCodeError, as `trace` does.

        Raises:
          UsageError: the function has none.
        """
        from shmap_compiler import XMapped
        from shmap_compiler.base.descriptions import show_type_of

        if isinstance(self.mapped, XMapped):
            return str(self._tracing(lambda: self.mapped.trace(*self.args)))
        raise UsageError(
            Mistake(
                "--stage named",
                f"{self.function.name} is {show_type_of(self.mapped)}",
                "a function that xmap returned, which has named axes",
                "choose another stage, e.g. --stage graph",
            )
        )

    def _tracing(self, run: Callable[[], _T]) -> _T:
        from shmap_compiler.base.descriptions import describe

        return self.function.guarded(run, f"tracing {describe(self.mapped.fun)}")


@dataclass(frozen=True)
class AnyProgram:
    """A function that is not shard_mapped, such as a jitted training step, with its arguments."""

    function: UserFunction
    args: tuple[PyTree, ...]

    def lower(
        self,
        target: Target,
        *,
        overlap: OverlapMode | None = None,
        overlap_rounding: bool | None = None,
    ) -> OverlappedFunction:
        """Traces and lowers, for the partitioner that JAX is set to use.

        Args:
          overlap, overlap_rounding: as `overlap_options` returns them.

        Raises:
          UserCodeError: the function raises while it is traced, or JAX cannot trace it.
        """
        import jax

        from shmap_compiler.base.descriptions import describe
        from shmap_compiler.lowering.overlap import read_setting
        from shmap_compiler.stages.any_function import function_of_arrays
        from shmap_compiler.stages.overlapped_function import OverlappedFunction

        fun, setting = self.function.mapped, read_setting(overlap, overlap_rounding)
        of_arrays, types = function_of_arrays(fun, self.args)
        return self.function.traced(
            lambda: OverlappedFunction.of(fun, self.args, target.platform, setting),
            lambda: jax.eval_shape(of_arrays, *types),
            f"tracing {describe(fun)}",
        )


def lower_for(
    work: Program | AnyProgram, partitioner: Partitioner | None, target: Target, **overlap: Setting
) -> Lowered | OverlappedFunction:
    """Traces and lowers a program for a target.

    Args:
      overlap: as `overlap_options` returns it.
    """
    if isinstance(work, AnyProgram):
        return work.lower(target, **overlap)
    return work.lower(partitioner, **overlap)


def load_any(options: argparse.Namespace, *, needs_devices: bool = False) -> Program | AnyProgram:
    """As `load`, for functions that need not be shard_mapped."""
    import jax

    from shmap_compiler import ShardMapped, XMapped

    from . import array_type, program_files

    function = program_files.load(options.target, any_function=True)
    if isinstance(function.mapped, (ShardMapped, XMapped)):
        return load(options, needs_devices=needs_devices, function=function)
    jax.config.update("jax_traceback_filtering", "off")
    if options.mesh is not None:
        raise UsageError(
            Mistake(
                f"--mesh {options.mesh}",
                f"{function.name} is not shard_mapped",
                "the mesh of its arguments",
                f"make the arrays of {function.name}_args for another mesh",
            )
        )
    texts = options.args or ()
    types = read_all(*[lambda text=text: array_type.parse(text) for text in texts])
    return AnyProgram(function, _args(function, tuple(types)))


def load(
    options: argparse.Namespace, *, needs_devices: bool, function: UserFunction | None = None
) -> Program:
    """The program that a command line names.

    Args:
      needs_devices: the program is going to be compiled; otherwise its mesh may have more devices
        than there are.
      function: the function that the command line names, if it is loaded already.

    Raises:
      UsageError: something named in the options is not there, or cannot be read.
      UserCodeError: the user's file raised.
    """
    import jax
    from jax.sharding import AbstractMesh

    from shmap_compiler import Pmapped

    from . import array_type, mesh_text, program_files

    # Errors in user code are shown without JAX's frames by `user_traceback`.
    jax.config.update("jax_traceback_filtering", "off")
    texts = options.args or ()
    sizes, *types = read_all(
        lambda: mesh_text.parse(options.mesh) if options.mesh is not None else None,
        *[lambda text=text: array_type.parse(text) for text in texts],
    )
    function = function or program_files.load(options.target)
    # Only the file may have set JAX to 64 bits.
    pairs = zip(texts, types, strict=True)
    read_all(*[lambda pair=pair: array_type.require_enabled(*pair) for pair in pairs])
    mapped = function.mapped
    if isinstance(mapped, Pmapped):
        if sizes is not None:
            raise UsageError(_no_mesh_of_rows(options.mesh, function.name))
        return Program(function, mapped, _args(function, tuple(types)))
    if sizes is None and needs_devices and isinstance(mapped.mesh, AbstractMesh):
        sizes = dict(mapped.mesh.shape)
    if sizes is not None:
        if needs_devices:
            _check_devices(sizes, options.devices)
        mesh = mesh_text.make(sizes, mapped.mesh)
        mapped = mapped.replace(mesh=mesh)
    return Program(function, mapped, _args(function, tuple(types)))


def _no_mesh_of_rows(text: str, name: str) -> Mistake:
    return Mistake(
        f"--mesh {text}",
        f"{name} is pmapped, over as many devices as its arguments have rows",
        "no mesh",
        "omit --mesh, and give arguments with other numbers of rows by --arg",
    )


def _check_devices(sizes: dict[str, int], there: int) -> None:
    needed = math.prod(sizes.values())
    if needed > there:
        mesh = ",".join(f"{name}={size}" for name, size in sizes.items())
        raise UsageError(
            Mistake(
                f"mesh {mesh}",
                f"{there} virtual CPU devices",
                f"{'*'.join(map(str, sizes.values()))} = {needed} devices, to compile for",
                f"add --devices {needed}",
            )
        )


def _args(function: UserFunction, types: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
    args, source = (types, "--arg") if types else (function.args, f"in {function.name}_args")
    parameters = _parameters(function.mapped)
    if args is None and _takes(parameters, 0):
        return ()
    if args is not None and _takes(parameters, len(args)):
        return args
    found = f"{len(args)} {source}" if args is not None else "no --arg, and none in the file"
    raise UsageError(
        Mistake(
            f"arguments of {function.name}",
            found,
            f"one for each of: {listed(parameters.parameters)}",
            "give --arg once for each argument, e.g. --arg 'f32[8,16]', or set "
            f"{function.name}_args in the file",
        )
    )


def _parameters(mapped: Wrapped) -> inspect.Signature:
    try:
        return inspect.signature(getattr(mapped, "fun", mapped))
    except (
        ValueError,
        TypeError,
    ):  # Functions written in C may have no signature: any count may fit.
        return inspect.signature(lambda *args: None)


def _takes(parameters: inspect.Signature, count: int) -> bool:
    try:
        parameters.bind(*[None] * count)
    except TypeError:
        return False
    return True
