"""Mutable references, and the effects of equations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import jax

from shmap_compiler.base import ref_views
from shmap_compiler.base.untyped import Aval, Effect, Leaf, PyTree


def is_axis_effect(effect: Effect, axes: Iterable[str]) -> bool:
    """Whether `effect` only records that a collective over one of `axes` is used."""
    return type(effect).__name__ == "NamedAxisEffect" and effect.name in axes


def axis_of_effect(effect: Effect) -> str | None:
    """The axis of an effect that only records that a collective over it is used."""
    return effect.name if type(effect).__name__ == "NamedAxisEffect" else None


def is_ref_effect(effect: object) -> bool:
    """Whether `effect` only records that mutable references are made, read or written."""
    return type(effect).__name__ in (
        "ReadEffect",
        "WriteEffect",
        "AccumEffect",
        "InternalMutableArrayEffect",
    )


def is_ref(aval: object) -> bool:
    """Whether a variable of this type is a mutable reference."""
    return type(aval).__name__ == "AbstractRef"


def value_type(aval: Aval) -> Aval:
    """The type of what a reference of this type holds; other types as they are."""
    return aval.inner_aval.update(weak_type=False) if is_ref(aval) else aval


def ref_view(tree: PyTree, leaves: Sequence[Leaf]) -> list[ref_views.Step] | None:
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
