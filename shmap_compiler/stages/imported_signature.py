"""The signature of an imported module: types and specs of its arguments and results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy
from shmap_passes import BodyForm
from shmap_passes.import_.hlo_sharding import read_hlo_sharding
from shmap_passes.import_.sharding_calls import SHARDING as HLO_SHARDING
from shmap_passes.ir.boundary import SHARDING, Boundary, Dims, value_attributes
from shmap_passes.ir.inline_calls import functions_of

from shmap_compiler.base.errors import Problem, ProgramName, TargetError
from shmap_compiler.base.jax_compat import HOST_KIND
from shmap_compiler.base.untyped import OpView
from shmap_compiler.records.signature import Signature
from shmap_compiler.simulate.element_types import (
    ELEMENT_TYPES,
    UnknownElementType,
    known_element_type,
)

_MEMORY_KIND = "mhlo.memory_kind"


@dataclass(frozen=True)
class Given:
    """What `@main` says of its arguments and results before the import; empty if it is none.

    Attributes:
      shardings: how the caller splits each argument, along all axes.
      in_memory_kinds: the memory of each argument, None for that of the device.
      out_memory_kinds: the memory of each result.
    """

    shardings: Sequence[ir.Attribute | None] = ()
    in_memory_kinds: Sequence[str | None] = ()
    out_memory_kinds: Sequence[str | None] = ()

    @staticmethod
    def of(module: OpView) -> Given:
        """What the module says."""
        main = functions_of(module).get("main")
        if main is None:
            return Given()
        arguments = value_attributes(main, "arg_attrs", len(main.type.inputs))
        results = value_attributes(main, "res_attrs", len(main.type.results))
        shardings = [
            next((each[name] for name in (SHARDING, HLO_SHARDING) if name in each), None)
            for each in arguments
        ]
        return Given(
            shardings, list(map(_memory_kind, arguments)), list(map(_memory_kind, results))
        )


def _memory_kind(attributes: ir.DictAttr) -> str | None:
    if _MEMORY_KIND not in attributes:
        return None
    kind = attributes[_MEMORY_KIND]
    return HOST_KIND if isinstance(kind, ir.StringAttr) and kind.value != "device" else None


def _whole_placements(form: BodyForm, given: Sequence[ir.Attribute | None]) -> list[Dims | None]:
    """The axes that split each argument, along which XLA's partitioner owns the others, too.

    The body form has the manual axes only.
    """
    found: list[Dims | None] = []
    given = given or [None] * len(form.inputs)  # of another function, which was no @main
    for boundary, attribute in zip(form.inputs, given, strict=True):
        dims = (
            None if attribute is None or boundary.dims is None else _dims(attribute, form, boundary)
        )
        manual = () if dims is None else [[a for a in axes if a in form.region] for axes in dims]
        is_same = [tuple(axes) for axes in manual] == list(boundary.dims or ())
        found.append(dims if is_same and form.automatic else boundary.dims)
    return found


def _dims(attribute: ir.Attribute, form: BodyForm, boundary: Boundary) -> Dims | None:
    """The axes in a sharding of Shardy's or GSPMD's; None if some are parts or of another mesh."""
    if isinstance(attribute, ir.StringAttr):
        sharding = read_hlo_sharding(attribute.value)
        rank = ir.RankedTensorType(boundary.type).rank
        placed = None if isinstance(sharding, str) else sharding.placement(rank, form.mesh)
        return None if placed is None else placed.dims
    refs = [
        [sdy.AxisRefAttr(axis) for axis in sdy.DimensionShardingAttr(dim).axes]
        for dim in sdy.TensorShardingAttr(attribute).dimension_shardings
    ]
    is_whole = all(r.sub_axis_info is None and r.name in form.mesh.names for d in refs for r in d)
    return tuple(tuple(ref.name for ref in dim) for dim in refs) if is_whole else None


def signature_of(form: BodyForm, given: Given, who: ProgramName) -> Signature:
    """The signature of a program in body form.

    Raises:
      TargetError: an argument or a result is none that JAX has arrays of.
    """
    names, sizes = zip(*form.mesh.axes, strict=True)
    problems: list[Problem] = []
    in_types, in_specs = _sides(
        form, form.inputs, _whole_placements(form, given.shardings), problems
    )
    out_types, out_specs = _sides(form, form.outputs, [b.dims for b in form.outputs], problems)
    if problems:
        raise TargetError(who, problems)
    return Signature(
        who=who,
        name="module",
        mesh=AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names)),
        in_tree=jax.tree.structure((0,) * len(in_types)),
        in_paths=tuple(f"args[{k}]" for k in range(len(in_types))),
        static=(),
        constants=(),
        in_types=in_types,
        in_specs=in_specs,
        out_tree=jax.tree.structure([0] * len(out_types)),
        out_types=out_types,
        out_specs=out_specs,
        in_memory_kinds=_of_arrays(given.in_memory_kinds, form.inputs),
        out_memory_kinds=_of_arrays(given.out_memory_kinds, form.outputs),
    )


def _of_arrays(
    kinds: Sequence[str | None], boundaries: Sequence[Boundary]
) -> tuple[str | None, ...]:
    """The memory kinds of arrays, without those of tokens, which are given for both."""
    placed = zip(kinds or [None] * len(boundaries), boundaries, strict=True)
    return tuple(kind for kind, boundary in placed if boundary.dims is not None)


def _sides(
    form: BodyForm,
    boundaries: Sequence[Boundary],
    placed: Sequence[Dims | None],
    problems: list[Problem],
) -> tuple[tuple[jax.ShapeDtypeStruct, ...], tuple[PartitionSpec, ...]]:
    """The full types and the specs of arguments or results."""
    types, specs = [], []
    for boundary, dims in zip(boundaries, placed, strict=True):
        if dims is None:  # a token
            continue
        full = ir.RankedTensorType(boundary.full_type(form.mesh))
        name = str(full.element_type)
        if boundary.unreduced.axes:
            found = f"summands along {', '.join(boundary.unreduced.axes)}"
            fix = "add an all_reduce in the region, or split the array"
            problems.append(Problem(boundary.name, found, "an array, or its blocks", fix))
        try:
            dtype = known_element_type(name).dtype
        except UnknownElementType:
            needed = f"one of {', '.join(ELEMENT_TYPES)}"
            found = f"an array of element type {name}"
            problems.append(Problem(boundary.name, found, needed, "use another element type"))
            continue
        types.append(jax.ShapeDtypeStruct(tuple(full.shape), dtype))
        entries: list[Any] = [
            None if not axes else axes[0] if len(axes) == 1 else axes for axes in dims
        ]
        specs.append(PartitionSpec(*entries))
    return tuple(types), tuple(specs)
