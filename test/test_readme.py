"""The README's example runs, and its modules are what the example gives."""

import re
from pathlib import Path

import numpy as np

README = (Path(__file__).parent.parent / "README.md").read_text()


def block(language, mark=""):
    return re.search(rf"{mark}```{language}\n(.*?)```", README, re.DOTALL).group(1)


def test_the_example_gives_the_modules_shown():
    names = {}
    exec(block("python"), names)
    np.testing.assert_allclose(names["c"], names["a"] @ names["b"])
    np.testing.assert_allclose(names["executable"](names["a"], names["b"]), names["c"])
    for stage in ("body", "stablehlo"):
        shown = block("mlir", f"<!-- {stage} -->\n")
        assert names["lowered"].as_text(stage).strip() == shown.strip()


def test_every_file_the_readme_links_to_exists():
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert (Path(__file__).parent.parent / link).exists(), link
