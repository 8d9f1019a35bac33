"""The page: head, sections, and the style and script that stand beside this file."""

from __future__ import annotations

from importlib import resources

from shmap_compiler.explain.figures import Figures
from shmap_compiler.explain.page import mesh, summary, timeline
from shmap_compiler.explain.page.markup import Markup, element, join

_FOLDER = resources.files("shmap_compiler.explain.page")

_HEAD = Markup(
    '<meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<meta name="color-scheme" content="light dark">'
    # A browser that keeps to this loads nothing from elsewhere, whatever is in the page.
    '<meta http-equiv="Content-Security-Policy"'
    " content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">"
)


def page(explanation: Figures) -> str:
    """One page of HTML, the same bytes for the same explanation."""
    head = element(
        "head",
        _HEAD,
        element("title", f"{explanation.program} on {summary.target(explanation)}"),
        element("style", _beside("page.css")),
    )
    body = element(
        "body",
        summary.header(explanation),
        element(
            "main",
            timeline.section(explanation),
            summary.collectives(explanation),
            summary.totals_and_memory(explanation),
            mesh.section(explanation),
            summary.notes(explanation),
        ),
        element("script", _beside("page.js")),
    )
    return join(Markup("<!doctype html>\n"), element("html", head, body, lang="en"), "\n")


def _beside(name: str) -> Markup:
    return Markup(_FOLDER.joinpath(name).read_text(encoding="utf-8"))
