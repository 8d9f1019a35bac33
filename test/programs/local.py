"""Operations that each device does alone."""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np

from programs.body import Draw, Rule, union
from programs.exact import Inexact, is_float


def local(function: Callable[..., Any], draw: Draw) -> Rule:
    """`function(xp, *values, **params)`; `xp` is `jax.numpy`, or `numpy` for each device."""

    def on_each_device(mesh, *values, **params):
        return [
            np.asarray(function(np, *(value[device] for value in values), **params))
            for device in range(prod(mesh.values()))
        ]

    return Rule(partial(function, jnp), on_each_device, union, draw)


def one(kinds: str) -> Draw:
    return lambda scope: ([scope.operand(lambda v: v.kind in kinds)], {})


def two(kinds: str) -> Draw:
    """Draws two operands of one type."""

    def draw(scope):
        first = scope.operand(lambda v: v.kind in kinds)
        return (first, scope.like(first)), {}

    return draw


def draw_where(scope):
    condition = scope.operand(lambda v: v.kind == "b")
    first = scope.operand(lambda v: v.shape == scope[condition].shape or not scope[condition].shape)
    return (condition, first, scope.like(first)), {}


def convert(xp, x, dtype):
    result = x.astype(jnp.dtype(dtype))
    if xp is np and is_float(x.dtype) and is_float(result.dtype) and np.any(result != x):
        raise Inexact
    return result


def draw_convert(scope):
    dtype = scope.choose(["float32", "int32", "bfloat16", "bool"])
    return [scope.operand(lambda v: v.dtype != jnp.dtype(dtype))], {"dtype": dtype}


def constant(xp, shape, dtype):
    return xp.asarray(np.arange(prod(shape)).reshape(shape).astype(dtype))


def draw_constant(scope):
    shape = tuple(scope.choose([1, 2, 4]) for _ in range(scope.choose([0, 1, 2])))
    return (), {"shape": shape, "dtype": scope.choose(["float32", "int32"])}


def draw_dot(scope):
    left = scope.operand(lambda v: v.kind in "if" and v.shape and v.shape[-1] > 0)
    right = scope.operand(
        lambda v: v.dtype == scope[left].dtype and v.shape[:1] == scope[left].shape[-1:]
    )
    return (left, right), {}


def draw_reshape(scope):
    x = scope.operand()
    shape = scope[x].shape
    options = [(prod(shape),), (1, *shape), (*shape, 1)]
    for dim, size in enumerate(shape):
        options.append((*shape[:dim], prod(shape[dim : dim + 2]), *shape[dim + 2 :]))
        if size % 2 == 0:
            options.append((*shape[:dim], 2, size // 2, *shape[dim + 1 :]))
    return [x], {"shape": scope.choose(options)}


def draw_transpose(scope):
    x = scope.operand(lambda v: len(v.shape) > 1)
    return [x], {"axes": scope.shuffled(range(len(scope[x].shape)))}


def reduce(xp, x, how, axis, keepdims):
    if how == "sum":
        dtype = jnp.dtype("int32") if x.dtype == bool else x.dtype
        return xp.sum(x, axis, dtype=dtype, keepdims=keepdims)
    return getattr(xp, how)(x, axis, keepdims=keepdims)


def draw_reduce(scope):
    how = scope.choose(["sum", "max", "min"])
    x = scope.operand(lambda v: v.shape and (how == "sum" or 0 not in v.shape))
    axis = scope.choose([None, *range(len(scope[x].shape))])
    return [x], {"how": how, "axis": axis, "keepdims": scope.choose([False, True])}


def along_dim(kinds: str) -> Draw:
    def draw(scope):
        x, axis = scope.operand_and_dim(lambda v, dim: v.kind in kinds)
        return [x], {"axis": axis}

    return draw


def slice_dim(xp, x, axis, start, stop, step):
    return x[(slice(None),) * axis + (slice(start, stop, step),)]


def draw_slice(scope):
    x, axis = scope.operand_and_dim(lambda v, dim: v.shape[dim] > 0)
    size = scope[x].shape[axis]
    start = scope.choose(range(size))
    stop = scope.choose(range(size, start, -1))
    return [x], {"axis": axis, "start": start, "stop": stop, "step": scope.choose([1, 2])}


def draw_pick(scope):
    x, axis = scope.operand_and_dim(lambda v, dim: v.shape[dim] > 0)
    return (x, scope.scalar("i")), {"axis": axis}


def draw_concatenate(scope):
    x, axis = scope.operand_and_dim(lambda v, dim: True)
    shape = scope[x].shape
    y = scope.operand(
        lambda v: (
            v.dtype == scope[x].dtype
            and len(v.shape) == len(shape)
            and (v.shape[:axis], v.shape[axis + 1 :]) == (shape[:axis], shape[axis + 1 :])
        )
    )
    return (x, y), {"axis": axis}


LOCAL: dict[str, Rule] = {
    "neg": local(lambda xp, x: -x, one("if")),
    "abs": local(lambda xp, x: xp.abs(x), one("if")),
    "sign": local(lambda xp, x: xp.sign(x), one("if")),
    "square": local(lambda xp, x: x * x, one("if")),
    "fold": local(lambda xp, x: xp.fmod(x, xp.asarray(3, x.dtype)), one("if")),
    "not": local(lambda xp, x: xp.logical_not(x), one("b")),
    "add": local(lambda xp, x, y: x + y, two("if")),
    "sub": local(lambda xp, x, y: x - y, two("if")),
    "mul": local(lambda xp, x, y: x * y, two("if")),
    "max": local(lambda xp, x, y: xp.maximum(x, y), two("if")),
    "less": local(lambda xp, x, y: x < y, two("if")),
    "equal": local(lambda xp, x, y: x == y, two("bif")),
    "xor": local(lambda xp, x, y: x ^ y, two("bi")),
    "where": local(lambda xp, condition, x, y: xp.where(condition, x, y), draw_where),
    "convert": local(convert, draw_convert),
    "constant": local(constant, draw_constant),
    "dot": local(lambda xp, x, y: xp.tensordot(x, y, 1), draw_dot),
    "reshape": local(lambda xp, x, shape: xp.reshape(x, shape), draw_reshape),
    "transpose": local(lambda xp, x, axes: xp.transpose(x, axes), draw_transpose),
    "reduce": local(reduce, draw_reduce),
    "cumsum": local(lambda xp, x, axis: xp.cumsum(x, axis, dtype=x.dtype), along_dim("if")),
    "flip": local(lambda xp, x, axis: xp.flip(x, axis), along_dim("bif")),
    "slice": local(slice_dim, draw_slice),
    "pick": local(lambda xp, x, i, axis: xp.take(x, i % x.shape[axis], axis), draw_pick),
    "concatenate": local(lambda xp, x, y, axis: xp.concatenate([x, y], axis), draw_concatenate),
}

# The only operations that round. Their results go to the outputs of a program and to nothing else,
# and are compared within a tolerance.
SMOOTH: dict[str, Rule] = {
    "tanh": local(lambda xp, x: xp.tanh(x), one("f")),
    "exp": local(lambda xp, x: xp.exp(-xp.abs(x)), one("f")),
    "log1p": local(lambda xp, x: xp.log1p(xp.abs(x)), one("f")),
    "sqrt": local(lambda xp, x: xp.sqrt(xp.abs(x)), one("f")),
}
