"""Several modules in one file, for shmap-opt's --split-input-file."""

from __future__ import annotations

SEPARATOR = "// -----"


def lines_of(text: str) -> list[str]:
    """The lines as MLIR counts them, without their ends; `str.splitlines` knows other ends, too."""
    return [line.removesuffix("\r") for line in text.split("\n")]


def split_input(text: str) -> list[str]:
    """The modules of `text`, each after as many empty lines as put it on its own lines again."""
    chunks: list[list[str]] = [[]]
    for number, line in enumerate(lines_of(text), start=1):
        if line.startswith(SEPARATOR):
            chunks.append(["\n"] * number)
        else:
            chunks[-1].append(f"{line}\n")
    return ["".join(chunk) for chunk in chunks]
