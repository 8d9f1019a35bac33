"""Lowering: modules, the lowering context, and functions called from a module."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import jax
import numpy as np
from jax.extend import source_info_util
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import (
    AxisType,
    Mesh,
)
from jaxlib.mlir.dialects import sdy

from shmap_compiler.base.jax_compat.meshes import AnyMesh, axis_types
from shmap_compiler.base.jax_compat.programs import open_jaxpr
from shmap_compiler.base.jax_compat.settings import shardy_is_on
from shmap_compiler.base.jax_compat.types import (
    Reductions,
    bits_of,
    is_key_type,
    type_reductions,
    type_split,
)
from shmap_compiler.base.untyped import (
    AnyValue,
    Aval,
    Effect,
    Function,
    Jaxpr,
    Kept,
    LoweringContext,
    OpView,
    Setting,
    Unchecked,
    Wrapped,
)


class _Lowerings(dict[Hashable, Kept]):
    """What JAX keeps of how it has lowered equations in a module: functions, by what they compute.

    JAX copies most of them into the module wherever such an equation occurs. They belong to no
    module, so that those which refer to nothing in one are taken over from `others`.

    Args:
      others: those of modules with the same mesh and manual axes, and whether they refer to
        nothing; None as long as no module has asked.
    """

    def __init__(self, others: dict[Hashable, tuple[Kept, bool | None]]) -> None:
        super().__init__()
        self._others = others

    def get(self, key: Hashable, default: Kept = None) -> Kept:
        found = super().get(key)
        if found is None and (found := self._taken_over(key)) is not None:
            super().__setitem__(key, found)
        return default if found is None else found

    def __setitem__(self, key: Hashable, lowered: Kept) -> None:
        super().__setitem__(key, lowered)
        self._others.setdefault(key, (lowered, None))

    def _taken_over(self, key: Hashable) -> Kept:
        lowered, is_free = self._others.get(key, (None, False))
        if is_free is None:
            is_free = _is_free(lowered)
            self._others[key] = lowered, is_free
        return lowered if is_free else None


def _is_free(lowered: Kept) -> bool:
    """Whether a function belongs to no module, and refers to nothing in the one it was made for."""
    return lowered.inline and all(
        map(_refers_to_nothing, lowered.func.regions[0].blocks[0].operations)
    )


def _refers_to_nothing(op: OpView) -> bool:
    """Whether an operation refers to no function; it may refer to the mesh."""
    name = op.operation.name
    return (
        name.startswith(("stablehlo.", "chlo.", "func.return"))
        and name not in ("stablehlo.custom_call", "stablehlo.composite")
        and all(
            _refers_to_nothing(each)
            for region in op.operation.regions
            for block in region.blocks
            for each in block.operations
        )
    )


_PROGRAMS, _NESTED = object(), object()
"""In what JAX keeps with a module: what `kept_with_module` returns, and what is kept of how JAX has
lowered equations in the modules nested in it, by mesh and manual axes."""


def kept_with_module(module_context: LoweringContext) -> dict[Hashable, Kept]:
    """What is kept while a module is being lowered, empty at first."""
    return module_context.cached_primitive_lowerings.setdefault(_PROGRAMS, {})


def fresh_module_context(
    module_context: LoweringContext,
    module: OpView,
    mesh: AnyMesh,
    manual: Iterable[str],
    rules: Sequence[tuple[Primitive, Function]] = (),
):
    """The lowering context of an enclosing jit, redirected into the empty `module`.

    Callbacks, ordered effects and objects to keep alive still belong to the enclosing jit.

    Args:
      rules: lowering rules that replace JAX's own, by primitive.
    """
    ir = mlir.ir
    manual = frozenset(manual)
    kept = module_context.cached_primitive_lowerings.setdefault(_NESTED, {})
    parameters = module_context.lowering_parameters
    if rules:
        rules = (*rules, *(parameters.override_lowering_rules or ()))
        parameters = dataclasses.replace(parameters, override_lowering_rules=rules)
    return module_context.replace(
        lowering_parameters=parameters,
        module=module,
        ip=ir.InsertionPoint(module.body),
        symbol_table=ir.SymbolTable(module.operation),
        lowering_cache=_Lowerings(kept.setdefault((mesh, manual), {})),
        cached_primitive_lowerings={_NESTED: kept},
        axis_context=mlir.SPMDAxisContext(cast(Mesh, mesh), manual),
    )


def manual_axes_of(module_context: LoweringContext) -> frozenset[str]:
    """The axes that are manual where JAX lowers, those of regions further out included."""
    return frozenset(module_context.axis_context.manual_axes)


def lower_program(
    module_context: LoweringContext,
    program: Jaxpr,
    tokens: Mapping[Effect, OpView],
    sizes: Sequence[OpView],
    args: Sequence[OpView],
) -> tuple[list[OpView], dict[Effect, OpView]]:
    """Lowers a closed jaxpr at the insertion point, and returns its results and tokens.

    Args:
      tokens: one for each ordered effect of the program.
      sizes: those of the symbolic dimensions of an enclosing `jax.export`.
    """
    results, tokens_out = mlir.jaxpr_subcomp(
        module_context,
        open_jaxpr(program),
        source_info_util.new_name_stack(),
        mlir.TokenSet(dict(tokens)),
        [mlir.ir_constant(value) for value in program.consts],
        *args,
        dim_var_values=sizes,
        const_lowering={},
        outer_traceback=None,
    )
    return list(results), {effect: tokens_out.get(effect) for effect in tokens}


def keep_unreduced(
    values: Sequence[AnyValue], avals: Sequence[Aval], mesh_symbol: str | None = None
) -> list[AnyValue]:
    """Values in a module, with a constraint on those whose types are unreduced.

    JAX adds it to all operations, so that the partitioner does not reduce the values there.

    Args:
      mesh_symbol: the mesh's name in the module, if it has one.
    """
    kept = []
    for value, aval in zip(values, avals, strict=True):
        reduces = type_reductions(aval) if hasattr(aval, "sharding") else Reductions()
        if reduces.unreduced and shardy_is_on():
            mesh = aval.sharding.mesh
            shown = mesh_symbol or sdy.MeshAttr.get(
                [sdy.MeshAxisAttr.get(a, n) for a, n in mesh.shape.items()]
            )
            dims = [
                sdy.DimensionShardingAttr.get(
                    [sdy.AxisRefAttr.get(a) for a in axes],
                    is_closed=AxisType.Auto not in axis_types(mesh).values(),
                )
                for axes in type_split(aval)
            ]
            sharding = tensor_sharding(shown, dims, reduces, mesh)
            value = sdy.ShardingConstraintOp(value, sharding).result
        kept.append(value)
    return kept


def tensor_sharding(
    mesh_symbol: OpView, dims: Sequence[Unchecked], reduces: Reductions, mesh: AnyMesh
) -> OpView:
    """A `#sdy.sharding` that splits dimensions by `dims` and has unreduced axes, in mesh order."""
    axes, reduction = unreduced_axes(reduces, mesh)
    unreduced = [sdy.AxisRefAttr.get(a) for a in axes]
    kind: dict[str, Any] = {} if reduction is None else {"reduction_op": reduction}
    return sdy.TensorShardingAttr.get(mesh_symbol, dims, unreduced_axes=unreduced, **kind)


def unreduced_axes(reduces: Reductions, mesh: AnyMesh) -> tuple[tuple[str, ...], Setting]:
    """(the unreduced axes in mesh order, Shardy's name of what combines the summands)."""
    axes = tuple(a for a in mesh.axis_names if a in reduces.unreduced)
    if reduces.kind is None:  # for all sums up to JAX 0.12
        return axes, None
    kinds: Any = getattr(sdy, "ReductionOp")  # noqa: B009, not there in JAX 0.10
    return axes, getattr(kinds, reduces.kind.name.upper())


def groups_among_other_meshes() -> Literal["one-axis", "ids"]:
    """How collectives name their groups where a module may have further meshes, as inside jit.

    XLA replaces all meshes of the same devices by one of them. In JAX 0.10 it does not rename the
    axes in StableHLO's groups, which then are unknown axes or name other devices. In JAX 0.12 it
    aborts if several axes of a group become adjacent parts of one.
    """
    renames = hasattr(sdy, "ReductionOp")  # from JAX 0.12 on
    return "one-axis" if renames else "ids"


def lowering_mesh(ctx: LoweringContext) -> AnyMesh:
    """The mesh given to `fresh_module_context`, read back inside a lowering rule."""
    return ctx.module_context.axis_context.mesh


def call_subfunction(fun: Function, args: Sequence[OpView]) -> OpView:
    """Calls the function that a call primitive, custom_jvp or custom_vjp passes to a trace."""
    return getattr(fun, "call_wrapped", fun)(*args)


def ahead_of_time(jitted: Wrapped, types: Sequence[Aval]) -> Function:
    """A function made by jit, compiled for arguments of these types.

    JAX 0.10 refuses to call programs compiled ahead of time on types of less than a byte: it
    assumes another layout for them.
    """
    if any(map(_is_narrow, types)):
        return jitted
    return jitted.lower(*types).compile()


def call_compiled(compiled: Wrapped, arrays: Sequence[jax.Array]) -> Unchecked:
    """Calls a program that is compiled ahead of time, on arrays that are on its devices.

    What JAX 0.10 refuses there, see `ahead_of_time`, it takes from the host.
    """
    try:
        return compiled(*arrays)
    except ValueError:
        on_host = [np.asarray(x) if _is_narrow(x) and x.is_fully_addressable else x for x in arrays]
        if not any(isinstance(x, np.ndarray) for x in on_host):
            raise
    return compiled(*on_host)


def _is_narrow(type_: Aval) -> bool:
    """Whether elements have less than a byte."""
    return not is_key_type(type_) and bits_of(type_.dtype) < 8
