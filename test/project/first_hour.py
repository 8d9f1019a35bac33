"""The first hour of a new user: python test/project/first_hour.py [--only README|examples|tutorial]

Makes a fresh environment and follows README.md: runs every line of its `sh` blocks, in order, and
its Python example as pasted. Then runs every other file of examples/ as a script, and the tutorial
as pasted, two at a time. All must succeed, print something, and print nothing on standard error.
The two `make` commands of README.md are left out: CI runs `make test`, and `make demo` makes its
own environment.

With a warm pip cache this takes less than two minutes on two idle cores; half of the time is pip's.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
NEEDS = re.compile(r"^\w+\.py needs [\w-]+: pip install [\w-]+$")
# These report on standard error what they do.
NOISY = re.compile(
    r"pip |shmap lower .*--(print-ir|warn)|shmap compile|shmap explain|.*--mlir-print-ir"
)
CLEAN = ("JAX_", "XLA_", "TF_CPP", "PYTHON", "VIRTUAL_ENV", "TPU_", "SHMAP_")


class Failed(Exception):
    """A step did not do what it should; the message is what to show."""


def main() -> int:
    parts = {"README": readme, "examples": examples, "tutorial": tutorial}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=parts)
    only = parser.parse_args().only
    with tempfile.TemporaryDirectory() as folder:
        copy = _clone(Path(folder) / "clone")
        run = Runner(copy, Path(folder) / "venv")
        start = time.perf_counter()
        try:
            if only not in (None, "README"):
                run("pip install .", quiet=False)
            programs = [
                program
                for name, part in parts.items()
                if only in (None, name)
                for program in part(copy, run)
            ]
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(run, programs))
        except Failed as failure:
            print(f"FAILED: {failure}")
            return 1
    print(f"the first hour went well, in {time.perf_counter() - start:.0f} s")
    return 0


def readme(copy: Path, run: "Runner") -> list[str]:
    """Every command and program of README.md, in its order."""
    for kind, block in re.findall(
        r"^```(sh|python)\n(.*?)^```$", (copy / "README.md").read_text(), re.DOTALL | re.MULTILINE
    ):
        if kind == "python":
            run(paste(copy, block, "readme.py"))
            continue
        for line in block.splitlines():
            command = line.partition(" #")[0].strip()
            run(command, quiet=not NOISY.match(command))
    return []


def examples(copy: Path, run: "Runner") -> list[str]:
    """The files of examples/ that README.md does not run, which can run at the same time.

    Those that need what `.[examples]` installs must say so without it.
    """
    paths = sorted(copy.glob("examples/*.py"))
    bare = [path for path in paths if "except ModuleNotFoundError" in path.read_text()]
    for path in bare:
        run(f"python examples/{path.name}", says=NEEDS)
    if bare:
        run("pip install '.[examples]'", quiet=False)
    commands = [f"python examples/{path.name}" for path in paths]
    return [command for command in commands if command not in run.done]


def tutorial(copy: Path, run: "Runner") -> list[str]:
    """All blocks of the tutorial, as one program."""
    text = (copy / "docs" / "tutorial.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [paste(copy, "\n".join(blocks), "tutorial.py")]


def paste(copy: Path, program: str, name: str) -> str:
    """The command that runs a program copied from a page."""
    (copy / name).write_text(program)
    return f"python {name}"


class Runner:
    """Runs commands in a copy of the repository, in an environment made for this run."""

    def __init__(self, copy: Path, venv: Path):
        self.copy = copy
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(CLEAN)}
        self.environment["PATH"] = f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self.environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
        # Python compiles what is imported; pip would compile all of JAX and SciPy.
        self.environment["PIP_NO_COMPILE"] = "1"
        self.done: set[str] = set()
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)

    def __call__(self, command: str, quiet: bool = True, says: re.Pattern | None = None) -> None:
        """Runs one command.

        Args:
          quiet: it must print something, and nothing on standard error.
          says: it must fail with one line on standard error that matches.
        """
        start = time.perf_counter()
        done = subprocess.run(
            command, shell=True, cwd=self.copy, env=self.environment, capture_output=True, text=True
        )
        print(f"{time.perf_counter() - start:5.1f} s  {command}", flush=True)
        if says:
            if done.returncode == 0 or not says.match(done.stderr.strip()):
                raise Failed(f"{command}\nsaid {done.stderr!r}, needed {says.pattern}")
        elif done.returncode != 0:
            raise Failed(f"{command}\nexited with {done.returncode}:\n{done.stdout}{done.stderr}")
        elif quiet and done.stderr:
            raise Failed(f"{command}\nprinted on standard error:\n{done.stderr}")
        elif quiet and not done.stdout.strip() and " -o " not in command:
            raise Failed(f"{command}\nprinted nothing")
        else:
            self.done.add(command)


def _clone(folder: Path) -> Path:
    """The tracked and new files of the working tree, without what was built there."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, folder / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    return folder


if __name__ == "__main__":
    sys.exit(main())
