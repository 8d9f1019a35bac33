"""The first hour of a new user: python test/project/first_hour.py [--only README|examples|tutorial]

Makes a fresh environment and follows README.md: runs every line of its `sh` blocks, in order, and
its Python example as pasted. Then runs every file of examples/ as a script, and the tutorial as
pasted. All must succeed, print something, and print nothing on standard error. The two `make`
commands of README.md are left out: CI runs `make test`, and `make demo` makes its own environment.
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
        try:
            if only not in (None, "README"):
                run("pip install .", quiet=False)
            for name, part in parts.items():
                if only in (None, name):
                    part(copy, run)
        except Failed as failure:
            print(f"FAILED: {failure}")
            return 1
    print("the first hour went well")
    return 0


def readme(copy: Path, run: "Runner") -> None:
    """Every command and program of README.md, in its order."""
    for kind, block in re.findall(
        r"^```(sh|python)\n(.*?)^```$", (copy / "README.md").read_text(), re.DOTALL | re.MULTILINE
    ):
        if kind == "python":
            run.python(block, "README.md")
            continue
        for line in block.splitlines():
            command = line.partition(" #")[0].strip()
            run(command, quiet=not NOISY.match(command))


def examples(copy: Path, run: "Runner") -> None:
    """Every file of examples/, with what `.[examples]` installs and without it."""
    bare = [path for path in sorted(copy.glob("examples/*.py")) if run.lacks(path)]
    for path in bare:
        run(f"python examples/{path.name}", says=NEEDS)
    if bare:
        run("pip install '.[examples]'", quiet=False)
    with ThreadPoolExecutor(2) as pool:
        commands = [f"python examples/{path.name}" for path in sorted(copy.glob("examples/*.py"))]
        list(pool.map(run, commands))


def tutorial(copy: Path, run: "Runner") -> None:
    """All blocks of the tutorial, as one program."""
    text = (copy / "docs" / "tutorial.md").read_text()
    run.python(
        "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)), "tutorial"
    )


class Runner:
    """Runs commands in a copy of the repository, in an environment made for this run."""

    def __init__(self, copy: Path, venv: Path):
        self.copy = copy
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(CLEAN)}
        self.environment["PATH"] = f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self.environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
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

    def python(self, program: str, name: str) -> None:
        """Runs a pasted program."""
        path = self.copy / "pasted.py"
        path.write_text(program)
        print(f"         the Python code of {name}:")
        self("python pasted.py")

    def lacks(self, path: Path) -> bool:
        """Whether the example imports a package that this project does not install."""
        return "except ModuleNotFoundError" in path.read_text()


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
