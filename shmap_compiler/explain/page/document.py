"""The page: head, sections, and the style and script that stand beside this file."""

from __future__ import annotations

from importlib import resources

from shmap_compiler.explain.comparison import Comparison
from shmap_compiler.explain.figures import Figures
from shmap_compiler.explain.page import mesh, summary, tables, timeline
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
    title = f"{explanation.program} on {summary.target(explanation)}"
    return _document(title, _article(explanation, 0, timeline.end(explanation)))


def comparison_page(comparison: Comparison) -> str:
    """One page of HTML with two explanations, whose timelines have the same scale."""
    both = (comparison.first, comparison.second)
    end = max(map(timeline.end, both))
    articles = (_article(explanation, k, end) for k, explanation in enumerate(both))
    title = " and ".join(comparison.heads)
    return _document(title, tables.side_by_side(comparison), *articles)


def _article(explanation: Figures, number: int, end: float) -> Markup:
    """Everything about one explanation; `number` tells the articles of a page apart."""
    return element(
        "article",
        summary.header(explanation),
        timeline.section(explanation, number, end),
        tables.collectives(explanation),
        tables.compute(explanation),
        summary.totals_and_memory(explanation),
        tables.live_arrays(explanation),
        mesh.section(explanation),
        summary.notes(explanation),
    )


def _document(title: str, *sections: Markup) -> str:
    head = element("head", _HEAD, element("title", title), element("style", _beside("page.css")))
    body = element("body", element("main", *sections), element("script", _beside("page.js")))
    return join(Markup("<!doctype html>\n"), element("html", head, body, lang="en"), "\n")


def _beside(name: str) -> Markup:
    return Markup(_FOLDER.joinpath(name).read_text(encoding="utf-8"))
