"""Signatures say what a value is: `Any` stands in them by a name only, in the files listed here.

A signature is what other modules see: the types of parameters, results and fields, and names for
types. The body of a function may use `Any`, as where a library has no types.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

NAMED = {
    "shmap_compiler/base/untyped.py": "the names for what JAX and Python give no type",
    "passes/ir/types.py": "the names for what MLIR's bindings give no type; passes import no JAX",
}
"""The files that define names for `Any`."""

ALLOWED = {
    ("passes/cost/machine.py", "_value"): "a field of JSON; the room is below that of the names",
    ("tools/usage.py", "read_all"): "results of readers of different types; starts without JAX",
}
"""Single functions that have it, each with the reason."""

FILES = [
    str(path.relative_to(ROOT))
    for folder in ("shmap_compiler", "passes", "tools")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


def is_any(node):
    names = (ast.Name, ast.Attribute)
    texts = (
        n.id if isinstance(n, ast.Name) else n.attr for n in ast.walk(node) if isinstance(n, names)
    )
    strings = (n.value for n in ast.walk(node) if isinstance(n, ast.Constant))
    return "Any" in texts or any(isinstance(s, str) and "Any]" in s for s in strings)


def bare(tree):
    """Where a module has `Any` in a signature: (name of the function or class, line)."""

    def visit(node, name, inside):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                continue
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                types = [child.returns, *(a.annotation for a in parameters(child.args))]
                if any(is_any(each) for each in types if each is not None):
                    yield child.name, child.lineno
                yield from visit(child, child.name, True)
            elif isinstance(child, ast.ClassDef):
                if any(map(is_any, child.bases)):
                    yield child.name, child.lineno
                yield from visit(child, child.name, False)
            elif isinstance(child, ast.AnnAssign) and not inside:
                alias = ast.unparse(child.annotation) == "TypeAlias" and child.value is not None
                if is_any(child.value if alias else child.annotation) and (alias or name):
                    yield ast.unparse(child.target), child.lineno
            elif (
                isinstance(child, ast.Assign) and not name and not isinstance(child.value, ast.Call)
            ):
                if is_any(child.value):
                    yield ast.unparse(child.targets[0]), child.lineno
            else:
                yield from visit(child, name, inside)

    return list(visit(tree, "", False))


def parameters(arguments):
    optional = [arguments.vararg, arguments.kwarg]
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *optional]
    return [each for each in every if each is not None]


def test_signatures_name_what_has_no_type():
    found = [
        f"{path}:{line} {name}"
        for path in FILES
        if path not in NAMED
        for name, line in bare(ast.parse((ROOT / path).read_text()))
        if (path, name) not in ALLOWED
    ]
    assert not found, "\n".join(found)


def test_every_exception_is_needed():
    assert all(bare(ast.parse((ROOT / path).read_text())) for path in NAMED)
    for path, name in ALLOWED:
        assert name in [found for found, _ in bare(ast.parse((ROOT / path).read_text()))]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def f(x: Any): ...", ["f"]),
        ("def f(x, *, y: dict[str, Any] = {}): ...", ["f"]),
        ("def f(*args: typing.Any): ...", ["f"]),
        ("def f() -> Callable[..., Any]: ...", ["f"]),
        ("def f() -> 'list[Any]': ...", ["f"]),
        ("class C:\n    x: Any", ["x"]),
        ("class C(dict[Any, int]): ...", ["C"]),
        ("class C:\n    def f(self, x: Any): ...", ["f"]),
        ("def f():\n    def g(x: Any): ...", ["g"]),
        ("F = Callable[..., Any]", ["F"]),
        ("F: TypeAlias = Any", ["F"]),
        ("def f(x: AnyMesh) -> Anything: ...", []),
        ("def f(x):\n    y: Any = x", []),
        ("core: Any = jax.core", []),
    ],
)
def test_of_this_test(text, names):
    assert [name for name, _ in bare(ast.parse(text))] == names
