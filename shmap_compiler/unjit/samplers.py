"""What functions of `jax.random` compute of random bits, as calls of these functions.

The operations behind random bits are run on bits of a key, and compared with what the function of
the user's line returns for that key.
"""

from __future__ import annotations

import ast
import heapq
import inspect
import math
from collections.abc import Iterator, Sequence
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl
from jaxlib.mlir import ir
from shmap_passes.ir.ops import Position
from shmap_passes.ir.types import Value

from shmap_compiler.base.untyped import AnyValue, Setting
from shmap_compiler.unjit.constants import Constants
from shmap_compiler.unjit.embedded import call_stablehlo, outline
from shmap_compiler.unjit.same_results import agree
from shmap_compiler.unjit.types import shape_of
from shmap_compiler.unjit.user_calls import call_at, full_name
from shmap_compiler.unjit.user_lines import frames_of

_MOST_OPS = 120
_MOST_ELEMENTS = 2**22
_MOST_BITS = 2**32 - 1
_MOST_DRAWS = 64
_SPACED_BITS = 2**12
_NAMES = {"jax": jax, "jnp": jnp}
_OTHERS = {
    "categorical": ("gumbel",),
    "bernoulli": ("uniform",),
    "": ("uniform", "normal"),
}
"""What to try beside the function that the user calls."""


def find_sampler(
    bits: ir.Operation, outermost: str
) -> Iterator[tuple[ir.Operation, str, list[str]]]:
    """The operations that are calls: the function of each, and its arguments but the key.

    The first is that of a function of the user's; the last is `jax.random.bits`.

    Args:
      bits: the operation that makes random bits.
      outermost: the jitted function.
    """
    shape = shape_of(bits.results[0])
    shown = _tuple(shape)
    ops, ends = _behind([bits])
    if ops and math.prod(shape) <= _MOST_ELEMENTS:
        inputs, module = outline(ops, [op.results[0] for op in ends])
        if inputs == [bits.results[0]]:
            # Draws of the same bits share the operations that make them.
            calls = dict.fromkeys(_user_call(op, outermost, shown) for op in [bits, *ends])
            others = dict.fromkeys(
                (other, (shown,)) for name, _ in calls for other in _OTHERS.get(name, ())
            )
            is_found = False
            for tried in (calls, others):
                for function, rest in tried if not is_found else ():
                    called = f"jax.random.{function}"
                    at = None if rest is None else _agreeing(module, called, rest, shape, (0,))
                    if at is not None:
                        is_found = True
                        yield ends[at], called, list(rest or ())
    is_default = jax.dtypes.canonicalize_dtype(np.uint64) == np.uint32
    yield bits, "jax.random.bits", [shown] if is_default else [shown, "jnp.uint32"]


def find_integers(
    first: ir.Operation, second: ir.Operation, outermost: str
) -> Iterator[tuple[ir.Operation, str, list[str]]]:
    """The operations that are calls of `jax.random.randint`, which splits its key.

    Args:
      first, second: the operations that make random bits with each of two new keys.
      outermost: the jitted function.
    """
    shape = shape_of(first.results[0])
    ops, ends = _behind([first, second])
    if not ops or math.prod(shape) > _MOST_ELEMENTS:
        return
    inputs, module = outline(ops, [op.results[0] for op in ends])
    bits = [first.results[0], second.results[0]]
    if len(inputs) != len(bits) or any(value not in bits for value in inputs):
        return
    order = tuple(bits.index(value) for value in inputs)
    calls = dict.fromkeys(_user_call(op, outermost, _tuple(shape)) for op in ends)
    for name, rest in calls:
        function = f"jax.random.{name}"
        if name == "randint" and rest is not None:
            at = _agreeing(module, function, rest, shape, order)
            if at is not None:
                yield ends[at], function, list(rest)


def _tuple(shape: tuple[int, ...]) -> str:
    return f"({shape[0]},)" if len(shape) == 1 else f"({', '.join(map(str, shape))})"


def _behind(sources: list[ir.Operation]) -> tuple[list[ir.Operation], list[ir.Operation]]:
    """The operations that need only random bits, and those with results of their shape."""
    derived: set[Value] = {op.results[0] for op in sources}
    known = Constants(lambda op: not len(op.regions) and op.name != "stablehlo.custom_call")
    constants: dict[ir.Operation, None] = {}
    ops: dict[ir.Operation, None] = {}
    todo = [Position(user) for op in sources for user in _users(op)]
    heapq.heapify(todo)
    while todo and len(ops) < _MOST_OPS:
        op = heapq.heappop(todo).op
        if op in ops or op in sources or len(op.results) != 1 or len(op.regions):
            continue
        if not op.name.startswith(("stablehlo.", "chlo.")):
            continue
        made = [known.makers(value) for value in op.operands if value not in derived]
        if not all(made):
            continue
        constants.update(dict.fromkeys(op for each in made for op in each))
        derived.add(op.results[0])
        ops[op] = None
        for user in _users(op):
            heapq.heappush(todo, Position(user))
    shape = shape_of(sources[0].results[0])
    return [*constants, *ops], [op for op in ops if shape_of(op.results[0]) == shape]


def _users(op: ir.Operation) -> list[ir.Operation]:
    """The operations of the same block that use the result."""
    users = (use.owner.operation for use in op.results[0].uses)
    return [user for user in users if user.block == op.block]


@cache
def _agreeing(
    module: str,
    function: str,
    rest: tuple[str, ...],
    shape: tuple[int, ...],
    order: tuple[int, ...],
) -> int | None:
    """The last result of a module that takes bits which a function returns for their key.

    Args:
      order: of two arguments of the module, whether they are bits of the first or the second of the
        keys that the function splits its key into; (0,) if the module takes bits of the key itself.
    """
    agreeing: set[int] = set()
    draws = [jax.random.key(seed, impl="threefry2x32") for seed in (0, 1)]
    size = max(1, math.prod(shape))
    count = min(_MOST_DRAWS, math.ceil(_SPACED_BITS / size))
    spaced = _equally_spaced(max(2, count * size))
    starts = [jnp.array([k * size], jnp.uint32) for k in range(count)]
    draws += [jax.random.wrap_key_data(start, impl=spaced) for start in starts]
    made = jax.jit(lambda *given: call_stablehlo(module, *given))
    try:
        fun = jax.jit(eval(f"lambda key: {function}(key, {', '.join(rest)})", _NAMES))
        for number, key in enumerate(draws):
            keys = [key] if len(order) == 1 else list(jax.random.split(key))
            expected = np.asarray(fun(key))
            results = made(*(jax.random.bits(keys[k], shape, np.uint32) for k in order))
            arrays = map(np.asarray, results if isinstance(results, tuple) else (results,))
            same = {k for k, each in enumerate(arrays) if _is_same(each, expected)}
            agreeing = same if not number else agreeing & same
            if not agreeing:
                return None
    except Exception:  # The user's call may need what is not here.
        return None
    return max(agreeing)


def _is_same(found: np.ndarray, expected: np.ndarray) -> bool:
    is_alike = found.shape == expected.shape and found.dtype == expected.dtype
    return is_alike and agree(found, expected)


@cache
def _equally_spaced(count: int) -> Setting:
    """A generator of `count` equally spaced bits, from the least to the most, over and over.

    They show a bound that random ones seldom reach. Its keys are where an array begins.
    """

    def random_bits(data: AnyValue, width: int, shape: Sequence[int]) -> AnyValue:
        if width != 32:
            raise NotImplementedError("bits of other widths")
        number = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape) + data[0]
        number = number % np.uint32(count)
        spaced = number * np.uint32(_MOST_BITS // (count - 1))
        return jnp.where(number == count - 1, np.uint32(_MOST_BITS), spaced)

    def split(data: AnyValue, shape: Sequence[int]) -> AnyValue:
        # Each begins elsewhere.
        number = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(*shape, 1)
        return data + number * np.uint32(count // 3)

    def refuse(*args: AnyValue) -> AnyValue:
        raise NotImplementedError("seeds and jax.random.fold_in")

    return define_prng_impl(
        key_shape=(1,),
        seed=refuse,
        split=split,
        random_bits=random_bits,
        fold_in=refuse,
        name="equally_spaced",
        tag="spaced",
    )


def _user_call(
    bits: ir.Operation, outermost: str, shape: str
) -> tuple[str, tuple[str, ...] | None]:
    """The function of `jax.random` that the user's line calls, and its arguments but the key.

    The name is "" if the line calls none, and the arguments None if they are not known.
    """
    frames = frames_of(str(bits.location), outermost)
    if not frames:
        return "", None
    node = call_at(frames[0].path, frames[0].line, frames[0].column)
    whole = "" if node is None else full_name(frames[0].path, node.func)
    module, _, name = whole.rpartition(".")
    function = getattr(jax.random, name, None)
    if node is None or module != "jax.random" or function is None:
        return "", None
    return name, _arguments(node, function, shape)


def _arguments(node: ast.Call, function: object, shape: str) -> tuple[str, ...] | None:
    names = list(inspect.signature(function).parameters)  # pyright: ignore[reportArgumentType]
    if len(node.args) > len(names) or any(each.arg is None for each in node.keywords):
        return None
    given = dict(zip(names, node.args, strict=False))
    given.update({str(each.arg): each.value for each in node.keywords})
    given.pop(names[0], None)
    # What is drawn without a shape has that of another argument, or is a number.
    if "shape" not in given:
        return None
    found = []
    is_positional = True
    for name in names[1:]:
        if name not in given:
            is_positional = False
            continue
        text = shape if name == "shape" else _literal(given[name])
        if text is None:
            return None
        found.append(text if is_positional else f"{name}={text}")
    return tuple(found)


def _literal(node: ast.expr) -> str | None:
    text = ast.unparse(node)
    if text.startswith("jnp.") and text[4:].isidentifier():
        return text
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return repr(value) if isinstance(value, (int, float)) else None
