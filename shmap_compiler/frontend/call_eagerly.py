"""One eager call: arguments in, the user's function run on the mesh, results out."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
from jax.sharding import PartitionSpec

from shmap_compiler.base import specs
from shmap_compiler.base.descriptions import describe, show_axes, show_names
from shmap_compiler.base.errors import BodyError, Problem, ReplicationError, ShmapError
from shmap_compiler.base.jax_compat import no_devices_in_scope, shows_varying_type
from shmap_compiler.base.meshes import ManualRegion
from shmap_compiler.base.source_lines import is_raised_inside
from shmap_compiler.base.untyped import AnyValue, Function, PyTree
from shmap_compiler.eager.callbacks import Once
from shmap_compiler.eager.operations import Rules
from shmap_compiler.eager.placing import refuse_elsewhere
from shmap_compiler.eager.run import array_of, layout_for, run_body
from shmap_compiler.eager.trace import Differentiates, EagerTrace
from shmap_compiler.eager.value import Blocks
from shmap_compiler.frontend import ref_arguments
from shmap_compiler.frontend.arguments import read_inputs, refuse_types
from shmap_compiler.frontend.closed_over import closed_over
from shmap_compiler.frontend.mapped import MappedFunction
from shmap_compiler.frontend.results import Results
from shmap_compiler.tracing.vma_queries import asks
from shmap_compiler.tracing.vma_typing import may_need_types, refused_by_types

_T = TypeVar("_T")


def call_eagerly(mapped: MappedFunction, region: ManualRegion, args: tuple[PyTree, ...]) -> PyTree:
    """The result of a shard_mapped function on arrays: its body runs primitive by primitive.

    The same as tracing the body to a Graph and running that, except that the body can look at its
    values.

    Raises:
      SpecError: mesh, specs, arguments and results do not fit together.
      ReplicationError, HangError: see `shard_map`.
      VaryingValueError: Python asked for the one value of what differs between devices.
    """
    who = describe(mapped.fun)
    inputs = read_inputs(who, region, mapped.in_specs, mapped.out_specs, args)
    leaves = jax.tree.leaves(args)
    arrays = [leaves[i.position] for i in inputs.dynamic]
    refuse_types(mapped.fun, [i.path for i in inputs.dynamic], arrays)
    if not mapped.moves_arguments:
        refuse_elsewhere(who, region.mesh, arrays, lambda k: inputs.dynamic[k].path)
    results = Results(who, region, mapped.out_specs)
    layout = layout_for(region, arrays)
    closed = closed_over(mapped.fun, region)
    once = Once()
    refs = [k for k, i in enumerate(inputs.dynamic) if i.is_ref]
    ref_arguments.refuse_aliases(who, [(inputs.dynamic[k].path, arrays[k]) for k in refs])

    def run(rules: Rules) -> tuple[list[Blocks], list[_Write]]:
        once.restart()
        trace = EagerTrace(layout, who, rules, once)
        blocks: list[Any] = [
            trace.enter(x[...] if i.is_ref else x, i.spec)
            for x, i in zip(arrays, inputs.dynamic, strict=True)
        ]
        fun = closed.with_blocks([trace.enter(x, PartitionSpec()) for x in closed.values])
        writes: list[_Write] = []

        def eager_body():
            for k in refs:
                blocks[k] = jax.new_ref(blocks[k])
            leaves = results.record(fun(*inputs.rebuild(args, blocks)))
            named = [(inputs.dynamic[k].path, arrays[k]) for k in refs]
            named += [(_CLOSED_OVER, ref) for ref, _ in trace.closed_over.values()]
            ref_arguments.refuse_aliases(who, named)
            handed = (
                (arrays[k], blocks[k], inputs.dynamic[k].spec, inputs.dynamic[k].path) for k in refs
            )
            found = ((*pair, PartitionSpec(), _CLOSED_OVER) for pair in trace.closed_over.values())
            for ref, stand_in, spec, path in (*handed, *found):
                if stand_in.written:
                    value = trace.stage_value(stand_in.held)
                    writes.append(_Write(ref, value, spec, f"{path} after the call"))
            return leaves

        return run_body(eager_body, trace, region), writes

    with no_devices_in_scope():
        values, writes = _run_by_rules(mapped, inputs.scanned(mapped.fun), run)
        out_specs = results.checked_specs([v.aval for v in values])
        if mapped.check_vma:
            _check_varying(
                who,
                [*values, *(w.value for w in writes)],
                [*out_specs, *(w.spec for w in writes)],
                [*results.paths, *((w.path, "its spec") for w in writes)],
            )
        outs = [array_of(v, layout, s) for v, s in zip(values, out_specs, strict=True)]
        for w in writes:
            w.ref[...] = jax.device_put(layout.leave(w.value.rows, w.spec), w.ref.sharding)
    return jax.tree.unflatten(results.tree, outs)


_CLOSED_OVER = "a reference that the function closes over"


@dataclass(frozen=True)
class _Write:
    """The last value of a reference that an eager call wrote to."""

    ref: AnyValue
    value: Blocks
    spec: PartitionSpec
    path: str


_DIFFERENTIATING: weakref.WeakSet[Any] = weakref.WeakSet()
"""The code of functions known to take reverse-mode derivatives.

It decides what is tried first, and never what comes of a call: functions of one code may differ in
what they close over.
"""


def _run_by_rules(mapped: MappedFunction, scanned: Function, run: Callable[[Rules], _T]) -> _T:
    """Runs a body without types in its values, unless it asks for them or differentiates.

    Whether it differentiates is known when it takes its first derivative; then it is run again.
    If types refuse a body that only asks, it is run again without. What called Python is not called
    again.

    Args:
      scanned: shows what the body asks for.
    """
    vma = mapped.check_vma
    typed = Rules(mapped.check_hangs, typed=True, watch=False, keeps_weak_types=vma)
    untyped = Rules(mapped.check_hangs, typed=False, watch=vma, keeps_weak_types=vma)
    code = _code(mapped.fun)
    refusal = None
    if mapped.check_vma and (code in _DIFFERENTIATING or asks(scanned)):
        try:
            return run(typed)
        except (TypeError, ValueError, AssertionError) as error:
            refusal = _refusal_by_types(error)
    try:
        return run(untyped)
    except Differentiates:
        _DIFFERENTIATING.add(code)
    except (AttributeError, TypeError, ValueError) as error:
        if refusal is not None or not mapped.check_vma or not may_need_types(error, scanned):
            raise
    if refusal is None:
        try:
            return run(typed)
        except (TypeError, ValueError, AssertionError) as error:
            refusal = _refusal_by_types(error)
    raise BodyError(describe(mapped.fun), [refused_by_types(refusal)]) from refusal


def _refusal_by_types(error: Exception) -> Exception:
    """What JAX's types of varying values refuse in a body; raises what has another reason."""
    refusal = error.__cause__ if isinstance(error, ShmapError) else error
    if isinstance(refusal, AssertionError) and is_raised_inside(refusal):
        return error  # which has more to say than an assertion; see `REFUSALS`
    if not isinstance(refusal, (TypeError, ValueError)):
        raise error
    if "vary" not in str(refusal) and not shows_varying_type(refusal):
        raise error
    return refusal


def _code(fun: Function) -> PyTree:
    """The code object, which functions re-created from the same source share."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    return getattr(fun, "__code__", type(fun))


def _check_varying(
    who: str,
    results: Sequence[Blocks],
    result_specs: Sequence[PartitionSpec],
    paths: Sequence[tuple[str, str]],
) -> None:
    """Raises ReplicationError for results that vary along axes their specs do not mention (R17)."""
    problems = [
        _hidden_variation(value, spec, hidden, *path)
        for value, spec, path in zip(results, result_specs, paths, strict=True)
        if (hidden := value.varying.difference(specs.mentioned(spec)))
        and value.aval.size  # blocks without elements are equal
    ]
    if problems:
        raise ReplicationError(who, problems)


def _hidden_variation(
    value: Blocks, spec: PartitionSpec, hidden: frozenset[str], path: str, spec_path: str
) -> Problem:
    axes = value.layout.in_order(hidden)
    along = show_axes(axes)
    return Problem(
        f"{path} with {spec_path}={specs.show(spec)}",
        f"a result {specs.show_type(value.aval)} that varies along {along}:{value.show_blocks()}",
        f"equal blocks on all devices along {along}, which {spec_path} does not mention",
        f"let {spec_path} mention {along}, to keep each device's own; or make the blocks equal "
        f"with jax.lax.psum, pmean or all_gather over {show_names(axes)}",
    )
