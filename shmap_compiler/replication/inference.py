"""Replication inference: along which mesh axes each value of a Graph may differ between devices.

The rules are numbered in `docs/replication.md`. The set of a value is an upper bound: along an axis
that is not in it, the value is bitwise equal on all devices that compute it together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from jax.extend.core import Literal, Primitive
from shmap_passes.ir.axis_set import AxisSet

from shmap_compiler.base.jax_compat import axis_of_effect, is_ref, is_ref_effect, open_jaxpr
from shmap_compiler.base.meshes import ManualRegion
from shmap_compiler.base.untyped import Atom, Eqn, Jaxpr
from shmap_compiler.jaxprs.contents import holders
from shmap_compiler.replication.collective_rules import is_collective, mask_of_type, result_mask
from shmap_compiler.replication.frames import Frame, Replication, union
from shmap_compiler.replication.region_dataflow import (
    HOLDERS,
    Anything,
    BlockPosition,
    HeldProgram,
    Out,
    Source,
    Wiring,
    wiring_of,
)

CollectiveRule = Callable[[Eqn, int, AxisSet], int | None]
"""From an equation and the set of its operand to the set of its result; None if the equation is not
a collective."""

# R3: result k is operand k.
_ELEMENT_BY_ELEMENT = {"optimization_barrier", "device_put"}
# R15: results that no operand determines.
_UNREPEATABLE = {"rng_uniform", "infeed"}
# R16: equations with references that write nothing.
_READS = {"get", "freeze", "new_ref"}


class _Plain(dict[Primitive, bool]):
    """Whether R3 alone applies to equations of a primitive that hold no programs or effects."""

    def __missing__(self, primitive: Primitive) -> bool:
        ruled = HOLDERS | _ELEMENT_BY_ELEMENT | _UNREPEATABLE
        self[primitive] = primitive.name not in ruled and not is_collective(primitive)
        return self[primitive]


# Nearly all equations are plain, and are solved by the shortest code.
_PLAIN = _Plain()


def infer_program(
    region: ManualRegion,
    program: Jaxpr,
    varying: Sequence[Iterable[str]],
    of_collective: CollectiveRule = result_mask,
) -> Replication:
    """Solves a program, given the axes along which its inputs vary.

    Args:
      region: the mesh, and all axes that are manual where the program runs.
      of_collective: along which axes the result of a collective varies (`is_collective`).
    """
    return _solved(AxisSet.of(region.mesh.shape), region, program, varying, of_collective)


def infer_types(
    region: ManualRegion, program: Jaxpr, varying: Sequence[Iterable[str]]
) -> Replication:
    """Solves a program by the rules of JAX's types of varying values.

    A type may name axes of size one, too.

    Args:
      region, varying: as for `infer_program`.
    """
    axes = AxisSet.of(region.mesh.shape, has_ones=True)
    return _solved(axes, region, program, varying, mask_of_type)


def _solved(
    axes: AxisSet,
    region: ManualRegion,
    program: Jaxpr,
    varying: Sequence[Iterable[str]],
    of_collective: CollectiveRule,
) -> Replication:
    inputs = [axes.mask(v) for v in varying]
    jaxpr = open_jaxpr(program)
    refs = _new_refs(jaxpr.invars, inputs)
    context = _Context(axes.mask(region.manual_axes), 0)
    return Replication(axes, _Solver(axes, of_collective).solve(jaxpr, inputs, refs, context))


@dataclass
class _Ref:
    """R16: the set of a mutable reference, which grows with everything that is written to it."""

    mask: int


@dataclass(frozen=True)
class _Context:
    """The manual axes of a whole program, and the set of what controls whether it runs."""

    manual: int
    control: int


@dataclass
class _Solver:
    axes: AxisSet
    of_collective: CollectiveRule
    solved: dict[Hashable, Frame] = field(default_factory=dict)

    def solve(
        self, jaxpr: Jaxpr, inputs: Sequence[int], refs: dict[Atom, _Ref], context: _Context
    ) -> Frame:
        """Solves a program. `refs` are the references among its inputs."""
        if not refs:  # control only matters where references from outside are written
            context = _Context(context.manual, 0)
        masks = [ref.mask for ref in refs.values()]
        key = (id(jaxpr), tuple(inputs), tuple(masks), context)
        frame = self.solved.get(key)
        if frame is None:
            frame = self.run(jaxpr, inputs, dict(refs), context)
            if masks == [ref.mask for ref in refs.values()]:  # otherwise a second run may differ
                self.solved[key] = frame
        return frame

    def run(
        self, jaxpr: Jaxpr, inputs: Sequence[int], refs: dict[Atom, _Ref], context: _Context
    ) -> Frame:
        masks = {v: m for v, m in zip(jaxpr.invars, inputs, strict=True) if m}
        nested: dict[int, tuple[Wiring, tuple[Frame, ...]]] = {}

        def read(atom: Atom) -> int:
            if isinstance(atom, Literal):
                return 0
            return refs[atom].mask if atom in refs else masks.get(atom, 0)

        held = holders(jaxpr)
        for position, eqn in enumerate(jaxpr.eqns):
            if _PLAIN[eqn.primitive] and not (eqn.effects or refs or position in held):  # R3
                mask = 0
                for atom in eqn.invars:
                    if not isinstance(atom, Literal):
                        mask |= masks.get(atom, 0)
                if mask:
                    for var in eqn.outvars:
                        masks[var] = mask
                continue
            operands = [read(v) for v in eqn.invars]
            wiring = wiring_of(eqn)
            if wiring is None:
                results = self.leaf(eqn, operands, refs, context)
            else:
                frames = self.flow(eqn, wiring, read, refs, context)
                nested[position] = wiring, frames
                ended = ~self.axes.mask(wiring.ends)
                results = [self.join(s, read, frames) & ended for s in wiring.results]
            for var, mask in zip(eqn.outvars, results, strict=True):
                if mask:
                    masks[var] = mask
        outputs = tuple(read(v) for v in jaxpr.outvars)
        masks.update((v, ref.mask) for v, ref in refs.items())
        return Frame(jaxpr, masks, outputs, nested)

    def leaf(
        self, eqn: Eqn, operands: list[int], refs: dict[Atom, _Ref], context: _Context
    ) -> list[int]:
        """The sets of the results of an equation that holds no program."""
        joined = union(operands)
        name = eqn.primitive.name
        if name in _ELEMENT_BY_ELEMENT:
            return operands
        if name in _UNREPEATABLE:
            joined = context.manual
        mask = self.of_collective(eqn, joined, self.axes)
        if mask is None:
            mask = joined | self.of_effects(eqn, context) if eqn.effects else joined
        if eqn.effects:
            self.write(eqn, mask, refs, context)
        return [mask] * len(eqn.outvars)

    def of_effects(self, eqn: Eqn, context: _Context) -> int:
        """R15: what an equation with effects may add to the sets of its operands."""
        mask = 0
        for effect in eqn.effects:
            axis = axis_of_effect(effect)
            if axis is not None:
                mask |= self.axes.mask([axis])
            elif not is_ref_effect(effect):
                mask |= context.manual
        return mask

    def write(self, eqn: Eqn, mask: int, refs: dict[Atom, _Ref], context: _Context) -> None:
        for var in eqn.outvars:
            if is_ref(var.aval):
                refs[var] = _Ref(mask)
        if eqn.primitive.name not in _READS:
            for var in eqn.invars:
                if not isinstance(var, Literal) and var in refs:
                    self.grow(refs[var], mask | context.control)

    def grow(self, ref: _Ref, mask: int) -> None:
        ref.mask |= mask

    def flow(
        self,
        eqn: Eqn,
        wiring: Wiring,
        read: Callable[[Atom], int],
        refs: dict[Atom, _Ref],
        context: _Context,
    ) -> tuple[Frame, ...]:
        """Solves the held programs together: finds the least sets that agree with the wiring.

        The sets of their inputs, and of the references passed to them, only grow from one round to
        the next. References that a program makes itself start from the empty set in each round, and
        matter only through what they add to these.
        """
        inner_refs = [self.bound_refs(p, read, refs) for p in wiring.programs]
        frames: tuple[Frame, ...] = ()
        given = None
        while True:
            wanted = [
                (
                    [self.join(s, read, frames) for s in program.inputs],
                    context.control | self.join(program.control, read, frames),
                )
                for program in wiring.programs
            ]
            written = [ref.mask for inner in inner_refs for ref in inner.values()]
            if given == (wanted, written):
                break
            given = wanted, written
            frames = tuple(
                self.solve(program.jaxpr, inputs, inner, self.inside(program, context, control))
                for program, inner, (inputs, control) in zip(
                    wiring.programs, inner_refs, wanted, strict=True
                )
            )
        self.write_back(eqn, inner_refs, refs, frames, context)
        return frames

    def join(
        self, sources: Sequence[Source], read: Callable[[Atom], int], frames: Sequence[Frame]
    ) -> int:
        """The union of the sets of all sources; programs not solved yet add nothing."""
        mask = 0
        for source in sources:
            if isinstance(source, Out):
                mask |= frames[source.program].outputs[source.index] if frames else 0
            elif isinstance(source, Anything):
                mask |= frames[source.program].anything if frames else 0
            elif isinstance(source, BlockPosition):
                mask |= self.axes.mask(source.axes)
            else:
                mask |= read(source)
        return mask

    def inside(self, program: HeldProgram, context: _Context, control: int) -> _Context:
        if program.manual_axes is None:
            return _Context(context.manual, control)
        return _Context(self.axes.mask(program.manual_axes), control)

    def bound_refs(
        self, program: HeldProgram, read: Callable[[Atom], int], refs: dict[Atom, _Ref]
    ) -> dict[Atom, _Ref]:
        """The references among a program's inputs: those passed to it, or new ones."""
        bound = {}
        for var, sources in zip(program.jaxpr.invars, program.inputs, strict=True):
            if is_ref(var.aval):
                passed = refs.get(sources[0]) if len(sources) == 1 else None
                bound[var] = passed or _Ref(self.join(sources, read, ()))
        return bound

    def write_back(
        self,
        eqn: Eqn,
        inner_refs: list[dict[Atom, _Ref]],
        refs: dict[Atom, _Ref],
        frames: tuple[Frame, ...],
        context: _Context,
    ) -> None:
        """R14: a program may write anything to references that were not passed to it one by one."""
        if not refs:
            return
        known = {id(ref) for inner in inner_refs for ref in inner.values()}
        for var in eqn.invars:
            ref = None if isinstance(var, Literal) else refs.get(var)
            if ref is not None and id(ref) not in known:
                self.grow(ref, context.control | union(f.anything for f in frames))


def _new_refs(variables: Sequence[Atom], masks: Sequence[int]) -> dict[Atom, _Ref]:
    return {v: _Ref(m) for v, m in zip(variables, masks, strict=True) if is_ref(v.aval)}
