"""Portable: a lowered program without its Python source, as a handle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import jax
from jax.sharding import Mesh

from shmap_compiler.artifacts import write_file, write_portable
from shmap_compiler.base.untyped import Setting
from shmap_compiler.lowering.compiler_options import CompilerOptions
from shmap_compiler.lowering.portable_module import lower_portable
from shmap_compiler.records.portable_program import PortableProgram
from shmap_compiler.stages.compile_for_target import compile_for_target
from shmap_compiler.stages.compiled import Compiled
from shmap_compiler.stages.option_errors import read_options
from shmap_compiler.targets import Target


class Portable(PortableProgram):
    """A lowered program without its Python source, for any devices of its platform.

    Made by `Lowered.portable`, and by `load` from a file of `Lowered.save`.

    Attributes:
      signature: The arguments and results of the program; its mesh is the one it was lowered for.
      module: A StableHLO artifact whose `@main` maps full inputs to full outputs.
      kept: The positions of the inputs that `@main` takes, which are those that it uses.
      partitioner: The form of the module, "gspmd" or "shardy".
      platform: What it was lowered for: "cpu", "tpu" or "cuda".

    Examples:
      >>> f = shard_map(jnp.sin, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
      >>> portable = f.lower(x).portable("cpu")
      >>> portable.compile("cpu:8")(x).shape
      (16,)
    """

    @staticmethod
    def of(program: PortableProgram) -> Portable:
        """The handle of a program."""
        return Portable(**vars(program))

    def __repr__(self) -> str:
        return (
            f"<Portable of {self.signature.summary}, partitioner {self.partitioner!r}, platform "
            f"{self.platform!r}>"
        )

    def lower(self, mesh: Mesh) -> jax.stages.Lowered:
        """Lowers the program for the devices of `mesh`, as a function of the flat inputs."""
        return lower_portable(self, mesh)

    def compile(
        self,
        target: str | Target = "local",
        progress: Callable[[str], None] = lambda _: None,
        *,
        compiler_options: Mapping[str, Setting] | None = None,
    ) -> Compiled:
        """Compiles the program for the devices of a target.

        Args:
          target: A `Target` or its text. Defaults to the devices of this process.
          progress: As for `Lowered.compile`.
          compiler_options: As for `Lowered.compile`.

        Returns:
          An `Executable`; or a `CompiledForTarget` if the devices are not attached.

        Raises:
          TargetError: The program does not fit the target, or the compiler does not take an option.
        """
        if not isinstance(target, Target):
            target = Target.parse(target, self.signature.who)
        options = CompilerOptions(read_options(self.signature.who, compiler_options))
        return compile_for_target(self, target, progress, options=options)

    def save(self, path: str | Path) -> None:
        """Saves the program for `load`; see `Lowered.save`."""
        write_file(path, self.signature.who, write_portable(self))
