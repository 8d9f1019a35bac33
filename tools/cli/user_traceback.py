"""Tracebacks of the user's own code, without the frames of JAX, of Python and of this package."""

from __future__ import annotations

import importlib.util
import os
import site
import sysconfig
import traceback
from pathlib import Path


def user_traceback(error: BaseException, file: str) -> str | None:
    """What Python prints of `error`, from the first frame of the user's on, user code only.

    None if no frame is in `file`, or in another file of the user's, such as a module that it
    imports: then the error is not the user's.
    """
    whole = traceback.TracebackException.from_exception(error, compact=True)
    places = _places_of_others()

    def is_own(name: str) -> bool:
        return _same(name, file) or not name.startswith(places)

    own = [frame for frame in whole.stack if is_own(frame.filename)]
    # Code that is made from text, as by dataclasses, may be of others, too.
    while own and own[0].filename.startswith("<"):
        del own[0]
    # Python does not give the name of a file with null bytes.
    is_syntax = isinstance(error, SyntaxError) and is_own(error.filename or file)
    if not own and not is_syntax:
        return None
    whole.stack = traceback.StackSummary.from_list(own)
    # The chain would bring back frames of JAX, which attaches errors of its own.
    whole.__cause__ = whole.__context__ = None
    return "".join(whole.format()).rstrip()


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _places_of_others() -> tuple[str, ...]:
    places = ["<frozen"]
    places += [sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib")]
    places += [*site.getsitepackages(), site.getusersitepackages()]
    for package in ("jax", "jaxlib", "shmap_compiler", "shmap_passes", "shmap_tools"):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            places.append(str(Path(spec.origin).parent) + os.sep)
    return tuple(places)
