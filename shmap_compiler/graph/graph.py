"""The Graph: the user's per-device program, with its mesh, its specs and its source lines.

A Graph is immutable and is checked when it is made. Its equations are those of a jaxpr on the types
of one device's blocks; every collective in it belongs to `shmap_compiler.collectives`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from jax.extend import core as jex_core
from jax.extend.core import Literal
from jax.sharding import AbstractMesh, PartitionSpec

from shmap_compiler import collectives
from shmap_compiler.base import specs
from shmap_compiler.base.jax_compat import (
    AnyMesh,
    abstract_mesh,
    is_axis_effect,
    once_per_type,
    open_jaxpr,
    reductions,
    type_on_mesh,
    type_reductions,
    type_split,
    with_manual_axes,
)
from shmap_compiler.base.meshes import ManualRegion
from shmap_compiler.base.untyped import AnyValue, Atom, Aval, Effect, Eqn, Jaxpr
from shmap_compiler.graph.printing import print_program
from shmap_compiler.jaxprs.contents import holders
from shmap_compiler.replication.frames import Replication
from shmap_compiler.replication.inference import infer_program


class GraphError(Exception):
    """A Graph that breaks a rule of its own form: a defect of this package, not of user code."""


class HangCheck(enum.Enum):
    """Which of the collectives that could deadlock are rejected."""

    NONE = enum.auto()
    EQUAL_INPUTS = enum.auto()
    """Those that some devices would not reach even if each input was equal on all devices."""
    ALL = enum.auto()


@dataclass(frozen=True, eq=False)
class Graph:
    """The typechecked program of one device.

    Made by `ShardMapped.trace`. Printing it shows each equation with its line of source and the
    axes along which its results vary.

    Attributes:
      name: The name of the user's function.
      jaxpr: A closed jaxpr without constants, on the types of one device's blocks.
      mesh: The mesh, with or without devices.
      manual_axes: The axes over which this program is per-device, in mesh order.
      outer_manual_axes: The axes that an enclosing shard_map has made manual, in mesh order.
      in_specs: One spec per input: the layout of its blocks in the full array.
      out_specs: One spec per output.
      check_vma: Whether results that a spec replicates are known to be equal (`replication`). If
        not, each device's copy has a cotangent of its own.
      hang_check: Which of the collectives that could deadlock are rejected.
      equal_inputs: For each input, whether its copies are equal along the axes that its spec does
        not mention, whatever the caller passes; empty if none is known to be. With
        `check_vma=False`, programs return arrays whose copies differ.

    Examples:
      >>> f = shard_map(lambda b: lax.psum(b, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
      >>> graph = f.trace(x)
      >>> graph.manual_axes, [str(t) for t in graph.body_in_types]
      (('i',), ['float32[2]'])
      >>> [e.primitive.name for e in graph.jaxpr.eqns]
      ['psum']
    """

    name: str
    jaxpr: Jaxpr
    mesh: AnyMesh
    manual_axes: tuple[str, ...]
    outer_manual_axes: tuple[str, ...]
    in_specs: tuple[PartitionSpec, ...]
    out_specs: tuple[PartitionSpec, ...]
    check_vma: bool = True
    hang_check: HangCheck = HangCheck.ALL
    equal_inputs: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def all_manual_axes(self) -> tuple[str, ...]:
        """Axes manual inside the body, here or outside, in mesh order."""
        manual = (*self.manual_axes, *self.outer_manual_axes)
        return tuple(a for a in self.mesh.axis_names if a in manual)

    @property
    def inputs_are_equal(self) -> tuple[bool, ...]:
        """`equal_inputs`, one for each input."""
        return self.equal_inputs or (False,) * len(self.in_specs)

    @property
    def automatic_axes(self) -> tuple[str, ...]:
        """Axes that XLA's partitioner splits the body over, in mesh order."""
        return tuple(a for a in self.mesh.axis_names if a not in self.all_manual_axes)

    @property
    def early_axes(self) -> tuple[str, ...]:
        """Manual axes nested in axes that come later in the mesh, beside automatic axes."""
        names = self.mesh.axis_names
        last = max(map(names.index, self.outer_manual_axes), default=0)
        early = tuple(a for a in self.manual_axes if names.index(a) < last)
        return early if self.automatic_axes else ()

    @cached_property
    def body_mesh(self) -> AbstractMesh:
        """The mesh as the body sees it."""
        return with_manual_axes(self.mesh, self.all_manual_axes)

    @property
    def body_in_types(self) -> list[Aval]:
        """Types of one device's input blocks."""
        return [v.aval for v in self.jaxpr.jaxpr.invars]

    @property
    def body_out_types(self) -> list[Aval]:
        """Types of one device's output blocks."""
        return [v.aval for v in self.jaxpr.jaxpr.outvars]

    @cached_property
    def in_types(self) -> list[Aval]:
        """Types of the full input arrays."""
        return self._full_types(self.body_in_types, self.in_specs)

    @cached_property
    def out_types(self) -> list[Aval]:
        """Types of the full output arrays."""
        return self._full_types(self.body_out_types, self.out_specs)

    @property
    def effects(self) -> set[Effect]:
        """Effects of the program that reach beyond it: callbacks, prints, ordered ones."""
        return {e for e in self.jaxpr.effects if not is_axis_effect(e, self.manual_axes)}

    @cached_property
    def fun(self) -> Callable[..., list[AnyValue]]:
        """The program as a function of flat blocks, to be traced again under a transformation."""
        return jex_core.jaxpr_as_fun(self.jaxpr)

    @cached_property
    def region(self) -> ManualRegion:
        """Where the body runs: the mesh, and all axes that are manual there."""
        return ManualRegion(self.mesh, self.all_manual_axes)

    @cached_property
    def replication(self) -> Replication:
        """The mesh axes along which each value may differ between devices.

        R1: an input varies along the axes that split it, or its spec has unreduced. An enclosing
        shard_map may pass values that vary along any of its own axes.
        """
        return infer_program(self.region, self.jaxpr, self._varying_inputs)

    @cached_property
    def certain_replication(self) -> Replication:
        """The same, if inputs that are not known to be equal may vary along all axes."""
        everything = {*self.all_manual_axes}
        rows = zip(self._varying_inputs, self.inputs_are_equal, strict=True)
        varying = [axes if is_equal else everything for axes, is_equal in rows]
        return infer_program(self.region, self.jaxpr, varying)

    @property
    def _varying_inputs(self) -> list[set[str]]:
        return [{*specs.varying_axes(s), *self.outer_manual_axes} for s in self.in_specs]

    def _full_types(self, types, type_specs) -> list[Aval]:
        outside = with_manual_axes(self.mesh, self.outer_manual_axes)
        return [_full_type(t, s, outside) for t, s in zip(types, type_specs, strict=True)]

    def __str__(self) -> str:
        """Like the text of a jaxpr; `{V:i}` after a type: the value varies along axis i."""
        names = self.mesh.axis_names
        heading = f"graph {self.name} on {specs.show_mesh(self.mesh)}"
        heading += f", automatic: {', '.join(self.automatic_axes)}" if self.automatic_axes else ""
        if self.outer_manual_axes:
            heading += f", manual outside: {', '.join(self.outer_manual_axes)}"

        def varying(var: Atom) -> str:
            axes = self.replication.of(var)
            return f"{{V:{','.join(a for a in names if a in axes)}}}" if axes else ""

        def is_graph(value: object) -> bool:
            return isinstance(value, Graph)

        ins, outs = ([specs.show(s) for s in row] for row in (self.in_specs, self.out_specs))
        return print_program(heading, self.jaxpr, ins, outs, varying, is_graph)

    def __repr__(self) -> str:
        """One line; `str` gives the whole program."""
        counts = [
            (len(self.in_specs), "input"),
            (len(self.out_specs), "output"),
            (len(self.jaxpr.jaxpr.eqns), "equation"),
        ]
        listed = ", ".join(f"{n} {what}{'' if n == 1 else 's'}" for n, what in counts)
        return f"<Graph of `{self.name}` on {specs.show_mesh(self.mesh)}: {listed}>"


@once_per_type
def _full_type(block: Aval, spec: PartitionSpec, mesh: AbstractMesh) -> Aval:
    # A dimension is split first over the axes of the spec, then as the block's type says.
    inside = type_split(block) or ((),) * len(block.shape)
    said = specs.dim_axes(spec, len(block.shape))
    splits = [(*s, *t) for s, t in zip(said, inside, strict=True)]
    shape = specs.global_shape(block.shape, spec, mesh)
    reduces = reductions(spec) | type_reductions(block)
    kept = block.dtype, block.weak_type, reduces, block.memory_space
    return type_on_mesh(mesh, splits, shape, *kept)


# --------------------------------------------------------------------------------- typechecking


def _check(graph: Graph) -> None:
    jaxpr = open_jaxpr(graph.jaxpr)
    _require(not graph.jaxpr.consts, "constants must be inputs")
    _require(len(jaxpr.invars) == len(graph.in_specs), "one spec per input")
    _require(len(jaxpr.outvars) == len(graph.out_specs), "one spec per output")
    _require(len(graph.inputs_are_equal) == len(graph.in_specs), "equal or not, for each input")
    axes = abstract_mesh(graph.mesh).axis_names
    _require(set(graph.manual_axes) <= set(axes), "manual axes are mesh axes")
    _require(not set(graph.manual_axes) & set(graph.outer_manual_axes), "an axis is manual once")
    all_specs = (*graph.in_specs, *graph.out_specs)
    for spec in {id(spec): spec for spec in all_specs}.values():  # of hundreds few are others
        used = specs.mentioned(spec)
        _require(set(used) <= set(graph.manual_axes), "{} mentions manual axes only", spec)
        _require(len(set(used)) == len(used), "{} mentions an axis once", spec)
        summed = spec.unreduced | spec.reduced
        _require(summed <= set(graph.manual_axes), "{} reduces over manual axes only", spec)
    for atom, spec in zip((*jaxpr.invars, *jaxpr.outvars), all_specs, strict=True):
        if len(spec) > len(atom.aval.shape):
            _require(False, "{} fits the rank of {}", spec, atom.aval)
    _check_jaxpr(jaxpr, graph, set())


_DEFINED = "{} is set before it is used"


def _check_jaxpr(jaxpr: Jaxpr, graph: Graph, checked: set[int]) -> None:
    if id(jaxpr) in checked:  # Several equations hold it.
        return
    checked.add(id(jaxpr))
    defined = {*jaxpr.constvars, *jaxpr.invars}
    for eqn in jaxpr.eqns:
        for atom in eqn.invars:
            if not isinstance(atom, Literal) and atom not in defined:
                _require(False, _DEFINED, atom)
        defined.update(eqn.outvars)
        if eqn.primitive in collectives.COLLECTIVES:
            _check_collective(eqn, graph)
    for programs in holders(jaxpr).values():
        for inner in programs:
            _check_jaxpr(open_jaxpr(inner), graph, checked)
    for atom in jaxpr.outvars:
        _require(isinstance(atom, Literal) or atom in defined, _DEFINED, atom)


def _check_collective(eqn: Eqn, graph: Graph) -> None:
    axes = eqn.params["axes"]
    name = eqn.primitive
    _require(len(set(axes)) == len(axes) > 0, "{} names distinct axes", name)
    are_manual = set(axes) <= set(graph.all_manual_axes)
    _require(are_manual, "{} names manual axes, not {}", name, axes)
    out, _ = name.abstract_eval(*[v.aval for v in eqn.invars], **eqn.params)
    (found,) = [v.aval for v in eqn.outvars]
    same = (out.shape, out.dtype) == (found.shape, found.dtype)
    _require(same, "{} gives {}, not {}", name, out, found)


def _require(condition: bool, rule: str, *parts: object) -> None:
    if not condition:
        raise GraphError(rule.format(*parts))
