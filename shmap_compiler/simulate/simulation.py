"""Simulation: what happens when a program runs, device by device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import numpy as np

from shmap_compiler.base.errors import Problem, SimulationError
from shmap_compiler.base.text_tables import show_bytes, table
from shmap_compiler.base.untyped import PyTree, TreeDef
from shmap_compiler.simulate.report import Exchange, Hang, NonFinite, UnequalCopies


@dataclass(frozen=True)
class Simulation:
    """What happened when a program was simulated. Its text is a report.

    Made by `Lowered.simulate` and `simulate_module`.

    Attributes:
      who: The program.
      axes: Names and sizes of the axes of its mesh. Devices are numbered row major.
      exchanges: The collectives, in the order in which groups of devices completed them.
      hang: The position of each device, if they deadlock; else None.
      unequal: Pairs of devices whose blocks of a result differ, although the sharding of the result
        says that they are copies.
      non_finite: The operation that made the first NaN, or infinity, if a result contains one.
      out_tree: The structure of the results.
      arrays: The full array of each result; () if the devices deadlock.
      blocks: Of each result, what each device holds.

    Examples:
      >>> f = shard_map(lambda b: lax.psum(b, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
      >>> simulation = f.lower(x).simulate(x)
      >>> simulation.results
      array([56., 64.], dtype=float32)
      >>> [(each.kind, each.axes) for each in simulation.exchanges]
      [('all_reduce', ('i',))]
    """

    who: str
    axes: Mapping[str, int]
    exchanges: tuple[Exchange, ...]
    hang: Hang | None
    unequal: tuple[UnequalCopies, ...]
    non_finite: NonFinite | None
    out_tree: TreeDef
    arrays: tuple[np.ndarray, ...]
    blocks: tuple[tuple[np.ndarray, ...], ...]

    @property
    def results(self) -> PyTree:
        """The full arrays, in the structure of the results. Random keys appear as their data.

        Raises:
          SimulationError: The devices deadlock.
        """
        self._require_end()
        return jax.tree.unflatten(self.out_tree, self.arrays)

    def on_device(self, device: int) -> PyTree:
        """Returns the blocks that one device holds in the end.

        Args:
          device: Its position in the mesh, row major.

        Returns:
          NumPy arrays in the structure of the results.

        Raises:
          SimulationError: The devices deadlock.

        Examples:
          >>> f = shard_map(jnp.cumsum, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
          >>> f.lower(x).simulate(x).on_device(7)
          array([14., 29.], dtype=float32)
        """
        self._require_end()
        return jax.tree.unflatten(self.out_tree, [blocks[device] for blocks in self.blocks])

    def _require_end(self) -> None:
        if self.hang is not None:
            found = f"a deadlock\n{self.hang}".replace("\n", "\n            ")
            fix = "let all devices of a group reach each collective equally often"
            raise simulation_error(self.who, "results", found, "a program that ends", fix)

    def __str__(self) -> str:
        return report(self)


def simulation_error(who: str, where: str, found: str, needed: str, fix: str) -> SimulationError:
    """The error of one problem."""
    return SimulationError(who, [Problem(where, found, needed, fix)])


# ------------------------------------------------------------------------------------- the text


_SHOWN = 4


def report(simulation: Simulation) -> str:
    """The report of a simulation."""
    mesh = ", ".join(f"{axis}={size}" for axis, size in simulation.axes.items())
    lines = [f"{simulation.who} on mesh({mesh}), simulated", "", _exchanges(simulation), ""]
    lines += _verdict(simulation)
    return "\n".join(lines)


def _exchanges(simulation: Simulation) -> str:
    groups = Counter(
        (e.kind, e.line, e.axes, len(e.group), e.operands, e.bytes) for e in simulation.exchanges
    )
    rows = [
        (
            kind,
            line or "unknown",
            "-" if axes is None else ", ".join(axes) or "none",
            str(size),
            operands,
            show_bytes(sent),
            str(count),
        )
        for (kind, line, axes, size, operands, sent), count in groups.items()
    ]
    header = ("collectives", "line", "axes", "group size", "operands", "bytes", "exchanges")
    return table(header, rows or [("none", *[""] * 6)])


def _verdict(simulation: Simulation) -> list[str]:
    lines = []
    if any(exchange.out_of_step for exchange in simulation.exchanges):
        lines.append("WARNING: devices met in different rounds of a loop")
    lines += [f"FAIL: {pair}" for pair in simulation.unequal[:_SHOWN]]
    if len(simulation.unequal) > _SHOWN:
        lines.append(f"FAIL: and so on, {len(simulation.unequal)} pairs of devices")
    if simulation.non_finite is not None:
        lines.append(f"WARNING: {simulation.non_finite}")
    if simulation.hang is not None:
        count = len(simulation.exchanges)
        lines.append(f"FAIL: deadlock after {count} exchanges")
        lines += [f"  {position}" for position in simulation.hang.positions]
    if simulation.hang is None and not simulation.unequal:
        lines.append("PASS: all devices returned")
    return lines
