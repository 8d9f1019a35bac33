"""The modules of all examples, and the golden copies of them in this folder.

A golden copy is a digest of each module's text, and the text itself if it is short. A text is named
`file.function.stage`, as in `matmul.matmul_basic.body`; if the partitioner changes it, there are
two, `...gspmd` and `...shardy`. JAX versions emit different operations, so there is one folder per
tested line of JAX.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from example_programs import EXAMPLES, MODULES, arguments

HERE = Path(__file__).parent
LONGEST_KEPT = 2_500
"""In characters. Of a longer text only the digest is kept."""

# What decides the texts, besides the examples and this project.
PACKAGES = ("jax", "jaxlib", "equinox", "optax")


def folder() -> Path:
    """The folder with the copies for the installed version of JAX."""
    return HERE / f"jax-{'.'.join(version('jax').split('.')[:2])}"


def modules() -> dict[str, str]:
    """The body form and what XLA receives of every example, for both partitioners."""
    return dict(text for file, name in EXAMPLES for text in _of(file, name))


def contents(texts: dict[str, str]) -> dict[str, str]:
    """The files of `folder()`, as name -> text, for the present state of `modules()`."""
    digests = {name: _digest(text) for name, text in sorted(texts.items())}
    table = {"versions": versions(), "modules": digests}
    files = {"digests.json": json.dumps(table, indent=1) + "\n"}
    for name, text in sorted(texts.items()):
        if len(text) <= LONGEST_KEPT:
            file = f"{name.partition('.')[0]}.mlir"
            files[file] = files.get(file, "") + f"// ----- {name}\n{text.rstrip()}\n"
    return files


def kept() -> dict[str, str]:
    """The files of `folder()` as they are."""
    return {path.name: path.read_text() for path in sorted(folder().glob("*"))}


def versions() -> dict[str, str]:
    return {package: version(package) for package in PACKAGES}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _of(file: str, name: str) -> Iterator[tuple[str, str]]:
    by_partitioner = {
        partitioner: getattr(MODULES[file], name).lower(
            *arguments(file, name), partitioner=partitioner
        )
        for partitioner in ("gspmd", "shardy")
    }
    for stage in ("body", "stablehlo"):
        texts = {key: each.as_text(stage) for key, each in by_partitioner.items()}
        if len(set(texts.values())) == 1:
            yield f"{file}.{name}.{stage}", texts["gspmd"]
        else:
            for partitioner, text in texts.items():
                yield f"{file}.{name}.{stage}.{partitioner}", text
