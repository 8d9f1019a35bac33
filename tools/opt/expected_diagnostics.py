"""Diagnostics that a test expects, for shmap-opt's --verify-diagnostics.

// expected-error @+1 {{a part of the message}}      on the next line
// expected-error @-1 {{...}}                        on the line before
// expected-error @below {{...}}, @above {{...}}     the same in words
// expected-error {{...}}                            on this line
// expected-error @unknown {{...}}                   at no place in the file
// expected-error-re {{axis {{"[a-z]"}} is}}         with regular expressions in {{}}
// expected-note, expected-warning, expected-remark  other severities
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shmap_passes import Diagnostic

from .split_input import lines_of

_EXPECTATION = re.compile(
    r"expected-(?P<severity>error|warning|remark|note)(?P<regex>-re)?"
    r"[ \t]*(?:@(?P<where>[+-]\d+|above|below|unknown))?"
    r"[ \t]*\{\{(?P<text>.*)\}\}[ \t]*$"
)
_ATTEMPT = re.compile(r"//.*expected-(error|warning|remark|note)")


@dataclass(frozen=True)
class Expectation:
    """One `expected-...` comment."""

    written_at: int
    line: int | None
    severity: str
    text: str
    pattern: re.Pattern[str]

    def meets(self, found: Diagnostic) -> bool:
        return (
            found.severity == self.severity
            and _line_of(found) == self.line
            and self.pattern.search(found.message) is not None
        )


def mismatches(source: str, found: Sequence[Diagnostic]) -> list[Diagnostic]:
    """What differs between the diagnostics that `source` expects and those `found`; [] if nothing.

    Each expectation matches one diagnostic, and each diagnostic one expectation. Unexpected notes
    are not mismatches.
    """
    complaints: list[Diagnostic] = []
    waiting = list(_expectations(source, complaints))
    for diagnostic in found:
        for part in (diagnostic, *diagnostic.notes):
            met = next((each for each in waiting if each.meets(part)), None)
            if met is not None:
                waiting.remove(met)
            elif part.severity != "note":
                text = f"unexpected {part.severity}: {part.message}"
                complaints.append(Diagnostic(part.place, "error", text))
    for each in waiting:
        where = "at an unknown place" if each.line is None else f"at line {each.line}"
        text = f"expected {each.severity} {where} was not produced: {each.text}"
        complaints.append(_complaint(each.written_at, text))
    return complaints


def _expectations(source: str, complaints: list[Diagnostic]) -> Iterator[Expectation]:
    for number, line in enumerate(lines_of(source), start=1):
        match = _EXPECTATION.search(line)
        if match is None:
            if _ATTEMPT.search(line):
                text = "cannot read this expectation; write: expected-error @+1 {{part of message}}"
                complaints.append(_complaint(number, text))
            continue
        text = match["text"]
        try:
            pattern = re.compile(_with_regexes(text) if match["regex"] else re.escape(text))
        except re.error as error:
            message = f"cannot read the regular expression of this expectation: {error}"
            complaints.append(_complaint(number, message))
            continue
        yield Expectation(
            written_at=number,
            line=_target(number, match["where"] or ""),
            severity=match["severity"],
            text=text,
            pattern=pattern,
        )


def _target(number: int, where: str) -> int | None:
    if where == "unknown":
        return None
    return number + int({"": "0", "above": "-1", "below": "+1"}.get(where, where))


def _with_regexes(text: str) -> str:
    """Text in which `{{...}}` holds a regular expression and the rest is literal."""
    literals = re.split(r"\{\{(.*?)\}\}", text)
    return "".join(
        f"(?:{part})" if index % 2 else re.escape(part) for index, part in enumerate(literals)
    )


def _line_of(found: Diagnostic) -> int | None:
    """The line of a diagnostic in the input, which MLIR calls "-"."""
    file, _, rest = found.place.partition(":")
    return int(rest.partition(":")[0]) if file == "-" else None


def _complaint(line: int, text: str) -> Diagnostic:
    return Diagnostic(f"-:{line}:1", "error", text)
