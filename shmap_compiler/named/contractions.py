"""Products contracted over named axes and dimensions.

`xmap` makes one product of the product and the `psum` after it (`xmap/contraction.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from shmap_compiler.base.errors import Problem, SpecError
from shmap_compiler.base.untyped import AnyValue, Setting
from shmap_compiler.named import reductions

_Dimensions = tuple[Sequence[int], Sequence[int]]


def pdot(
    x: ArrayLike,
    y: ArrayLike,
    axis_name: str | Sequence[str],
    pos_contract: _Dimensions = ((), ()),
    pos_batch: _Dimensions = ((), ()),
    precision: Setting = None,
) -> jax.Array:
    """Multiplies two arrays, and sums the products over named axes and dimensions.

    Named axes of both arrays that are not summed are batch axes. The result has all axes that are
    not summed.

    Args:
      x: An array.
      y: Another array.
      axis_name: The named axes to sum over.
      pos_contract: The dimensions of `x`, and those of `y`, to sum over.
      pos_batch: The dimensions of both that are batch dimensions.
      precision: As for `jax.lax.dot_general`.

    Examples:
      >>> f = xmap(lambda x, y: named.pdot(x, y, "k"), in_axes=(["n", "k"], ["k", "m"]),
      ...          out_axes=["n", "m"])
      >>> y = x.reshape(8, 2)
      >>> jnp.allclose(f(y, y.T), y @ y.T).item()
      True
    """
    names = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
    dimensions = (
        (tuple(pos_contract[0]), tuple(pos_contract[1])),
        (tuple(pos_batch[0]), tuple(pos_batch[1])),
    )
    x, y = jnp.asarray(x), jnp.asarray(y)
    dtype = jnp.result_type(x, y)
    product = lax.dot_general(x.astype(dtype), y.astype(dtype), dimensions, precision=precision)
    return _summed(product, names)


def einsum(spec: str, *operands: ArrayLike, precision: Setting = None) -> jax.Array:
    """`jnp.einsum` with named axes in braces: "n{b,k},{k,m}->n{b,m}".

    Letters stand for dimensions, as in `jnp.einsum`; the order of names in braces does not matter.
    Dimensions and named axes that the result does not list are summed.

    Args:
      spec: One or two operands, and the result.
      *operands: Arrays.
      precision: As for `jax.lax.dot_general`.

    Raises:
      SpecError: `spec` cannot be read, or does not fit the operands.

    Examples:
      >>> f = xmap(lambda x, y: named.einsum("{n,k},{k,m}->{n,m}", x, y),
      ...          in_axes=(["n", "k"], ["k", "m"]), out_axes=["n", "m"])
      >>> y = x.reshape(8, 2)
      >>> jnp.allclose(f(y, y.T), y @ y.T).item()
      True
    """
    inputs, (letters, names) = _parsed(spec, operands)
    summed = tuple(sorted(set().union(*(n for _, n in inputs)) - names))
    if len(inputs) == 1:
        result = jnp.einsum(f"{inputs[0][0]}->{letters}", operands[0], precision=precision)
        return _summed(result, summed)
    (a, _), (b, _) = inputs
    x, a = _without_lone(jnp.asarray(operands[0]), a, b + letters)
    y, b = _without_lone(jnp.asarray(operands[1]), b, a + letters)
    batch = [c for c in a if c in b and c in letters]
    common = [c for c in a if c in b and c not in letters]
    result = pdot(
        x,
        y,
        summed,
        ([a.index(c) for c in common], [b.index(c) for c in common]),
        ([a.index(c) for c in batch], [b.index(c) for c in batch]),
        precision,
    )
    free = [c for c in a + b if c not in batch and c not in common]
    return jnp.einsum(f"{''.join(batch + free)}->{letters}", result)


xeinsum = einsum
"""The name that `jax.lax` had for `einsum` with named axes."""


def _summed(x: AnyValue, names: tuple[AnyValue, ...]) -> AnyValue:
    """The sum over named axes; of booleans, whether any is true, as over dimensions."""
    if not names:
        return x
    return reductions.any(x, names) if x.dtype == jnp.bool_ else lax.psum(x, names)


def _without_lone(x: AnyValue, letters: str, others: str) -> tuple[AnyValue, str]:
    """An operand without dimensions that nothing else has: those are summed first."""
    diagonal = "".join(dict.fromkeys(letters))
    kept = "".join(c for c in diagonal if c in others)
    return (x if kept == letters else jnp.einsum(f"{letters}->{kept}", x)), kept


def _parsed(
    spec: str, operands: Sequence[ArrayLike]
) -> tuple[list[tuple[str, frozenset[str]]], tuple[str, frozenset[str]]]:
    """(letters and names of each operand, those of the result)."""
    left, arrow, right = spec.partition("->")
    terms = [_TERM.fullmatch(t) for t in [*_split(left), right]]
    problems = []
    if not arrow or not all(terms):
        problems.append(_unreadable(spec))
    elif len(terms) - 1 != len(operands) or not 1 <= len(operands) <= 2:
        problems.append(_wrong_count(spec, len(terms) - 1, len(operands)))
    if problems:
        raise SpecError(f"einsum of `{spec}`", problems)
    read = [(m[1], frozenset(_names(m[2]))) for m in terms if m is not None]
    for k, ((letters, _), x) in enumerate(zip(read, operands, strict=False)):
        if len(letters) != jnp.ndim(x):
            problems.append(_wrong_rank(k, letters, x))
    unknown = (set(read[-1][0]) - set().union(*(set(a) for a, _ in read[:-1]))) | (
        read[-1][1] - frozenset().union(*(n for _, n in read[:-1]))
    )
    if unknown:
        problems.append(_unknown(sorted(unknown)))
    if problems:
        raise SpecError(f"einsum of `{spec}`", problems)
    return read[:-1], read[-1]


_TERM = re.compile(r"\s*([a-zA-Z]*)\s*(?:\{([^{}]*)\})?\s*")


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _split(text: str) -> list[str]:
    """The operands: commas in braces separate names."""
    return re.split(r",(?![^{]*\})", text)


# ------------------------------------------------------------------------------------- mistakes


def _unreadable(spec: str) -> Problem:
    return Problem(
        "spec",
        repr(spec),
        "operands and a result: letters for dimensions, then names in braces",
        "write e.g. 'n{b,k},{k,m}->n{b,m}'",
    )


def _wrong_count(spec: str, terms: int, operands: int) -> Problem:
    return Problem(
        "spec",
        f"{terms} operands in {spec!r}, and {operands} arrays",
        "one or two operands, and an array for each",
        "contract two arrays at a time",
    )


def _wrong_rank(k: int, letters: str, x: AnyValue) -> Problem:
    return Problem(
        f"operands[{k}]",
        f"an array of rank {jnp.ndim(x)}, of shape {jnp.shape(x)}, without its named axes",
        f"rank {len(letters)}: a dimension for each letter of {letters!r}",
        "write one letter for each dimension, and named axes in braces",
    )


def _unknown(names: Sequence[str]) -> Problem:
    return Problem(
        "spec",
        f"{', '.join(names)} in the result only",
        "letters and names that an operand has",
        "name them in an operand",
    )
