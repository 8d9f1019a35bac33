"""The file format: a zip archive with a header in JSON and the parts as files of their own.

`unzip -l FILE` shows what a file holds. The header says which kind it is and what wrote it.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from shmap_compiler.errors import ArtifactError, Problem

_FORMAT = 1
_HEADER = "header.json"
_NEEDED = "a file written by save() or `shmap compile`"


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
    header: Mapping[str, Any]
    parts: Mapping[str, bytes]
    where: str = ""


def versions() -> dict[str, str]:
    """What writes and reads files here."""
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


def unpack(path: str | Path) -> Container:
    """The contents of a file.

    Raises:
      ArtifactError: there is no such file, or it is none of ours, or of a later format.
    """
    where = f"file {str(path)!r}"
    try:
        return _read(path, where)
    except ArtifactError:
        raise
    except OSError as error:
        problem = Problem(where, error.strerror or str(error), _NEEDED, "check the path")
    except (zipfile.BadZipFile, KeyError, ValueError):
        found = "something else, or a part of such a file"
        problem = Problem(where, found, _NEEDED, "save it again")
    raise ArtifactError(None, [problem])


def _read(path: str | Path, where: str) -> Container:
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    header = json.loads(parts.pop(_HEADER))
    found = header["format"]
    if found != _FORMAT:
        needed = f"format {_FORMAT}, the one that this version reads"
        fix = f"use the versions that wrote it: {header['versions']}"
        raise ArtifactError(None, [Problem(where, f"format {found}", needed, fix)])
    return Container(header["kind"], header, parts, where)
