"""A program without its Python source: its module as a StableHLO artifact, and its signature.

The artifact is StableHLO's own serialization, which later versions of StableHLO read, and earlier
ones down to the version it is written for. In the form for Shardy it also has operations of Shardy,
which promises no such thing.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import shmap_passes
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.interpreters.mlir import ir
from jax.sharding import Mesh
from jaxlib.mlir.dialects import stablehlo

from shmap_compiler.base.jax_compat import partitioner as partitioner_is
from shmap_compiler.base.jax_compat import shaped_array
from shmap_compiler.lowering.inline_module import merge
from shmap_compiler.lowering.primitive import mesh_witness
from shmap_compiler.records.signature import Signature
from shmap_compiler.stages.compiled import Compiled
from shmap_compiler.targets import Target

# The version of StableHLO that brought them.
_GROUPS_BY_MESH_AXES = "1.16.0"


@dataclass(frozen=True, repr=False)
class Portable:
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

    signature: Signature
    module: bytes
    kept: tuple[int, ...]
    partitioner: str
    platform: str

    def __repr__(self) -> str:
        return (
            f"<Portable of {self.signature.summary}, partitioner {self.partitioner!r}, platform "
            f"{self.platform!r}>"
        )

    def lower(self, mesh: Mesh) -> jax.stages.Lowered:
        """Lowers the program for the devices of `mesh`, as a function of the flat inputs."""
        signature = self.signature.on(mesh)

        def program(*inputs):
            return module_p.bind(
                *[inputs[i] for i in self.kept],
                module=self.module,
                out_types=signature.out_types,
                mesh_witness=mesh_witness(mesh),
            )

        program.__name__ = signature.name
        jitted = jax.jit(program, in_shardings=tuple(signature.in_shardings))
        with partitioner_is(self.partitioner):
            return jitted.trace(*signature.in_types).lower()

    def compile_on(self, mesh: Mesh) -> jax.stages.Compiled:
        """Compiles the program for the devices of `mesh`, as a function of the flat inputs."""
        lowered = self.lower(mesh)
        with partitioner_is(self.partitioner):
            return lowered.compile()

    def compile(
        self, target: str | Target = "local", progress: Callable[[str], None] = lambda _: None
    ) -> Compiled:
        """Compiles the program for the devices of a target.

        Args:
          target: A `Target` or its text. Defaults to the devices of this process.
          progress: As for `Lowered.compile`.

        Returns:
          An `Executable`; or a `CompiledForTarget` if the devices are not attached.

        Raises:
          TargetError: The program does not fit the target.
        """
        from shmap_compiler.stages.compile_for_target import compile_portable

        if not isinstance(target, Target):
            target = Target.parse(target, self.signature.who)
        return compile_portable(self, target, progress)

    def save(self, path: str | Path) -> None:
        """Saves the program for `load`; see `Lowered.save`."""
        from shmap_compiler.artifacts import write_file, write_portable

        write_file(path, self.signature.who, write_portable(self))


def portable(signature: Signature, module: ir.Module, partitioner: str, platform: str) -> Portable:
    """The program of `module`, whose `@main` takes all inputs of `signature`, used or not."""
    # Serializing rewrites the module that it is given.
    copy = _copy(module)
    with copy.context:
        kept = _drop_unused_arguments(ir.SymbolTable(copy.operation)["main"])
    artifact = stablehlo.serialize_portable_artifact(copy, _version(), allow_other_dialects=True)
    return Portable(signature, artifact, kept, partitioner, platform)


def module_types(artifact: bytes) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """The shapes of the arguments and results of `@main` in a StableHLO artifact.

    Raises:
      ValueError: it is not a StableHLO artifact with such a function.
    """
    with shmap_passes.make_context() as context:
        module = stablehlo.deserialize_portable_artifact(context, artifact)
        main = ir.SymbolTable(module.operation)["main"]
        types = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
        return _shapes(types.inputs), _shapes(types.results)


def _shapes(types: Sequence[ir.Type]) -> list[tuple[int, ...]]:
    return [tuple(ir.RankedTensorType(type_).shape) for type_ in types]


def _copy(module: ir.Module) -> ir.Module:
    file = io.BytesIO()
    module.operation.write_bytecode(file)
    return ir.Module.parse(file.getvalue(), module.context)


def _version() -> str:
    """StableHLO's of twelve weeks ago, or else the first that can say what our modules say."""
    weeks = stablehlo.StablehloCompatibilityRequirement.WEEK_12
    earlier = stablehlo.get_version_from_compatibility_requirement(weeks)
    smaller = stablehlo.get_smaller_version(earlier, _GROUPS_BY_MESH_AXES)
    return earlier if smaller == _GROUPS_BY_MESH_AXES else _GROUPS_BY_MESH_AXES


def _drop_unused_arguments(main: Any) -> tuple[int, ...]:
    """Takes the arguments without uses away from a function; positions of the others."""
    block, attributes = main.regions[0].blocks[0], list(main.arg_attrs)
    kept = tuple(i for i, argument in enumerate(block.arguments) if list(argument.uses))
    for i in reversed(range(len(block.arguments))):
        if i not in kept:
            block.erase_argument(i)
    type_ = ir.FunctionType.get([main.type.inputs[i] for i in kept], main.type.results)
    main.attributes["function_type"] = ir.TypeAttr.get(type_)
    main.attributes["arg_attrs"] = ir.ArrayAttr.get([attributes[i] for i in kept])
    return kept


# ------------------------------------------------------------------ the primitive: a call of it

_INLINE_MESHES = shmap_passes.parse_pipeline(
    "builtin.module(shmap-inline-meshes)", shmap_passes.PASSES
)
module_p = Primitive("stablehlo_module")
module_p.multiple_results = True


def _types(*in_types, module, out_types, mesh_witness):
    return [shaped_array(t.shape, t.dtype, weak_type=False) for t in out_types]


def _lowering(ctx, *args, module, out_types, mesh_witness):
    parsed = stablehlo.deserialize_portable_artifact(ctx.module_context.context, module)
    # A module that is merged into another brings functions only.
    shmap_passes.run(parsed, _INLINE_MESHES)
    return merge(parsed, "portable", ctx, args)


module_p.def_abstract_eval(_types)
mlir.register_lowering(module_p, _lowering)
