"""The result of the user's function: its structure, matched with out_specs while it is traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from shmap_compiler import specs
from shmap_compiler.errors import Problem, ResultTypeError, SpecError, show_value
from shmap_compiler.inputs import type_of
from shmap_compiler.region import Region


class Results:
    """Records the structure of one result, and checks it against out_specs.

    Attributes:
      tree: the structure.
      matched: for each array, its path, the path of its spec, and the spec.
    """

    def __init__(self, who: str, region: Region, out_specs: Any):
        self._who = who
        self._region = region
        self._out_specs = out_specs
        self.tree: Any = None
        self.matched: list[tuple[str, str, Any]] = []

    @property
    def paths(self) -> list[tuple[str, str]]:
        """Each array and its spec as the user names them."""
        return [(path, spec_path) for path, spec_path, _ in self.matched]

    def record(self, result: Any) -> list[Any]:
        """The arrays of `result`."""
        leaves, self.tree = jax.tree.flatten(result)
        matched, problems = specs.broadcast_specs(self._out_specs, result, "out_specs", "result")
        without_spec = {path: spec for _, _, path, spec in matched if spec is None}
        for path, spec in without_spec.items():
            problems.append(specs.no_spec(spec, path, self._region.manual_axes))
        if problems:
            raise SpecError(self._who, problems)
        no_arrays = [
            Problem(
                path,
                show_value(leaf),
                "an array, or a pytree of arrays",
                "return arrays only; close over other values, or return them outside shard_map",
            )
            for path, leaf, _, _ in matched
            if type_of(leaf) is None
        ]
        if no_arrays:
            raise ResultTypeError(self._who, no_arrays)
        self.matched = [(path, spec_path, spec) for path, _, spec_path, spec in matched]
        return leaves

    def checked_specs(self, types: Sequence[Any]) -> list[PartitionSpec]:
        """The spec of each array. Raises SpecError if one does not fit its type."""
        problems = [
            problem
            for t, (path, spec_path, spec) in zip(types, self.matched, strict=True)
            for problem in specs.output_problems(t.shape, path, spec, spec_path)
        ]
        if problems:
            raise SpecError(self._who, problems)
        return [spec for _, _, spec in self.matched]
