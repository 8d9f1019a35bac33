"""The file around a generated function: imports, mesh, specs, arguments, results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxlib.mlir import ir
from shmap_passes import make_context
from shmap_passes.ir.body_form import read_body_form
from shmap_passes.ir.boundary import Boundary
from shmap_passes.ir.types import Value

from shmap_compiler.base.untyped import PyTree, TreeDef
from shmap_compiler.unjit.layout import Code, call, display, lay_out, numbers
from shmap_compiler.unjit.names import Names
from shmap_compiler.unjit.program import Program
from shmap_compiler.unjit.random_draws import name_draws
from shmap_compiler.unjit.signature import Side, quoted
from shmap_compiler.unjit.statements import Statement
from shmap_compiler.unjit.types import shown_type

_IMPORTS = (
    (r"\bpartial\(", "from functools import partial"),
    (r"\bjax\.", "import jax"),
    (r"\bjnp\.", "import jax.numpy as jnp"),
    (r"\blax\.", "from jax import lax"),
)


@dataclass(frozen=True)
class Assigned:
    """A variable of the generated function.

    Attributes:
      line: of the file, from 1.
      name: the variable.
      op: the number of the operation in the entry block of the module.
      result: the number of its result.
    """

    line: int
    name: str
    op: int
    result: int


@dataclass(frozen=True)
class Source:
    """A generated file.

    Attributes:
      text: the file.
      name: the function in it.
      embedded: the operations that it calls as StableHLO.
      assigned: the variables of the function, at its outermost level.
      hidden_rules: the lines of the user's with derivative rules that it would need.
    """

    text: str
    name: str
    embedded: tuple[str, ...]
    assigned: tuple[Assigned, ...]
    hidden_rules: tuple[str, ...] = ()

    def with_hidden_rules(self, gradients: str, rules: tuple[str, ...]) -> Source:
        """The same with a comment at its head: how its gradients differ without these rules."""
        about, blank, rest = self.text.partition("\n\n")
        comment = [
            f"# Its gradients {gradients}.",
            "# XLA does not compile derivative rules, so it lacks those of",
            *(f"#   {rule}" for rule in rules),
        ]
        text = "\n".join([about, "#", *comment]) + blank + rest
        moved = tuple(replace(a, line=a.line + 1 + len(comment)) for a in self.assigned)
        return replace(self, text=text, assigned=moved, hidden_rules=rules)


def write_source(
    module: str,
    name: str,
    jitted: str,
    about: Sequence[str],
    inputs: Sequence[Side],
    outputs: Sequence[Side],
    result_tree: TreeDef,
    kept: Sequence[int],
    replicated: Mapping[int, tuple[str, ...]],
) -> Source:
    """Writes the source of a module in body form.

    Args:
      module: its text.
      name: of the function.
      jitted: the name of the jitted function.
      about: lines of the comment at the top of the file.
      inputs: the arguments of the function.
      outputs: what it returns.
      result_tree: its result, with a `Side` of `outputs` for each of its parts.
      kept: the leaves of the arguments that the module takes.
      replicated: of a result, the axes along which it has to be declared equal.
    """
    with make_context(), ir.Location.unknown():
        parsed = ir.Module.parse(module)
        opview: Any = parsed.operation.opview
        form = read_body_form(opview)
        names = Names()
        name = names.fresh(name)
        parameters = {side.name: names.fresh(side.name) for side in inputs}
        is_named = re.search(rf'loc\("(?:[^"]*\.)?{re.escape(jitted)}"\(', module) is not None
        outermost = jitted if is_named else ""
        positions = _positions(form.main.entry_block)
        replaced = name_draws(form.main.operation, form.mesh, outermost)
        positions.update({made: positions[v] for made, v in replaced.items() if v in positions})
        program = Program(form.mesh, names, outermost)
        leaves = [leaf for side in inputs for leaf in side.leaves]
        arguments = dict(zip(kept, form.main.arguments, strict=True))
        for line in _types_of(inputs, arguments):
            program.line(line)
        _unpack(program, inputs, parameters, arguments)
        results = program.block(form.main.entry_block)
        returned = [
            _returned(program.exact(value), replicated.get(k, ()))
            for k, value in enumerate(results)
        ]
        program.write("return ", _without_parentheses(_container(outputs, returned, result_tree)))
        specs = {
            leaf.index: _spec(form.inputs[kept.index(leaf.index)])
            if leaf.index in kept
            else Code("P()")
            for leaf in leaves
        }
        in_specs = display("(", (_literal(side.shown, specs) for side in inputs), ")")
        out = {k: _spec(boundary) for k, boundary in enumerate(form.outputs)}
        out_specs = _container(outputs, [out[k] for k in range(len(out))], result_tree)
        sizes = numbers(form.mesh.shape)
        axes = display("(", map(quoted, form.mesh.names), ")")
        auto = f"(AxisType.Auto,) * {len(form.mesh.names)}"
        body = [
            *lay_out(0, "mesh = ", call("jax.make_mesh", sizes, axes, axis_types=auto)),
        ]
        definitions = program.body.definitions.values()
        for lines in sorted(definitions, key=_is_function):
            body += ["", "", *lines] if _is_function(lines) else ["", *lines]
        wrap = call("@partial", "shard_map", mesh="mesh", in_specs=in_specs, out_specs=out_specs)
        body += ["", "", *lay_out(0, "", wrap)]
        body += lay_out(0, "def ", call(name, *(parameters[side.name] for side in inputs)), ":")
        head = _head(about, "\n".join([*body, *program.body.lines]))
        first = len(head) + len(body)
        assigned = _assigned(positions, program.body.statements, first)
        text = "\n".join([*head, *body, *program.body.lines]).rstrip() + "\n"
        return Source(text, name, tuple(program.body.embedded), assigned)


def _is_function(lines: Sequence[str]) -> bool:
    return lines[0].startswith("def ")


def _head(about: Sequence[str], body: str) -> list[str]:
    body = re.sub(r"(?m)(^\s*|  )#.*$", "", body)
    imports = {text for pattern, text in _IMPORTS if re.search(pattern, body)}
    standard = [text for text in ("from functools import partial",) if text in imports]
    others = [text for text in ("import jax", "import jax.numpy as jnp") if text in imports]
    others += [text for text in ("from jax import lax",) if text in imports]
    others.append("from jax.sharding import AxisType")
    others.append("from jax.sharding import PartitionSpec as P")
    ours = ["shard_map"]
    ours += [
        each for each in ("assume_replicated", "block_key", "call_stablehlo") if f"{each}(" in body
    ]
    others += [f"from shmap_compiler import {', '.join(sorted(ours))}"]
    return [*(f"# {line}".rstrip() for line in about), "", *standard, "", *others, ""]


def _types_of(inputs: Sequence[Side], arguments: Mapping[int, Value]) -> list[str]:
    """A comment with the type of each argument."""
    lines = []
    for side in inputs:
        for leaf in side.leaves:
            if leaf.index in arguments:
                lines.append(f"# {leaf.path}: {shown_type(arguments[leaf.index])}")
    return lines


def _unpack(
    program: Program,
    inputs: Sequence[Side],
    parameters: Mapping[str, str],
    arguments: Mapping[int, Value],
) -> None:
    """Gives each argument of the module a variable."""
    for side in inputs:
        for leaf in side.leaves:
            if leaf.index not in arguments or not list(arguments[leaf.index].uses):
                if leaf.index in arguments:
                    program.bind(arguments[leaf.index], leaf.path)
                continue
            if leaf.path == side.name:
                program.bind(arguments[leaf.index], parameters[side.name])
                continue
            name = program.names.fresh(leaf.name)
            path = parameters[side.name] + leaf.path[len(side.name) :]
            program.write(f"{name} = ", Code(path))
            program.bind(arguments[leaf.index], name)


def _returned(value: Code, axes: tuple[str, ...]) -> Code:
    if not axes:
        return value
    named = Code(quoted(axes[0])) if len(axes) == 1 else display("(", map(quoted, axes), ")")
    return call("assume_replicated", value, named)


def _container(outputs: Sequence[Side], values: Sequence[Code], tree: PyTree) -> Code:
    """The result of the function, or a pytree of the same structure."""
    each = [_literal(side.shown, dict(enumerate(values))) for side in outputs]
    if tree is None:
        return each[0]
    return display(*(("[", each, "]") if tree is list else ("(", each, ")")))


def _literal(tree: PyTree, texts: Mapping[int, Code]) -> Code:
    """A pytree as a display, with texts in place of numbers."""
    if tree is None:
        return Code("None")
    if isinstance(tree, int):
        return texts[tree]
    if isinstance(tree, dict):
        items = [
            _entry(quoted(key) if isinstance(key, str) else repr(key), _literal(value, texts))
            for key, value in tree.items()
        ]
        return display("{", items, "}")
    brackets = "[]" if isinstance(tree, list) else "()"
    return display(brackets[0], [_literal(each, texts) for each in tree], brackets[1])


def _entry(key: str, value: Code) -> Code:
    head = f"{key}: {value.head}" if value.head else ""
    return Code(f"{key}: {value.text}", value.level, head, value.items, value.tail, True)


def _without_parentheses(result: Code) -> Code:
    """A tuple that is returned has none, where it fits a line."""
    if result.head == "(" and len(result.items) > 1:
        text = ", ".join(item.text for item in result.items)
        if len(text) + len("    return ") <= 88:
            return Code(text)
    return result


def _spec(boundary: Boundary) -> Code:
    dims = list(boundary.dims or ())
    while dims and not dims[-1]:
        dims.pop()
    entries = []
    for axes in dims:
        if len(axes) < 2:
            entries.append(quoted(axes[0]) if axes else "None")
        else:
            entries.append(display("(", map(quoted, axes), ")").text)
    return Code(f"P({', '.join(entries)})")


def _positions(block: ir.Block) -> dict[Value, tuple[int, int]]:
    """The numbers of the operation, and of the result, that each value of a block is."""
    return {
        result: (number, position)
        for number, each in enumerate(block.operations)
        for position, result in enumerate(each.operation.results)
    }


def _assigned(
    positions: Mapping[Value, tuple[int, int]], statements: Sequence[Statement], first: int
) -> tuple[Assigned, ...]:
    return tuple(
        Assigned(first + each.number + 1, each.name, *positions[each.value])
        for each in statements
        if each.value in positions
    )
