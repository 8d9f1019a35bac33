"""The result of the user's function: its structure, matched with out_specs while it is traced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from shmap_compiler.base import spec_errors, specs
from shmap_compiler.base.descriptions import show_value
from shmap_compiler.base.errors import Problem, ResultTypeError, SpecError, spec_error
from shmap_compiler.base.jax_compat import (
    Reductions,
    is_ref,
    manual_type_reductions,
    reductions,
    tracks_varying_types,
    varies_along,
    with_reductions,
)
from shmap_compiler.base.meshes import ManualRegion
from shmap_compiler.base.untyped import AnyValue, Aval, Leaf, PyTree
from shmap_compiler.base.values import type_of


class Results:
    """Records the structure of one result, and checks it against out_specs.

    Attributes:
      tree: the structure.
      matched: for each array, its path, the path of its spec, and the spec.
    """

    def __init__(self, who: str, region: ManualRegion, out_specs: PyTree):
        self._who = who
        self._region = region
        self._out_specs = out_specs
        self.tree: Any = None
        self.matched: list[tuple[str, str, Any]] = []

    @property
    def paths(self) -> list[tuple[str, str]]:
        """Each array and its spec as the user names them."""
        return [(path, spec_path) for path, spec_path, _ in self.matched]

    def record(self, result: PyTree) -> list[AnyValue]:
        """The arrays of `result`."""
        leaves, self.tree = jax.tree.flatten(result)
        matched, problems = specs.broadcast_specs(self._out_specs, result, "out_specs", "result")
        without_spec = {path: spec for _, _, path, spec in matched if spec is None}
        for path, spec in without_spec.items():
            problems.append(spec_errors.no_spec(spec, path, self._region.manual_axes))
        if problems:
            raise spec_error(self._who, problems)
        references = [
            Problem(
                path,
                f"a mutable reference, {type_of(leaf)}",
                "an array",
                "return its value: ref[...], or jax.freeze(ref)",
            )
            for path, leaf, _, _ in matched
            if is_ref(type_of(leaf))
        ]
        if references:
            raise SpecError(self._who, references)
        no_arrays = [
            Problem(
                path,
                show_value(leaf),
                "an array, or a pytree of arrays",
                "return arrays only; close over other values, or return them outside shard_map",
            )
            for path, leaf, _, _ in matched
            if type_of(leaf) is None or isinstance(leaf, jax.ShapeDtypeStruct)
        ]
        if no_arrays:
            raise ResultTypeError(self._who, no_arrays)
        if tracks_varying_types():
            manual = self._region.manual_axes
            wrong = [p for match in matched for p in _other_reductions(*match, manual)]
            if wrong:
                raise SpecError(self._who, wrong)
        self.matched = [(path, spec_path, spec) for path, _, spec_path, spec in matched]
        return leaves

    def checked_specs(self, types: Sequence[Aval]) -> list[PartitionSpec]:
        """The spec of each array. Raises SpecError if one does not fit its type."""
        problems = [
            problem
            for t, (path, spec_path, spec) in zip(types, self.matched, strict=True)
            for problem in spec_errors.output_problems(t.shape, path, spec, spec_path)
        ]
        if problems:
            raise SpecError(self._who, problems)
        return [spec for _, _, spec in self.matched]


def _other_reductions(
    path: str, leaf: Leaf, spec_path: str, spec: PartitionSpec, manual: Sequence[str]
) -> Iterator[Problem]:
    """How the type of a result differs from its spec in what is yet to be summed.

    A varying result may be taken for unreduced: its devices hold summands if the spec says so.
    """
    type_ = type_of(leaf)
    found, said = manual_type_reductions(type_).over(manual), reductions(spec)
    taken = said.unreduced & varies_along(type_)
    if (found.unreduced | taken, found.reduced) == (said.unreduced, said.reduced):
        return
    is_, does = (specs.show(with_reductions(PartitionSpec(), r)) for r in (found, said))
    yield Problem(
        f"{path} with {spec_path}={specs.show(spec)}",
        f"a result {specs.show_type(type_)} whose type has {is_}: out_specs passed to shard_map "
        "should be equal to the unreduced and reduced axes of the result",
        f"a result whose type has {does}, as {spec_path} says",
        _cast(path, found, said),
    )


def _cast(path: str, found: Reductions, said: Reductions) -> str:
    """What makes a result of a type one of another type."""
    if surplus := sorted(found.unreduced - said.unreduced):
        return f"reduce it, with jax.lax.psum({path}, {tuple(surplus)}); or name them in the spec"
    if missing := sorted(said.unreduced - found.unreduced):
        return (
            f"remove them from the spec: all devices hold the same value; or, if {path} is meant "
            f'as a summand, jax.lax.pcast({path}, {tuple(missing)}, to="varying"), then '
            'to="unreduced"'
        )
    if missing := sorted(said.reduced - found.reduced):
        return f'jax.lax.pcast({path}, {tuple(missing)}, to="reduced"), or leave them out'
    return "name the reduced axes in the spec"
