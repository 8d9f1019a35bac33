"""The user's source lines: of an equation, of a frame, and in the traceback of an error."""

from __future__ import annotations

from types import FrameType

from jax.extend import source_info_util

from shmap_compiler.base.descriptions import shown_path
from shmap_compiler.base.untyped import Eqn, SourceInfo


def user_line(error: BaseException) -> str:
    """The user's line in the traceback of an error: `file.py:12 (f)`."""
    trace, place = error.__traceback__, "an unknown line"
    while trace is not None:
        if not is_internal(trace.tb_frame):
            place = place_of(trace.tb_frame, trace.tb_lineno)
        trace = trace.tb_next
    return place


def is_raised_inside(error: BaseException) -> bool:
    """Whether an error comes from JAX or this package, and not from a line of the user's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and is_internal(trace.tb_frame)


def source_line(eqn: Eqn) -> str:
    """The user's line that made an equation: `file.py:12 (f)`."""
    return shown_source(eqn.source_info)


def shown_source(source_info: SourceInfo) -> str:
    """The user's line in a source info: `file.py:12 (f)`."""
    position, space, function = source_info_util.summarize(source_info).partition(" ")
    path, *line_and_column = position.split(":")
    return ":".join([shown_path(path), *line_and_column[:1]]) + space + function


def is_internal(frame: FrameType) -> bool:
    """Whether a frame belongs to JAX or to this package."""
    module = frame.f_globals.get("__name__", "")
    return module.partition(".")[0] in ("jax", "shmap_compiler")


def place_of(frame: FrameType, line: int) -> str:
    """A line in a frame: `file.py:12 (f)`."""
    return f"{shown_path(frame.f_code.co_filename)}:{line} ({frame.f_code.co_qualname})"
