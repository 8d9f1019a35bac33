"""From a call of a pmapped function to a MappedFunction on a mesh, and its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import jax
from jax import lax
from jax.core import Tracer

from shmap_compiler.base.descriptions import describe, update_wrapper
from shmap_compiler.base.errors import Problem, UnknownAxisError
from shmap_compiler.base.jax_compat import AnyMesh, is_tracing, mesh_in_scope
from shmap_compiler.base.mesh_context import region_of
from shmap_compiler.base.untyped import AnyValue, Function, Leaf, PyTree, Unchecked
from shmap_compiler.frontend.call_eagerly import call_eagerly
from shmap_compiler.frontend.call_traced import apply_call, trace_call
from shmap_compiler.frontend.mapped import MappedFunction
from shmap_compiler.graph.graph import HangCheck
from shmap_compiler.pmap.arguments import Rows, split_static
from shmap_compiler.pmap.results import UNNAMED, Stacked, axis_spec
from shmap_compiler.records.traced_call import TracedCall

_T = TypeVar("_T")


class _MappedRows(MappedFunction):
    """A function of blocks of one row.

    Code for pmap stacks what is equal on all devices, such as the number of a step: that rows are
    rows does not say that they differ.
    """

    @property
    def hang_check(self) -> HangCheck:
        return HangCheck.EQUAL_INPUTS if self.check_hangs else HangCheck.NONE

    @property
    def moves_arguments(self) -> bool:
        return True


@dataclass(frozen=True)
class RowCall:
    """A call of a pmapped function, on an axis of a mesh.

    Attributes:
      fun: the user's function of one row.
      mesh: the mesh; None for the one in scope.
      axis: the mesh axis along which devices have different rows.
      rows: how the arguments are divided.
      static: the positions of static arguments.
      check_hangs: as given to `pmap`.
      args: all positional arguments.
    """

    fun: Function
    mesh: AnyMesh | None
    axis: str
    rows: Rows
    static: tuple[int, ...]
    out_axes: PyTree
    check_hangs: bool
    args: tuple[PyTree, ...]
    kwargs: dict[str, PyTree]

    def result(self) -> PyTree:
        """The stacked results: compiled, or primitive by primitive where `jax.jit` is disabled."""
        operands, in_specs = self._operands
        leaves = jax.tree.leaves(operands)
        region = region_of(describe(self.fun), self.mesh, frozenset({self.axis}), leaves)
        is_eager = not is_tracing() and not any(isinstance(x, Tracer) for x in leaves)
        stacked = Stacked(describe(self.fun), self.out_axes, stack_all=is_eager)
        mapped = self._mapped(stacked, in_specs)
        if is_eager:
            outs = self._in_words_of_pmap(lambda: call_eagerly(mapped, region, operands))
            return stacked.moved(outs)
        call, inputs = self._traced(stacked, mapped, region, operands)
        return stacked.moved(jax.tree.unflatten(call.out_tree, apply_call(call, inputs)))

    def trace(self) -> TracedCall:
        """The traced program of one device."""
        operands, in_specs = self._operands
        leaves = jax.tree.leaves(operands)
        region = region_of(describe(self.fun), self.mesh, frozenset({self.axis}), leaves)
        stacked = Stacked(describe(self.fun), self.out_axes)
        call, _ = self._traced(stacked, self._mapped(stacked, in_specs), region, operands)
        return call

    @property
    def _operands(self) -> tuple[tuple[AnyValue, ...], PyTree]:
        """The arguments that are arrays, those by keyword as a last one; and their specs."""
        operands = split_static(self.args, self.static)
        if self.kwargs:
            operands = (*operands, self.kwargs)
        if len(set(self.rows.axes)) == 1:
            return operands, axis_spec(self.rows.axes[0], self.axis)
        tree = jax.tree.structure(operands)
        return operands, tree.unflatten([axis_spec(a, self.axis) for a in self.rows.axes])

    def _mapped(self, stacked: Stacked, in_specs: PyTree) -> MappedFunction:
        # Derivatives that the function takes have the meaning they have in jax.pmap: as there,
        # nothing is known about values that are equal on all devices.
        return _MappedRows(
            self._on_blocks(stacked.with_row),
            self.mesh,
            in_specs,
            stacked.out_specs(self.axis),
            frozenset({self.axis}),
            check_vma=False,
            check_hangs=self.check_hangs,
        )

    def _on_blocks(self, with_row: Callable[[Leaf], Leaf]) -> Function:
        """The user's function as one of blocks, which have a dimension of size 1 for the row."""
        fun, axes, has_keywords = self.fun, self.rows.axes, bool(self.kwargs)
        static = {k: self.args[k] for k in self.static}
        count = len(self.args)

        def on_blocks(*blocks):
            leaves, tree = jax.tree.flatten(blocks)
            found = [
                x if axis is None else lax.squeeze(x, (axis,))
                for x, axis in zip(leaves, axes, strict=True)
            ]
            row = tree.unflatten(found)
            kwargs = row[-1] if has_keywords else {}
            args = iter(row)
            placed = [static[k] if k in static else next(args) for k in range(count)]
            return with_row(fun(*placed, **kwargs))

        return update_wrapper(on_blocks, fun)

    def _traced(
        self,
        stacked: Stacked,
        mapped: MappedFunction,
        region: Unchecked,
        operands: tuple[AnyValue, ...],
    ) -> tuple[TracedCall, Sequence[AnyValue]]:
        call, inputs = self._in_words_of_pmap(lambda: trace_call(mapped, region, operands))
        stacked.check_replicated(call.graph, self.axis)
        return call, inputs

    def _in_words_of_pmap(self, work: Callable[[], _T]) -> _T:
        """`work()`; what it says of axes that do not exist is said of the axes of pmap."""
        try:
            return work()
        except UnknownAxisError as error:
            scope = mesh_in_scope()
            outer = [] if scope is None else list(scope.manual_axes)
            names = [repr(a) for a in [*outer, self.axis] if not a.startswith(UNNAMED)]
            problems = [_unknown_axis(p, names) for p in error.problems]
            raise UnknownAxisError(error.who, problems) from error


# ------------------------------------------------------------------------------------- mistakes


def _unknown_axis(problem: Problem, names: Sequence[str]) -> Problem:
    return Problem(
        problem.where,
        problem.found,
        f"the name of the rows of a pmap around it: {' or '.join(names) or 'none has one'}",
        f"use {' or '.join(names)}" if names else "name the rows: pmap(f, axis_name='i', ...)",
    )
