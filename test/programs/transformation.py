"""JAX's transformations, and what each of them does to a function of NumPy arrays.

A function takes arrays, and gives a tuple of items. An item is an array; `grad` gives one item, the
tuple of its gradients. The oracle knows of a gradient only what it says in one direction, which
takes one forward derivative: its item is a scalar, the sum of all entries times `numbers`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from programs.dual import Dual, each, innermost
from programs.exact import is_float

Function = Callable[..., tuple[Any, ...]]
BATCH = 2


@dataclass(frozen=True)
class Transformation:
    name: str
    in_axes: tuple[int | None, ...] = ()  # of vmap

    def jax(self, function: Function) -> Function:
        return JAX[self.name](function, *([self.in_axes] if self.in_axes else []))

    def oracle(self, function: Function) -> Function:
        return ORACLE[self.name](function, *([self.in_axes] if self.in_axes else []))


def numbers(seed: int, shape: Sequence[int]) -> np.ndarray:
    """A direction in which to derive, or weights. Of a scalar the weight is one.

    So what stands for a gradient in the oracle, already a weighted sum, is not weighted again.
    """
    if not shape:
        return np.float32(1)
    return np.random.default_rng(seed).choice(np.float32([-2, -1, 1, 2]), shape)


def floats(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if is_float(innermost(value).dtype)]


def with_floats(values: Sequence[Any], replacements: Sequence[Any]) -> list[Any]:
    """The values, the floats among them replaced."""
    rest = iter(replacements)
    return [next(rest) if is_float(innermost(value).dtype) else value for value in values]


def directions(args: Sequence[Any]) -> list[np.ndarray]:
    """In which the floats among the arguments move."""
    return [numbers(seed, innermost(x).shape) for seed, x in enumerate(floats(args))]


# ------------------------------------------------------------------------------------------- JAX


def weighted_sum(items: Sequence[Any]) -> Any:
    """Of the floats in all items."""
    terms = [
        jnp.sum(part * numbers(seed, part.shape))
        for number, item in enumerate(items)
        for seed, part in (enumerate(item) if isinstance(item, tuple) else [(number, item)])
        if is_float(part.dtype)
    ]
    return sum(terms, jnp.float32(0))


def grad_jax(function):
    def gradient(*args):
        def scalar(xs):
            return weighted_sum(function(*with_floats(args, xs)))

        return (tuple(jax.grad(scalar)(floats(args))),)

    return gradient


def jvp_jax(function):
    def pushed(*args):
        def of_floats(*xs):
            return function(*with_floats(args, xs))

        # JAX's rules of jvp take no arrays of NumPy.
        tangents = map(jnp.asarray, directions(args))
        values, tangents = jax.jvp(of_floats, floats(args), list(tangents))
        return (*values, *(t for t in tangents if isinstance(t, tuple) or is_float(t.dtype)))

    return pushed


JAX: dict[str, Callable[..., Function]] = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "vmap": lambda function, in_axes: jax.vmap(function, in_axes),
    "grad": grad_jax,
    "jvp": jvp_jax,
}


# ---------------------------------------------------------------------------------------- oracle


def derive(function, args) -> tuple[list[Any], list[Any]]:
    """The items of the function, and their tangents: `None` where an item is no float."""
    moving = map(moved, floats(args), directions(args))
    items = function(*with_floats(args, list(moving)))
    return (
        [item.primal if isinstance(item, Dual) else item for item in items],
        [item.tangent if isinstance(item, Dual) else None for item in items],
    )


def moved(value: Any, direction: np.ndarray) -> Dual:
    return Dual(value, constant(direction, value))


def constant(array: np.ndarray, value: Any) -> Any:
    """The array, as dual as the value is."""
    if not isinstance(value, Dual):
        return array.astype(value.dtype)
    return Dual(constant(array, value.primal), constant(np.zeros_like(array), value.tangent))


def grad_oracle(function):
    def in_one_direction(*args):
        _, tangents = derive(function, args)
        sums = [
            each(partial(weighted, number), tangent)
            for number, tangent in enumerate(tangents)
            if tangent is not None
        ]
        return (reduce(partial(each, np.add), sums),)

    return in_one_direction


def weighted(seed: int, array: np.ndarray) -> np.ndarray:
    return np.sum(array * numbers(seed, array.shape))


def jvp_oracle(function):
    def pushed(*args):
        values, tangents = derive(function, args)
        return (*values, *(tangent for tangent in tangents if tangent is not None))

    return pushed


def vmap_oracle(function, in_axes):
    def batched(*args):
        rows = [function(*map(partial(element, index), args, in_axes)) for index in range(BATCH)]
        return tuple(each(joined, *items) for items in zip(*rows, strict=True))

    return batched


def element(index: int, batch: Any, axis: int | None) -> Any:
    if axis is None:
        return batch
    return each(lambda array: np.asarray(np.take(array, index, axis)), batch)


def joined(*arrays: np.ndarray) -> np.ndarray:
    return np.stack(arrays)


ORACLE: dict[str, Callable[..., Function]] = {
    "jit": lambda function: function,
    "checkpoint": lambda function: function,
    "vmap": vmap_oracle,
    "grad": grad_oracle,
    "jvp": jvp_oracle,
}


def in_one_direction(gradients: Sequence[np.ndarray], batch_rank: int) -> np.ndarray:
    """What the oracle says of gradients, which have `batch_rank` leading dimensions of vmaps."""
    total = 0
    for seed, gradient in enumerate(gradients):
        terms = gradient * numbers(seed, gradient.shape[batch_rank:])
        total += np.sum(terms, tuple(range(batch_rank, gradient.ndim)))
    return total
