"""Runs shmap-opt and the simulator on mutated modules: no traceback, hang or death.

    python test/fuzzing/run.py --modules 10000 --seconds 900 --seed 7

Modules are processed in forked children, so that a death costs one module. A child that dies or
hangs while MLIR parses the module is counted separately: MLIR's parser is not ours. Modules that
shmap-opt takes or refuses are also imported, and simulated for a few seconds, as they may have
loops without end. Exit status 1 if anything else is found; each finding is kept in a file and
printed with its command.
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
from math import prod
from pathlib import Path

import numpy as np
import shmap_passes
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func
from shmap_passes import PassFailure
from shmap_tools.opt import main as shmap_opt

from shmap_compiler import ShmapError, import_module
from shmap_compiler.simulate.simulate_module import simulate_module

sys.path.insert(0, str(Path(__file__).parent.parent))
from fuzzing import mutate

PASSES = Path(__file__).parent.parent / "passes"
_BATCH = 200
_LONGEST_S = 60
_LONGEST_SIMULATION_S = 5
_MEMORY = 16 * 2**30
_MOST_ELEMENTS = 10_000
# Outcomes of one module; a child writes one byte for each, and b"P" once it is parsed.
_ACCEPTED, _REFUSED, _MALFORMED, _BROKEN = b"0", b"1", b"2", b"X"
_DTYPES = {"f32": "f4", "f64": "f8", "f16": "f2", "i32": "i4", "ui32": "u4", "i64": "i8", "i1": "?"}
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
            if is_module and not isinstance(what, str):
                what = not_imported(each.text) or not_simulated(each.text) or what
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


def not_imported(text: str) -> str | None:
    """What went wrong when a module was imported and exported; None for a result or a message."""
    try:
        imported = import_module(text)
        assert isinstance(imported.hangs, tuple)
        imported.portable("cpu")
    except (ShmapError, PassFailure):
        return None
    except BaseException:
        return "import_module\n" + traceback.format_exc()
    return None


def not_simulated(text: str) -> str | None:
    """What went wrong when a module was simulated with ones; None for a result or a message."""
    inputs = _ones(text)
    if inputs is None:
        return None
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(_LONGEST_SIMULATION_S)
    try:
        simulate_module(text, inputs)
    except (ShmapError, _TooLong):
        return None
    except BaseException:
        return "simulate_module\n" + traceback.format_exc()
    finally:
        signal.alarm(0)
    return None


class _TooLong(Exception):
    """A simulation goes on."""


def _stop(*_: object) -> None:
    raise _TooLong


def _ones(text: str) -> list[np.ndarray] | None:
    """Arrays for @main; None if it has none, or takes arrays that are large or of other types."""
    with shmap_passes.make_context():
        for op in ir.Module.parse(text).body.operations:
            if isinstance(op, func.FuncOp) and op.name.value == "main":
                types = list(op.type.inputs)
                return [_one(each) for each in types] if all(map(_is_small, types)) else None
    return None


def _is_small(type_: ir.Type) -> bool:
    is_array = isinstance(type_, ir.RankedTensorType) and type_.has_static_shape
    return is_array and prod(type_.shape) <= _MOST_ELEMENTS and str(type_.element_type) in _DTYPES


def _one(type_: ir.RankedTensorType) -> np.ndarray:
    return np.ones(type_.shape, _DTYPES[str(type_.element_type)])


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
