"""What was chosen at each place where transfers could run beside products, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shmap_passes import ChooseOverlap
from shmap_passes.cost.machine import Machine
from shmap_passes.overlap.choose.decision import Choice

from shmap_compiler.base.text_tables import show_seconds, table
from shmap_compiler.lowering.overlap import OverlapSetting
from shmap_compiler.lowering.snapshots import Snapshots
from shmap_compiler.simulate.places import place_of


@dataclass(frozen=True)
class OverlapChoice:
    """What was chosen at one place.

    Attributes:
      pattern: "gather-product", "gather-contraction", "product-scatter", "product-sum",
        "gather-scatter", "all-to-all", "gathering-loop", "row-block", "sequence-block",
        "exchange-block" or "softmax".
      line: The user's line of the communication, or of the softmax; "" if unknown.
      axes: The mesh axes along which devices communicate; none for a softmax.
      devices: The number of devices in a group.
      form: "ring", "rows", "columns", "partial-sums", "chunks", "stages", "unroll", "row-chunks",
        "row-stages", "sequences", "sequence-sums", "summed-chunks" or "stored-maximum";
        "asynchronous" if it is left as it is, and with the target's compiler options sent while
        other products run; None if it is left for another reason.
      parts: The number of chunks or steps; 0 for the usual number of the form.
      plain_seconds: The expected time of the plain program; None if no form was considered.
      expected_seconds: That of the form.
      reason: Why the program is left as it is.
      is_together: Whether the products of a gather that is left are computed one right after the
        other, so that what is gathered can be released.

    Examples:
      >>> f = shard_map(lambda x, w: lax.all_gather(x, "i", tiled=True) @ w, mesh=mesh,
      ...               in_specs=(P("i"), P()), out_specs=P(), check_vma=False)
      >>> report = f.lower(jnp.ones((16, 4)), jnp.ones((4, 4)), overlap="force").overlap_report()
      >>> choice = report.choices[0]
      >>> choice.axes, choice.devices, choice.form, choice.reason
      (('i',), 8, 'ring', '')
    """

    pattern: str
    line: str
    axes: tuple[str, ...]
    devices: int
    form: str | None
    parts: int
    plain_seconds: float | None
    expected_seconds: float | None
    reason: str
    is_together: bool = False

    @staticmethod
    def of(choice: Choice) -> OverlapChoice:
        """Describes a choice that a pass has made."""
        site, plan, form = choice.site, choice.plan, choice.form
        return OverlapChoice(
            site.pattern,
            place_of(site.op).line,
            site.axes,
            site.count,
            form.name if form else None,
            form.parts if form else 0,
            plan.plain,
            plan.expected,
            "" if form else plan.reason,
            choice.is_together,
        )


@dataclass(frozen=True)
class OverlapReport:
    """What was chosen at each place of a program where transfers could run beside products.

    Made by `Lowered.overlap_report`. `str()` gives a table.

    Attributes:
      choices: In program order.

    Examples:
      >>> f = shard_map(lambda x, w: lax.all_gather(x, "i", tiled=True) @ w, mesh=mesh,
      ...               in_specs=(P("i"), P()), out_specs=P(), check_vma=False)
      >>> report = f.lower(jnp.ones((16, 4)), jnp.ones((4, 4)), overlap="force").overlap_report()
      >>> [(choice.pattern, choice.form) for choice in report.choices]
      [('gather-product', 'ring')]
    """

    choices: tuple[OverlapChoice, ...]

    @property
    def is_changed(self) -> bool:
        """Whether a form was chosen anywhere."""
        return any(choice.form is not None for choice in self.choices)

    def __str__(self) -> str:
        if not self.choices:
            return (
                "overlap: no products of what collectives gather or exchange were found, nor any "
                "that they sum; docs/overlap.md says which are looked for"
            )
        header = ("overlap", "axes", "devices", "plain", "expected", "chosen", "at")
        return table(header, [_row(choice) for choice in self.choices])


def report_of(
    snapshots: Snapshots, setting: OverlapSetting, machine: Machine | None, *, is_judged: bool
) -> OverlapReport:
    """The report on a program in its snapshots, for a machine; see `OverlapSetting.chooser`."""
    mode = "auto" if setting.mode == "off" else setting.mode
    chooser = replace(setting, mode=mode).chooser(machine, is_judged)
    found = snapshots.choices(chooser or ChooseOverlap())
    return OverlapReport(tuple(map(OverlapChoice.of, found)))


def _row(choice: OverlapChoice) -> Sequence[str]:
    parts = f" in {choice.parts}" if choice.parts else ""
    chosen = f"{choice.form}{parts}" if choice.form else f"no: {choice.reason}"
    if choice.is_together:
        chosen += "; its products one after the other"
    return (
        choice.pattern,
        ",".join(choice.axes),
        str(choice.devices),
        *map(_seconds, (choice.plain_seconds, choice.expected_seconds)),
        chosen,
        choice.line,
    )


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else show_seconds(seconds)
