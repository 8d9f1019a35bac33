"""The README's example runs as pasted, and its modules are what the example gives.

`test/project/first_hour.py` follows the whole README in a fresh environment.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
STAGES = ("body", "stablehlo")
AFTERWARDS = f"""
import numpy as np

np.testing.assert_allclose(c, a @ b)
np.testing.assert_allclose(executable(a, b), c)
for stage in {STAGES}:
    print("==", stage)
    print(lowered.as_text(stage))
"""


def block(language, mark=""):
    return re.search(rf"{mark}```{language}\n(.*?)```", README, re.DOTALL).group(1)


@pytest.fixture(scope="module")
def example():
    """What the pasted example prints, with its modules at the end."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    return subprocess.run(
        [sys.executable, "-c", block("python") + AFTERWARDS],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
    )


@pytest.mark.subprocess
def test_the_example_runs_without_warnings(example):
    assert (example.returncode, example.stderr) == (0, "")
    assert "(8, 32) P('i'" in example.stdout


@pytest.mark.subprocess
def test_the_example_gives_the_modules_shown(example):
    for stage, text in zip(STAGES, re.split(r"== \w+\n", example.stdout)[1:], strict=True):
        assert text.strip() == block("mlir", f"<!-- {stage} -->\n").strip()


def test_every_file_the_readme_links_to_exists():
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / link.partition("#")[0]).exists(), link


def test_every_file_that_a_page_links_to_exists():
    for page in (ROOT / "docs").rglob("*.md"):
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if ":" not in link:
                assert (page.parent / link.partition("#")[0]).exists(), (page.name, link)
