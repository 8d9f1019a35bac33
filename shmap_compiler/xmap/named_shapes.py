"""Named shapes: along which logical axes each value of a named program extends.

A value has an axis if it may differ along it. That is what the inference of replication finds on a
mesh (`replication/inference.py`), with logical axes in the place of mesh axes. From named shapes
follow the checks of this file, and what `print(f.trace(x))` shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from jax import lax
from jax.sharding import AbstractMesh

from shmap_compiler.base.errors import Problem, TypeProblem, spec_error
from shmap_compiler.base.jax_compat import open_jaxpr
from shmap_compiler.base.jax_compat.name_stacks import transforms
from shmap_compiler.base.meshes import ManualRegion
from shmap_compiler.base.source_lines import source_line
from shmap_compiler.base.untyped import Atom, Eqn, Jaxpr
from shmap_compiler.collectives import function_of_lax
from shmap_compiler.collectives.jax_params import named_axes
from shmap_compiler.graph.printing import print_program
from shmap_compiler.jaxprs.contents import equations, holders
from shmap_compiler.replication.inference import Replication, infer_program
from shmap_compiler.tracing.canonicalize_collectives import COLLECTIVE_NAMES
from shmap_compiler.xmap.named_jaxpr import NamedJaxpr
from shmap_compiler.xmap.placement import Placement


def infer(program: NamedJaxpr) -> Replication:
    """The logical axes of every value, those of xmaps inside the program among them."""
    sizes = {**program.outer, **{name: p.size for name, p in _all_placements(program).items()}}
    logical = AbstractMesh(tuple(sizes.values()), tuple(sizes))
    varying: list[Iterable[str]] = [tuple(program.outer)] * len(program.constants)
    varying += [(*program.outer, *m.names) for m in program.in_mappings]
    region = ManualRegion(logical, program.names_in_scope)
    return infer_program(region, program.jaxpr, varying)


def _all_placements(program: NamedJaxpr) -> dict[str, Placement]:
    """The placements of the axes of a program and of the xmaps in it."""
    found = dict(program.placements)
    for eqn in equations(program.jaxpr):
        if eqn.primitive.name == "xmap":
            found.update(eqn.params["program"].placements)
    return found


def check(program: NamedJaxpr, out_paths: list[str], in_paths: list[str]) -> None:
    """Checks named shapes against `out_axes` and resources.

    Raises:
      SpecError: a result has other axes than its mapping, or two axes on one resource meet (that
        alone is a SpecTypeError).
    """
    shapes = infer(program)
    problems = [
        *_looped_names(program),
        *_extra_axes(program, shapes, out_paths),
        *_conflicts(program, shapes, in_paths),
        *_broadcast_conflicts(program, shapes, out_paths),
    ]
    if problems:
        raise spec_error(program.who, problems)


def show(program: NamedJaxpr) -> str:
    """The text of a program, with the named shape of every value."""
    shapes, sizes = infer(program), {n: p.size for n, p in _all_placements(program).items()}

    def named_shape(var: Atom) -> str:
        axes = shapes.of(var)
        named = ",".join(f"{name}:{size}" for name, size in sizes.items() if name in axes)
        return f"{{{named}}}" if named else ""

    def is_program(value: object) -> bool:
        return False

    axes = ", ".join(_shown_placement(p) for p in program.placements.values())
    return print_program(
        f"named program {program.name}, axes {axes or 'none'}",
        program.jaxpr,
        [*["[...]"] * len(program.constants), *(m.text for m in program.in_mappings)],
        [m.text for m in program.out_mappings],
        named_shape,
        is_program,
    )


def _shown_placement(placement: Placement) -> str:
    resources = [*placement.mesh_axes, *([placement.loop.text] if placement.loop else [])]
    on = f" on {', '.join(resources)}" if resources else ""
    return f"{placement.name}={placement.size}{on}"


# ------------------------------------------------------------------------------------- mistakes


def _looped_names(program: NamedJaxpr) -> Iterator[Problem]:
    looped = {name: p.loop.text for name, p in program.placements.items() if p.loop}
    for eqn, in_gradient in _named_collectives(program.jaxpr) if looped else ():
        for name in named_axes(eqn.params):
            if name in looped:
                problem = _summed_gradient if in_gradient else _looped_name
                yield problem(eqn, name, looped[name])


def _looped_name(eqn: Eqn, name: str, loop: str) -> Problem:
    return Problem(
        f"{function_of_lax(eqn.primitive.name)} over {name!r} at {source_line(eqn)}",
        f"axis {name!r}, whose chunks {loop} computes one by one",
        "an axis without a loop resource: chunks do not communicate",
        "assign mesh axes to it instead, or leave it without resources",
    )


def _summed_gradient(eqn: Eqn, name: str, loop: str) -> Problem:
    return Problem(
        f"a gradient taken inside the function, of the operation at {source_line(eqn)}",
        f"its sum over axis {name!r}, because it is the gradient with respect to a value without "
        f"this axis, or a rule sums it; but {loop} computes the chunks of the axis one by one",
        "an axis without a loop resource: chunks do not communicate",
        "assign mesh axes to it instead, leave it without resources, or take one gradient for each "
        f'position, with respect to jax.lax.pcast(value, {name!r}, to="varying")',
    )


def _named_collectives(jaxpr: Jaxpr) -> Iterator[tuple[Eqn, bool]]:
    """Collectives over named axes, and whether each is a sum that a gradient has."""
    seen: set[tuple[int, bool]] = set()

    def visit(program: Jaxpr, around: bool) -> Iterator[tuple[Eqn, bool]]:
        seen.add((id(program), around))
        held = holders(program)
        for position, eqn in enumerate(program.eqns):
            # The names of operations in a program that is held do not include those around it.
            made = around or transforms(eqn.source_info.name_stack, "transpose") > 0
            if eqn.primitive.name in COLLECTIVE_NAMES and {"axes", "axis_name"} & set(eqn.params):
                yield eqn, made and eqn.primitive is lax.psum_p
            for inner in map(open_jaxpr, held.get(position, ())):
                if (id(inner), made) not in seen:
                    yield from visit(inner, made)

    return visit(open_jaxpr(jaxpr), False)


def _extra_axes(
    program: NamedJaxpr, shapes: Replication, out_paths: list[str]
) -> Iterator[Problem]:
    for path, mapping, found in zip(out_paths, program.out_mappings, shapes.outputs, strict=True):
        extra = [n for n in program.placements if n in found and mapping.position(n) is None]
        if extra:
            listed = ", ".join(map(repr, extra))
            yield Problem(
                path,
                f"a value that is mapped along more axes than {mapping.shown} names: {listed}",
                "a dimension in out_axes for every named axis of a result",
                f"name {listed} in out_axes, or reduce over it, e.g. with jax.lax.psum",
            )


def _conflicts(program: NamedJaxpr, shapes: Replication, in_paths: list[str]) -> Iterator[Problem]:
    """Two axes on one resource in the named shape of one value."""
    placements = _all_placements(program)
    shared = {r: names for r, names in _users(placements).items() if len(names) > 1}
    if not shared:
        return
    seen: set[tuple[str, str]] = set()

    def met(axes: Iterable[str], where: str, what: str) -> Iterator[Problem]:
        for resource, names in shared.items():
            both = tuple(name for name in names if name in axes)[:2]
            if len(both) == 2 and both not in seen:
                seen.add(both)
                yield _conflict(where, what, both, resource)

    for path, mapping in zip(in_paths, program.in_mappings, strict=True):
        yield from met(mapping.names, path, "an input")
    within: list[NamedJaxpr] = []
    for eqn in equations(program.jaxpr):
        if eqn.primitive.name == "xmap":
            inner: NamedJaxpr = eqn.params["program"]
            within.append(inner)
            given = eqn.invars[len(inner.constants) :]
            for value, mapping in zip(given, inner.in_mappings, strict=True):
                yield from met({*shapes.of(value), *mapping.names}, inner.who, "an argument")
        where = f"{function_of_lax(eqn.primitive.name)} at {source_line(eqn)}"
        for var in eqn.outvars:
            yield from met(shapes.of(var), where, "a value")
    for inner in within:
        for value, mapping in zip(inner.jaxpr.jaxpr.outvars, inner.out_mappings, strict=True):
            yield from met({*shapes.of(value), *mapping.names}, inner.who, "a result")


def _users(placements: Mapping[str, Placement]) -> dict[str, list[str]]:
    """The logical axes on each resource."""
    users: dict[str, list[str]] = {}
    for name, placement in placements.items():
        loop = [placement.loop.text] if placement.loop else []
        for resource in (*map(repr, placement.mesh_axes), *loop):
            users.setdefault(resource, []).append(name)
    return users


def _broadcast_conflicts(
    program: NamedJaxpr, shapes: Replication, out_paths: list[str]
) -> Iterator[Problem]:
    """A result that out_axes broadcasts along an axis whose resource splits it already."""
    placements = program.placements
    for path, mapping, found in zip(out_paths, program.out_mappings, shapes.outputs, strict=True):
        for name in mapping.names:
            for other in placements if name not in found else ():
                common = set(_users({name: placements[name]})) & set(
                    _users({other: placements[other]})
                )
                if other in found and common:
                    resource = min(common)
                    yield _conflict(
                        path,
                        f"a result that {mapping.shown} broadcasts along {name!r}",
                        (name, other),
                        resource,
                    )


def _conflict(where: str, what: str, names: tuple[str, ...], resource: str) -> Problem:
    one, other = map(repr, names)
    return TypeProblem(
        where,
        f"{what} whose named shape has the axes {one} and {other}, both mapped to the resource "
        f"{resource}",
        "values with one axis for each resource: devices hold one chunk of a value",
        f"assign other resources to {one} or {other}, or reduce one of them before they meet",
    )
