"""Programs of library calls for `xmap`: named axes anywhere, on any resources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from library_programs.collective_steps import names
from library_programs.generate import Scope, draw_program, result_kinds_of, varying_results
from library_programs.program import SHAPES, Program
from library_programs.reference import mentioned
from library_programs.run import How, mesh_of
from library_programs.transformations import TRANSFORMATIONS
from shmap_compiler import SerialLoop, xmap

Axes = Mapping[int, str]  # the named dimensions of an array, by their places

_MESHES = [{"x": 2}, {"x": 4}, {"x": 2, "y": 2}, {"y": 2, "x": 4}, {"x": 2, "y": 2, "z": 2}]


@dataclass(frozen=True)
class NamedProgram:
    """The body of a program, whose axes are named. The repr makes it again.

    Attributes:
      mesh: the sizes of its axes.
      resources: mesh axes of named axes, and loops.
    """

    program: Program
    in_axes: tuple[Axes, ...]
    out_axes: tuple[Axes, ...]
    mesh: dict[str, int]
    resources: dict[str, tuple[Any, ...]]

    @property
    def sizes(self) -> dict[str, int]:
        return self.program.axes

    def arrays(self) -> list[np.ndarray]:
        made = []
        for seed, (argument, axes) in enumerate(
            zip(self.program.arguments, self.in_axes, strict=True)
        ):
            shape = list(SHAPES[argument.kind])
            for place, name in sorted(axes.items()):
                shape.insert(place, self.sizes[name])
            made.append(np.random.default_rng(seed).uniform(-1, 1, shape))
        return made

    def mapped(self) -> Any:
        """By `xmap`, and transformed."""
        how = How(self.sizes, xmap)
        given = {name for axes in self.in_axes for name in axes.values()}
        function = xmap(
            lambda *xs: tuple(how.run(self.program.body, *xs)),
            self.in_axes,
            self.out_axes,
            axis_sizes={name: n for name, n in self.sizes.items() if name not in given},
            axis_resources=self.resources,
            mesh=mesh_of(self.mesh),
        )
        return TRANSFORMATIONS[self.program.transformation](function)

    def referenced(self) -> Any:
        """By one `jax.vmap` for each axis, and transformed."""
        run = partial(How(self.sizes, None).run, self.program.body)
        for name in reversed(self.sizes):
            dims = [0 if name in axes.values() else None for axes in self.in_axes]
            run = jax.vmap(run, dims, axis_name=name, axis_size=self.sizes[name])

        def function(*arrays):
            results = run(*map(self._in_front, arrays, self.in_axes))
            return tuple(map(self._in_place, results, self.out_axes))

        return TRANSFORMATIONS[self.program.transformation](function)

    def _in_front(self, x: Any, axes: Axes) -> Any:
        """The array with its named dimensions first, in the order of the axes."""
        places = [_place(axes, name) for name in self.sizes if name in axes.values()]
        return jnp.moveaxis(x, places, range(len(places)))

    def _in_place(self, x: Any, axes: Axes) -> Any:
        """The reverse, of a result that is the same along the axes without a dimension in it."""
        kept = [name for name in self.sizes if name in axes.values()]
        x = x[tuple(slice(None) if name in kept else 0 for name in self.sizes)]
        return jnp.moveaxis(x, range(len(kept)), [_place(axes, name) for name in kept])


def _place(axes: Axes, name: str) -> int:
    return next(place for place, each in axes.items() if each == name)


def draw_named(number: int, seed: int = 0) -> NamedProgram:
    """Programs with regions are left out, as they are over axes of a mesh."""
    program = draw_program(number, seed)
    rng = np.random.default_rng((seed, number, 1))
    while program.manual != tuple(program.axes):
        program = draw_program(int(rng.integers(2**30)), seed)
    pick = Scope(rng, {}, {}, "", (), 0, False)
    sets = [frozenset(mentioned(argument.spec)) for argument in program.arguments]
    ins = [_named(pick, a.kind, s) for a, s in zip(program.arguments, sets, strict=True)]
    outs = []
    varying = varying_results(program.axes, program.body, sets)
    for kind, axes in zip(result_kinds_of(program.body), varying, strict=True):
        repeated = {name for name in program.axes if pick.choose([0, 0, 1])}
        outs.append(_named(pick, kind, axes | repeated))
    mesh = pick.choose(_MESHES)
    resources = _resources(pick, program, mesh)
    return NamedProgram(program, tuple(ins), tuple(outs), mesh, resources)


def _named(pick: Scope, kind: str, axes: Iterable[str]) -> Axes:
    chosen = pick.shuffled(sorted(axes))
    places = pick.shuffled(range(len(SHAPES[kind]) + len(chosen)))
    return dict(zip(places, chosen, strict=False))


def _resources(
    pick: Scope, program: Program, mesh: Mapping[str, int]
) -> dict[str, tuple[Any, ...]]:
    """Mesh axes for some axes, and one loop, over an axis along which nothing is sent."""
    steps = program.body.walk()
    sent = {name for step in steps for name in names(step.params.get("axis", ()))}
    left: Sequence[str] = pick.shuffled(mesh)
    resources: dict[str, tuple[Any, ...]] = {}
    loops = pick.choose([0, 1])
    for name in pick.shuffled(program.axes):
        size, found = program.axes[name], list[Any]()
        while left and size % mesh[left[0]] == 0 and pick.choose([0, 1, 1]):
            size //= mesh[left[0]]
            found.append(left[0])
            left = left[1:]
        if loops and name not in sent:
            loops = 0
            found.append(SerialLoop(pick.choose([n for n in (1, 2, 4) if size % n == 0])))
        if found:
            resources[name] = tuple(found)
    return resources
