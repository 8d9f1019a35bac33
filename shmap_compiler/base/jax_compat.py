"""The one place that knows JAX's undocumented attributes and the differences between its versions.

Everything here is reachable from public modules, but is either not documented (attributes of
meshes, jaxprs and the lowering context) or differs between the JAX lines we support, 0.10 and 0.12.
A new JAX release should break this file and `test/test_compat.py`, and nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import operator
import os
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import AbstractValue, ShapedArray, eval_context
from jax.experimental import checkify
from jax.extend import core as jex_core
from jax.extend import linear_util
from jax.interpreters import ad, mlir, partial_eval
from jax.sharding import (
    AbstractMesh,
    AxisType,
    ManualAxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
)
from jaxlib.mlir.dialects import sdy

from shmap_compiler.base import ref_views

AnyMesh = Mesh | AbstractMesh
_T = TypeVar("_T")

# ------------------------------------------------------------------------------------- meshes


def abstract_mesh(mesh: AnyMesh) -> AbstractMesh:
    """The mesh without its devices."""
    return mesh if isinstance(mesh, AbstractMesh) else mesh.abstract_mesh


def axis_types(mesh: AnyMesh) -> dict[str, AxisType]:
    """Axis name -> Auto, Explicit or Manual."""
    return dict(zip(mesh.axis_names, abstract_mesh(mesh).axis_types, strict=True))


def with_manual_axes(mesh: AnyMesh, axes: Iterable[str]) -> AbstractMesh:
    """The abstract mesh on which `axes` are Manual."""
    return abstract_mesh(mesh).update_axis_types(dict.fromkeys(axes, AxisType.Manual))


def without_manual_axes(mesh: AbstractMesh) -> AbstractMesh:
    """The mesh as it is outside of all shard_maps; axes that are Manual here are Auto there."""
    return mesh.update_axis_types(dict.fromkeys(mesh.manual_axes, AxisType.Auto))


def mesh_in_scope() -> AbstractMesh | None:
    """The mesh set by `jax.set_mesh`, or that of an enclosing shard_map."""
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty else mesh


def concrete_mesh_in_scope() -> Mesh | None:
    """The mesh set by `jax.set_mesh`, with its devices; inside jit nobody can know them."""
    try:
        mesh = jax.sharding.get_mesh()
    except ValueError:
        return None
    return None if mesh.empty else mesh


def with_axis_types_of(mesh: AbstractMesh, concrete: Mesh) -> Mesh:
    """The abstract `mesh` on the devices of `concrete`."""
    if concrete.abstract_mesh.axis_types == mesh.axis_types:
        return concrete
    return Mesh(concrete.devices, concrete.axis_names, axis_types=mesh.axis_types)


def enclosing_manual_axes(mesh: AnyMesh) -> tuple[str, ...]:
    """Axes of `mesh` that an enclosing shard_map has made manual already, in mesh order."""
    current = jax.sharding.get_abstract_mesh()
    if current.empty or current.axis_names != mesh.axis_names:
        return ()
    return tuple(a for a in mesh.axis_names if a in current.manual_axes)


# ------------------------------------------------------------------------------------- jaxprs

# ClosedJaxpr and Jaxpr are two classes up to JAX 0.11 and one class from 0.12 on.
_ClosedJaxpr: Any = jex_core.ClosedJaxpr  # pyright: ignore[reportPrivateImportUsage]
_CLOSED_IS_SEPARATE = _ClosedJaxpr is not jex_core.Jaxpr


_JAXPRS = (jex_core.Jaxpr, _ClosedJaxpr)


def is_jaxpr(value: object) -> bool:
    return isinstance(value, _JAXPRS)


class _Kinds(dict[type, int]):
    """Of each type of value: 1 for a program, 2 for what may list some, 0 for all others."""

    def __missing__(self, type_: type) -> int:
        kind = 1 if issubclass(type_, _JAXPRS) else 2 if issubclass(type_, (tuple, list)) else 0
        self[type_] = kind
        return kind


# Every walk asks this of every parameter; looking up the exact type is the fastest answer.
_kinds = _Kinds()


def jaxprs_in(params: dict[str, Any]) -> Sequence[Any]:
    """The programs that an equation holds: parameters that are one, or a list with some in it."""
    found: list[Any] | None = None
    for value in params.values():
        kind = _kinds[type(value)]
        if kind == 1:
            found = [*(found or ()), value]
        elif kind == 2:
            for each in value:
                if _kinds[type(each)] == 1:
                    found = [*(found or ()), each]
    return found or ()


def replace_jaxprs_in(params: dict[str, Any], replacement: Callable[[Any], Any]) -> dict[str, Any]:
    """The parameters of an equation, with a replacement for each program of `jaxprs_in`.

    Returns `params` itself if every program is its own replacement.
    """

    def replaced(value: Any) -> Any:
        kind = _kinds[type(value)]
        if kind == 1:
            return replacement(value)
        if kind != 2:
            return value
        parts = [replacement(v) if _kinds[type(v)] == 1 else v for v in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        make = getattr(value, "_make", type(value))  # named tuples are made otherwise
        return make(parts)

    new = {name: replaced(value) for name, value in params.items()}
    return new if any(new[name] is not value for name, value in params.items()) else params


def is_closed(jaxpr: Any) -> bool:
    """Whether `jaxpr` can stand where JAX wants a ClosedJaxpr."""
    return isinstance(jaxpr, _ClosedJaxpr)


def open_jaxpr(jaxpr: Any) -> Any:
    """The Jaxpr inside a ClosedJaxpr; an open Jaxpr as it is."""
    return jaxpr.jaxpr if is_closed(jaxpr) else jaxpr


def replace_jaxpr(jaxpr: Any, **fields: Any) -> Any:
    """Copy of an open or closed jaxpr with other equations, variables or effects."""
    if _CLOSED_IS_SEPARATE and is_closed(jaxpr):
        return jaxpr.replace(jaxpr=jaxpr.jaxpr.replace(**fields))
    if "constvars" in fields and is_closed(jaxpr):
        fields["consts"] = jaxpr.consts  # JAX forgets them otherwise
    return jaxpr.replace(**fields)


def close_jaxpr(jaxpr: Any) -> Any:
    """A ClosedJaxpr without constants around an open jaxpr that has none."""
    if _CLOSED_IS_SEPARATE and not is_closed(jaxpr):
        return _ClosedJaxpr(jaxpr, ())
    return jaxpr


_backward_pass = getattr(ad, "backward_pass", None)  # from JAX 0.12 on


def transpose(
    jaxpr: Any, linear: Sequence[bool], known: Sequence[Any], cotangents: Sequence[Any]
) -> list[Any]:
    """The cotangents of those inputs of a closed jaxpr in which it is linear.

    Args:
      known: values of the other inputs.
      cotangents: of the outputs.
    """
    types = [t for t, is_linear in zip(jaxpr.in_avals, linear, strict=True) if is_linear]
    if _backward_pass is not None and not any(jaxprs_in(eqn.params) for eqn in jaxpr.eqns):
        unknown, others = (ad.UndefinedPrimal(t.to_ct_aval()) for t in types), iter(known)
        inputs = [next(unknown if is_linear else others) for is_linear in linear]
        found = _backward_pass(open_jaxpr(jaxpr), False, jaxpr.consts, inputs, list(cotangents))
        return [ad.instantiate_zeros(x) for x, m in zip(found, linear, strict=True) if m]
    # This traces the program again, and so splits loops into what is known and what is linear.
    run = jex_core.jaxpr_as_fun(jaxpr)

    def of_linear(*inputs):
        rest, others = iter(inputs), iter(known)
        return run(*[next(rest if is_linear else others) for is_linear in linear])

    return list(jax.linear_transpose(of_linear, *types)(list(cotangents)))


def constants_to_inputs(closed: Any) -> tuple[Any, list[Any]]:
    """(closed jaxpr whose constants are its leading inputs, the constants)."""
    jaxpr, consts = closed.jaxpr, list(closed.consts)
    if not consts:
        return closed, consts
    fields = {
        "constvars": [],
        "invars": [*jaxpr.constvars, *jaxpr.invars],
        "debug_info": jaxpr.debug_info.with_unknown_names(),
    }
    if _CLOSED_IS_SEPARATE:
        return _ClosedJaxpr(jaxpr.replace(**fields), ()), consts
    return closed.replace(**fields, consts=()), consts


def is_axis_effect(effect: Any, axes: Iterable[str]) -> bool:
    """Whether `effect` only says that a collective over one of `axes` was used."""
    return type(effect).__name__ == "NamedAxisEffect" and effect.name in axes


def axis_of_effect(effect: Any) -> str | None:
    """The axis of an effect that only says that some collective over it was used."""
    return effect.name if type(effect).__name__ == "NamedAxisEffect" else None


def is_ref_effect(effect: Any) -> bool:
    """Whether `effect` only says that mutable references are made, read or written."""
    return type(effect).__name__ in (
        "ReadEffect",
        "WriteEffect",
        "AccumEffect",
        "InternalMutableArrayEffect",
    )


def is_ref(aval: Any) -> bool:
    """Whether a variable of this type is a mutable reference."""
    return type(aval).__name__ == "AbstractRef"


def value_type(aval: Any) -> Any:
    """The type of what a reference of this type holds; other types as they are."""
    return aval.inner_aval.update(weak_type=False) if is_ref(aval) else aval


def ref_view(tree: Any, leaves: Sequence[Any]) -> list[ref_views.Step] | None:
    """The steps from a reference's value to the part that an equation reads or writes.

    None if there is a step of an unknown kind.

    Args:
      tree, leaves: the parameter of the equation and its operands, which together are the index.
    """
    steps: list[ref_views.Step] = []
    for transform in jax.tree.unflatten(tree, leaves):
        kind = type(transform).__name__
        if kind == "NDIndexer":
            entries = [
                (e.start, e.size, e.stride) if type(e).__name__ == "Slice" else e
                for e in transform.indices
            ]
            steps += ref_views.indexed(transform.shape, entries)
        elif kind == "ReshapeTransform":
            steps.append(ref_views.Reshape(tuple(transform.shape)))
        elif kind == "TransposeTransform":
            steps.append(ref_views.Transpose(tuple(transform.permutation)))
        else:
            return None
    return steps


def without_high_primitives(closed: Any, mesh: AbstractMesh, axes: Sequence[str]) -> Any:
    """The jaxpr as JAX lowers it: from 0.12 on some primitives stand for programs until then."""
    if not getattr(closed, "is_high", False):
        return closed
    lower: Any = getattr(partial_eval, "lower_jaxpr2")  # noqa: B009, not there in JAX 0.10
    return run_with_axes(lambda: lower(closed), mesh, axes)


def has_high_jvp(eqn: Any) -> bool:
    """Whether an equation stands for a program, and has a forward-mode derivative of its own."""
    held = eqn.params.get("_prim") if eqn.primitive.name == "call_hi_primitive" else None
    if held is None:
        return False
    from jax.experimental import hijax  # not there in JAX 0.10

    return type(held).jvp is not hijax.HiPrim.jvp


def policy_saves(decision: Any) -> bool:
    """Whether a checkpoint policy decided to keep a value where it is."""
    return decision is True or type(decision).__name__ == "SaveableType"


def offload_spaces(decision: Any) -> tuple[Any, Any] | None:
    """The memory spaces (of a value, to keep it in) if a checkpoint policy decided to move it."""
    if type(decision).__name__ != "Offloadable":
        return None
    spaces = [_MEMORY_SPACES.get(kind) for kind in (decision.src, decision.dst)]
    if None in spaces:
        raise ValueError(
            f"a checkpoint policy offloads values from {decision.src!r} to {decision.dst!r}; "
            f"these must be among {', '.join(map(repr, _MEMORY_SPACES))}"
        )
    return spaces[0], spaces[1]


def in_memory_space(x: Any, type_: Any) -> Any:
    """The array in the memory space of an array type."""
    if jax.typeof(x).memory_space == type_.memory_space:
        return x
    return jax.device_put(x, type_.memory_space)


_MEMORY_SPACES = {
    "device": jax.memory.Space.Device,
    "pinned_host": jax.memory.Space.Host,
    "unpinned_host": jax.memory.Space.Host,
}


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """(number of constants, number of carries) of a scan equation."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def shaped_array(
    shape: Sequence[int], dtype: Any, weak_type: bool, sharding: NamedSharding | None = None
) -> ShapedArray:
    if sharding is None:
        return ShapedArray(tuple(shape), dtype, weak_type=weak_type)
    return ShapedArray(tuple(shape), dtype, weak_type=weak_type, sharding=sharding)


# ----------------------------------------------------------------------------------- lowering


def fresh_module_context(
    module_context: Any,
    module: Any,
    mesh: AnyMesh,
    manual: Iterable[str],
    rules: Sequence[tuple[Any, Callable[..., Any]]] = (),
):
    """The lowering context of an enclosing jit, redirected into the empty `module`.

    Callbacks, ordered effects and objects to keep alive stay those of the enclosing jit.

    Args:
      rules: primitives of JAX and the lowering rules that take the place of their own.
    """
    ir = mlir.ir
    parameters = module_context.lowering_parameters
    if rules:
        rules = (*rules, *(parameters.override_lowering_rules or ()))
        parameters = dataclasses.replace(parameters, override_lowering_rules=rules)
    return module_context.replace(
        lowering_parameters=parameters,
        module=module,
        ip=ir.InsertionPoint(module.body),
        symbol_table=ir.SymbolTable(module.operation),
        lowering_cache={},
        cached_primitive_lowerings={},
        axis_context=mlir.SPMDAxisContext(cast(Mesh, mesh), frozenset(manual)),
    )


def keep_unreduced(
    values: Sequence[Any], avals: Sequence[Any], mesh_symbol: str | None = None
) -> list[Any]:
    """Values in a module, with a constraint on those that are unreduced by their types.

    JAX asks this of all operations, and the partitioner then reduces at none of them.

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
    mesh_symbol: Any, dims: Sequence[Any], reduces: Reductions, mesh: AnyMesh
) -> Any:
    """A `#sdy.sharding` that splits dimensions by `dims` and has unreduced axes, in mesh order."""
    unreduced = [sdy.AxisRefAttr.get(a) for a in mesh.axis_names if a in reduces.unreduced]
    kind: dict[str, Any] = {}
    if reduces.kind is not None:  # from JAX 0.12 on
        kinds: Any = getattr(sdy, "ReductionOp")  # noqa: B009, not there in JAX 0.10
        kind = {"reduction_op": getattr(kinds, reduces.kind.name.upper())}
    return sdy.TensorShardingAttr.get(mesh_symbol, dims, unreduced_axes=unreduced, **kind)


def groups_among_other_meshes() -> Literal["axes", "ids"]:
    """How collectives name their groups where a module may have further meshes, as inside jit.

    XLA replaces all meshes of the same devices by one of them. In JAX 0.10 it does not rename the
    axes in StableHLO's groups, which then are unknown axes or name other devices.
    """
    renames = hasattr(sdy, "ReductionOp")  # from JAX 0.12 on
    return "axes" if renames else "ids"


def lowering_mesh(ctx: Any) -> AnyMesh:
    """The mesh given to `fresh_module_context`, read back inside a lowering rule."""
    return ctx.module_context.axis_context.mesh


# `jax_use_shardy_partitioner` can be set publicly for the whole process only.
_partitioner_lock = threading.RLock()


def varying_types(on: bool = True) -> contextlib.AbstractContextManager[None]:
    """JAX tracks inside, in this thread, along which manual axes values vary; or does not.

    `jax.config.check_vma` can be set publicly for the whole process only; the object behind it also
    sets it for one thread. JAX uses it to give reverse-mode derivatives their meaning.
    """
    holder: Any = jax.config._value_holders["check_vma"]
    return holder(on)


def tracks_varying_types() -> bool:
    """Whether `varying_types` is on in this thread."""
    return setting("check_vma")


def unchecked_backward_rules() -> contextlib.AbstractContextManager[None]:
    """JAX takes from the backward rule of a custom_vjp function what it gives, in this thread."""
    holder: Any = jax.config._value_holders["jax_disable_bwd_checks"]
    return holder(True)


def varying_type(aval: Any, mesh: AbstractMesh, axes: Iterable[str]) -> Any:
    """The type of blocks on `mesh`, which has manual axes, that vary along `axes`."""
    sharding = aval.sharding
    if sharding.mesh.empty:
        sharding = NamedSharding(mesh, PartitionSpec(*[None] * len(aval.shape)))
    varying = ManualAxisType(varying=frozenset(axes))
    return aval.update(sharding=sharding, manual_axis_type=varying)


def varies_along(aval: Any) -> frozenset[str]:
    """The axes along which values vary, by their type."""
    return aval.manual_axis_type.varying


def without_varying_type(aval: Any) -> Any:
    """The type without the axes along which its values vary; the same object if it has none."""
    if is_ref(aval):
        inner = without_varying_type(aval.inner_aval)
        return aval if inner is aval.inner_aval else aval.update(inner_aval=inner)
    if getattr(aval, "manual_axis_type", None) in (None, ManualAxisType()):
        return aval
    return aval.update(manual_axis_type=ManualAxisType())


def is_readable_name(axis: str) -> bool:
    """Whether XLA can read an axis of this name in Shardy's form.

    XLA of jaxlib 0.10 reads names back from their escaped form and ends the process at what it does
    not know, or finds no such axis. Later ones mistake a last backslash only.
    """
    if jax.__version_info__ < (0, 11):
        return axis.isascii() and axis.isprintable() and not set(axis) & {'"', "\\"}
    return not axis.endswith("\\") and not any("\ud800" <= c <= "\udfff" for c in axis)


def shardy_is_on() -> bool:
    return bool(setting("jax_use_shardy_partitioner"))


def setting(name: str) -> Any:
    """A setting of JAX as it is in this thread."""
    return getattr(jax.config, name)


@contextlib.contextmanager
def partitioner(name: str) -> Iterator[None]:
    """JAX lowers and compiles for partitioner `name` ("gspmd" or "shardy") inside this context."""
    quiet = _without_gspmd_deprecation() if name == "gspmd" else contextlib.nullcontext()
    with _partitioner_lock, quiet:
        before = shardy_is_on()
        jax.config.update("jax_use_shardy_partitioner", name == "shardy")
        try:
            yield
        finally:
            jax.config.update("jax_use_shardy_partitioner", before)


@contextlib.contextmanager
def _without_gspmd_deprecation() -> Iterator[None]:
    """Raises the level of XLA's log, where XLA warns that GSPMD's propagation is deprecated.

    Up to jaxlib 0.10 it does so in each compilation for GSPMD, which `lower` asks for by default,
    and later once in a process. JAX can set the level of all messages only, so warnings of another
    kind are lost, too, while such a program compiles. A level that the user has set is kept.
    """
    by_user = jax.config.jax_logging_level != "NOTSET"
    if by_user or os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") != "1":
        yield
        return
    _set_xla_log_level("ERROR")
    try:
        yield
    finally:
        _set_xla_log_level("WARNING")


def _set_xla_log_level(level: str) -> None:
    """Sets the least severe level that XLA logs, and leaves JAX's Python loggers as they are."""
    loggers = {logger: logger.level for logger in map(logging.getLogger, ("jax", "jaxlib"))}
    jax.config.update("jax_logging_level", level)
    jax.config.update("jax_logging_level", "NOTSET")  # of the Python loggers only
    for logger, before in loggers.items():
        logger.setLevel(before)


# ------------------------------------------------------------------------------------ tracing


def trace_with_axes(
    fun: Callable[..., Any], mesh: AbstractMesh, axes: Sequence[str], avals: Sequence[Any]
) -> Any:
    """ClosedJaxpr of `fun` on `avals`, with collectives over `axes` of `mesh` in scope."""
    axis_env = [(a, mesh.shape[a]) for a in axes]
    # JAX would check what it traced after the names of the axes have gone out of scope.
    with jax.sharding.use_abstract_mesh(mesh), jax.enable_checks(False):
        if setting("jax_debug_key_reuse"):  # only this looks for it inside
            return jax.make_jaxpr(fun, axis_env=axis_env)(*avals)
        found: list[Any] = []

        def in_scope() -> tuple[()]:
            found.append(_traced_flat(fun, avals))
            return ()

        jax.make_jaxpr(in_scope, axis_env=axis_env)()
    return found[0]


def _traced_flat(fun: Callable[..., Any], avals: Sequence[Any]) -> Any:
    """ClosedJaxpr of `fun`, without what jit does for each argument: `make_jaxpr` takes ten times
    as long for the hundreds of arguments of a gradient.
    """
    info = getattr(fun, _DEBUG_INFO, None) or jax.api_util.debug_info("shard_map", fun, avals, {})
    flat = linear_util.wrap_init(lambda *args: jax.tree.leaves(fun(*args)), debug_info=info)
    types = [t if isinstance(t, AbstractValue) else jax.typeof(t) for t in avals]
    jaxpr, _, consts = partial_eval.trace_to_jaxpr_dynamic(flat, types)
    return _ClosedJaxpr(jaxpr, consts)


def refuses_unreduced(error: Exception) -> bool:
    """Whether JAX refused an operation on values that its types call unreduced or reduced."""
    trace, module = error.__traceback__, ""
    while trace is not None:
        trace, module = trace.tb_next, trace.tb_frame.f_globals.get("__name__", "")
    return module.partition(".")[0] == "jax" and "reduced" in str(error)


def needs_varying_types(error: BaseException | None) -> bool:
    """Whether JAX refused a cast as it does outside of `varying_types`, where all are invariant."""
    while error is not None:
        if str(error).startswith("Unsupported pcast from="):
            return True
        error = error.__cause__
    return False


_DEBUG_INFO = "__fun_debug_info__"  # looked up by jax.api_util.debug_info, of which nothing is said


def described_as(
    fun: Callable[..., _T],
    user_fun: Callable[..., Any],
    args: Sequence[Any],
    positions: Sequence[int],
) -> Callable[..., _T]:
    """`fun`, in JAX's errors described by the name, line and arguments of a user's function.

    Args:
      args: the user's arguments, pytrees of which `fun` takes the leaves at `positions`.
    """
    info = jax.api_util.debug_info("shard_map", user_fun, args, {})
    names = info.arg_names or ()
    if all(p < len(names) for p in positions):  # else they are those of another function
        info = info._replace(arg_names=tuple(names[p] for p in positions))
        setattr(fun, _DEBUG_INFO, info)
    return fun


def described_alike(fun: Callable[..., _T], other: Callable[..., Any]) -> Callable[..., _T]:
    """`fun`, in JAX's errors described as `other` is, if that was `described_as`."""
    if hasattr(other, _DEBUG_INFO):
        setattr(fun, _DEBUG_INFO, getattr(other, _DEBUG_INFO))
    return fun


def is_of_other_mesh(error: Exception) -> bool:
    """Whether JAX refused a value whose type has a mesh with other axes manual than those here."""
    return isinstance(error, ValueError) and "should match the aval mesh" in str(error)


def run_with_axes(fun: Callable[[], _T], mesh: AbstractMesh, axes: Sequence[str]) -> _T:
    """Result of trace-time work `fun()` that needs the names of `axes` in scope."""
    result: list[_T] = []

    def record() -> tuple[()]:
        result.append(fun())
        return ()

    trace_with_axes(record, mesh, axes, ())
    return result[0]


# ------------------------------------------------------------------------------ sharding in types


def explicit_axes(mesh: AnyMesh) -> tuple[str, ...]:
    """The axes over which the split of an array is part of its type."""
    return tuple(a for a, kind in axis_types(mesh).items() if kind == AxisType.Explicit)


def type_split(aval: Any) -> tuple[tuple[str, ...], ...]:
    """For each dimension, the axes over which a type says it is split; `()` if it says nothing."""
    sharding = getattr(aval, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return ()
    explicit = explicit_axes(sharding.mesh)
    entries = ((e,) if isinstance(e, str) else tuple(e or ()) for e in sharding.spec.partitions)
    return tuple(tuple(a for a in axes if a in explicit) for axes in entries)


@dataclass(frozen=True)
class Reductions:
    """The axes over which an array is yet to be reduced, and those over which its gradient is.

    Attributes:
      unreduced: each device along these axes holds a summand of the array.
      reduced: each device holds the whole array, whose cotangent is unreduced.
      kind: what combines the summands, from JAX 0.12 on; None for an empty `unreduced`.
    """

    unreduced: frozenset[str] = frozenset()
    reduced: frozenset[str] = frozenset()
    kind: Any = None

    def __bool__(self) -> bool:
        return bool(self.unreduced or self.reduced)

    def over(self, axes: Iterable[str]) -> Reductions:
        """Those over some of the axes."""
        unreduced = self.unreduced.intersection(axes)
        kind = self.kind if unreduced else None
        return Reductions(unreduced, self.reduced.intersection(axes), kind)

    def __or__(self, other: Reductions) -> Reductions:
        return Reductions(
            self.unreduced | other.unreduced, self.reduced | other.reduced, self.kind or other.kind
        )


PARTLY_MANUAL_REDUCTIONS = hasattr(jax.sharding, "UnreducedKind")
"""Whether XLA takes arrays that are unreduced over one axis where another is manual."""


def reductions(spec: PartitionSpec) -> Reductions:
    """What a spec says besides how dimensions are split."""
    return Reductions(spec.unreduced, spec.reduced, getattr(spec, "unreduced_kind", None))


def reduction_kind(name: str | None) -> Any:
    """What combines summands, by its name: "sum", "max" or "min"; None in JAX 0.10, for a sum."""
    kinds = getattr(jax.sharding, "UnreducedKind", None)
    if kinds is None and name not in (None, "sum"):
        raise ValueError(f"this version of JAX has no arrays that are unreduced as a {name}")
    return None if name is None or kinds is None else kinds[name]


def with_reductions(spec: PartitionSpec, found: Reductions) -> PartitionSpec:
    """The spec that splits dimensions as `spec` does."""
    if not found:
        return PartitionSpec(*spec.partitions)
    kind: dict[str, Any] = {} if found.kind is None else {"unreduced_kind": found.kind}
    return PartitionSpec(*spec.partitions, unreduced=found.unreduced, reduced=found.reduced, **kind)


def type_reductions(aval: Any) -> Reductions:
    """What the type of an array says besides how dimensions are split."""
    sharding = getattr(aval, "sharding", None)
    return reductions(sharding.spec) if isinstance(sharding, NamedSharding) else Reductions()


def manual_type_reductions(aval: Any) -> Reductions:
    """What the type of a block says, under `varying_types`."""
    found = getattr(aval, "manual_axis_type", None) or ManualAxisType()
    return Reductions(found.unreduced, found.reduced, getattr(found, "unreduced_kind", None))


def type_on_mesh(
    mesh: AnyMesh,
    splits: Sequence[Sequence[str]],
    shape: Sequence[int],
    dtype: Any,
    weak_type: bool,
    reduces: Reductions = Reductions(),
) -> ShapedArray:
    """Type of an array whose dimensions are split over axes of `mesh`.

    Only Explicit axes become part of the spec. The mesh is part of the type whatever its axes, as
    in JAX, which reads from it on which mesh a result of jit lies.
    """
    explicit = explicit_axes(mesh)
    kept = [tuple(a for a in axes if a in explicit) for axes in splits]
    entries = [axes[0] if len(axes) == 1 else axes or None for axes in kept]
    entries += [None] * (len(shape) - len(entries))
    spec = with_reductions(PartitionSpec(*entries), reduces.over(explicit))
    return shaped_array(shape, dtype, weak_type, NamedSharding(abstract_mesh(mesh), spec))


# -------------------------------------------------------------------------------------- eager

with eval_context():
    _NO_TRACE = jex_core.get_opaque_trace_state()


def is_tracing() -> bool:
    """Whether a transformation is at work here, even if none of the values at hand shows it."""
    return jex_core.get_opaque_trace_state() != _NO_TRACE


def no_mesh() -> contextlib.AbstractContextManager[Any]:
    """No abstract mesh is in scope in this context, also within a program that is being traced."""
    return jax.sharding.use_abstract_mesh(_EMPTY_MESH)


def no_devices_in_scope() -> contextlib.AbstractContextManager[Any]:
    """Programs may run on any devices in this context, as they may outside of `jax.set_mesh`."""
    return jax.set_mesh(Mesh(np.empty((), object), ()))


_EMPTY_MESH = AbstractMesh((), ())


def lowering_config() -> tuple[Any, ...]:
    """The settings of JAX, of this thread, on which the lowering of a primitive depends."""
    return tuple(
        setting(name)
        for name in (
            "jax_enable_x64",
            "jax_default_matmul_precision",
            "jax_threefry_partitionable",
            "jax_use_shardy_partitioner",
            "jax_default_prng_impl",
            "jax_numpy_dtype_promotion",
        )
    )


# No other way leads to the axes that vmap names.
_axis_names = jex_core.unsafe_get_axis_names_DO_NOT_USE  # pyright: ignore[reportPrivateImportUsage]


@functools.lru_cache(maxsize=4)
def _readers(names: tuple[str, ...]) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """(what reads settings that a thread may have of its own, what reads the others)."""
    own = [name for name in names if hasattr(jax.config, name)]
    others = [name for name in names if name not in own]
    return operator.attrgetter(*own), lambda values: tuple(values[name] for name in others)


def tracing_context() -> Hashable:
    """What a traced program may depend on besides its function and the types of its arguments.

    These are the settings of JAX in this thread, what its context managers hand on to the equations
    made in them, and the named axes in scope.
    """
    of_process = jax.config.values
    of_thread, others = _readers(tuple(of_process))
    settings = of_thread(jax.config), others(of_process)
    equation = jex_core.new_jaxpr_eqn([], [], jex_core.primitives.neg_p, {}, set())
    axes = tuple((axis, lax.axis_size(axis)) for axis in _axis_names())
    return settings, equation.ctx, axes


def equation_context(eqn: Any) -> Any:
    """What an equation takes from the settings in force when it was traced; hashable."""
    return eqn.ctx


def checkify_rules() -> dict[Any, Callable[..., Any]]:
    """The table of what `checkify` does to each primitive.

    It has no public name, and primitives without a rule are not checked: programs that they hold
    in other parameters than a jaxpr would be passed over in silence.
    """
    return checkify.checkify.__globals__["error_checks"]


def call_subfunction(fun: Any, args: Sequence[Any]) -> Any:
    """Calls the function that a call primitive, custom_jvp or custom_vjp hands to a trace."""
    return getattr(fun, "call_wrapped", fun)(*args)


def special_value(error: Exception) -> str | None:
    """What a program computed that jax_debug_nans or jax_debug_infs forbids: "nan" or "inf".

    A compiled program says so by an error that is JAX's own affair; jit tells it to users as a
    FloatingPointError.
    """
    return error.args[1] if type(error).__name__ == "InternalFloatingPointError" else None


def ahead_of_time(jitted: Any, types: Sequence[Any]) -> Callable[..., Any]:
    """A function made by jit, compiled for arguments of these types.

    JAX 0.10 refuses to call what is compiled ahead of time on types of less than a byte: it takes
    their layout to be another one.
    """
    if any(bits_of(t.dtype) < 8 for t in types if not is_key_type(t)):
        return jitted
    return jitted.lower(*types).compile()


def bits_of(dtype: Any) -> int:
    """How many bits an element has; a boolean counts as a byte."""
    if jnp.issubdtype(dtype, jnp.bool_):
        return 8
    return (jnp.iinfo if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo)(dtype).bits


def is_key_type(aval: Any) -> bool:
    """Whether an array type is that of random keys, or another one NumPy does not know."""
    return jnp.issubdtype(aval.dtype, jax.dtypes.extended)


def print_equations_as(primitive: Any, shown: Callable[[Any], dict[str, Any]]) -> None:
    """JAX prints equations of `primitive` with these parameters, programs among them indented.

    JAX indents parameters that are jaxprs, and prints what stands for others on one line. The table
    of rules that print otherwise has no public name, nor has the rule for all other equations.
    """
    names = jex_core.new_jaxpr_eqn.__globals__

    def rule(eqn: Any, context: Any, settings: Any) -> Any:
        return names["_pp_eqn"](eqn.replace(params=shown(eqn)), context, settings)

    names["pp_eqn_rules"][primitive] = rule
