"""Compares the gradients of a generated source with those of the jitted function."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from shmap_compiler.base.errors import ShmapError
from shmap_compiler.base.untyped import AnyValue, Function, Leaf, PyTree
from shmap_compiler.simulate.agreement import default_tolerance, distances, largest_number
from shmap_compiler.simulate.rounding import placed_as, rounded

_FEW = 4
"""How many times as much as those for rounded arguments gradients may change."""

_SCALES = 1, 2.0**20
"""Of the cotangents. A rule may leave small ones as they are, as one that clips them does."""


def differing_gradients(
    jitted: Function, source: Function, args: Sequence[PyTree], precision: float
) -> str:
    """How the gradients of a source differ from those of a jitted function.

    They are compared for one drawn cotangent, near the arguments: these may be all zeros, for which
    gradients are zero as well, or which are at the kink of a function.

    Args:
      source: takes the arguments of the jitted function, and returns results with equal leaves.
      precision: of the narrowest type that the program computes in.

    Returns:
      The end of a sentence that begins with "its gradients"; "" if they do not differ, or if the
      jitted function has none. Where it has no gradient, forward derivatives are compared.
    """
    rng = np.random.default_rng(0)
    near = jax.tree.map(lambda leaf: _near(leaf, rng), tuple(args))
    cotangents = [
        jnp.asarray(_drawn(leaf.shape, leaf.dtype, rng))
        for leaf in jax.tree.leaves(jax.eval_shape(jitted, *near))
        if _is_smooth(leaf)
    ]
    if not cotangents:
        return ""

    def operands(args: Sequence[PyTree], scale: float) -> tuple[PyTree, ...]:
        return *_split(args), [scale * ct for ct in cotangents]

    for derivative in (jax.grad, _along_arguments):
        try:
            theirs = jax.jit(derivative(_total(jitted, near))).trace(*operands(near, 1.0))
        except Exception:  # whatever JAX raises where a derivative is not defined
            continue
        try:
            ours = jax.jit(derivative(_total(source, near))).trace(*operands(near, 1.0))
        except Exception as error:
            return f"cannot be computed ({_shown(error)})"
        try:
            programs = theirs.lower().compile(), ours.lower().compile()
            points = [(operands(near, scale), operands(rounded(near), scale)) for scale in _SCALES]
            differ = any(_differ(*programs, *point, precision) for point in points)
        except Exception as error:  # of XLA, such as too little memory
            return f"could not be compared ({_shown(error)})"
        return "are not those of the jitted function" if differ else ""
    return ""


def _shown(error: Exception) -> str:
    """The kind of an error and its first sentence; what was found, of an error of ours."""
    text = error.problems[0].found if isinstance(error, ShmapError) else str(error)
    sentence = text.strip().partition("\n")[0].partition(". ")[0]
    return f"{type(error).__name__}: {sentence}"


def _along_arguments(total: Function) -> Function:
    """The forward derivative of a function, which loops of unknown length have, too."""
    return lambda first, *rest: [jax.jvp(lambda x: total(x, *rest), (first,), (first,))[1]]


def _split(args: Sequence[PyTree]) -> tuple[list[Leaf], list[Leaf]]:
    """The leaves that have a derivative, and the others."""
    leaves = jax.tree.leaves(tuple(args))
    smooth = [leaf for leaf in leaves if _is_smooth(leaf)]
    return smooth, [leaf for leaf in leaves if not _is_smooth(leaf)]


def _total(fun: Function, args: Sequence[PyTree]) -> Function:
    """The function whose gradient is that of `fun` for cotangents.

    They are factors of a sum, because a cotangent would have to be split as its result is.
    """
    leaves, tree = jax.tree.flatten(tuple(args))
    is_smooth = [_is_smooth(leaf) for leaf in leaves]

    def total(smooth: Sequence[AnyValue], others: Sequence[AnyValue], cts: Sequence[AnyValue]):
        parts = iter(smooth), iter(others)
        full = [next(parts[0] if each else parts[1]) for each in is_smooth]
        results, _ = _split([fun(*tree.unflatten(full))])
        pairs = zip(results, cts, strict=True)
        return sum(jnp.sum(jnp.real(r.astype(ct.dtype) * ct)) for r, ct in pairs)

    return total


def _differ(
    theirs: jax.stages.Compiled,
    ours: jax.stages.Compiled,
    operands: Sequence[PyTree],
    moved: Sequence[PyTree],
    precision: float,
) -> bool:
    """Whether gradients differ by more than half of their digits, and by more than rounding.

    Infinite and undefined gradients of the jitted function are not compared.

    Args:
      theirs: computes what is expected.
      moved: the operands for rounded arguments.
    """
    runs = ours(*operands), theirs(*operands), theirs(*moved)
    gradients = [[np.asarray(each) for each in run] for run in runs]
    largest = max(map(largest_number, gradients[1]), default=0.0)
    for found, expected, changed in zip(*gradients, strict=True):
        found = np.where(np.isfinite(expected), found, expected)
        absolute, relative = distances(found, expected)
        _, change = distances(changed, expected)
        eps = max(float(jnp.finfo(expected.dtype).eps), precision)
        # A gradient that is 0 but for rounding has no right digits.
        noise = max(default_tolerance(expected.dtype), 2 * precision) * largest
        if relative > max(eps**0.5, _FEW * change) and absolute > noise:
            return True
    return False


def _is_smooth(leaf: Leaf) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact)


def _near(leaf: Leaf, rng: np.random.Generator) -> AnyValue:
    """An argument with its numbers moved a little, away from 0, which they may have to be above."""
    if not _is_smooth(leaf):
        return leaf
    values = np.asarray(leaf)
    step = np.abs(rng.standard_normal(values.shape)) * ((largest_number(values) or 1.0) / 32)
    moved = values + np.where(np.real(values) < 0, -step, step)
    return placed_as(leaf, moved.astype(values.dtype))


def _drawn(shape: Sequence[int], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
    """A cotangent, of a type that is not narrow."""
    values = rng.standard_normal(shape)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return (values + 1j * rng.standard_normal(shape)).astype(dtype)
    return values.astype(jnp.promote_types(dtype, jnp.float32))
