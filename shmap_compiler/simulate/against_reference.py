"""Finds the first operation that computes something else than an unsharded reference.

The reference is another program, so nothing tells which of its values a value of the per-device
program should be. They are recognized by their contents: the blocks of the devices are a value of
the reference if they are so in some placement, or their sums over some mesh axes are, or if each
block is a part of it, as on the way around a ring. (Equal blocks are not summands: half of a value
on each of two devices is a value that is scaled.) The operation that is reported is the first from
which on no value, up to the result that differs, is one of the reference's.

The search is bounded: if too many numbers would be compared, no operation is reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np
from shmap_passes.ir.mesh import Mesh

from shmap_compiler.base.errors import ShmapError
from shmap_compiler.base.untyped import AnyValue, Function
from shmap_compiler.simulate.agreement import default_tolerance
from shmap_compiler.simulate.candidates import Candidates
from shmap_compiler.simulate.data_flow import DataFlow, Node
from shmap_compiler.simulate.first_difference import FirstDifference
from shmap_compiler.simulate.layouts import Layout, layout_of
from shmap_compiler.simulate.simulate_module import checked_inputs, playable, run


def first_difference(
    text: str,
    inputs: Sequence[AnyValue],
    axes: Mapping[str, int],
    who: str,
    result: int,
    reference: Function,
    args: Sequence[AnyValue],
) -> FirstDifference:
    """Where the values behind a result cease to be values of the reference.

    Args:
      text: the module of the per-device program, with source lines.
      inputs: one for each argument of its `@main`.
      result: the number of the result that differs.
      args: the arguments of the reference.
    """
    try:
        known = _values_of(reference, args)
    except ShmapError as error:
        return FirstDifference(None, None, f"its lines are not known: {error.problems[0].found}")
    except Exception as error:  # the user's function may do anything
        reason = f"the reference cannot be traced ({type(error).__name__})"
        return FirstDifference(None, None, f"its lines are not known: {reason}")
    program = playable(text, axes, who, every_op=True)
    flow = DataFlow()
    run(program, checked_inputs(program, inputs, who), who, flow.see)
    last = flow.maker(result)
    if last is None:
        return FirstDifference(None, None)
    search = _Search(known, program.module.mesh)
    return search.first_difference(flow.behind(last), last)


MOST_NUMBERS = 2**28
"""How many numbers are compared before the search is given up."""

_LEAST = 2**12
"""What the comparison of small arrays is worth, in numbers."""

Known = list[tuple[np.ndarray, str]]
"""The values of a reference, each with what it is in words."""


def _values_of(reference: Function, args: Sequence[AnyValue]) -> Known:
    """The arguments, and what is computed from them, in program order."""
    with_paths, tree = jax.tree_util.tree_flatten_with_path(tuple(args))
    leaves = [leaf for _, leaf in with_paths]
    traced = [k for k, leaf in enumerate(leaves) if hasattr(leaf, "dtype")]

    def of_arrays(*arrays: AnyValue) -> AnyValue:
        given = list(leaves)
        for k, array in zip(traced, arrays, strict=True):
            given[k] = array
        return reference(*jax.tree.unflatten(tree, given))

    arrays = [leaves[k] for k in traced]
    lowered = jax.jit(of_arrays, keep_unused=True).lower(*arrays)
    program = playable(lowered.as_text(debug_info=True), None, "the reference", every_op=True)
    inputs = checked_inputs(program, arrays, "the reference")
    flow = DataFlow()
    run(program, inputs, "the reference", flow.see)
    paths = [f"args{jax.tree_util.keystr(with_paths[k][0])}" for k in traced]
    found = [
        (array, f"the reference's argument {path}")
        for path, array in zip(paths, inputs, strict=True)
        if isinstance(array, np.ndarray)
    ]
    for node in flow.nodes:
        what = f"what the reference computes in {node.place}"
        found += [(block, what) for (block,) in node.blocks(1) if _tells(block)]
    return found


def _tells(array: np.ndarray) -> bool:
    """Whether the contents tell an array from others: constant ones are everywhere."""
    if array.size <= 1 or array.dtype.kind == "b":
        return False
    first = array.flat[0]
    return bool(np.any(array != first if first == first else array == array))


class _TooLong(Exception):
    """More than MOST_NUMBERS would be compared."""


class _Search:
    def __init__(self, known: Known, mesh: Mesh):
        self.known, self.mesh = known, mesh
        self._candidates = Candidates([full for full, _ in known], mesh)
        self._compared = 0
        self._found: dict[Node, tuple[Layout, str] | None] = {}

    def first_difference(self, nodes: Sequence[Node], last: Node) -> FirstDifference:
        """Of the nodes behind the last one, in program order."""
        leads_back: set[Node] = set()
        try:
            for node in reversed(nodes):
                if node in leads_back or (node is not last and self._is_known(node)):
                    leads_back.update((node, *node.sources))
            for node in _computed(nodes):
                if node not in leads_back:
                    return FirstDifference(node.place, None, self._note(node))
        except _TooLong:
            count = f"{len(nodes)} values with {len(self.known)} of the reference's"
            note = f"its line was not found: the comparison of {count} was stopped; use less data"
            return FirstDifference(None, None, note)
        return FirstDifference(None, None)

    def _is_known(self, node: Node) -> bool:
        found = self._known(node)
        return found is not None and found[0].share == 1

    def _known(self, node: Node) -> tuple[Layout, str] | None:
        """How the results of a node are placed, and which value of the reference they are.

        A fraction of a value only if they are nothing else.
        """
        if node not in self._found:
            found = None
            for match in self._matches(node):
                if match[0].share == 1:
                    found = match
                    break
                found = found or match
            self._found[node] = found
        return self._found[node]

    def _matches(self, node: Node) -> Iterator[tuple[Layout, str]]:
        for blocks in node.blocks(self.mesh.size):
            if not any(map(_tells, blocks)):
                continue
            all_tell = all(map(_tells, blocks))
            tolerance = default_tolerance(blocks[0].dtype)
            for number in self._candidates.of(blocks, tolerance, tiles=all_tell):
                full, what = self.known[number]
                self._compared += max(_LEAST, full.size + sum(block.size for block in blocks))
                if self._compared > MOST_NUMBERS:
                    raise _TooLong
                layout = layout_of(blocks, full, self.mesh, tolerance)
                if layout is not None and (all_tell or not layout.moved):
                    yield layout, what

    def _note(self, node: Node) -> str:
        found = self._known(node)
        if found is not None:
            return f"there it is {_described(*found)}"
        summands = [
            f"its operand from {source.place} is {_described(*match)}"
            for source in node.sources
            if (match := self._known(source)) is not None and (match[0].summed or match[0].moved)
        ]
        return "; ".join(["from there on, no value is one of the reference's", *summands])


def _described(layout: Layout, what: str) -> str:
    if layout.moved:
        return f"on each device some part of {what}"
    if layout.share > 1:
        what = f"1/{layout.share} of {what}"
    if not layout.summed:
        return what
    return f"a summand, along {' and '.join(map(repr, layout.summed))}, of {what}"


def _computed(nodes: Sequence[Node]) -> Iterator[Node]:
    """The nodes that depend on arguments and are none themselves."""
    depending: set[Node] = set()
    for node in nodes:
        if node.is_input or not depending.isdisjoint(node.sources):
            depending.add(node)
            if not node.is_input:
                yield node
