"""Runs shmap-opt on mutated modules: no traceback, hang or death.

    python test/fuzzing/run.py --modules 10000 --seconds 900 --seed 7

Modules are processed in forked children, so that a death costs one module. A child that dies or
hangs while MLIR parses the module is counted separately: MLIR's parser is not ours. Exit status 1
if anything else is found; each finding is kept in a file and printed with its command.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import itertools
import os
import random
import resource
import secrets
import select
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import shmap_passes
from jaxlib.mlir import ir
from shmap_tools.opt import main as shmap_opt

sys.path.insert(0, str(Path(__file__).parent.parent))
from fuzzing import mutate

PASSES = Path(__file__).parent.parent / "passes"
_BATCH = 200
_LONGEST_S = 60
_MEMORY = 16 * 2**30
# Outcomes of one module; a child writes one byte for each, and b"P" once it is parsed.
_ACCEPTED, _REFUSED, _MALFORMED, _BROKEN = b"0", b"1", b"2", b"X"
_OUTCOMES = {
    _ACCEPTED: "accepted",
    _REFUSED: "refused by a pass",
    _MALFORMED: "refused by MLIR's parser",
}


@dataclass(frozen=True)
class Case:
    """A module and what to run on it, a function of the seed and the number."""

    number: int
    text: str
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Finding:
    case: Case
    what: str


def case(seed: int, number: int, modules: list[str]) -> Case:
    rng = random.Random(f"{seed}/{number}")
    return Case(number, mutate.mutated(rng, modules), tuple(mutate.passes(rng)))


def fuzz(seed: int, count: int, seconds: float) -> tuple[collections.Counter, list[Finding]]:
    """(how often each outcome was seen, what must not happen)."""
    modules = mutate.corpus(PASSES)
    cases = (case(seed, number, modules) for number in range(count))
    until = time.monotonic() + seconds
    counts: collections.Counter = collections.Counter()
    findings: list[Finding] = []
    while time.monotonic() < until:
        batch = list(itertools.islice(cases, _BATCH))
        if not batch:
            break
        while batch:
            batch = _run_batch(batch, counts, findings, until)
    return counts, findings


def _run_batch(
    batch: list[Case], counts: collections.Counter, findings: list[Finding], until: float
) -> list[Case]:
    """Runs a batch in a child; what is left if the child does not reach the end."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child(batch, writer)
    os.close(writer)
    done, parsed, hung = 0, False, False
    while True:
        if not select.select([reader], [], [], _LONGEST_S)[0]:
            hung = True
            os.kill(child, signal.SIGKILL)
            break
        byte = os.read(reader, 1)
        if not byte:
            break
        if byte == b"P":
            parsed = True
        elif byte == _BROKEN:
            size = int.from_bytes(os.read(reader, 4), "big")
            what = b""
            while len(what) < size:
                what += os.read(reader, size - len(what))
            findings.append(Finding(batch[done], what.decode()))
            counts["broken"] += 1
            done, parsed = done + 1, False
        else:
            counts[_OUTCOMES[byte]] += 1
            done, parsed = done + 1, False
        if time.monotonic() > until and not parsed:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reader)
            return []
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if done == len(batch):
        return []
    how = "hang" if hung else f"death by signal {os.waitstatus_to_exitcode(status)}"
    if parsed:
        findings.append(Finding(batch[done], how))
        counts[how] += 1
    else:
        counts[f"{how} of MLIR's parser"] += 1
    return batch[done + 1 :]


def _child(batch: list[Case], writer: int) -> None:
    """Writes one outcome for each case; never returns."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    context = shmap_passes.make_context()
    with tempfile.TemporaryDirectory() as folder:
        for each in batch:
            is_module = _printed(each.text, context) is not None
            os.write(writer, b"P")
            what = broken(each, Path(folder), context)
            if isinstance(what, str):
                message = what.encode()
                os.write(writer, _BROKEN + len(message).to_bytes(4, "big") + message)
            else:
                os.write(writer, _ACCEPTED if what else _REFUSED if is_module else _MALFORMED)
    os._exit(0)


def _printed(text: str, context: ir.Context) -> str | None:
    """The module `text` as MLIR prints it; None if it is not one. MLIR may die of it."""
    try:
        return str(ir.Module.parse(text, context))
    except ir.MLIRError:
        return None


def broken(case: Case, folder: Path, context: ir.Context) -> str | bool:
    """What went wrong with a case, or whether its module was accepted."""
    source, result = folder / "in.mlir", folder / "out.mlir"
    source.write_text(case.text)
    result.write_text("as before")
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = shmap_opt.main([str(source), *case.flags, "-o", str(result)])
    except BaseException:
        return traceback.format_exc()
    text = err.getvalue()
    if "Traceback" in text or status not in (0, 1):
        return f"status {status}\n{text}"
    if status == 1:
        if "error:" not in text:
            return "refused without a diagnostic"
        return False if result.read_text() == "as before" else "refused, and wrote its output"
    if _printed(result.read_text(), context) is None:
        # Where MLIR does not read what it prints of the module itself, such as an axis named '"',
        # the passes cannot help it.
        plain = _printed(case.text, context)
        if plain is not None and _printed(plain, context) is not None:
            return "what it printed cannot be read again"
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--modules", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=1800, help="stop after this time")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    started = time.monotonic()
    counts, findings = fuzz(options.seed, options.modules, options.seconds)
    took = time.monotonic() - started
    print(f"{sum(counts.values())} modules in {took:.0f} s: ", end="")
    print(", ".join(f"{count} {what}" for what, count in counts.most_common()))
    for finding in findings:
        kept = Path(tempfile.gettempdir()) / f"fuzz-{options.seed}-{finding.case.number}.mlir"
        kept.write_text(finding.case.text)
        print(f"\nshmap-opt {kept} {' '.join(finding.case.flags)}\n{finding.what}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
