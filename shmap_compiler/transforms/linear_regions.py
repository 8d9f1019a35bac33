"""Transposes linear programs in which regions and branches stay whole.

`jax.linear_transpose` first evaluates what does not depend on linear inputs. So values that a
region recomputes would move out of it, callbacks would run once more, and operands of branches
would be copied in each step of a loop. Therefore regions and branches are replaced by primitives
that define their own transposes.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import lax
from jax.extend import core as jex_core
from jax.interpreters import ad

from shmap_compiler.base import jax_compat
from shmap_compiler.base.jax_compat import close_jaxpr, constants_to_inputs, open_jaxpr
from shmap_compiler.base.untyped import AnyValue, Eqn, Jaxpr
from shmap_compiler.jaxprs.building import where
from shmap_compiler.jaxprs.held_programs import REGIONS, RULE_FOLLOWING
from shmap_compiler.jaxprs.rewriting import Names, Rewriter
from shmap_compiler.transforms.branch_axes import UNKNOWN_AXES, BranchAxes
from shmap_compiler.transforms.checkpoint import split_in_scope


def transpose(
    jaxpr: Jaxpr,
    linear: Sequence[bool],
    known: Sequence[AnyValue],
    cotangents: Sequence[AnyValue],
    axes: BranchAxes,
) -> list[AnyValue]:
    """The cotangents of those inputs of a closed jaxpr in which it is linear.

    Args:
      known: values of the other inputs.
      cotangents: of the outputs.
      axes: of the branches of the program.
    """
    return jax_compat.transpose(axes.rewriter(_Whole).jaxpr(jaxpr), linear, known, cotangents)


_whole_p = jex_core.Primitive("linear_region")
"""Stands for the equation `eqn`, a region or a `cond`, in a program with branches of these axes."""
_whole_p.multiple_results = True
_whole_p.def_effectful_abstract_eval(
    lambda *_, eqn, axes: ([v.aval for v in eqn.outvars], eqn.effects)
)


class _Whole(Rewriter):
    def __init__(self, axes: BranchAxes):
        super().__init__()
        self._axes = axes

    def equation(self, eqn: Eqn, names: Names) -> list[Eqn]:
        name = eqn.primitive.name
        if name == "cond" or name in REGIONS:
            return [eqn.replace(primitive=_whole_p, params={"eqn": eqn, "axes": self._axes})]
        return super().equation(eqn, names) if name in RULE_FOLLOWING else [eqn]


def _transpose(
    cotangents: Sequence[AnyValue], *args: AnyValue, eqn: Eqn, axes: BranchAxes
) -> list[AnyValue]:
    linear = [ad.is_undefined_primal(a) for a in args]
    known = [a for a, is_linear in zip(args, linear, strict=True) if not is_linear]
    cotangents = [ad.instantiate_zeros(ct) for ct in cotangents]
    rule = _of_branches if eqn.primitive.name == "cond" else _of_region
    results = iter(rule(eqn, linear, known, cotangents, axes))
    return [next(results) if is_linear else None for is_linear in linear]


ad.primitive_transposes[_whole_p] = _transpose


def _of_region(
    eqn: Eqn,
    linear: Sequence[bool],
    known: Sequence[AnyValue],
    cotangents: Sequence[AnyValue],
    axes: BranchAxes,
) -> Sequence[AnyValue]:
    """A region that recomputes the values of a region and transposes it."""
    count = len(known)

    program = close_jaxpr(eqn.params["jaxpr"])
    parts = split_in_scope(program, linear, axes).with_unknown_outputs_only()
    results = len(parts.unknown_out) - sum(parts.unknown_out)
    residuals = len(open_jaxpr(parts.known).outvars) - results
    cotangents = list(where(parts.unknown_out, cotangents))

    def backward(*blocks):
        saved = jex_core.jaxpr_as_fun(parts.known)(*blocks[:count])[results:]
        of_staged = [False] * residuals + [True] * sum(linear)
        return transpose(parts.staged, of_staged, saved, blocks[count:], UNKNOWN_AXES)

    traced, constants = constants_to_inputs(jax.make_jaxpr(backward)(*known, *cotangents))
    barriers = eqn.params["prevent_cse"]
    if isinstance(barriers, tuple):  # one for each operand
        of_known = [b for b, is_linear in zip(barriers, linear, strict=True) if not is_linear]
        barriers = (True,) * len(constants) + (*of_known,) + (True,) * len(cotangents)
    params = {**eqn.params, "jaxpr": open_jaxpr(traced), "prevent_cse": barriers}
    return eqn.primitive.bind(*constants, *known, *cotangents, **params)


def _of_branches(
    eqn: Eqn,
    linear: Sequence[bool],
    known: Sequence[AnyValue],
    cotangents: Sequence[AnyValue],
    axes: BranchAxes,
) -> Sequence[AnyValue]:
    index, *operands = known

    def transposed(branch: Jaxpr):
        return lambda operands, cts: list(transpose(branch, linear[1:], operands, cts, axes))

    return lax.switch(index, list(map(transposed, eqn.params["branches"])), operands, cotangents)
