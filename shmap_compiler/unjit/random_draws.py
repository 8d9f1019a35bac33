"""Random numbers: what JAX's generator became, as calls of `jax.random` again.

JAX's default generator, threefry, hashes the number of each element of an array, so a device can
draw its block of what all devices draw. In the partitioned program it is a loop. Where the loop
computes the same as JAX's hash, bit by bit, of the numbers of a block's elements, its result is a
call of `jax.random.bits`, `jax.random.split`, or of the function that the user's line calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product

import numpy as np
from jaxlib.mlir import ir
from shmap_passes.ir.collective_ops import COLLECTIVES
from shmap_passes.ir.find_ops import find_ops
from shmap_passes.ir.mesh import Mesh
from shmap_passes.ir.ops import walk
from shmap_passes.ir.types import Value

from shmap_compiler.unjit.affine_numbers import AffineNumbers
from shmap_compiler.unjit.samplers import find_sampler
from shmap_compiler.unjit.signature import quoted
from shmap_compiler.unjit.spelling.draws import DRAW
from shmap_compiler.unjit.threefry_loops import Hash, read_hash
from shmap_compiler.unjit.types import shape_of

_MOST_AXES = 4


def name_draws(root: ir.Operation, mesh: Mesh, outermost: str) -> dict[Value, Value]:
    """Replaces hashes, and what samplers compute of them, by calls of `jax.random`.

    Args:
      outermost: the jitted function.

    Returns:
      The values that the results of the calls replace.
    """
    numbers = AffineNumbers(mesh)
    replaced: dict[Value, Value] = {}
    for loop in find_ops(root, ["stablehlo.while"]):
        found = read_hash(loop)
        if found is None:
            continue
        shape = shape_of(found.low)
        whole = _whole(numbers, mesh, found, shape)
        if whole is None:
            continue
        for op in _keys(found, whole):
            made = _draw(op, "jax.random.split", found.key, None, [str(shape[0])])
            replaced[made] = op.results[0]
        for op in _bits(found):
            for last, function, rest in find_sampler(op, outermost):
                made = _draw(last, function, found.key, whole, rest)
                replaced[made] = last.results[0]
    if replaced:
        _erase_unused(root)
    return replaced


def _draw(
    op: ir.Operation,
    function: str,
    key: Value,
    whole: tuple[tuple[int, ...], str] | None,
    rest: Sequence[str],
) -> Value:
    """Replaces an operation by a call."""
    attributes = {
        "call_target_name": ir.StringAttr.get(DRAW),
        "function": ir.StringAttr.get(function),
        "rest": ir.ArrayAttr.get([ir.StringAttr.get(each) for each in rest]),
    }
    if whole is not None:
        attributes["whole"] = ir.DenseI64ArrayAttr.get(list(whole[0]))
        attributes["spec"] = ir.StringAttr.get(whole[1])
    with ir.InsertionPoint(op), op.location:
        made = ir.Operation.create(
            "stablehlo.custom_call",
            results=[op.results[0].type],
            operands=[key],
            attributes=attributes,
        ).results[0]
    op.results[0].replace_all_uses_with(made)
    return made


def _erase_unused(root: ir.Operation) -> None:
    kept_inside = set(COLLECTIVES)
    kept = {"func.return", "stablehlo.return"}
    for op in reversed(walk(root)):
        is_used = any(list(result.uses) for result in op.results)
        inside = {each.name for each in walk(op)} if len(op.regions) else {op.name}
        is_pure = op.name.startswith("stablehlo.") and not inside & kept_inside
        if is_pure and not is_used and op.name not in kept:
            op.erase()


# ------------------------------------------------------------------------- the block of a device


def _whole(
    numbers: AffineNumbers, mesh: Mesh, found: Hash, shape: tuple[int, ...]
) -> tuple[tuple[int, ...], str] | None:
    """The shape of what all devices draw, and how it is split; None if that is not known."""
    high, low = numbers.read(found.high), numbers.read(found.low)
    if high is None or low is None or not high.is_constant() or high.first[0] != 0:
        return None
    if not low.fits(shape, 32):
        return None
    for split in _splits(mesh, len(shape)):
        sizes = [mesh.product(axes) for axes in split]
        whole = tuple(size * count for size, count in zip(shape, sizes, strict=True))
        first = np.stack([numbers.along(a) * n for a, n in zip(split, shape, strict=True)], 1)
        block = numbers.block(whole, shape, first)
        if block.steps == low.steps and np.array_equal(block.first, low.first):
            return whole, _spec(split)
    return None


def _splits(mesh: Mesh, rank: int) -> Iterator[tuple[tuple[str, ...], ...]]:
    """All ways to split dimensions along axes, the simplest first."""
    names = [name for name in mesh.names if mesh.sizes[name] > 1][:_MOST_AXES]
    ways = []
    for places in product(range(-1, rank), repeat=len(names)):
        along = [
            [n for n, place in zip(names, places, strict=True) if place == d] for d in range(rank)
        ]
        ways += list(product(*(permutations(axes) for axes in along)))
    yield from sorted(ways, key=lambda way: sum(map(len, way)))


def _spec(split: Sequence[Sequence[str]]) -> str:
    entries = list(split)
    while entries and not entries[-1]:
        entries.pop()
    shown = [
        "None"
        if not axes
        else quoted(axes[0])
        if len(axes) == 1
        else f"({', '.join(map(quoted, axes))})"
        for axes in entries
    ]
    return f"P({', '.join(shown)})"


# --------------------------------------------------------------------- what is made of hashes


def _users(value: Value) -> list[ir.Operation]:
    return [use.owner.operation for use in value.uses]


def _bits(found: Hash) -> list[ir.Operation]:
    """The operations that make random bits: both hashes at once."""
    return [
        op
        for op in _users(found.results[0])
        if op.name == "stablehlo.xor" and set(op.operands) == set(found.results)
    ]


def _keys(found: Hash, whole: tuple[tuple[int, ...], str]) -> list[ir.Operation]:
    """The operations that make new keys: the hashes side by side."""
    if len(whole[0]) != 1 or whole[1] != "P()":
        return []
    columns = []
    for value in found.results:
        spread = ("stablehlo.reshape", "stablehlo.broadcast_in_dim")
        made = [op for op in _users(value) if op.name in spread]
        columns.append([op.results[0] for op in made if shape_of(op.results[0])[1:] == (1,)])
    return [
        op
        for high in columns[0]
        for op in _users(high)
        if op.name == "stablehlo.concatenate"
        and len(op.operands) == 2
        and op.operands[0] == high
        and op.operands[1] in columns[1]
    ]
