"""The signature of a lowered program: what crosses its boundary, without the program itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from shmap_compiler.base.jax_compat import AnyMesh, axis_types
from shmap_compiler.base.specs import show_mesh
from shmap_compiler.base.untyped import AnyValue, PyTree, TreeDef


@dataclass(frozen=True)
class Signature:
    """The arguments and results of a program, and their placement on a mesh.

    Attributes:
      who: the user's function, as errors name it.
      name: its bare name.
      mesh: with devices or without.
      in_tree: structure of the user's arguments `(args...)`.
      in_paths: the path of each argument that is an array.
      static: position in the flat arguments, path and value of each argument that is no array.
      constants: values for the leading inputs of the program, which the function closed over.
      in_types: types of all inputs, the constants first. None is weak: what that changes is part of
        the program.
      in_specs: how each input is split.
      out_tree: structure of the user's result.
      out_types: types of all outputs.
      out_specs: how each output is split.
      in_memory_kinds: the memory of each input, as JAX names it; None for that of the device.
      out_memory_kinds: the memory of each output.
      callbacks: the lines of the program that call back into Python.
      places_results: whether results are split as `out_specs`; otherwise XLA chooses how, and
        `out_specs` have no meaning.
      is_from_file: whether named tuples in the structures stand for classes of the user's.
    """

    who: str
    name: str
    mesh: AnyMesh
    in_tree: TreeDef
    in_paths: tuple[str, ...]
    static: tuple[tuple[int, str, AnyValue], ...]
    constants: tuple[AnyValue, ...]
    in_types: tuple[jax.ShapeDtypeStruct, ...]
    in_specs: tuple[PartitionSpec, ...]
    out_tree: TreeDef
    out_types: tuple[jax.ShapeDtypeStruct, ...]
    out_specs: tuple[PartitionSpec, ...]
    in_memory_kinds: tuple[str | None, ...]
    out_memory_kinds: tuple[str | None, ...]
    callbacks: tuple[str, ...] = ()
    places_results: bool = True
    is_from_file: bool = False

    @property
    def summary(self) -> str:
        """A few words for the `repr` of a program: the function and the mesh."""
        return f"{self.who} on {show_mesh(self.mesh)}"

    def on(self, mesh: Mesh) -> Signature:
        """This signature on the devices of another mesh with the same axes."""
        return replace(self, mesh=mesh)

    def flat(self) -> Signature:
        """The signature of the program as a function of its flat inputs."""
        count, results = len(self.in_types), len(self.out_types)
        return replace(
            self,
            in_tree=jax.tree.structure((0,) * count),
            in_paths=tuple(f"inputs[{i}]" for i in range(count)),
            static=(),
            constants=(),
            out_tree=jax.tree.structure([0] * results),
        )

    def select(self, flat: Sequence[AnyValue]) -> list[AnyValue]:
        """The flat arguments that are arrays."""
        static = {position for position, _, _ in self.static}
        return [x for position, x in enumerate(flat) if position not in static]

    @property
    def call_tree(self) -> TreeDef:
        """The structure of the user's arguments as JAX names it: of positions and keywords."""
        return jax.tree_util.treedef_tuple((self.in_tree, jax.tree.structure({})))

    @property
    def out_info(self) -> PyTree:
        """The types of the results in their structure, with shardings."""
        typed = [
            jax.ShapeDtypeStruct(t.shape, t.dtype, sharding=s, weak_type=t.weak_type)
            for t, s in zip(self.out_types, self.out_shardings, strict=True)
        ]
        return jax.tree.unflatten(self.out_tree, typed)

    @property
    def axis_types(self) -> tuple[AxisType, ...]:
        """The type of each mesh axis."""
        return tuple(axis_types(self.mesh).values())

    @property
    def in_shardings(self) -> list[NamedSharding]:
        """The sharding of each input, the constants first."""
        return self._shardings(self.in_specs, self.in_memory_kinds)

    @property
    def out_shardings(self) -> list[NamedSharding]:
        """The sharding of each output."""
        return self._shardings(self.out_specs, self.out_memory_kinds)

    def _shardings(
        self, specs: Sequence[PartitionSpec], memory_kinds: Sequence[str | None]
    ) -> list[NamedSharding]:
        placed = zip(specs, memory_kinds, strict=True)
        return [NamedSharding(self.mesh, spec, memory_kind=kind) for spec, kind in placed]
