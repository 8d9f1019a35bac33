"""The data of a named program: a jaxpr whose collectives name logical axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from shmap_compiler.base.descriptions import function_name
from shmap_compiler.base.jax_compat import AnyMesh, is_axis_effect
from shmap_compiler.base.untyped import AnyValue, Effect, Function, Jaxpr
from shmap_compiler.xmap.axes import AxisMapping
from shmap_compiler.xmap.placement import Placement


@dataclass(frozen=True, eq=False, repr=False)
class NamedJaxpr:
    """A traced function of named axes: the data of `NamedProgram`.

    Attributes:
      fun: The user's function.
      jaxpr: A closed jaxpr without constants, on types without named dimensions.
      constants: The values of its leading inputs, which the function closes over.
      placements: Where each logical axis is, by its name.
      mesh: The mesh of the call, if there is one.
      manual_axes: The mesh axes that are manual in the program: those that logical axes are split
        over, and all others if it calls back into Python, which XLA supports nowhere else.
      in_mappings, out_mappings: The named dimensions of each argument and result.
      outer: The axes of enclosing xmaps, by their sizes.
    """

    fun: Function
    who: str
    jaxpr: Jaxpr
    constants: tuple[AnyValue, ...]
    placements: Mapping[str, Placement]
    mesh: AnyMesh | None
    manual_axes: tuple[str, ...]
    in_mappings: tuple[AxisMapping, ...]
    out_mappings: tuple[AxisMapping, ...]
    outer: Mapping[str, int]

    @property
    def name(self) -> str:
        """The name of the user's function."""
        return function_name(self.fun)

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each logical axis."""
        return {name: p.size for name, p in self.placements.items()}

    @property
    def names_in_scope(self) -> tuple[str, ...]:
        """All logical axes that the program may name."""
        return (*self.outer, *self.placements)

    @property
    def mesh_axes(self) -> tuple[str, ...]:
        """The mesh axes that logical axes are split over, in mesh order."""
        used = {a for p in self.placements.values() for a in p.mesh_axes}
        return tuple(a for a in self.mesh.axis_names if a in used) if self.mesh is not None else ()

    @property
    def effects(self) -> set[Effect]:
        return {e for e in self.jaxpr.effects if not is_axis_effect(e, frozenset(self.placements))}

    @cached_property
    def out_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the full results."""
        found = []
        for var, mapping in zip(self.jaxpr.jaxpr.outvars, self.out_mappings, strict=True):
            shape = list(var.aval.shape)
            for name, at in mapping.positions:
                shape.insert(at, self.placements[name].size)
            found.append(tuple(shape))
        return tuple(found)
