"""Jaxprs and their equations: the programs that they hold, and how to replace them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend import core as jex_core
from jax.extend.core import Primitive
from jax.interpreters import ad
from jax.sharding import PartitionSpec

from shmap_compiler.base.untyped import (
    AnyValue,
    Atom,
    Aval,
    Eqn,
    Function,
    Jaxpr,
    Parameter,
    Setting,
    Unchecked,
    Wrapped,
)

# ClosedJaxpr and Jaxpr are two classes up to JAX 0.11 and one class from 0.12 on.
_core: Any = jex_core  # as Any, since the two lines of JAX differ in what they declare public
ClosedJaxpr: Any = _core.ClosedJaxpr

_CLOSED_IS_SEPARATE = ClosedJaxpr is not jex_core.Jaxpr

_JAXPRS = (jex_core.Jaxpr, ClosedJaxpr)


def is_jaxpr(value: object) -> bool:
    return isinstance(value, _JAXPRS)


class _Kinds(dict[type, int]):
    """The kind of each type: 1 for programs, 2 for lists that may contain some, 0 for others."""

    def __missing__(self, type_: type) -> int:
        kind = 1 if issubclass(type_, _JAXPRS) else 2 if issubclass(type_, (tuple, list)) else 0
        self[type_] = kind
        return kind


# Every walk asks this of every parameter; looking up the exact type is the fastest answer.
_kinds = _Kinds()


def jaxprs_in(params: dict[str, Parameter]) -> Sequence[Jaxpr]:
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


def replace_jaxprs_in(
    params: dict[str, Parameter], replacement: Callable[[Jaxpr], Jaxpr]
) -> dict[str, Parameter]:
    """The parameters of an equation, with a replacement for each program of `jaxprs_in`.

    Returns `params` itself if every program is its own replacement.
    """

    def replaced(value: Parameter) -> Parameter:
        kind = _kinds[type(value)]
        if kind == 1:
            return replacement(value)
        if kind != 2:
            return value
        parts = [replacement(v) if _kinds[type(v)] == 1 else v for v in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        make = getattr(value, "_make", type(value))  # named tuples take their items one by one
        return make(parts)

    new = {name: replaced(value) for name, value in params.items()}
    return new if any(new[name] is not value for name, value in params.items()) else params


def defining_file(function: Jaxpr | Wrapped) -> str:
    """The file with a function that JAX traced or wrapped; empty if it is unknown."""
    return open_jaxpr(function).debug_info.func_filename or ""


def is_defined_in_jax(function: Jaxpr | Wrapped) -> bool:
    """Whether a function, traced or wrapped by JAX, is one of JAX's own."""
    return defining_file(function).startswith(_FOLDER_OF_JAX)


_FOLDER_OF_JAX = os.path.join(os.path.dirname(jax.__file__), "")


def has_usual_rule(eqn: Eqn) -> bool:
    """Whether a derivative rule of JAX's own is known to be the derivative of what it computes.

    That is so for those of relu, softmax, logsumexp and solve. No public name tells who made them.
    """
    called, trace = eqn.params.get("call_jaxpr"), eqn.source_info.traceback
    frames = () if trace is None else (frame.file_name for frame in trace.frames)
    files = [*itertools.takewhile(lambda path: path.startswith(_FOLDER_OF_JAX), frames)]
    if called is not None:
        files.append(defining_file(called))
    return any(path.startswith(_WITH_USUAL_RULES) for path in files)


_WITH_USUAL_RULES = tuple(
    os.path.join(_FOLDER_OF_JAX, "_src", *path.split("/"))
    for path in ("nn/", "ops/", "numpy/reductions.py", "lax/linalg.py")
)


def is_closed(jaxpr: Jaxpr) -> bool:
    """Whether `jaxpr` can stand where JAX wants a ClosedJaxpr."""
    return isinstance(jaxpr, ClosedJaxpr)


def open_jaxpr(jaxpr: Jaxpr) -> Jaxpr:
    """The Jaxpr inside a ClosedJaxpr; an open Jaxpr as it is."""
    return jaxpr.jaxpr if is_closed(jaxpr) else jaxpr


def replace_jaxpr(jaxpr: Jaxpr, **fields: Parameter) -> Jaxpr:
    """Copy of an open or closed jaxpr with other equations, variables or effects."""
    if _CLOSED_IS_SEPARATE and is_closed(jaxpr):
        return jaxpr.replace(jaxpr=jaxpr.jaxpr.replace(**fields))
    if "constvars" in fields and is_closed(jaxpr):
        fields["consts"] = jaxpr.consts  # JAX drops them otherwise
    return jaxpr.replace(**fields)


def close_jaxpr(jaxpr: Jaxpr) -> Jaxpr:
    """A ClosedJaxpr without constants around an open jaxpr that has none."""
    if _CLOSED_IS_SEPARATE and not is_closed(jaxpr):
        return ClosedJaxpr(jaxpr, ())
    return jaxpr


def program_of_equations(
    jaxpr: Jaxpr, eqns: Sequence[Eqn], invars: Sequence[Atom], outvars: Sequence[Atom]
) -> Jaxpr:
    """A closed jaxpr without constants of some equations of `jaxpr`."""
    inner = open_jaxpr(jaxpr)
    fields = {
        "constvars": [],
        "invars": list(invars),
        "outvars": list(outvars),
        "eqns": list(eqns),
        "effects": frozenset().union(*(eqn.effects for eqn in eqns)),
        "debug_info": inner.debug_info.with_unknown_names(),
    }
    if _CLOSED_IS_SEPARATE:
        return ClosedJaxpr(inner.replace(**fields), ())
    return inner.replace(**fields, consts=())


_backward_pass = getattr(ad, "backward_pass", None)  # from JAX 0.12 on


def transpose(
    jaxpr: Jaxpr, linear: Sequence[bool], known: Sequence[AnyValue], cotangents: Sequence[AnyValue]
) -> list[AnyValue]:
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


def constants_to_inputs(closed: Jaxpr) -> tuple[Jaxpr, list[AnyValue]]:
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
        return ClosedJaxpr(jaxpr.replace(**fields), ()), consts
    return closed.replace(**fields, consts=()), consts


def scan_counts(params: dict[str, Parameter]) -> tuple[int, int]:
    """(number of constants, number of carries) of a scan equation."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def saved_operands(call: Eqn) -> list[int | None]:
    """For each residual of a call of a `custom_vjp` function, the operand that it is, or None.

    This is known once JAX has traced the forward rule, which returns only the other residuals,
    before its results.
    """
    _, _, operands = call.params["out_trees"]()
    return list(operands)


def equation_context(eqn: Eqn) -> Setting:
    """What an equation takes from the settings in force when it was traced; hashable."""
    return eqn.ctx


def forbidden_axes_at(eqn: Eqn) -> frozenset[str]:
    """The axes over which `jax.sharding.no_collectives` forbade collectives where it was traced."""
    return getattr(eqn.ctx, "no_collectives", frozenset())


def is_forbidden(error: Exception) -> bool:
    """Whether JAX rejected a collective that `jax.sharding.no_collectives` forbids."""
    return type(error).__name__ == "ForbiddenCollectiveError"


@dataclass(frozen=True)
class RegionOfJax:
    """A `jax.shard_map` as it is traced.

    Attributes:
      jaxpr: closed.
      manual_axes: those over which it is per-device; the axes of regions around it not included.
    """

    name: str
    jaxpr: Jaxpr
    manual_axes: frozenset[str]
    in_specs: tuple[PartitionSpec, ...]
    out_specs: tuple[PartitionSpec, ...]
    check_vma: bool


def region_of_jax(eqn: Eqn) -> RegionOfJax:
    """What an equation of JAX's own primitive `shard_map` holds."""
    params = eqn.params
    return RegionOfJax(
        name=params["jaxpr"].debug_info.func_name,
        jaxpr=close_jaxpr(params["jaxpr"]),
        manual_axes=params["newly_manual_axes"],
        in_specs=params["in_specs"],
        out_specs=params["out_specs"],
        check_vma=params["check_vma"],
    )


def trace_region_of_jax(
    primitive: Primitive, fun: Function, types: Sequence[Aval], params: dict[str, Parameter]
) -> tuple[Jaxpr, Callable[[Sequence[AnyValue]], AnyValue]]:
    """Traces what JAX hands to a trace that finds a `jax.shard_map`.

    Returns:
      The closed jaxpr, and what makes of its results what JAX expects in return.
    """
    found: list[Any] = []

    def bound(*args: AnyValue) -> list[AnyValue]:
        found.append(primitive.bind(*args, subfuns=(fun,), **params))
        return list(found[-1])

    jaxpr = jax.make_jaxpr(bound)(*types)

    def returned(values: Sequence[AnyValue]) -> AnyValue:
        left = iter(values)
        return found[-1].map(lambda _: next(left))

    return jaxpr, returned


def print_equations_as(
    primitive: jex_core.Primitive, shown: Callable[[Eqn], dict[str, Parameter]]
) -> None:
    """JAX prints equations of `primitive` with these parameters, programs among them indented.

    JAX indents parameters that are jaxprs, and prints what stands for others on one line. The table
    of rules that print otherwise has no public name, nor has the rule for all other equations.
    """
    names = jex_core.new_jaxpr_eqn.__globals__

    def rule(eqn: Eqn, context: Setting, settings: Setting) -> Unchecked:
        return names["_pp_eqn"](eqn.replace(params=shown(eqn)), context, settings)

    names["pp_eqn_rules"][primitive] = rule
