"""What bodies do to dual values: exact derivatives, by the product rule.

Every operation here is linear in some of its operands, or has a slope that changes only at kinks.
What a program computes from small numbers is exact in float64, and so are its derivatives.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from oracle import Mesh

from programs.body import Body, Op, Stuck, interpret
from programs.control import CONTROL
from programs.dual import Dual, each, innermost, plus, times, zeros
from programs.exact import is_float
from programs.interpret import apply_oracle
from programs.value import Value

# The operands that an operation is linear in: in those of one group together, in groups by turns.
ALONE, TOGETHER, BY_TURNS = ({0},), ({0, 1},), ({0}, {1})
LINEAR = {
    **dict.fromkeys(["neg", "reduce", "cumsum"], ALONE),
    **dict.fromkeys(["reshape", "transpose", "flip", "slice", "pick"], ALONE),
    **dict.fromkeys(["psum", "pmean", "psum_scatter", "all_gather", "all_to_all"], ALONE),
    **dict.fromkeys(["ppermute", "pshuffle", "pbroadcast"], ALONE),
    **dict.fromkeys(["add", "sub", "concatenate"], TOGETHER),
    **dict.fromkeys(["mul", "dot"], BY_TURNS),
    "where": ({1, 2},),
}

# The slope in each operand. At a kink it is what JAX takes it for.
SLOPES = {
    "sign": [np.zeros_like],
    "fold": [np.ones_like],
    "abs": [lambda x: np.where(x < 0, -1, 1)],
    "max": [lambda x, y: (1 + np.sign(x - y)) / 2, lambda x, y: (1 + np.sign(y - x)) / 2],
}


def run_dual(order: int, mesh: Mesh, body: Body, *values: Any) -> tuple[Any, ...]:
    """What all devices compute from floats that hold derivatives up to `order`."""
    return interpret(body, values, partial(apply_dual, order, mesh))


def apply_dual(order: int, mesh: Mesh, op: Op, *values: Any) -> Any:
    if order == 0:
        return apply_oracle(mesh, op, *values)
    if op.name in CONTROL:
        run = partial(run_dual, order, mesh)
        return CONTROL[op.name].oracle(run, mesh, *values, **op.params)
    if op.name == "square":
        return apply_dual(order, mesh, Op("mul"), *values, *values)
    apply = partial(apply_dual, order - 1, mesh, op)
    primal = apply(*map(primal_of, values))
    if not (isinstance(primal, Dual) or is_float(primal[0].dtype)):
        return primal
    tangent = each(zeros, primal)
    for term in terms(apply, op, values):
        tangent = each(plus, tangent, term)
    return Dual(primal, tangent)


def terms(apply, op: Op, values: Sequence[Any]) -> Iterator[Any]:
    """What the tangent of the result is the sum of."""
    dual = {number for number, value in enumerate(values) if isinstance(value, Dual)}
    for number, slope in enumerate(SLOPES.get(op.name, ())):
        if number in dual:
            blocks = zip(*map(innermost, values), strict=True)
            slopes = [slope(*operands) for operands in blocks]
            yield each(partial(times, slopes), values[number].tangent)
    for group in LINEAR.get(op.name, ()):
        if group <= dual:
            yield apply(*(v.tangent if n in group else primal_of(v) for n, v in enumerate(values)))


def primal_of(value: Any) -> Any:
    return value.primal if isinstance(value, Dual) else value


def check_derivable(
    derivatives: Sequence[str], op: Op, operands: Sequence[Value], results: Sequence[Value]
) -> None:
    """Raises `Stuck` if `op` lacks the derivatives: "grad" and "jvp", the first one first."""
    floats = [value for value in results if value.kind == "f"]
    if any(value.dtype != np.float32 for value in floats):
        raise Stuck  # derivatives have more digits than bfloat16
    if all(value.kind != "f" for value in operands):
        return
    if op.name == "while_loop" and "grad" in derivatives:
        raise Stuck  # in JAX, since the number of steps is not known
    if op.params.get("wrapper") == "custom_vjp" and derivatives[0] == "jvp":
        raise Stuck  # in JAX, since the rule is for grad only
    if op.params.get("wrapper") == "custom_jvp" and _has_custom_vjp(op):
        raise Stuck  # likewise: the rule of custom_jvp takes a forward derivative
    ruled = op.name in CONTROL or op.name in LINEAR or op.name in SLOPES or op.name == "square"
    if floats and not (ruled and op.params.get("how", "sum") == "sum"):
        raise Stuck


def _has_custom_vjp(op: Op) -> bool:
    return any(inner.params.get("wrapper") == "custom_vjp" for inner in op.params["body"].walk())
