"""Data goes down: a room of the house imports from the rooms below it, and from no other.

The rooms of each package are listed from the lowest to the highest. There are no exceptions, and
imports inside of functions or for types only, which would hide one, are not allowed either. Only
the commands import late, because they start without JAX.
"""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ROOMS = {
    "shmap_compiler": (
        "base",
        "collectives",
        "jaxprs",
        "replication",
        "graph",
        "targets",
        "records",
        "tracing",
        "checks",
        "lowering",
        "transforms",
        "explain",
        "artifacts",
        "simulate",
        "eager",
        "stages",
        "frontend",
        "unjit",
        "named",
        "xmap",
        "pmap",
    ),
    "shmap_passes": (
        "cost",
        "ir",
        "files",
        "analysis",
        "checks",
        "simplify",
        "overlap",
        "export",
        "import_",
    ),
}
INSIDE = {"shmap_passes.overlap": ("form", "find", "rewrite", "choose")}
"""The rooms inside of a room, from the lowest to the highest; above them are the modules beside."""
ABOVE = {"shmap_compiler": ("shmap_tools",), "shmap_passes": ("shmap_compiler", "shmap_tools")}
"""Packages that a package does not import."""

FOLDERS = {"shmap_compiler": "shmap_compiler", "shmap_passes": "passes", "shmap_tools": "tools"}
FLAT = 4
"""So many modules at most are beside the rooms of a package."""


def modules(package):
    """The modules of a package: (name, path)."""
    folder = ROOT / FOLDERS[package]
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        yield ".".join((package, *[p for p in parts if p != "__init__"])), path


@functools.cache
def imports_of(name, path):
    return list(imports(ast.parse(path.read_text()), package_of(name, path)))


def imports(tree, package, late=False):
    """The modules that a file imports: (name, name of what is taken from it, whether late).

    Args:
      package: the package of the file, from which relative imports count.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):  # which has no statements in it
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, "", late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            yield from ((module, alias.name, late) for alias in node.names)
        hides = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        hides |= isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        yield from imports(node, package, late or hides)


def room(module, outside):
    """The room of a module in a package, or in a room that has rooms; "" for one from elsewhere."""
    return module.removeprefix(f"{outside}.").split(".")[0] if f"{outside}." in module else ""


def package_of(name, path):
    return name if path.name == "__init__.py" else name.rpartition(".")[0]


def goes_up(name, module, outside, rooms, beside):
    """Whether a module in one of the rooms imports another from above.

    Args:
      outside: the package, or the room, that has the rooms.
      beside: the floor of modules beside the rooms.
    """
    floors = {r: floor for floor, r in enumerate(rooms)}
    here, there = room(name, outside), room(module, outside)
    return here in floors and there != "" and floors.get(there, beside) > floors[here]


def violations(package, name, imported):
    for module, taken, late in imported:
        if module.split(".")[0] in ABOVE.get(package, ()):
            yield f"{name} imports {module}, a package above"
        if module.split(".")[0] != package:
            continue
        if late:
            yield f"{name} hides an import of {module} in a function or behind TYPE_CHECKING"
        there = f"{module}.{taken}"
        levels = [(package, ROOMS.get(package, ()), -1)]
        levels += [(outside, rooms, len(rooms)) for outside, rooms in INSIDE.items()]
        if any(goes_up(name, there, *level) for level in levels):
            yield f"{name} imports {there}, which is above it"


def violations_in(package, name, text):
    """Those of a module with this text."""
    imported = imports(ast.parse(text), package_of(name, Path("module.py")))
    return list(violations(package, name, imported))


def graph(package):
    """The modules of a package that each of them imports."""
    found = dict(modules(package))
    return {
        name: {
            f"{module}.{taken}" if f"{module}.{taken}" in found else module
            for module, taken, _ in imports_of(name, path)
        }
        & found.keys()
        for name, path in found.items()
    }


@pytest.mark.parametrize("package", ROOMS)
def test_every_room_is_on_one_floor(package):
    folder = ROOT / FOLDERS[package]
    rooms = {p.name for p in folder.iterdir() if (p / "__init__.py").exists()}
    assert rooms == set(ROOMS[package])
    assert len([p for p in folder.glob("*.py") if p.name != "__init__.py"]) <= FLAT


def test_the_folders_of_tests_are_the_rooms():
    """Those of `records` are with the handles on them."""
    packages = {"passes", "tools"}
    others = {"end_to_end", "project", "programs", "library_programs", "fuzzing", "mutants"}
    folders = {p.name for p in (ROOT / "test").iterdir() if p.is_dir() and p.name[0] not in "._"}
    rooms = set(ROOMS["shmap_compiler"]) - {"records"}
    assert folders - {"golden", "__pycache__", "Output"} == rooms | packages | others


@pytest.mark.parametrize(
    ("page", "begin", "end"),
    [
        ("README.md", "below it in this table:", "Beside it:"),
        ("docs/design.md", "From top to bottom:", "Data and the handles"),
    ],
)
def test_the_rooms_are_drawn_from_the_highest_to_the_lowest(page, begin, end):
    drawn = (ROOT / page).read_text().partition(begin)[2].partition(end)[0]
    names = [
        name
        for line in drawn.splitlines()
        for name in re.findall(r"(\w+)/", line.split("|")[1] if "|" in line else line.split(" ")[0])
    ]
    order = ROOMS["shmap_compiler"]
    assert set(names) == set(order)
    assert [order.index(name) for name in names] == list(reversed(range(len(order))))


@pytest.mark.parametrize("package", ROOMS)
def test_imports_go_down(package):
    found = [
        violation
        for name, path in modules(package)
        for violation in violations(package, name, imports_of(name, path))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", FOLDERS)
def test_no_modules_import_each_other(package):
    edges = {name: set(targets) - {name} for name, targets in graph(package).items()}
    while True:
        free = [name for name, targets in edges.items() if not targets & edges.keys()]
        if not free:
            break
        for name in free:
            del edges[name]
    edges = {name: sorted(targets & edges.keys()) for name, targets in edges.items()}
    assert not edges, f"among these is a cycle: {edges}"


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        (
            "base.errors",
            "from shmap_compiler.graph.graph import Graph",
            "graph.Graph, which",
        ),
        ("base.errors", "from shmap_compiler.graph import graph", "graph.graph, which"),
        ("graph.graph", "def f():\n    import shmap_compiler.base.errors", "hides an import"),
        ("stages.lowered", "if TYPE_CHECKING:\n    from shmap_compiler.base import specs", "hides"),
        ("stages.lowered", "import shmap_tools", "a package above"),
        ("stages.lowered", "from shmap_compiler.base.errors import Problem", None),
    ],
)
def test_of_this_test(name, text, found):
    result = violations_in("shmap_compiler", f"shmap_compiler.{name}", text)
    assert len(result) == (found is not None)
    assert found is None or found in result[0]


@pytest.mark.parametrize(
    ("name", "text", "upward"),
    [
        ("find.cuts", "from ..rewrite.pieces import join", True),
        ("find.cuts", "from ..rewrite import pieces", True),
        ("find.cuts", "from ..form import Form", False),
        ("rewrite.pieces", "from ..find.cuts import Cut", False),
        ("rewrite.pieces", "from ..choose_overlap import ChooseOverlap", True),
        ("rewrite.pieces", "from ...ir.ops import defining_op", False),
        ("choose_overlap", "from .choose.choices import choices", False),
        ("form", "from .find.cuts import Cut", True),
    ],
)
def test_rooms_inside_of_a_room(name, text, upward):
    found = violations_in("shmap_passes", f"shmap_passes.overlap.{name}", text)
    assert bool(found) == upward


@pytest.mark.parametrize("outside", INSIDE)
def test_every_room_inside_is_on_one_floor(outside):
    package, _, inside = outside.partition(".")
    folder = ROOT / FOLDERS[package] / inside
    rooms = {p.name for p in folder.iterdir() if (p / "__init__.py").exists()}
    assert rooms == {r for r in INSIDE[outside] if not (folder / f"{r}.py").exists()}
