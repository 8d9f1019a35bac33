"""How a program compares with itself after each pass, XLA's result and a reference: a report."""

from __future__ import annotations

from dataclasses import dataclass

from shmap_compiler.base.text_tables import show_seconds, table
from shmap_compiler.simulate.places import SourcePlace
from shmap_compiler.simulate.report import Hang


@dataclass(frozen=True)
class Difference:
    """Where results differ.

    Attributes:
      seed: of the arguments.
      what: a result, as in "result['w']"; or that devices deadlock.
      device: the first device whose block of it differs; None where full arrays are compared and no
        operation was found.
      place: the first operation that makes other values than before, or than XLA or the reference;
        None if none was found.
      note: what else is known of that operation, or why none was found; "" if nothing.
    """

    seed: int
    what: str
    device: int | None
    place: SourcePlace | None
    note: str = ""

    def __str__(self) -> str:
        device = "" if self.device is None else f" on device {self.device}"
        place = "" if self.place is None else f"; the first to differ is {self.place}"
        note = f"; {self.note}" if self.note else ""
        return f"{self.what}{device}, seed {self.seed}{place}{note}"


@dataclass(frozen=True)
class Check:
    """The comparison of one module.

    Attributes:
      name: The pass, "XLA" or "reference".
      bitwise: Whether equal bits are required.
      relative: The largest difference, in units of the largest magnitude of a result.
      exchanges: How many collectives the groups of devices complete; None for "XLA", "reference".
      seconds: How long the simulation took.
      difference: What differs by more than is allowed, or None.
    """

    name: str
    bitwise: bool
    relative: float
    exchanges: int | None
    seconds: float
    difference: Difference | None


@dataclass(frozen=True)
class Validation:
    """The comparison of a program with itself after every pass. Its text is a table.

    Made by `Lowered.validate`.

    Attributes:
      who: The program.
      checks: One for each pass, then one for XLA's result and one for the reference, if compared.
      hang: Where each device waits if the last module deadlocks, which then is compared with
        neither; None if it does not.

    Examples:
      >>> f = shard_map(lambda b: lax.psum(b, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
      >>> validation = f.lower(x).validate(x, reference=lambda x: x.reshape(8, 2).sum(0))
      >>> [check.name for check in validation.checks][-2:]
      ['XLA', 'reference']
      >>> validation.holds, validation.first_difference
      (True, None)
    """

    who: str
    checks: tuple[Check, ...]
    hang: Hang | None = None

    @property
    def holds(self) -> bool:
        """Whether nothing differs by more than is allowed, and no device waits forever."""
        return self.first_difference is None and self.hang is None

    @property
    def first_difference(self) -> Check | None:
        """The first check that fails."""
        return next((check for check in self.checks if check.difference is not None), None)

    def __str__(self) -> str:
        rows = [
            (
                check.name,
                _count(check.exchanges),
                "bitwise" if check.bitwise else "rounding",
                _shown(check),
                show_seconds(check.seconds),
                "" if check.difference is None else f"DIFFERS: {check.difference}",
            )
            for check in self.checks
        ]
        header = ("after", "exchanges", "allowed", "difference", "time", "")
        return f"{self.who}, validated\n\n{table(header, rows)}\n\n{self._verdict()}"

    def _verdict(self) -> str:
        failed = self.first_difference
        if failed is not None:
            return f"FAIL: {failed.name} differs"
        if self.hang is not None:
            return f"FAIL: the devices deadlock, before the passes and after them\n{self.hang}"
        return "PASS: all equal"


def _shown(check: Check) -> str:
    if check.relative:
        return f"{check.relative:.1e}"
    return "other bits" if check.bitwise and check.difference is not None else "equal"


def _count(exchanges: int | None) -> str:
    return "" if exchanges is None else str(exchanges)
