"""Calls of JAX's library in the user's lines, which operations are shown as again.

`jax.nn.softmax(x)` becomes half a dozen operations. Locations say which call of the user's they
come from. Where a connected part of them, without collectives, computes what that call computes on
the blocks of one device, it is written as that call. Both are run on random numbers before; what
differs by more than rounding stays as it is.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.mlir import ir
from shmap_passes.ir.collective_ops import COLLECTIVES, is_axis_index
from shmap_passes.ir.ops import defining_op, free_values
from shmap_passes.ir.types import Value

from shmap_compiler.base.untyped import AnyValue
from shmap_compiler.simulate.agreement import default_tolerance
from shmap_compiler.unjit.embedded import call_stablehlo, outline
from shmap_compiler.unjit.layout import Code, call
from shmap_compiler.unjit.spelling.draws import is_draw
from shmap_compiler.unjit.types import dtype_of, is_tensor, shape_of
from shmap_compiler.unjit.user_lines import frames_of, is_backward

_SHOWN = {"jax.nn": "jax.nn", "jax.numpy": "jnp", "jax.numpy.linalg": "jnp.linalg"}
_METHODS = {"mean", "std", "var"}
_MOST_INPUTS = 3
_MOST_BEHIND = 2
_MOST_RESULTS = 8
_NOT_INSIDE = {"stablehlo.while", "stablehlo.if", "stablehlo.case", *COLLECTIVES}
_OF_CONSTANTS = {
    f"stablehlo.{name}"
    for name in ("broadcast_in_dim", "compare", "convert", "divide", "multiply", "subtract")
}
_Type = tuple[tuple[int, ...], str]
_SOURCE, _HOLE = "{}", "_argument_"


@dataclass(frozen=True)
class LibraryCall:
    """Operations that one call of the library computes.

    Attributes:
      ops: in order; the last one makes the result. Others may use what the rest computes.
      inputs: the arguments of `text`.
      text: the call, with `{}` for each argument.
    """

    ops: tuple[ir.Operation, ...]
    inputs: tuple[Value, ...]
    text: str

    def replaced(self) -> list[ir.Operation]:
        """The operations that nothing but the call needs."""
        kept: set[ir.Operation] = set()
        for op in reversed(self.ops[:-1]):
            users = [use.owner.operation for result in op.results for use in result.uses]
            if any(user in kept or not _is_inside(user, self.ops) for user in users):
                kept.add(op)
        return [op for op in self.ops[:-1] if op not in kept]

    def spelled(self, arguments: Sequence[Code]) -> Code:
        """The call of these arguments."""
        name, _, rest = self.text.partition("(")
        given = iter(arguments)
        parts = [
            part.replace(_SOURCE, next(given).text) if _SOURCE in part else part
            for part in _split(rest.removesuffix(")"))
        ]
        return call(name, *parts)


def _split(text: str) -> list[str]:
    """The arguments of a call, which no commas inside of brackets or strings divide."""
    node = ast.parse(f"f({text.replace(_SOURCE, _HOLE)})", mode="eval").body
    assert isinstance(node, ast.Call), "as written"
    parts = [ast.unparse(each) for each in node.args]
    parts += [f"{each.arg}={ast.unparse(each.value)}" for each in node.keywords]
    return [_double_quoted(part).replace(_HOLE, _SOURCE) for part in parts]


def _double_quoted(text: str) -> str:
    return re.sub(r"'([^'\"]*)'", r'"\1"', text)


def find_calls(block: ir.Block, outermost: str) -> Iterator[LibraryCall]:
    """The calls that operations of a block are.

    Args:
      outermost: the jitted function.
    """
    groups: dict[tuple[Any, ...], list[ir.Operation]] = {}
    for each in list(block.operations)[:-1]:
        op = each.operation
        if op.name in _NOT_INSIDE or is_axis_index(op) or is_draw(op) or _is_constant(op):
            continue
        location = str(op.location)
        frames = () if is_backward(location) else frames_of(location, outermost)
        if frames and all(map(is_tensor, op.results)):
            groups.setdefault(frames, []).append(op)
    for frames, group in groups.items():
        text = _call_at(frames[0].path, frames[0].line, frames[0].column)
        if text is None:
            continue
        for ops in _connected(group):
            # `softmax(x) @ w` begins where its call does: the last ones may not be the call's.
            wholes = [
                ops[:count]
                for count in range(len(ops), max(len(ops) - _MOST_BEHIND, 1) - 1, -1)
                if not any(map(_is_used_around, ops[: count - 1], [ops[:count]] * count))
            ]
            # Where the derivative uses what is computed on the way, the call's result is among it.
            parts = [_behind(op, ops) for op in ops if _is_result(op)]
            for part in [*wholes, *parts[-_MOST_RESULTS:][::-1]]:
                found = _as_call(part, text)
                if found is not None:
                    yield found
                    break


def _is_used_around(op: ir.Operation, ops: Sequence[ir.Operation]) -> bool:
    """Whether an operation that is not among others uses a result."""
    users = [use.owner.operation for result in op.results for use in result.uses]
    return any(not _is_inside(user, ops) for user in users)


def _is_result(op: ir.Operation) -> bool:
    """Whether a result is used by the program, and not only by its derivative."""
    users = [use.owner.operation for result in op.results for use in result.uses]
    return not all(is_backward(str(user.location)) for user in users)


def _behind(last: ir.Operation, ops: Sequence[ir.Operation]) -> list[ir.Operation]:
    """Those of some operations that one of them needs, in order."""
    needed = {last}
    for op in reversed(ops):
        if op in needed:
            sources = [defining_op(value) for value in free_values([op])]
            needed.update(each for each in sources if each is not None and each in ops)
    return [op for op in ops if op in needed]


def _connected(group: list[ir.Operation]) -> Iterator[list[ir.Operation]]:
    """The connected parts of some operations, each in order."""
    part: dict[Any, list[ir.Operation]] = {}
    for op in group:
        mine = [op]
        for operand in op.operands:
            source = defining_op(operand)
            if source in part and part[source] is not mine:
                mine = part[source] + [each for each in mine if each not in part[source]]
                for each in mine:
                    part[each] = mine
        for each in mine:
            part[each] = mine
    seen: set[int] = set()
    for op in group:
        if id(part[op]) not in seen:
            seen.add(id(part[op]))
            yield sorted(part[op], key=group.index)


def _as_call(ops: list[ir.Operation], text: str) -> LibraryCall | None:
    """The operations as a call, if it computes the same."""
    if len(ops) == 1 and not text.startswith("jnp.einsum("):
        return None
    last = ops[-1]
    if len(last.results) != 1:
        return None
    constants: dict[Any, None] = {}
    for value in free_values(ops):
        for op in _makers_of_constant(value):
            constants[op] = None
    inputs, module = outline([*constants, *ops], [last.results[0]])
    if not 0 < len(inputs) <= _MOST_INPUTS or len(inputs) != text.count(_SOURCE):
        return None
    if not all(is_tensor(value) and shape_of(value) for value in inputs):
        return None
    types = tuple((shape_of(value), dtype_of(value).name) for value in inputs)
    made = last.results[0]
    order = _order(text, module, types, (shape_of(made), dtype_of(made).name))
    return None if order is None else LibraryCall(tuple(ops), tuple(inputs[k] for k in order), text)


def _is_inside(op: ir.Operation, ops: Sequence[ir.Operation]) -> bool:
    while op not in ops:
        parent: Any = op.parent
        if parent is None:
            return False
        op = parent.operation
    return True


def _makers_of_constant(value: Value) -> list[ir.Operation]:
    """The operations that make what is known without arguments; [] of other values."""
    op = defining_op(value)
    if op is None or not _is_constant(op):
        return []
    return [*(each for v in op.operands for each in _makers_of_constant(v)), op]


def _is_constant(op: ir.Operation) -> bool:
    if op.name == "stablehlo.constant":
        return True
    if op.name not in _OF_CONSTANTS:
        return False
    sources = [defining_op(operand) for operand in op.operands]
    return all(source is not None and _is_constant(source) for source in sources)


@cache
def _order(
    text: str, module: str, types: tuple[_Type, ...], result: _Type
) -> tuple[int, ...] | None:
    """The order of arguments in which a call computes what a module does; None if in none."""
    rng = np.random.default_rng(0)
    args = [_random(shape, np.dtype(name), rng) for shape, name in types]
    expected = None
    for order in permutations(range(len(args))):
        names = [f"a{k}" for k in order]
        parameters = ", ".join(f"a{k}" for k in range(len(args)))
        code = f"lambda {parameters}: {text.format(*names)}"
        try:
            fun = jax.jit(eval(code, {"jax": jax, "jnp": jnp}))
            made = jax.eval_shape(fun, *args)
            if (tuple(made.shape), made.dtype.name) != result:
                continue
            found = np.asarray(fun(*args))
        except Exception:  # The user's call may need what is not here.
            continue
        if expected is None:
            expected = np.asarray(jax.jit(lambda *given: call_stablehlo(module, *given))(*args))
        if agree(found, expected):
            return order
    return None


def _random(shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> AnyValue:
    if dtype.kind == "b":
        return jnp.asarray(rng.random(shape) < 0.5)
    if dtype.kind in "iu":
        return jnp.asarray(rng.integers(0, 4, shape).astype(dtype))
    return jnp.asarray(2 * rng.standard_normal(shape)).astype(dtype)


def agree(found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether arrays are equal, up to rounding."""
    if expected.dtype.kind in "biu":
        return np.array_equal(found, expected)
    tolerance = default_tolerance(expected.dtype)
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    found, expected = found.astype(wide), expected.astype(wide)
    largest = np.max(np.abs(expected[np.isfinite(expected)]), initial=1.0)
    return bool(np.allclose(found, expected, rtol=0, atol=tolerance * largest, equal_nan=True))


# ------------------------------------------------------------------------- the user's file


@cache
def _call_at(path: str, line: int, column: int) -> str | None:
    """The call of the library that begins at a place, with `{}` for arguments but literals."""
    node = call_at(path, line, column)
    return None if node is None else _text(node, path)


def call_at(path: str, line: int, column: int) -> ast.Call | None:
    """The one call that begins at a place."""
    calls = _calls(path).get((line, column), [])
    return calls[0] if len(calls) == 1 else None


def full_name(path: str, function: ast.expr) -> str:
    """A function by the module that a file imports it from; "" if it is of another kind."""
    first, _, rest = _dotted(function).partition(".")
    modules = _modules(path)
    return f"{modules[first]}.{rest}".rstrip(".") if first in modules else ""


def _text(node: ast.Call, path: str) -> str | None:
    whole = full_name(path, node.func)
    module, _, function = whole.rpartition(".")
    arguments = [_argument(each) for each in node.args]
    if module in _SHOWN:
        name = f"{_SHOWN[module]}.{function}"
    elif not whole and isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
        name = f"jnp.{node.func.attr}"
        arguments.insert(0, _SOURCE)
    else:
        return None
    if any(each.arg is None for each in node.keywords):
        return None
    arguments += [f"{each.arg}={_argument(each.value)}" for each in node.keywords]
    return f"{name}({', '.join(arguments)})"


def _argument(node: ast.expr) -> str:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return _SOURCE
    shown = repr(value)
    if isinstance(value, str) and '"' not in value:
        shown = f'"{value}"'
    return shown.replace("{", "{{").replace("}", "}}")


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


@cache
def _tree(path: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return ast.Module([], [])


@cache
def _calls(path: str) -> dict[tuple[int, int], list[ast.Call]]:
    found: dict[tuple[int, int], list[ast.Call]] = {}
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Call):
            found.setdefault((node.lineno, node.col_offset), []).append(node)
    return found


@cache
def _modules(path: str) -> dict[str, str]:
    """What the names that a file imports stand for."""
    found: dict[str, str] = {}
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            for each in node.names:
                found[each.asname or each.name.partition(".")[0]] = (
                    each.name if each.asname else each.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for each in node.names:
                found[each.asname or each.name] = f"{node.module}.{each.name}"
    return found
