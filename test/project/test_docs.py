"""The Python blocks of docs/ run in order, and print what the pages say.

A block after `<!-- not run -->` is left out. A `text` block is the output of the block before it.
passes.md is generated; `test_added_passes.py` tests what it shows.
"""

import contextlib
import doctest
import io
import linecache
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"(<!-- not run -->\n)?^```(python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = [
    str(page.relative_to(DOCS))
    for page in sorted(DOCS.rglob("*.md"))
    if "```python" in page.read_text() and page.name != "passes.md"
]
SLOW = {"tutorial.md", "named-axes.md"}
# The tests have their eight devices before a page can ask for them.
SETTINGS = re.compile(r"^jax\.config\.update\(.jax_(platforms|num_cpu_devices).*\n", re.MULTILINE)


def blocks(page):
    """The code that runs and the outputs shown, as (kind, first line, text)."""
    text = (DOCS / page).read_text()
    for match in BLOCK.finditer(text):
        skipped, kind, content = match.groups()
        if not skipped:
            yield kind, text[: match.start()].count("\n") + 2, content


def run(page, line, code, names):
    """What a block prints. Messages name its lines as those of the page."""
    source = "\n" * (line - 1) + SETTINGS.sub("\n", code)
    linecache.cache[page] = len(source), None, source.splitlines(keepends=True), page
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(source, page, "exec"), names)
    return output.getvalue()


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=pytest.mark.slow if p in SLOW else ()) for p in PAGES]
)
def test_the_code_of_a_page_prints_what_the_page_says(page):
    names = {"__name__": "__main__"}
    checker = doctest.OutputChecker()
    printed = ""
    for kind, line, content in blocks(page):
        if kind == "python":
            assert not printed, f"{page}: the output before line {line} is not shown"
            printed = run(page, line, content, names)
        else:
            same = checker.check_output(content, printed, doctest.ELLIPSIS)
            assert same, f"{page}, line {line}: the code printed\n{printed}"
            printed = ""
    assert not printed, f"{page}: the last output is not shown"


TEXTS = [DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
NAMED = re.compile(r"`((?:[\w.-]+/)+[\w.-]*)(?::\w+)?`")
"""A file or folder in backticks; an attribute may follow."""
FOLDERS = ("", "shmap_compiler", "passes")
MADE = {"site/", "dist/"}


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page):
    named = set(NAMED.findall(page.read_text())) - MADE
    roots = [DOCS.parent / folder for folder in FOLDERS]
    assert not [name for name in named if not any((root / name).exists() for root in roots)]


def test_every_page_that_teaches_has_code():
    assert {"tutorial.md", "howto/hang.md", "howto/gradient.md", "howto/pass.md"} <= set(PAGES)
