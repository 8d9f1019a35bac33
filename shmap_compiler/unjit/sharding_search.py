"""search_shardings: how to split the arguments of a function, by the time of the compiled program.

Each choice is compiled for the target, in a process of its own, and its time and memory are those
of the model of `explain`. Where there are more choices than may be compiled, the search changes
the sharding of one argument at a time, the largest first, and keeps a change that is faster, until
none is; it does that on each mesh. It may miss choices in which two changes help only together.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec, Sharding

from shmap_compiler.base import specs as spec_text
from shmap_compiler.base.descriptions import describe, show_type_of, show_value
from shmap_compiler.base.errors import Problem, ShmapError, TargetError
from shmap_compiler.base.front_ends import FrontEndFunction
from shmap_compiler.base.untyped import AnyValue, Function, Jaxpr, PyTree
from shmap_compiler.base.values import input_type, type_of
from shmap_compiler.graph.callbacks import callback_lines
from shmap_compiler.stages.any_function import lower_function
from shmap_compiler.stages.lower_call import calls_back
from shmap_compiler.targets import Target
from shmap_compiler.unjit import refusals
from shmap_compiler.unjit.ranked_shardings import ShardingChoice, ShardingSearch
from shmap_compiler.unjit.sharding_candidates import all_choices, block_bytes, meshes, specs


def search_shardings(
    fun: Function,
    *args: PyTree,
    target: str | Target,
    mesh: Mapping[str, int] | None = None,
    limit: int = 48,
    progress: Callable[[str], None] | None = None,
) -> ShardingSearch:
    """Finds how to split the arguments of a function, by compiling it for a target.

    All choices are compiled if there are at most `limit` of them. Otherwise the search starts, on
    each mesh, with every array split as far as it can be, and changes one array at a time, the
    largest first, as long as that makes the program faster.

    Args:
      fun: A function, jitted or not. The `in_shardings` of a jitted one are ignored,
        and its `out_shardings` kept.
      *args: Its arguments: arrays, `jax.ShapeDtypeStruct`s or numbers. Shardings they have are
        ignored.
      target: What to compile for, such as "tpu:v5e:4x4".
      mesh: Axis -> size. By default all meshes of one or two axes of the target's devices.
      limit: How many choices to compile at most.
      progress: Called with what is compiled.

    Returns:
      A `ShardingSearch`.

    Raises:
      TargetError: There is no such target, the mesh has another number of devices, or none
        of the choices compiles; or the function calls back into Python, is not one of whole
        arrays, or is jitted with static arguments.

    Examples:
      >>> search = search_shardings(jnp.outer, x, x, target="cpu:8", limit=8)
      >>> len(search.choices), search.best.sent_bytes
      (8, 0)
    """
    who = f"shardings of {describe(fun)}"
    chosen = Target.parse(target, who) if isinstance(target, str) else target
    inner: Any = getattr(fun, "__wrapped__", fun) if hasattr(fun, "lower") else fun
    problems = [] if mesh is None else chosen.mesh_problems(mesh, is_whole=True)
    problems += [*chosen.missing(), *_of_blocks(fun), *_not_numbers(args)]
    if not jax.tree.leaves(args):
        needed = "arrays, or jax.ShapeDtypeStructs"
        problems.append(Problem("the arguments", "none", needed, "pass what the function takes"))
    if limit < 1:
        problems.append(Problem("limit", str(limit), "at least 1", "choose how many to compile"))
    if problems:
        raise TargetError(who, problems)
    found = [dict(mesh)] if mesh is not None else meshes(chosen.device_count)
    types = jax.tree.map(input_type, args)
    trace = getattr(fun, "trace", None) if hasattr(fun, "lower") else None
    traced = trace(*args) if trace is not None else None
    fix = "bind the static values first: functools.partial(f, n=3)"
    is_jitted = isinstance(traced, jax.stages.Traced)
    if is_jitted and (problems := refusals.static_arguments(args, traced, fix)):
        raise TargetError(who, problems)
    jaxpr = jax.make_jaxpr(fun)(*types).jaxpr
    problems = [calls_back(line) for line in callback_lines(jaxpr)]
    if is_jitted:
        shardings = _out_shardings(jaxpr)
        problems += _of_other_size(shardings, chosen)
        inner = _placing(inner, shardings)
    if problems:
        raise TargetError(who, problems)
    search = _Search(who, inner, types, chosen, limit, progress or (lambda what: None))
    possible = search.run(found)
    ranked = sorted(search.compiled.values(), key=lambda choice: choice.cost)
    if not ranked or ranked[0].refused:
        found_text = ranked[0].refused if ranked else "no choice"
        fix = "choose a larger target, or smaller arguments"
        raise TargetError(
            who, [Problem(chosen.where, found_text, "a choice that compiles and fits", fix)]
        )
    paths = tuple(
        "args" + jax.tree_util.keystr(path)
        for path, _ in jax.tree_util.tree_leaves_with_path(tuple(args))
    )
    return ShardingSearch(
        describe(fun), chosen, paths, tuple(ranked), possible, inner, tuple(types)
    )


def _not_numbers(args: Sequence[PyTree]) -> list[Problem]:
    """Arguments that are not arrays, and so cannot be split."""
    return [
        Problem(
            "args" + jax.tree_util.keystr(path),
            show_value(leaf),
            "an array, a jax.ShapeDtypeStruct or a number",
            "bind other values first: functools.partial(f, mode='a')",
        )
        for path, leaf in jax.tree_util.tree_leaves_with_path(tuple(args))
        if type_of(leaf) is None
    ]


def _of_blocks(fun: Function) -> list[Problem]:
    """The problem that a function does not take its arguments as whole arrays."""
    if not isinstance(fun, FrontEndFunction):
        return []
    found = f"{show_type_of(fun)}: how it splits arrays is what you wrote"
    fix = "pass the function that calls it"
    return [Problem("the function", found, "a function of whole arrays", fix)]


def _out_shardings(jaxpr: Jaxpr) -> list[Sharding | None]:
    """The `out_shardings` of the jitted function that a program is a call of, flat."""
    found = [s for eqn in jaxpr.eqns for s in eqn.params.get("out_shardings", ())]
    return [s if isinstance(s, Sharding) else None for s in found]


def _of_other_size(shardings: Sequence[Sharding | None], target: Target) -> list[Problem]:
    """Numbers of devices of `out_shardings` other than that of the target."""
    counts = {s.num_devices for s in shardings if s is not None} - {target.device_count}
    fix = f"give jax.jit out_shardings on {target.device_count} devices, or choose another target"
    needed = f"{target.device_count}, the devices of the target"
    return [Problem("out_shardings", f"{n} devices", needed, fix) for n in sorted(counts)]


def _placing(fun: Function, shardings: Sequence[Sharding | None]) -> Function:
    """A function with results that are split by shardings, flat, where there are any."""
    if not any(shardings):
        return fun

    def placed(*args: AnyValue) -> PyTree:
        results, tree = jax.tree.flatten(fun(*args))
        return tree.unflatten(
            x if s is None else lax.with_sharding_constraint(x, s)
            for x, s in zip(results, shardings, strict=True)
        )

    return functools.update_wrapper(placed, fun)


class _Search:
    """The choices that were compiled, by mesh and specs."""

    def __init__(
        self,
        who: str,
        fun: Function,
        types: PyTree,
        target: Target,
        limit: int,
        progress: Callable[[str], None],
    ):
        self.who, self.fun, self.types, self.target = who, fun, types, target
        self.limit, self.progress = limit, progress
        self.leaves, self.tree = jax.tree.flatten(tuple(types))
        self.compiled: dict[tuple[Any, ...], ShardingChoice] = {}

    def run(self, found: Sequence[Mapping[str, int]]) -> int:
        """Compiles choices on meshes; returns how many there are."""
        each = [[specs(leaf.shape, mesh) for leaf in self.leaves] for mesh in found]
        possible = sum(math.prod(map(len, ways)) for ways in each)
        if possible <= self.limit:
            for mesh, ways in zip(found, each, strict=True):
                for choice in all_choices(ways):
                    self._compile(mesh, choice)
            return possible
        share = max(self.limit // len(found), 1)
        for number, (mesh, ways) in enumerate(zip(found, each, strict=True)):
            self._descend(mesh, ways, min(self.limit, share * (number + 1)))
        return possible

    def _descend(
        self, mesh: Mapping[str, int], ways: Sequence[Sequence[PartitionSpec]], until: int
    ) -> None:
        """Changes one array at a time, as long as that helps and `until` are not compiled yet."""
        sizes = [math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in self.leaves]
        order = sorted(range(len(ways)), key=lambda k: -sizes[k])
        if len(self.compiled) >= until:
            return
        best = self._compile(mesh, tuple(self._smallest(mesh, ways)))
        improved = True
        while improved:
            improved = False
            for k in order:
                for spec in ways[k]:
                    if len(self.compiled) >= until:
                        return
                    changed = (*best.specs[:k], spec, *best.specs[k + 1 :])
                    found = self._compile(mesh, changed)
                    if found.cost < best.cost:
                        best, improved = found, True

    def _smallest(
        self, mesh: Mapping[str, int], ways: Sequence[Sequence[PartitionSpec]]
    ) -> Iterator[PartitionSpec]:
        for leaf, each in zip(self.leaves, ways, strict=True):
            sizes = [block_bytes(leaf.shape, leaf.dtype.itemsize, spec, mesh) for spec in each]
            yield each[sizes.index(min(sizes))]

    def _compile(
        self, mesh: Mapping[str, int], choice: tuple[PartitionSpec, ...]
    ) -> ShardingChoice:
        key = (*mesh.items(), choice)
        if key not in self.compiled:
            shown = ", ".join(map(spec_text.show, choice))
            sizes = "x".join(map(str, mesh.values()))
            self.progress(f"{len(self.compiled) + 1} of at most {self.limit}: {sizes}, {shown}")
            self.compiled[key] = self._costs(mesh, choice)
        return self.compiled[key]

    def _costs(self, mesh: Mapping[str, int], choice: tuple[PartitionSpec, ...]) -> ShardingChoice:
        abstract = AbstractMesh(
            tuple(mesh.values()), tuple(mesh), axis_types=(AxisType.Auto,) * len(mesh)
        )
        types = [
            input_type(leaf, NamedSharding(abstract, spec))
            for leaf, spec in zip(self.leaves, choice, strict=True)
        ]
        args = self.tree.unflatten(types)
        try:
            program = lower_function(self.fun, args, self.target.platform)
            explanation = program.compile(self.target).explain()
        except ShmapError as error:
            refused = error.problems[0].found.partition("\n")[0]
            return ShardingChoice(dict(mesh), choice, None, None, None, refused)
        totals = explanation.totals
        return ShardingChoice(
            dict(mesh), choice, totals.step_seconds, explanation.memory.total, totals.sent_bytes
        )
