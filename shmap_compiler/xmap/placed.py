"""A named program as a function of full arrays: vmaps inside a loop inside one shard_map."""

from __future__ import annotations

from collections.abc import Sequence, Set

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from shmap_compiler.base.descriptions import standing_for
from shmap_compiler.base.jax_compat import AnyMesh
from shmap_compiler.base.untyped import AnyValue, Eqn, PyTree, TreeDef
from shmap_compiler.collectives import vmapped_axes
from shmap_compiler.frontend.shard_map import ShardMapped, shard_map
from shmap_compiler.graph.graph import Graph, HangCheck
from shmap_compiler.xmap.axes import AxisMapping
from shmap_compiler.xmap.contraction import leave
from shmap_compiler.xmap.held_axes import Flat, on_parts
from shmap_compiler.xmap.named_jaxpr import NamedJaxpr
from shmap_compiler.xmap.place import Deferred, Deferring, Placer
from shmap_compiler.xmap.placement import Placement


def placed(program: NamedJaxpr, outer: Placer | None = None) -> Flat:
    """The program as a function of flat full arrays.

    Args:
      outer: of the enclosing xmap, if it is called inside one.
    """
    fun = _on_one_device(program, outer)
    around = frozenset() if outer is None else outer.manual
    held = around & frozenset(program.mesh_axes)
    if held != set(program.mesh_axes):
        new = [axis for axis in program.manual_axes if axis not in around]
        flat_specs = specs_of(program, held)
        fun = shard_map(
            fun,
            mesh=program.mesh,
            axis_names=new,
            in_specs=flat_specs[0],
            out_specs=flat_specs[1],
        )
    return on_parts(fun, program, held) if held else fun


def mapped_over(
    program: NamedJaxpr,
    mesh: AnyMesh,
    axis_names: Sequence[str],
    in_tree: TreeDef,
    out_tree: TreeDef,
) -> ShardMapped[..., PyTree]:
    """The program as a shard_mapped function of the user's arguments, with the stages of one."""
    flat = _on_one_device(program, None)
    (in_specs, out_specs), constants = specs_of(program), program.constants

    def body(*args: AnyValue) -> AnyValue:
        return jax.tree.unflatten(out_tree, flat(*constants, *jax.tree.leaves(args)))

    return shard_map(
        standing_for(body, program.fun, program.who),
        mesh=mesh,
        axis_names=axis_names,
        in_specs=jax.tree.unflatten(in_tree, in_specs[len(constants) :]),
        out_specs=jax.tree.unflatten(out_tree, out_specs),
    )


def specs_of(
    program: NamedJaxpr, held: Set[str] = frozenset()
) -> tuple[tuple[PartitionSpec, ...], list[PartitionSpec]]:
    """The specs of constants and arguments, and those of results, along all axes but `held`."""

    def spec(mapping: AxisMapping) -> PartitionSpec:
        split = {
            at: tuple(a for a in program.placements[name].mesh_axes if a not in held)
            for name, at in mapping.positions
        }
        last = max((at for at, axes in split.items() if axes), default=-1)
        return PartitionSpec(*[split.get(at) or None for at in range(last + 1)])

    constants = (PartitionSpec(),) * len(program.constants)
    return (*constants, *map(spec, program.in_mappings)), [*map(spec, program.out_mappings)]


def _on_one_device(program: NamedJaxpr, outer: Placer | None) -> Flat:
    """From the blocks of one device, after the constants of the program, to its blocks."""
    placements, manual = program.placements, frozenset(program.manual_axes)
    if outer is not None:
        placements, manual = {**outer.placements, **placements}, manual | outer.manual
    placer = Placer(program.who, placements, manual, _DEFERRING)
    whole = len(program.constants)

    def blocks(*args: AnyValue) -> Sequence[AnyValue]:
        constants = args[:whole]
        run = _once(program, placer, constants)
        loop = next((p.loop for p in program.placements.values() if p.loop), None)
        with vmapped_axes.body(program.who):
            if loop is None:
                return run(*args[whole:])
            names = frozenset(n for n, p in program.placements.items() if p.loop is not None)
            return _looped(program, names, loop.length, run)(*args[whole:])

    return standing_for(blocks, program.fun, program.who)


def _once(program: NamedJaxpr, placer: Placer, constants: Sequence[AnyValue]) -> Flat:
    """The program on what a device computes at once: all of its blocks, or one chunk."""
    placements = program.placements
    alone = {name for name, p in placements.items() if p.vmapped is None}
    vmapped = [p for p in placements.values() if p.vmapped is not None]

    def base(*args: AnyValue) -> Sequence[AnyValue]:
        return placer.run(program.jaxpr, [*constants, *args])

    fun: Flat = base
    outer = set(alone)
    levels = []
    for placement in vmapped:
        levels.append((placement, frozenset(outer)))
        outer.add(placement.name)
    for placement, gone in reversed(levels):
        fun = _vmapped(fun, placement, gone, program)

    def run(*args: AnyValue) -> Sequence[AnyValue]:
        args = tuple(
            lax.squeeze(x, _dimensions(m, alone)) if _dimensions(m, alone) else x
            for x, m in zip(args, program.in_mappings, strict=True)
        )
        return [
            lax.expand_dims(x, _dimensions(m, alone)) if _dimensions(m, alone) else x
            for x, m in zip(fun(*args), program.out_mappings, strict=True)
        ]

    return run


def _dimensions(mapping: AxisMapping, names: set[str]) -> list[int]:
    return [at for name, at in mapping.positions if name in names]


def _vmapped(fun: Flat, placement: Placement, gone: frozenset[str], program: NamedJaxpr) -> Flat:
    """`fun`, vmapped over one axis; those in `gone` are mapped outside."""
    assert placement.vmapped is not None
    name = placement.vmapped

    def dimension(mapping: AxisMapping) -> int | None:
        at = mapping.position(placement.name)
        if at is None:
            return None
        return at - sum(d < at for n, d in mapping.positions if n in gone)

    out_dimensions = [dimension(m) for m in program.out_mappings]

    def leaving(*args: AnyValue) -> Sequence[AnyValue]:
        results = fun(*args)
        return [leave(x, name, d) for x, d in zip(results, out_dimensions, strict=True)]

    in_axes = tuple(dimension(m) for m in program.in_mappings)
    # Results leave by themselves: whether they are vmapped need not be known beforehand.
    return jax.vmap(leaving, in_axes, out_axes=None, axis_name=name, axis_size=placement.local)


def _looped(program: NamedJaxpr, names: frozenset[str], length: int, run: Flat) -> Flat:
    """`run` on one chunk after the other of the axes in `names`."""

    def dimension(mapping: AxisMapping) -> int | None:
        return next((at for name, at in mapping.positions if name in names), None)

    def chunks(x: AnyValue, mapping: AxisMapping, k: object) -> AnyValue:
        for name, at in mapping.positions:
            if name in names:
                x = lax.dynamic_slice_in_dim(
                    x, k * (x.shape[at] // length), x.shape[at] // length, at
                )
        return x

    def looped(*args: AnyValue) -> Sequence[AnyValue]:
        def step(k: object) -> Sequence[AnyValue]:
            return run(*[chunks(x, m, k) for x, m in zip(args, program.in_mappings, strict=True)])

        results = lax.map(step, jnp.arange(length))
        return [
            _joined(x, dimension(m)) for x, m in zip(results, program.out_mappings, strict=True)
        ]

    return looped


def _joined(x: AnyValue, dimension: int | None) -> AnyValue:
    """The chunks of a result, which are stacked, along their dimension; or the first of equals."""
    if dimension is None:
        return x[0]
    x = jnp.moveaxis(x, 0, dimension)
    joined = x.shape[dimension] * x.shape[dimension + 1]
    return x.reshape(*x.shape[:dimension], joined, *x.shape[dimension + 2 :])


# ------------------------------------------------------------------ placed during the evaluation


def _region(eqn: Eqn, placer: Placer) -> Deferred:
    program: NamedJaxpr = eqn.params["program"]
    return placed(program, placer)


def _shard_map(eqn: Eqn, placer: Placer) -> Deferred:
    """A shard_map in the body, with collectives over logical axes in it."""
    graph: Graph = eqn.params["graph"]

    def blocks(*args: AnyValue) -> Sequence[AnyValue]:
        return list(placer.run(graph.jaxpr, args))

    return shard_map(
        standing_for(blocks, blocks),
        mesh=graph.mesh,
        axis_names=graph.manual_axes,
        in_specs=graph.in_specs,
        out_specs=list(graph.out_specs),
        check_vma=graph.check_vma,
        check_hangs=graph.hang_check is not HangCheck.NONE,
    )


_DEFERRING = Deferring(_region, _shard_map)
