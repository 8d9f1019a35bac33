"""Several modules in one file, for shmap-opt's --split-input-file."""

from __future__ import annotations

SEPARATOR = "// -----"


def split_input(text: str) -> list[str]:
    """The modules of `text`, each after as many empty lines as put it on its own lines again."""
    chunks: list[list[str]] = [[]]
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if line.startswith(SEPARATOR):
            chunks.append(["\n"] * number)
        else:
            chunks[-1].append(line)
    return ["".join(chunk) for chunk in chunks]
