"""Locations as people read them: `file:line:col`."""

from __future__ import annotations

from jaxlib.mlir import ir

UNKNOWN = "<unknown>"


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
            places = (file_line_col(part) for part in fused.locations)
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
