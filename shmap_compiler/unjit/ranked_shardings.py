"""Ways to split the arguments of a function, ranked by what the compiled programs cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from shmap_compiler.base import specs as spec_text
from shmap_compiler.base.errors import Problem, TargetError
from shmap_compiler.base.text_tables import show_bytes, show_seconds, table
from shmap_compiler.base.untyped import Function, PyTree, Wrapped
from shmap_compiler.targets import Target
from shmap_compiler.unjit.from_jit import unjit
from shmap_compiler.unjit.unjitted import Unjitted

_SHOWN = 10


@dataclass(frozen=True)
class ShardingChoice:
    """One way to split the arguments of a function, and what the program then costs.

    Attributes:
      mesh: Axis -> size.
      specs: A `PartitionSpec` for each array among the arguments, flat.
      seconds: The modelled time of a step; None if the target has no figures, or it does not
        compile.
      memory_bytes: What a device needs; None if it does not compile.
      sent_bytes: What a device sends; None if it does not compile.
      refused: Why it does not compile, or "".

    Examples:
      >>> choice = search_shardings(jnp.sin, x, target="cpu:8", mesh={"x": 8}).best
      >>> tuple(choice.specs[0]), choice.sent_bytes
      (('x',), 0)
    """

    mesh: Mapping[str, int]
    specs: tuple[PartitionSpec, ...]
    seconds: float | None
    memory_bytes: int | None
    sent_bytes: float | None
    refused: str = ""

    @property
    def cost(self) -> tuple[float, ...]:
        """What choices are ranked by: time, or where there is none bytes sent; then memory."""
        if self.refused or self.sent_bytes is None or self.memory_bytes is None:
            return (math.inf,)
        first = self.sent_bytes if self.seconds is None else self.seconds
        return first, self.memory_bytes


@dataclass(frozen=True)
class ShardingSearch:
    """The choices that `search_shardings` compiled, best first. Its text is a table.

    Attributes:
      who: The function.
      target: What they are compiled for.
      paths: The arrays among the arguments.
      choices: Those that were compiled.
      possible: How many choices there are.

    Examples:
      >>> search = search_shardings(jnp.sin, x, target="cpu:8")
      >>> len(search.choices), search.possible
      (6, 6)
    """

    who: str
    target: Target
    paths: tuple[str, ...]
    choices: tuple[ShardingChoice, ...]
    possible: int
    _fun: Function
    _args: tuple[PyTree, ...]

    @property
    def best(self) -> ShardingChoice:
        """The first choice."""
        return self.choices[0]

    def jitted(self, choice: ShardingChoice | None = None) -> Wrapped:
        """Returns `jax.jit` of the function with the shardings of a choice, by default the best.

        Raises:
          TargetError: There are fewer devices here than its mesh has.

        Examples:
          >>> jitted = search_shardings(jnp.sin, x, target="cpu:8", mesh={"x": 8}).jitted()
          >>> tuple(jitted(x).sharding.spec)
          ('x',)
        """
        chosen = choice or self.best
        count = math.prod(chosen.mesh.values())
        if count > len(jax.devices()):
            problem = Problem(
                f"the mesh {dict(chosen.mesh)}",
                f"{len(jax.devices())} devices here",
                f"{count}, of which the source is written for one",
                f"set jax.config.update('jax_num_cpu_devices', {count})",
            )
            raise TargetError(self.who, [problem])
        sizes, names = tuple(chosen.mesh.values()), tuple(chosen.mesh)
        mesh = jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))
        tree = jax.tree.structure(self._args)
        shardings = tree.unflatten([NamedSharding(mesh, spec) for spec in chosen.specs])
        return jax.jit(self._fun, in_shardings=shardings)

    def unjit(
        self,
        choice: ShardingChoice | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> Unjitted:
        """Returns what the partitioner makes of a choice, by default the best; see `unjit`.

        Args:
          choice: One of `choices`.
          progress: Called with the name of each phase as it begins.

        Examples:
          >>> search = search_shardings(jnp.sin, x, target="cpu:8", mesh={"x": 8})
          >>> "jnp.sin(" in search.unjit().as_python()
          True
        """
        target = None if self.target.is_here else self.target
        return unjit(self.jitted(choice), *self._args, target=target, progress=progress)

    def __str__(self) -> str:
        compiled = len(self.choices)
        lines = [f"{self.who} on {self.target}: {compiled} of {self.possible} choices compiled"]
        shown = self.choices[:_SHOWN]
        header = ("mesh", *self.paths, "time", "memory", "sent")
        lines.append(table(header, [_row(choice) for choice in shown]))
        if compiled > len(shown):
            lines.append(f"  and {compiled - len(shown)} more")
        return "\n".join(lines)


def _row(choice: ShardingChoice) -> tuple[str, ...]:
    mesh = "x".join(map(str, choice.mesh.values()))
    if choice.memory_bytes is None or choice.sent_bytes is None:
        figures = (choice.refused, "", "")
    else:
        time = "" if choice.seconds is None else show_seconds(choice.seconds)
        figures = (time, show_bytes(choice.memory_bytes), show_bytes(choice.sent_bytes))
    return (mesh, *(spec_text.show(spec) for spec in choice.specs), *figures)
