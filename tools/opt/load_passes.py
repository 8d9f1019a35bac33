"""Passes from a file of the user's, for shmap-opt's --load-pass."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from shmap_passes import Pass


class LoadError(Exception):
    """A file given to --load-pass defines no usable pass."""


def load_passes(path: str, known: Sequence[type[Pass]]) -> tuple[type[Pass], ...]:
    """Every subclass of Pass that the file defines, in the order of definition."""
    if not Path(path).is_file():
        raise LoadError(f"--load-pass {path}: there is no such file")
    name = f"shmap_loaded_{Path(path).stem}"
    while name in sys.modules:  # a file of this name in another folder
        name += "_"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LoadError(f"--load-pass {path}: not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise LoadError(f"--load-pass {_where(path, error)}: {_what(error)}") from None

    found = tuple(
        cls
        for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, Pass) and cls.__module__ == name
    )
    if not found:
        raise LoadError(f"--load-pass {path}: defines no subclass of shmap_passes.Pass")
    names = [cls.name for cls in known]
    for cls in found:
        if not isinstance(vars(cls).get("name"), str):
            raise LoadError(f"--load-pass {path}: {cls.__name__} has no name; write name = '...'")
        if cls.name in names:
            raise LoadError(f"--load-pass {path}: there is a pass {cls.name} already; rename it")
        names.append(cls.name)
    return found


def _where(path: str, error: BaseException) -> str:
    """`file:line` of the deepest frame of `error` that lies in the file."""
    if isinstance(error, SyntaxError):
        return f"{path}:{error.lineno}" if error.lineno else path
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path
    ]
    return f"{path}:{frames[-1].lineno}" if frames else path


def _what(error: BaseException) -> str:
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {message}"
