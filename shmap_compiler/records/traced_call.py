"""A traced call: a Graph, and how the user's arguments and results map to it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import jax
from shmap_passes import Partitioner

from shmap_compiler.base.descriptions import describe
from shmap_compiler.base.jax_compat import NESTS_IN_MESH_ORDER, memory_kinds
from shmap_compiler.base.untyped import AnyValue, Function, TreeDef
from shmap_compiler.graph.callbacks import callback_lines
from shmap_compiler.graph.graph import Graph
from shmap_compiler.graph.nested_graphs import nested_graphs
from shmap_compiler.records.signature import Signature


@dataclass(frozen=True, repr=False)
class TracedCall:
    """A traced call: the graph, and how the user's arguments and results map to it.

    Attributes:
      fun: the user's function, for error messages.
      constants: values for the leading inputs of the graph, which `fun` closed over.
      in_tree: structure of the user's arguments `(args...)`.
      in_paths: the path of each remaining input of the graph, for error messages.
      static: position in the flat arguments, path and value of each argument that is no array.
      out_tree: structure of the user's result.
      references: the inputs of the graph that hold the value of a mutable reference.
      written: the inputs of which the last outputs are new values, for the references.
    """

    fun: Function
    graph: Graph
    constants: tuple[AnyValue, ...]
    in_tree: TreeDef
    in_paths: tuple[str, ...]
    static: tuple[tuple[int, str, AnyValue], ...]
    out_tree: TreeDef
    references: tuple[int, ...] = ()
    written: tuple[int, ...] = ()

    @property
    def reference_paths(self) -> list[str]:
        """The mutable references, as the user names them."""
        before = len(self.constants)
        return [
            self.in_paths[k - before]
            if k >= before
            else "a reference that the function closes over"
            for k in self.references
        ]

    def __repr__(self) -> str:
        return f"<TracedCall of {describe(self.fun)}: {self.graph!r}>"

    @property
    def default_partitioner(self) -> Partitioner:
        """The partitioner to lower for, if the user names none.

        JAX lowers unreduced results for Shardy only, and libtpu aborts on what GSPMD makes of some
        collectives beside automatic axes, such as `all_to_all`. With Shardy, XLA aborts on axes
        that are nested in another order than that of the mesh.
        """
        if any(spec.unreduced for spec in self.graph.out_specs):
            return "shardy"
        has_early = NESTS_IN_MESH_ORDER and any(g.early_axes for g in nested_graphs(self.graph))
        return "shardy" if self.graph.automatic_axes and not has_early else "gspmd"

    @cached_property
    def signature(self) -> Signature:
        """The signature of the program."""
        graph = self.graph
        return Signature(
            who=describe(self.fun),
            name=graph.name,
            mesh=graph.mesh,
            in_tree=self.in_tree,
            in_paths=self.in_paths,
            static=tuple(self.static),
            constants=self.constants,
            in_types=tuple(jax.ShapeDtypeStruct(t.shape, t.dtype) for t in graph.in_types),
            in_specs=graph.in_specs,
            out_tree=self.out_tree,
            out_types=tuple(
                jax.ShapeDtypeStruct(t.shape, t.dtype, weak_type=t.weak_type)
                for t in graph.out_types
            ),
            out_specs=graph.out_specs,
            callbacks=callback_lines(graph.jaxpr),
            in_memory_kinds=memory_kinds(graph.in_types),
            out_memory_kinds=memory_kinds(graph.out_types),
        )
