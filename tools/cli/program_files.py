"""Finds programs in Python files: `FILE.py:name`, or `package.module:name`.

By convention `name` is a shard_mapped function (or one that `xmap` or `pmap` returned), `name_args`
the tuple of its arguments (arrays or `jax.ShapeDtypeStruct`s) or a function that returns it, and
`name_reference` an unsharded function of the same arguments.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import jax
from jax.extend import source_info_util

from shmap_compiler import Pmapped, ShardMapped, ShmapError, XMapped
from shmap_compiler.base.descriptions import show_type_of
from shmap_compiler.base.untyped import Function, PyTree, Wrapped

from ..usage import Mistake, UsageError, listed
from . import imports
from .user_traceback import user_traceback

_T = TypeVar("_T")


def _exclude_from_source_lines() -> None:
    """Excludes the files of the command, and the script that pip installs, from source lines."""
    script = getattr(sys.modules["__main__"], "__file__", None) or ""
    source_info_util.register_exclusion(f"{Path(__file__).parents[1]}{os.sep}")
    if os.path.basename(script) == "shmap":
        source_info_util.register_exclusion(script)


_exclude_from_source_lines()

_NEEDED = "FILE.py:NAME, or package.module:NAME, of a shard_mapped function"
_NEEDED_ANY = "FILE.py:NAME, or package.module:NAME, of a function"


MAPPED = (ShardMapped, XMapped, Pmapped)
"""What `shard_map`, `xmap` and `pmap` return."""

_KINDS = ("shard_mapped", "xmapped", "pmapped")


def kind(mapped: Wrapped) -> str:
    """What was done with a function that is one of `MAPPED`: "shard_mapped"."""
    return next(name for name, cls in zip(_KINDS, MAPPED, strict=True) if isinstance(mapped, cls))


class UserCodeError(Exception):
    """The user's code raised; the message is their traceback."""


@dataclass(frozen=True)
class UserFunction:
    """A shard_mapped function, and what its file gives with it.

    Attributes:
      text: the target as given.
      file: the file that defines it.
      folder: where it finds the modules that it imports.
      name: its name in the file.
      mapped: the function: one of `MAPPED`, or anything callable where that is taken.
      args: its arguments, None if the file gives none.
      reference: the same function unsharded, None if the file gives none.
    """

    text: str
    file: str
    folder: str
    name: str
    mapped: Wrapped
    args: tuple[PyTree, ...] | None
    reference: Function | None

    def run_reference(self, args: tuple[PyTree, ...]) -> PyTree:
        """What `reference` returns for `args`. Raises UserCodeError if it raises."""
        assert self.reference is not None, "this target has no reference"
        reference = self.reference
        return self.of_user(
            lambda: jax.block_until_ready(reference(*args)), f"{self.name}_reference"
        )

    def guarded(self, run: Callable[[], _T], what: str) -> _T:
        """Result of `run()`, which imports what the function does.

        Errors raised by code of the user become a UserCodeError. Others pass, as does a ShmapError,
        which names the place itself.
        """
        imports.enter(self.folder)
        return _guarded(run, what, self.file)

    def of_user(self, run: Callable[[], _T], what: str) -> _T:
        """Like `guarded`, of a `run()` that calls nothing but code of the user, and JAX.

        All errors but a ShmapError become a UserCodeError.
        """
        imports.enter(self.folder)
        return _of_user(run, what, self.file)

    def traced(self, run: Callable[[], _T], plainly: Callable[[], object], what: str) -> _T:
        """Like `guarded`, of a `run()` that traces and lowers the function.

        Args:
          plainly: traces it by JAX alone: what this raises, too, is a mistake of the user.
        """
        try:
            return self.guarded(run, what)
        except (ShmapError, UserCodeError):
            raise
        except Exception:
            self.of_user(plainly, what)
            raise


def load(text: str, *, any_function: bool = False) -> UserFunction:
    """Imports the file of a target and looks the function up.

    Args:
      any_function: take functions that are not shard_mapped, too.

    Raises:
      UsageError: there is no such file or function, or it is not shard_mapped.
      UserCodeError: the file, or its `name_args`, raised.
    """
    place, _, name = text.rpartition(":") if ":" in text else (text, "", "")
    is_file = place.endswith(".py")
    importer = _import_file if is_file else _import_module
    needed = _NEEDED_ANY if any_function else _NEEDED
    folder = os.path.dirname(os.path.abspath(place)) if is_file else os.getcwd()
    imports.enter(folder)
    module = importer(place, text, needed)
    file = getattr(module, "__file__", None) or place
    mapped = _lookup(module, name, text, any_function)
    return UserFunction(
        text=text,
        file=file,
        folder=folder,
        name=name,
        mapped=mapped,
        args=_args(module, name, text, file),
        reference=_reference(module, name, text),
    )


def _of_user(run: Callable[[], _T], what: str, file: str) -> _T:
    """See `UserFunction.of_user`."""
    try:
        return _guarded(run, what, file)
    except (ShmapError, UserCodeError):
        raise
    except Exception as error:
        raise UserCodeError(f"{what} raised {type(error).__name__}\n{error}") from error


def _guarded(run: Callable[[], _T], what: str, file: str) -> _T:
    """See `UserFunction.guarded`."""
    try:
        return run()
    except ShmapError:
        raise
    except SystemExit as error:  # else a command would end without a word
        raise UserCodeError(f"{what} raised SystemExit({error.code!r})") from error
    except Exception as error:
        shown = user_traceback(error, file)
        if shown is None:
            raise
        raise UserCodeError(f"{what} raised {type(error).__name__}\n{shown}") from error


# ----------------------------------------------------------------------------------- importing


def _import_file(path: str, text: str, needed: str) -> ModuleType:
    if not os.path.isfile(path):
        found = "no such file" if not os.path.exists(path) else "not a file"
        raise _mistake(text, f"{path}: {found}", f"check the path; this is {os.getcwd()}", needed)
    stem = os.path.splitext(os.path.basename(path))[0]
    name = f"{imports.TARGET}{stem}"
    if name in sys.modules:  # of two functions in one file
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    loader = spec.loader
    assert loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        with _arguments_of(path):
            _guarded(lambda: loader.exec_module(module), f"importing {path}", path)
    except BaseException as error:
        del sys.modules[name]
        if _is_relative_import(error.__cause__):
            raise _mistake(text, *_file_of_package(path, text), needed) from error
        raise
    return module


@contextlib.contextmanager
def _arguments_of(path: str) -> Generator[None]:
    """Inside, `sys.argv` has no arguments: a file may read some of its own when it is imported."""
    given, sys.argv = sys.argv, [path]
    try:
        yield
    finally:
        sys.argv = given


def _is_relative_import(error: BaseException | None) -> bool:
    """Whether a file imports relative to a package, which it has only when named as a module."""
    return isinstance(error, ImportError) and "no known parent package" in str(error)


def _file_of_package(path: str, text: str) -> tuple[str, str]:
    """What is found, and what to do, of a file that imports relative to its package."""
    file = Path(path).absolute()
    above = file.parent
    while (above / "__init__.py").exists():
        above = above.parent
    if above == file.parent and file.is_relative_to(Path.cwd()):
        above = Path.cwd()  # of a package without such files
    module = ".".join(file.relative_to(above).with_suffix("").parts)
    there = "" if above == Path.cwd() else f", in the folder {above}"
    fix = f"write {module}:{text.rpartition(':')[2]}{there}"
    return f"{path} imports relative to its package, and a file has none", fix


def _import_module(name: str, text: str, needed: str) -> ModuleType:
    what = f"importing {name}"
    spec = None
    if name and not name.startswith("."):
        with _arguments_of(name):
            spec = _of_user(lambda: _find_module(name), what, "")  # imports its packages
    if spec is not None and (file := spec.origin) is not None:
        with _arguments_of(file):
            return _of_user(lambda: importlib.import_module(name), what, file)
    found, fix = f"no module named {name!r}", "check the name"
    if text.endswith(".mlir"):
        found, fix = "a module of MLIR", "shmap simulate, compile and explain take modules"
    elif not name:
        fix = "write the file before the colon"
    elif os.path.exists(f"{name}.py"):
        fix = f"write {name}.py"
    elif name.startswith("."):
        fix = "write the whole name, from the outermost package on"
    elif spec is not None:
        found, fix = f"{name} is a folder without __init__.py", "name a module in it"
    raise _mistake(text, found, fix, needed)


def _find_module(name: str) -> ModuleSpec | None:
    """What Python finds by a name; None if there is no such module, or no package that it names."""
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if f"{name}.".startswith(f"{error.name}."):
            return None
        raise  # another module, which a package of it imports


# ------------------------------------------------------------------------------------- looking


def _lookup(module: ModuleType, name: str, text: str, any_function: bool) -> Wrapped:
    there = [
        key
        for key, value in vars(module).items()
        if isinstance(value, MAPPED) or (any_function and _is_jitted(value))
    ]
    kinds, needed = "shard_mapped", _NEEDED
    if any_function:
        kinds, needed = "jitted or shard_mapped", _NEEDED_ANY
    choices = f"{kinds} in this file: {listed(there)}"
    value = getattr(module, name, None) if name else None
    if isinstance(value, MAPPED) or (any_function and callable(value)):
        return value
    if not name:
        raise _mistake(text, "no name of a function", f"add :NAME; {choices}", needed)
    if value is None:
        fix = f"choose another name; {choices}"
        raise _mistake(text, f"the file defines no {name!r}", fix, needed)
    found = f"{name} is {show_type_of(value)}"
    if _is_jitted(value):
        fix = "`shmap run`, `compile`, `explain` and `unjit` take jitted functions"
        if there:
            fix = f"name the shard_mapped function inside the jit; {choices}; {fix}"
        raise _mistake(text, found, fix, needed)
    if callable(value):
        wrap = f"{name} = shard_map({name}, mesh=..., in_specs=..., out_specs=...)"
        raise _mistake(text, found, f"wrap it: {wrap}; {choices}", needed)
    found = f"{name} is an object of type {type(value).__name__}"
    raise _mistake(text, found, f"choose another name; {choices}", needed)


def _is_jitted(value: Wrapped) -> bool:
    return callable(value) and hasattr(value, "lower") and hasattr(value, "trace")


def _args(module: ModuleType, name: str, text: str, file: str) -> tuple[PyTree, ...] | None:
    args = getattr(module, f"{name}_args", None)
    if callable(args):
        args = _of_user(args, f"{name}_args()", file)
    if args is None or isinstance(args, tuple):
        return args
    raise UsageError(
        Mistake(
            f"{name}_args of {text}",
            f"an object of type {type(args).__name__}",
            "the tuple of the arguments, or a function that returns it",
            f"write {name}_args = (x,) for a single argument",
        )
    )


def _reference(module: ModuleType, name: str, text: str) -> Function | None:
    reference = getattr(module, f"{name}_reference", None)
    if reference is None or callable(reference):
        return reference
    raise UsageError(
        Mistake(
            f"{name}_reference of {text}",
            f"an object of type {type(reference).__name__}",
            "an unsharded function of the same arguments",
            f"make it a function, or rename it if {name} has no reference",
        )
    )


def _mistake(text: str, found: str, fix: str, needed: str) -> UsageError:
    return UsageError(Mistake(f"target {text!r}", found, needed, fix))
