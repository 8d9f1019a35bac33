"""Tracebacks of the user's own code, without the frames of JAX, of Python and of this package."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
import traceback
from pathlib import Path


def user_traceback(error: BaseException, file: str) -> str | None:
    """What Python prints of `error`, from the first frame in `file` on, user code only.

    None if no frame is in `file`: then the error is not the user's.
    """
    whole = traceback.TracebackException.from_exception(error, compact=True)
    in_file = [i for i, frame in enumerate(whole.stack) if _same(frame.filename, file)]
    if not in_file and not _is_syntax_of(error, file):
        return None
    places = _places_of_others()
    kept = whole.stack[in_file[0] :] if in_file else []
    whole.stack = traceback.StackSummary.from_list(
        [f for f in kept if _same(f.filename, file) or not f.filename.startswith(places)]
    )
    # The chain would bring back frames of JAX, which attaches errors of its own.
    whole.__cause__ = whole.__context__ = None
    return "".join(whole.format()).rstrip()


def _is_syntax_of(error: BaseException, file: str) -> bool:
    """Whether Python cannot read the file; of one with null bytes it does not give the name."""
    return isinstance(error, SyntaxError) and _same(error.filename or file, file)


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _places_of_others() -> tuple[str, ...]:
    places = ["<frozen"]
    places += [sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib")]
    for package in ("jax", "shmap_compiler", "shmap_passes", "shmap_tools"):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            places.append(str(Path(spec.origin).parent) + os.sep)
    return tuple(places)
