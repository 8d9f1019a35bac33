"""MLIR's diagnostics as plain values, with locations as people read them: `file:line:col`."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from .base import Violation

UNKNOWN = "<unknown>"


@dataclass(frozen=True)
class Diagnostic:
    """One message of MLIR about a place in a module."""

    place: str
    """`file:line:col`, or `<unknown>`."""
    severity: str
    """"error", "warning", "remark" or "note"."""
    message: str
    notes: tuple[Diagnostic, ...] = ()

    @staticmethod
    def of(found: ir.DiagnosticInfo | ir.Diagnostic) -> Diagnostic:
        return Diagnostic(
            place=file_line_col(found.location),
            severity=found.severity.name.lower(),
            message=found.message,
            notes=tuple(Diagnostic.of(note) for note in found.notes),
        )

    @staticmethod
    def of_violation(violation: Violation, severity: str = "error") -> Diagnostic:
        return Diagnostic(
            place=file_line_col(violation.location),
            severity=severity,
            message=violation.message,
            notes=tuple(Diagnostic.of_violation(note, "note") for note in violation.notes),
        )

    def __str__(self) -> str:
        own = f"{self.place}: {self.severity}: {self.message}"
        return "\n".join([own, *map(str, self.notes)])


def diagnostics_of(error: ir.MLIRError) -> tuple[Diagnostic, ...]:
    """All diagnostics that MLIR collected before it raised `error`."""
    return tuple(Diagnostic.of(found) for found in error.error_diagnostics)


def first_complaint(error: ir.MLIRError, name: str) -> tuple[str, str]:
    """Where and what in a text of this name MLIR complains about first, while it parses it."""
    first = next(iter(diagnostics_of(error)), None)
    if first is None:
        return "module", str(error)
    place = f"{name}{first.place[1:]}" if first.place.startswith("-:") else first.place
    return place, first.message.partition("\n")[0]


def file_line_col(location: ir.Location) -> str:
    """The innermost file position in `location`, as `file:line:col`, or `<unknown>`."""
    match _downcast(location):
        case ir.FileLineColLoc() as place:
            return f"{place.filename}:{place.start_line}:{place.start_col}"
        case ir.NameLoc() as named:
            return file_line_col(named.child_loc)
        case ir.CallSiteLoc() as call:
            return file_line_col(call.callee)
        case ir.FusedLoc() as fused:
            parts = (part for part in fused.locations if isinstance(part, ir.Location))
            places = (file_line_col(part) for part in parts)
            return next((place for place in places if place != UNKNOWN), UNKNOWN)
        case _:
            return UNKNOWN


def _downcast(location: ir.Location) -> ir.Location:
    """`location` with its own class; diagnostics hand locations out as plain `ir.Location`."""
    for kind in (ir.FileLineColLoc, ir.NameLoc, ir.CallSiteLoc, ir.FusedLoc):
        try:
            return kind(location)
        except ValueError:
            continue
    return location
