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
from shmap_passes.ir.ops import defining_op, walk
from shmap_passes.ir.types import Value

from shmap_compiler.unjit.affine_numbers import AffineNumbers
from shmap_compiler.unjit.permuted_rows import permutation_of
from shmap_compiler.unjit.samplers import find_integers, find_sampler
from shmap_compiler.unjit.signature import quoted
from shmap_compiler.unjit.spelling.draws import DRAW, is_draw
from shmap_compiler.unjit.threefry_loops import Hash, read_hash
from shmap_compiler.unjit.types import elements_of, shape_of

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
        for op, data in _folded(found):
            made = _draw(op, "jax.random.fold_in", found.key, None, [], [data])
            replaced[made] = op.results[0]
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
    for number, bits, key in _bits_of_new_keys(root):
        found_rows = permutation_of(bits, number)
        if found_rows is not None and _whole_of(bits)[1] == "P()":
            sort, count = found_rows
            made = _draw(sort, "jax.random.permutation", key, None, [str(count)], result=1)
            replaced[made] = sort.results[1]
    for first, second, key in _bits_of_split_keys(root):
        for last, function, rest in find_integers(first, second, outermost):
            made = _draw(last, function, key, _whole_of(first), rest)
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
    data: Sequence[Value] = (),
    result: int = 0,
) -> Value:
    """Replaces a result of an operation by a call."""
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
            results=[op.results[result].type],
            operands=[key, *data],
            attributes=attributes,
        ).results[0]
    op.results[result].replace_all_uses_with(made)
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


def _folded(found: Hash) -> list[tuple[ir.Operation, Value]]:
    """The operations that make a key of one hash of a number, and the number."""
    number, high = defining_op(found.low), defining_op(found.high)
    if shape_of(found.low) != (1,) or number is None or number.name != "stablehlo.reshape":
        return []
    if high is not None and high.name == "stablehlo.reshape":
        high = defining_op(high.operands[0])
    # The higher half of a number of 32 bits.
    if high is None or high.name != "stablehlo.shift_right_logical":
        return []
    shift = defining_op(high.operands[1])
    is_none = shift is not None and shift.name == "stablehlo.constant" and elements_of(shift) == 32
    if not is_none or high.operands[0] != number.operands[0]:
        return []
    return [
        (op, number.operands[0])
        for op in _users(found.results[0])
        if op.name == "stablehlo.concatenate" and list(op.operands) == list(found.results)
    ]


def _bits_of_split_keys(root: ir.Operation) -> list[tuple[ir.Operation, ir.Operation, Value]]:
    """The bits that both of two new keys draw, and the key that was split."""
    return [
        (first, second, key)
        for rows, key in _rows_of_splits(root)
        for first, second in zip(*rows, strict=False)
        if first.block == second.block and _whole_of(first) == _whole_of(second)
    ]


def _bits_of_new_keys(root: ir.Operation) -> list[tuple[int, ir.Operation, Value]]:
    """Which of two new keys draws bits, the bits, and the key that was split."""
    splits = _rows_of_splits(root)
    return [(k, bits, key) for rows, key in splits for k in (0, 1) for bits in rows[k]]


def _rows_of_splits(root: ir.Operation) -> list[tuple[list[list[ir.Operation]], Value]]:
    """The bits that each of two new keys draws, and the key that was split."""
    found = []
    for split in find_ops(root, ["stablehlo.custom_call"]):
        if not is_draw(split) or _function_of(split) != "jax.random.split":
            continue
        rows: list[list[ir.Operation]] = [[], []]
        for part in _users(split.results[0]):
            row = _row(part)
            if row is not None and shape_of(split.results[0]) == (2, 2):
                rows[row] += [
                    op
                    for each in _users(part.results[0])
                    for op in _users(each.results[0])
                    if is_draw(op) and _function_of(op) == "jax.random.bits"
                ]
        found.append((rows, split.operands[0]))
    return found


def _function_of(draw: ir.Operation) -> str:
    return ir.StringAttr(draw.attributes["function"]).value


def _row(part: ir.Operation) -> int | None:
    """Which row of an array an operation takes; None if it takes something else."""
    if part.name != "stablehlo.slice" or shape_of(part.results[0]) != (1, 2):
        return None
    return next(iter(ir.DenseI64ArrayAttr(part.attributes["start_indices"])))


def _whole_of(draw: ir.Operation) -> tuple[tuple[int, ...], str]:
    whole = tuple(ir.DenseI64ArrayAttr(draw.attributes["whole"]))
    return whole, ir.StringAttr(draw.attributes["spec"]).value
