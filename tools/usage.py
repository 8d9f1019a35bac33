"""Mistakes in a command line: where, found, needed, what to do; all mistakes at once."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

USAGE, USER_CODE = "SHM-U01", "SHM-U02"
"""The codes of a wrong command line, and of an exception in the user's file."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors carry the code of a wrong command line."""

    def error(self, message: str) -> NoReturn:
        from shmap_passes import reference

        super().error(f"{message} {reference(USAGE)}")


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong with a command line."""

    where: str
    found: str
    needed: str
    fix: str

    def __str__(self) -> str:
        return (
            f"{self.where}\n    found:  {self.found}\n    needed: {self.needed}\n"
            f"    fix:    {self.fix}"
        )


class UsageError(Exception):
    """A command line that asks for something that is not there or cannot be read."""

    def __init__(self, *mistakes: Mistake):
        from shmap_passes import reference  # which starts jaxlib

        self.mistakes = mistakes
        super().__init__("\n".join([*map(str, mistakes), reference(USAGE)]))


def read_all(*readers: Callable[[], Any]) -> list[Any]:
    """The results of all readers. Raises one UsageError with the mistakes of those that failed."""
    results: list[Any] = []
    mistakes: list[Mistake] = []
    for reader in readers:
        try:
            results.append(reader())
        except UsageError as error:
            mistakes += error.mistakes
    if mistakes:
        raise UsageError(*mistakes)
    return results


def shortened(text: str) -> str:
    """`text`, without its middle if it is long."""
    return text if len(text) <= 80 else f"{text[:40]}...{text[-20:]}"


def listed(names: Iterable[str]) -> str:
    """Names for a message: "a, b, c", or "none"."""
    return ", ".join(names) or "none"
