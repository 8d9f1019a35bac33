"""Pages of the documentation site that are files of the repository's root.

Their links are those of the repository. Links to `docs/` become links between pages; of links to
source files, which the site does not contain, only the text remains.
"""

import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
PAGES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}


def on_files(files, config):
    """Adds these pages. MkDocs calls it."""
    for page, source in PAGES.items():
        text = _with_links_of_the_site((ROOT / source).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """Has links from pages to files of the root lead to their pages. MkDocs calls it."""
    for target, source in PAGES.items():
        markdown = markdown.replace(f"](../{source}", f"]({target}")
    return markdown


def _with_links_of_the_site(text: str) -> str:
    pages = {source: page for page, source in PAGES.items()}

    def link(match: re.Match[str]) -> str:
        label, target, anchor = match.groups(default="")
        if target in pages:
            return f"[{label}]({pages[target]}{anchor})"
        if target.startswith("docs/"):
            return f"[{label}]({target.removeprefix('docs/')}{anchor})"
        return match[0] if ":" in target or not target else label

    return re.sub(r"\[([^\]]+)\]\(([^)#\s]*)(#[^)\s]*)?\)", link, text)
