"""Makes a program portable, and lowers it again: its module as a StableHLO artifact.

What is kept is in StableHLO's portable serialization, which later versions of StableHLO can read,
and earlier ones back to the version it is written for. The Shardy form also contains operations of
the Shardy dialect, which makes no such promise.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import shmap_passes
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.interpreters.mlir import ir
from jax.sharding import Mesh
from jaxlib.mlir.dialects import stablehlo

from shmap_compiler.base.jax_compat import compiling_for, shaped_array, space_of
from shmap_compiler.base.jax_compat import partitioner as partitioner_is
from shmap_compiler.base.untyped import LoweringContext, OpView
from shmap_compiler.base.values import having
from shmap_compiler.graph.primitive import witness
from shmap_compiler.lowering.compiler_options import NO_OPTIONS, CompilerOptions, compile_with
from shmap_compiler.lowering.inline_module import merge
from shmap_compiler.records.portable_program import PortableProgram
from shmap_compiler.records.signature import Signature

# The first version of StableHLO that has them.
_GROUPS_BY_MESH_AXES = "1.16.0"


def lower_portable(program: PortableProgram, mesh: Mesh) -> jax.stages.Lowered:
    """Lowers a program for the devices of `mesh`, as a function of the flat inputs."""
    signature = program.signature.on(mesh)
    out_spaces = tuple(map(space_of, signature.out_memory_kinds))

    def run(*inputs):
        return module_p.bind(
            *[inputs[i] for i in program.kept],
            module=program.module,
            out_types=signature.out_types,
            out_spaces=out_spaces,
            witness=witness(mesh, any(signature.out_memory_kinds)),
        )

    run.__name__ = signature.name
    jitted = jax.jit(run, in_shardings=tuple(signature.in_shardings))
    with partitioner_is(program.partitioner), having(signature.in_types):
        return jitted.trace(*signature.in_types).lower()


def compile_portable(
    program: PortableProgram, mesh: Mesh, options: CompilerOptions = NO_OPTIONS
) -> jax.stages.Compiled:
    """Compiles a program for the devices of `mesh`, as a function of the flat inputs."""
    lowered = lower_portable(program, mesh)
    with compiling_for(program.partitioner):
        return compile_with(lowered, options)


def portable(
    signature: Signature,
    module: ir.Module,
    partitioner: str,
    platform: str,
    *,
    is_kept: bool = True,
) -> PortableProgram:
    """The program of `module`, whose `@main` takes all inputs of `signature`, used or not.

    Args:
      is_kept: whether other versions of StableHLO must be able to read it. A program that is only
        handed to a compiler is MLIR bytecode, which takes a fifth of the time to write.
    """
    main: OpView = ir.SymbolTable(module.operation)["main"]
    kept = _used_arguments(main)
    # Serialization rewrites its module in place.
    if is_kept or len(kept) < len(main.arguments):
        module = _copy(module)
        _keep_arguments(ir.SymbolTable(module.operation)["main"], kept)
    if not is_kept:
        artifact = shmap_passes.bytecode(module.operation)
    else:
        artifact = stablehlo.serialize_portable_artifact(
            module, _version(), allow_other_dialects=True
        )
    return PortableProgram(signature, artifact, kept, partitioner, platform)


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
    return ir.Module.parse(shmap_passes.bytecode(module.operation), module.context)


def _version() -> str:
    """The StableHLO version of twelve weeks ago, or the first that has all that our modules use."""
    weeks = stablehlo.StablehloCompatibilityRequirement.WEEK_12
    earlier = stablehlo.get_version_from_compatibility_requirement(weeks)
    smaller = stablehlo.get_smaller_version(earlier, _GROUPS_BY_MESH_AXES)
    return earlier if smaller == _GROUPS_BY_MESH_AXES else _GROUPS_BY_MESH_AXES


def _used_arguments(main: OpView) -> tuple[int, ...]:
    """The positions of the arguments of a function that have a use."""
    return tuple(i for i, argument in enumerate(main.arguments) if any(argument.uses))


def _keep_arguments(main: OpView, kept: Sequence[int]) -> None:
    """Removes the arguments of a function at other positions, which have no use."""
    block, attributes = main.regions[0].blocks[0], list(main.arg_attrs)
    inputs, wanted = main.type.inputs, {*kept}
    for i in reversed(range(len(block.arguments))):
        if i not in wanted:
            block.erase_argument(i)
    with main.context:
        type_ = ir.FunctionType.get([inputs[i] for i in kept], main.type.results)
        main.attributes["function_type"] = ir.TypeAttr.get(type_)
        main.attributes["arg_attrs"] = ir.ArrayAttr.get([attributes[i] for i in kept])


# ------------------------------------------------------------------ the primitive: a call of it

_INLINE_MESHES = shmap_passes.parse_pipeline(
    "builtin.module(shmap-inline-meshes)", shmap_passes.PASSES
)
module_p = Primitive("stablehlo_module")
module_p.multiple_results = True


def _types(*in_types, module, out_types, out_spaces, witness):
    placed = zip(out_types, out_spaces, strict=True)
    return [shaped_array(t.shape, t.dtype, t.weak_type, memory_space=space) for t, space in placed]


def lower_artifact(
    ctx: LoweringContext, args: Sequence[ir.Value], artifact: bytes
) -> Sequence[ir.Value]:
    """Calls the `@main` of a StableHLO artifact in the module that is being lowered."""
    parsed = stablehlo.deserialize_portable_artifact(ctx.module_context.context, artifact)
    # Only functions of a module can be merged into another.
    shmap_passes.run(parsed, _INLINE_MESHES)
    return merge(parsed, ctx, args)


def _lowering(ctx, *args, module, out_types, out_spaces, witness):
    return lower_artifact(ctx, args, module)


@functools.lru_cache(maxsize=64)
def _compiled(params):
    return jax.jit(functools.partial(module_p.bind, **dict(params)))


def _impl(*args, **params):
    """Outside of jit, a module is compiled by itself."""
    return _compiled(tuple(params.items()))(*args)


module_p.def_impl(_impl)
module_p.def_abstract_eval(_types)
mlir.register_lowering(module_p, _lowering)
