"""Plants single mistakes in copies of the project, and reports those that no test notices.

python test/mutants/run.py --only passes/ --jobs 2
"""

from __future__ import annotations

import argparse
import compileall
import os
import py_compile
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

sys.path.insert(0, str(Path(__file__).parent.parent))
from mutants.forks import Forks

ROOT = Path(__file__).parents[2]
_LONGEST_S = 600
# Exit statuses of pytest: some test failed; one could not be imported; pytest itself failed.
_NOTICED = (1, 2, 3)


@dataclass(frozen=True)
class Mutant:
    """One mistake, and the tests that should notice it."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}: {_short(self.old)} -> {_short(self.new)}"

    def problem(self) -> str | None:
        """Why this entry cannot be run on the project as it is, or None."""
        if not (ROOT / self.file).is_file():
            return "there is no such file"
        count = (ROOT / self.file).read_text().count(self.old)
        if count != 1:
            return f"the old text occurs {count} times, not once"
        if self.old == self.new:
            return "the new text is the old one"
        missing = [test for test in self.tests if not (ROOT / _path(test)).exists()]
        return f"there is no {missing[0]}" if missing else None if self.tests else "no tests"


def load(folder: Path = Path(__file__).parent) -> list[Mutant]:
    """All entries, by file and position. Raises KeyError or TypeError if one lacks a field."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text())["mutant"]:
            tests = tuple(entry.pop("tests"))
            found.append(Mutant(tests=tests, **entry))
    return found


class Copy:
    """A copy of the project's files, which Python finds under the names of its packages."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="mutants-")
        self.tree = Path(self._folder.name)
        _copy_files(self.tree)
        # Valid for as long as the text is the same: mistakes come and go within a second.
        compileall.compile_dir(
            self.tree, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH
        )
        self._environment = {
            **os.environ,
            # Before the editable installation of the project.
            "PYTHONPATH": str(self.tree / ".packages"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": f"{_bin()}{os.pathsep}{os.environ['PATH']}",
        }
        self._forks = Forks(self.tree, self._environment)

    def plant(self, mutant: Mutant) -> str | None:
        """The test that notices the mistake, or None."""
        file = self.tree / mutant.file
        before = file.read_text()
        file.write_text(before.replace(mutant.old, mutant.new))
        try:
            return next((test for test in mutant.tests if not self.passes(test)), None)
        finally:
            file.write_text(before)

    def passes(self, test: str) -> bool:
        """Whether a test passes. Raises RuntimeError if it does not run."""
        if _path(test).endswith((".mlir", ".test")):
            return self._lit(test)
        options = ["-q", "-x", "-p", "no:cacheprovider"]
        status, output = self._forks.pytest([*options, *shlex.split(test)], _LONGEST_S)
        if status == 0:
            return True
        if isinstance(status, int) and status > 0 and status not in _NOTICED:
            raise RuntimeError(f"{test} does not run (status {status})\n{output[-4000:]}")
        return False

    def _lit(self, test: str) -> bool:
        try:
            done = subprocess.run(
                [_bin() / "lit", "-q", test],
                cwd=self.tree, env=self._environment, capture_output=True, timeout=_LONGEST_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def close(self) -> None:
        self._forks.close()
        self._folder.cleanup()


def _copy_files(tree: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    for name in listed:
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    packages = tree / ".packages"
    packages.mkdir()
    for name, source in (
        ("shmap_compiler", "shmap_compiler"), ("shmap_passes", "passes"), ("shmap_tools", "tools"),
    ):  # fmt: skip
        (packages / name).symlink_to(tree / source)


def run(mutants: Sequence[Mutant], jobs: int, baseline: bool) -> list[Mutant]:
    """Runs all, prints each outcome, and returns the survivors."""
    survivors, free = [], SimpleQueue[Copy]()
    copies = [Copy() for _ in range(jobs)]
    for each in copies:
        free.put(each)

    def within(work):
        copy = free.get()
        try:
            return work(copy)
        finally:
            free.put(copy)

    try:
        with ThreadPoolExecutor(jobs) as pool:
            if baseline:
                tests = sorted({test for mutant in mutants for test in mutant.tests})
                whole = pool.map(lambda test: within(lambda copy: copy.passes(test)), tests)
                failing = [test for test, passed in zip(tests, whole, strict=True) if not passed]
                if failing:
                    sys.exit(f"these fail without any mistake: {', '.join(failing)}")
                print(f"all {len(tests)} tests pass without a mistake", flush=True)
            found = pool.map(lambda mutant: within(lambda copy: copy.plant(mutant)), mutants)
            for number, (mutant, test) in enumerate(zip(mutants, found, strict=True), start=1):
                print(f"{number:4} {'caught' if test else 'SURVIVED'}  {mutant}", flush=True)
                if test is None:
                    survivors.append(mutant)
    finally:
        for each in copies:
            each.close()
    return survivors


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="entries whose file or text contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--no-baseline", action="store_true", help="do not run the tests without mistakes first"
    )
    options = parser.parse_args()
    mutants = [m for m in load() if options.only in f"{m.file} {m.old} {m.new}"]
    broken = [f"{mutant}: {problem}" for mutant in mutants if (problem := mutant.problem())]
    if broken:
        sys.exit("entries that fit no more:\n" + "\n".join(broken))
    started = time.monotonic()
    survivors = run(mutants, options.jobs, not options.no_baseline)
    caught = len(mutants) - len(survivors)
    share = 100 * caught / len(mutants) if mutants else 100.0
    print(f"{caught} of {len(mutants)} caught ({share:.1f}%), {time.monotonic() - started:.0f} s")
    return 1 if survivors else 0


def _path(test: str) -> str:
    return shlex.split(test)[0].partition("::")[0]


def _bin() -> Path:
    return Path(sys.executable).parent


def _short(text: str) -> str:
    return repr(" ".join(text.split()))[:90]


if __name__ == "__main__":
    sys.exit(main())
