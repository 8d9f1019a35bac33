"""The result of one row, matched with out_axes, and put together from the rows of all devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from shmap_compiler.base import specs
from shmap_compiler.base.descriptions import show_value
from shmap_compiler.base.errors import Problem, ReplicationError, ResultTypeError, spec_error
from shmap_compiler.base.jax_compat import is_ref
from shmap_compiler.base.source_lines import source_line
from shmap_compiler.base.untyped import AnyValue, Function, PyTree, Unchecked
from shmap_compiler.base.values import type_of
from shmap_compiler.checks.provenance import ValueRef, provenance
from shmap_compiler.graph.graph import Graph

UNNAMED = "pmap_rows"
"""The mesh axis of a pmap whose axis has no name; the names of inner ones begin with it."""

_MOST_STEPS = 3


def axis_spec(axis: int | None, name: str) -> PartitionSpec:
    """The spec of an array whose dimension `axis`, counted from the first, has the rows."""
    return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, name)


def map_axes(fun: Function, axes: Unchecked) -> PyTree:
    """`fun` of each entry of in_axes or out_axes, None included."""
    return jax.tree.map(fun, axes, is_leaf=lambda axis: axis is None)


def map_results(
    fun: Callable[[AnyValue, int | None], AnyValue], out_axes: PyTree, results: PyTree
) -> PyTree:
    """`fun` of each result of a call and the dimension of its rows, counted from the first."""
    matched, _ = specs.broadcast_specs(out_axes, results, "out_axes", "result")
    outs = [fun(x, None if axis is None else axis % len(x.shape)) for _, x, _, axis in matched]
    return jax.tree.unflatten(jax.tree.structure(results), outs)


def rows_first(out_axes: PyTree, result: PyTree) -> PyTree:
    """The result of a pmapped function as its program of rows returns it.

    Rows that `out_axes` counts from the end are in dimension 0, see `Stacked`. A result that does
    not fit `out_axes` stays as it is.
    """
    leaves, tree = jax.tree.flatten(result)
    matched, problems = specs.broadcast_specs(out_axes, result, "out_axes", "result", "dimension")
    if problems:
        return result
    axes = [axis for _, _, _, axis in matched]
    return tree.unflatten(
        [
            jnp.moveaxis(x, axis, 0) if axis is not None and -jnp.ndim(x) <= axis < 0 else x
            for x, axis in zip(leaves, axes, strict=True)
        ]
    )


@dataclass
class Stacked:
    """Puts results of rows together.

    On each device, a result gets a dimension of size 1 for its row: the one that out_axes says, or
    the first if it is counted from the end, as the rank of a result is known only when it is there.
    Then the dimension is moved outside of the per-device program.

    Attributes:
      who: the user's function, for error messages.
      out_axes: as given to `pmap`.
      stack_all: whether results with out_axes None get a row, too.
      found: of the last result, the path, the path of its entry in out_axes and the entry of each
        array.
    """

    who: str
    out_axes: PyTree
    stack_all: bool = False
    found: list[tuple[str, str, int | None]] = field(default_factory=list)

    def out_specs(self, name: str) -> PyTree:
        """How the rows of the results are laid out along the mesh axis `name`."""

        def spec(axis: int | None) -> PartitionSpec:
            if axis is None and self.stack_all:
                return axis_spec(0, name)
            return axis_spec(axis if axis is None or axis >= 0 else 0, name)

        return map_axes(spec, self.out_axes)

    def with_row(self, result: PyTree) -> PyTree:
        """The result of one row, with a dimension for it."""
        leaves, tree = jax.tree.flatten(result)
        matched, problems = specs.broadcast_specs(
            self.out_axes, result, "out_axes", "result", "dimension"
        )
        if problems:
            raise spec_error(self.who, problems)
        self.found = [(path, at, axis) for path, _, at, axis in matched]
        wrong = [_not_an_array(path, x) for path, x, _, _ in matched if not _is_array(x)]
        if wrong:
            raise ResultTypeError(self.who, wrong)
        problems = [
            _wrong_rank(path, jnp.shape(x), axis, at)
            for path, x, at, axis in matched
            if axis is not None and not -jnp.ndim(x) - 1 <= axis <= jnp.ndim(x)
        ]
        if problems:
            raise spec_error(self.who, problems)
        return tree.unflatten(
            [self._expanded(x, axis) for x, (_, _, axis) in zip(leaves, self.found, strict=True)]
        )

    def _expanded(self, x: AnyValue, axis: int | None) -> AnyValue:
        if axis is None:
            return lax.expand_dims(x, (0,)) if self.stack_all else x
        return lax.expand_dims(x, (max(axis, 0),))

    def moved(self, results: PyTree) -> PyTree:
        """The rows of all devices, with their dimension where out_axes says."""
        leaves, tree = jax.tree.flatten(results)
        axes = [axis for _, _, axis in self.found]
        if any(axis is not None and axis < 0 for axis in axes):
            leaves = [
                x if axis is None or axis >= 0 else jnp.moveaxis(x, 0, axis)
                for x, axis in zip(leaves, axes, strict=True)
            ]
        if self.stack_all and None in axes:
            wrong = [
                _differing_rows(path, at, x)
                for x, (path, at, axis) in zip(leaves, self.found, strict=True)
                if axis is None and not _rows_are_equal(x)
            ]
            if wrong:
                raise ReplicationError(self.who, wrong)
            pairs = zip(leaves, axes, strict=True)
            leaves = [x[0] if axis is None else x for x, axis in pairs]
        return tree.unflatten(leaves)

    def check_replicated(self, graph: Graph, axis_name: str) -> None:
        """Raises ReplicationError for results with out_axes None that differ between rows."""
        outputs = enumerate(self.found[: len(graph.out_specs)])
        problems = [
            _varying(graph, k, path, at, axis_name)
            for k, (path, at, axis) in outputs
            if axis is None
            and axis_name in graph.replication.outputs[k]
            and graph.jaxpr.jaxpr.outvars[k].aval.size
        ]
        if problems:
            raise ReplicationError(self.who, problems)


def _is_array(x: object) -> bool:
    type_ = type_of(x)
    return type_ is not None and not is_ref(type_) and not isinstance(x, jax.ShapeDtypeStruct)


def _rows_are_equal(x: jax.Array) -> bool:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    rows = np.asarray(x)
    return all(row.tobytes() == rows[0].tobytes() for row in rows)


# ------------------------------------------------------------------------------------- mistakes


def _not_an_array(path: str, x: object) -> Problem:
    return Problem(
        path,
        show_value(x) if type_of(x) is None else f"{type_of(x)}, without a value of its own",
        "an array, or a pytree of arrays",
        "return arrays only; compute other values outside the function",
    )


def _wrong_rank(path: str, shape: Sequence[int], axis: int, at: str) -> Problem:
    return Problem(
        f"{path} with {at}={axis}",
        f"a result of rank {len(shape)}, shape {tuple(shape)}, for each row",
        f"a dimension from {-len(shape) - 1} to {len(shape)} for the rows",
        f"write 0 in {at}, to have the rows first",
    )


def _keep_or_combine(at: str, axis_name: str) -> str:
    return (
        f"write 0 in {at} to return the rows of all devices; or make them equal in the function, "
        f"with jax.lax.pmean, psum or all_gather over {axis_name}"
    )


def _varying(graph: Graph, index: int, path: str, at: str, axis_name: str) -> Problem:
    out, is_named = graph.jaxpr.jaxpr.outvars[index], not axis_name.startswith(UNNAMED)
    found = provenance(graph.replication, ValueRef((), out), axis_name)
    own = [step for step in found.steps if source_line(step.eqn)]  # the others handle the rows
    steps = list(dict.fromkeys(map(str, own)))
    lines = "".join(f"\n              {line}" for line in steps[:_MOST_STEPS])
    name = repr(axis_name) if is_named else "the axis, which pmap(f, axis_name='i') names"
    known = f", or use assume_replicated over {axis_name!r}" if is_named else ""
    return Problem(
        f"{path} with {at}=None",
        f"a result {specs.show_type(out.aval)} that differs from row to row"
        + (f"; it began to differ at{lines}" if lines else ", as an argument does"),
        f"the same value for all rows, as only one is returned{known}",
        _keep_or_combine(at, name),
    )


def _differing_rows(path: str, at: str, x: AnyValue) -> Problem:
    return Problem(
        f"{path} with {at}=None",
        f"{x.shape[0]} rows {specs.show_type(jax.eval_shape(lambda x: x[0], x))}, not all equal",
        "the same value for all rows, as only one is returned",
        _keep_or_combine(at, "the axis of pmap"),
    )
