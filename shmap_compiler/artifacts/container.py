"""The file format: a zip archive with a header in JSON and the parts as files of their own.

`unzip -l FILE` shows what a file holds. The header says which kind it is and what wrote it.
"""

from __future__ import annotations

import io
import json
import os
import reprlib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from shmap_compiler.artifacts.checks import Malformed, field
from shmap_compiler.base.descriptions import show_value
from shmap_compiler.base.errors import ArtifactError, Problem
from shmap_compiler.base.untyped import Json

_FORMAT = 1
_HEADER = "header.json"
_NEEDED = "a file written by save() or `shmap compile`"
_LARGEST_HEADER = 2**28
_LARGEST_PART = 2**40
# DEFLATE compresses by at most this factor.
_MOST_COMPRESSION = 1032


@dataclass(frozen=True)
class Container:
    """The contents of a file.

    Attributes:
      kind: "portable" or "executable".
      header: what JSON can hold.
      parts: the rest, by name.
      where: the file, for errors.
    """

    kind: str
    header: Mapping[str, Json]
    parts: Mapping[str, bytes]
    where: str = ""


def versions() -> dict[str, str]:
    """The versions of the packages that write and read files."""
    return {package: version(package) for package in ("shmap_compiler", "jax", "jaxlib")}


def pack(container: Container) -> bytes:
    """The bytes of the file. Equal contents give equal bytes."""
    fixed = {"format": _FORMAT, "kind": container.kind, "versions": versions()}
    text = json.dumps({**fixed, **container.header}, indent=1)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {_HEADER: text.encode(), **container.parts}.items():
            # An entry without the time of writing.
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def unpack(
    path: str | Path,
    parts_of: Callable[[Json], Mapping[str, int | None]] | None = None,
) -> Container:
    """The contents of a file.

    Args:
      parts_of: given the header, the names of the parts to read, each with its size in bytes where
        that is known. Everything that a file holds is read by default.

    Raises:
      ArtifactError: there is no such file, or it is none of ours, or of a later format; a part is
        missing, damaged or not of its size.
    """
    with reading(path) as where:
        return _read(path, where, parts_of)


@contextmanager
def reading(path: str | Path, where: str | None = None) -> Iterator[str]:
    """Turns any exception caused by a damaged file into an ArtifactError that names the file."""
    if where is None:
        name = os.fspath(path) if isinstance(path, os.PathLike) else path
        where = f"file {reprlib.repr(name)}" if not isinstance(name, str) else f"file {name!r}"
    try:
        yield where
        return
    except ArtifactError:
        raise
    except Malformed as error:
        problem = Problem(where, error.found, error.needed, "save it again")
    except OSError as error:
        problem = Problem(where, error.strerror or str(error), _NEEDED, "check the path")
    except Exception as error:  # a damaged file may raise anything
        found = "something else, or a part of such a file"
        if not isinstance(error, zipfile.BadZipFile | KeyError):
            found += f" ({type(error).__name__}: {error!s:.200})"
        problem = Problem(where, found, _NEEDED, "save it again")
    raise ArtifactError(None, [problem])


def _read(
    path: str | Path, where: str, parts_of: Callable[[Json], Mapping[str, int | None]] | None
) -> Container:
    if not isinstance(path, str | os.PathLike):
        raise Malformed(show_value(path), "the path of a file written by save()")
    with zipfile.ZipFile(path) as archive:
        infos = {info.filename: info for info in archive.infolist()}
        if len(infos) < len(archive.infolist()):
            raise Malformed("two parts of one name", _NEEDED)
        if _HEADER not in infos:
            raise zipfile.BadZipFile
        header = json.loads(_part(archive, infos, _HEADER, None, _LARGEST_HEADER))
        kind, version = field(header, "kind", str), field(header, "format", int)
        if version != _FORMAT:
            needed = f"format {_FORMAT}, the one that this version reads"
            fix = f"use the versions that wrote it: {header.get('versions')}"
            raise ArtifactError(None, [Problem(where, f"format {version}", needed, fix)])
        rest = {name: None for name in infos if name != _HEADER}
        wanted = rest if parts_of is None else parts_of(header)
        parts = {name: _part(archive, infos, name, size) for name, size in wanted.items()}
    return Container(kind, header, parts, where)


def _part(
    archive: zipfile.ZipFile,
    infos: Mapping[str, zipfile.ZipInfo],
    name: str,
    size: int | None,
    most: int = _LARGEST_PART,
) -> bytes:
    """Reads a part of the file, after checking its size."""
    if name not in infos:
        raise Malformed(f"no part {name!r}", f"a file that holds {name!r}, as save() writes it")
    declared = infos[name].file_size
    if size is not None and declared != size:
        raise Malformed(f"a part {name!r} of {declared} bytes", f"{size} bytes, as its type says")
    if declared > min(most, infos[name].compress_size * _MOST_COMPRESSION + 1024):
        raise Malformed(
            f"a part {name!r} that claims {declared} bytes", f"what save() writes, at most {most}"
        )
    data = archive.read(name)
    if len(data) != declared:
        raise Malformed(f"{len(data)} bytes in the part {name!r}", f"{declared}, as it claims")
    return data
